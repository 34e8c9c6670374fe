// Pairs of half-precision numbers in one register: PTX's instructions on .f16x2, which have no operators in CUDA C++ without a
// header of their own. Results are rounded to the nearest from float32, where products of halves are exact.
#pragma once
#include <bit>
#include <cstdint>
#ifdef __F16C__
#include <immintrin.h>
#endif

#include "vectors.h"

namespace emulator {

/// Both numbers as floats, exactly; the low one first.
inline float2 floats_of_f16x2(uint32_t pair) {
#ifdef __F16C__
    return {_cvtsh_ss(uint16_t(pair)), _cvtsh_ss(uint16_t(pair >> 16))};
#else
    return {float(std::bit_cast<_Float16>(uint16_t(pair))), float(std::bit_cast<_Float16>(uint16_t(pair >> 16)))};
#endif
}

/// cvt.rn.f16x2.f32: too large a number becomes infinite.
inline uint32_t f16x2_of_floats(float low, float high) {
#ifdef __F16C__
    return uint32_t(_cvtss_sh(low, _MM_FROUND_TO_NEAREST_INT)) | uint32_t(_cvtss_sh(high, _MM_FROUND_TO_NEAREST_INT)) << 16;
#else
    return uint32_t(std::bit_cast<uint16_t>(_Float16(low))) | uint32_t(std::bit_cast<uint16_t>(_Float16(high))) << 16;
#endif
}

/// a b + c in each half.
inline uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
    const float2 x = floats_of_f16x2(a), y = floats_of_f16x2(b), z = floats_of_f16x2(c);
    return f16x2_of_floats(x.x * y.x + z.x, x.y * y.y + z.y);
}

}   // namespace emulator
