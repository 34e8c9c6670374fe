#include "data/permutation.h"

#include <utility>

uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

namespace {

constexpr int rounds = 6;

// A Feistel network on 2 * half_bits bits. Each round maps (left, right) to (right, left ^ f(right)), which is invertible for any
// f, so the network is a bijection.
uint64_t feistel(uint64_t i, int half_bits, uint64_t key) {
    const uint64_t half = (uint64_t{1} << half_bits) - 1;
    uint64_t left = i >> half_bits, right = i & half;
    for (int round = 0; round < rounds; ++round) {
        key = mix(key);
        left = std::exchange(right, left ^ (mix(right ^ key) & half));
    }
    return left << half_bits | right;
}

}  // namespace

uint64_t permute(uint64_t i, uint64_t n, uint64_t key) {
    int half_bits = 1;
    while (half_bits < 32 && n > uint64_t{1} << 2 * half_bits) ++half_bits;
    // Cycle walking: the network permutes up to 4n values; iterating it until the result is below n permutes those below n among
    // themselves, in fewer than four steps on average.
    do i = feistel(i, half_bits, key);
    while (i >= n);
    return i;
}
