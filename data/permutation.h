// A random-looking order that needs no memory and no state.
#pragma once
#include <cstdint>

/// 64 bits that look random in every bit and are a bijection of `x` (the finaliser of SplitMix64).
uint64_t mix(uint64_t x);

/// Where element `i` of 0 .. n - 1 goes in the permutation that `key` selects: different i give different results, all of
/// them below n. Requires i < n. Costs about a dozen multiplications, whatever n is.
uint64_t permute(uint64_t i, uint64_t n, uint64_t key);
