// Pairs of half-precision numbers in one register: PTX's instructions on .f16x2, for which CUDA C++ has operators only in a header of
// its own. Results are rounded to the nearest from float32, where products of halves are exact.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "vectors.h"

namespace emulator {

/// Both numbers as floats, exactly; the low one first.
inline float2 floats_of_f16x2(uint32_t pair) {
    return {float(std::bit_cast<_Float16>(uint16_t(pair))), float(std::bit_cast<_Float16>(uint16_t(pair >> 16)))};
}

/// cvt.rn.f16x2.f32: too large a number becomes infinite.
inline uint32_t f16x2_of_floats(float low, float high) {
    return uint32_t(std::bit_cast<uint16_t>(_Float16(low))) | uint32_t(std::bit_cast<uint16_t>(_Float16(high))) << 16;
}

/// tanh of a half as an H200 computes it: x itself below 2^-8, 1 from 8 on, and rounded towards zero in between. All numbers were
/// compared; 48 are one unit in the last place off.
inline uint16_t tanh_f16(uint16_t bits) {
    const double x = floats_of_f16x2(bits & 0x7fff).x, exact = x < 0x1.02p-8 ? x : x >= 8 ? 1 : std::tanh(x);
    uint32_t result = f16x2_of_floats(float(exact), 0);
    if (floats_of_f16x2(result).x > exact) result--;
    return uint16_t(result | (bits & 0x8000));
}
inline uint32_t tanh_f16x2(uint32_t a) {
    static const std::vector<uint16_t> of_all = [] {
        std::vector<uint16_t> all(65536);
        for (size_t n = 0; n < all.size(); n++) all[n] = tanh_f16(uint16_t(n));
        return all;
    }();
    return of_all[a & 0xffff] | uint32_t(of_all[a >> 16]) << 16;
}

/// a b + c in each half.
inline uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
    const float2 x = floats_of_f16x2(a), y = floats_of_f16x2(b), z = floats_of_f16x2(c);
    return f16x2_of_floats(x.x * y.x + z.x, x.y * y.y + z.y);
}

}   // namespace emulator
