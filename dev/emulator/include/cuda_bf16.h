// bfloat16: storage and conversions, with CUDA's names and bits. There is no arithmetic: kernels compute in float.
#pragma once
#include <bit>
#include <cstdint>

#include "../vectors.h"

struct __nv_bfloat16 {
    unsigned short bits;   // the upper half of a float

    __nv_bfloat16() = default;
    explicit constexpr __nv_bfloat16(float x);
    explicit constexpr operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
    explicit constexpr operator double() const { return double(float(*this)); }
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

constexpr __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return std::bit_cast<__nv_bfloat16>(bits); }
constexpr unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
constexpr float __bfloat162float(__nv_bfloat16 x) { return float(x); }

/// To the nearest, halfway cases to the even one. Every NaN becomes 0x7fff.
constexpr __nv_bfloat16 __float2bfloat16_rn(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return __ushort_as_bfloat16(0x7fff);
    return __ushort_as_bfloat16(static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16));
}
constexpr __nv_bfloat16 __float2bfloat16(float x) { return __float2bfloat16_rn(x); }
constexpr __nv_bfloat16::__nv_bfloat16(float x) : bits(__float2bfloat16_rn(x).bits) {}

constexpr __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
    return {__float2bfloat16_rn(low), __float2bfloat16_rn(high)};
}
constexpr float2 __bfloat1622float2(__nv_bfloat162 pair) { return {float(pair.x), float(pair.y)}; }
