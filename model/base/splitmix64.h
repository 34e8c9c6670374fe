// Random bits of splitmix64 (Steele et al. 2014), each computed from its index alone: equal on every device and for any number of threads.
#pragma once
#include <cstdint>

namespace splitmix64 {
inline constexpr uint64_t INCREMENT = 0x9e3779b97f4a7c15u;

/// The finaliser: every input bit affects every output bit.
constexpr uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/// Element `n` of the sequence seeded with `key`.
constexpr uint64_t element(uint64_t key, uint64_t n) { return mix(key + (n + 1) * INCREMENT); }

/// 53 of the bits as a double in [0, 1).
constexpr double uniform(uint64_t bits) { return double(bits >> 11) * 0x1p-53; }
}   // namespace splitmix64
