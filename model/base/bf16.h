// bf16 as the CPU keeps it: the upper half of a float. It is stored, never computed with. (A GPU has a type of its own, bf16.)
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

struct StoredBf16 {
    uint16_t bits;

    StoredBf16() = default;

    /// The nearest, the even one of two. Finite numbers above the greatest become infinite; NaN stays NaN.
    explicit constexpr StoredBf16(float x) : bits(0) {
        const uint32_t whole = std::bit_cast<uint32_t>(x);
        bits = x == x ? uint16_t((whole + 0x7fff + (whole >> 16 & 1)) >> 16) : uint16_t(whole >> 16 | 0x40);
    }
    explicit constexpr StoredBf16(double x) : StoredBf16(float(x)) {}

    explicit constexpr operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
    explicit constexpr operator double() const { return float(*this); }
};

/// How numbers that are read often and seldom written are kept in memory: as those that are computed with, or rounded to bf16.
enum class Stored : bool { as_computed, as_bf16 };
