// A pseudo-random permutation without memory or state.
#pragma once
#include <cstdint>

/// A bijection of 64 bits whose output looks random in every bit (one step of SplitMix64).
uint64_t mix(uint64_t x);

/// Precondition: i < n. The image of i in the permutation of 0 .. n - 1 selected by `key`. A dozen multiplications for any n.
uint64_t permute(uint64_t i, uint64_t n, uint64_t key);
