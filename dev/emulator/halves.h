// Pairs of half-precision numbers in one register: PTX's conversions of .f16x2.
#pragma once
#include <bit>
#include <cstdint>

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

}   // namespace emulator
