// A pseudo-random permutation without memory or state.
#pragma once
#include <cstdint>
#include <utility>

#include "model/base/splitmix64.h"

/// A bijection of 64 bits whose output looks random in every bit.
constexpr uint64_t mix(uint64_t x) { return splitmix64::element(x, 0); }

/// A Feistel network on 2 * half_bits bits. Each round maps (left, right) to (right, left ^ f(right)), which is invertible for any
/// f, so the network is a bijection.
constexpr uint64_t feistel(uint64_t i, int half_bits, uint64_t key) {
    constexpr int rounds = 6;
    const uint64_t half = (uint64_t{1} << half_bits) - 1;
    uint64_t left = i >> half_bits, right = i & half;
    for (int round = 0; round < rounds; ++round) {
        key = mix(key);
        left = std::exchange(right, left ^ (mix(right ^ key) & half));
    }
    return left << half_bits | right;
}

/// Precondition: i < n. The image of i in the permutation of 0 .. n - 1 selected by `key`. A dozen multiplications for any n.
constexpr uint64_t permute(uint64_t i, uint64_t n, uint64_t key) {
    int half_bits = 1;
    while (half_bits < 32 && n > uint64_t{1} << 2 * half_bits) ++half_bits;
    // Cycle walking: the network permutes up to 4n values; iterating it until the result is below n permutes those below n among
    // themselves, in fewer than four steps on average.
    do i = feistel(i, half_bits, key);
    while (i >= n);
    return i;
}
