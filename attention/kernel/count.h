// Accounting, for --dry-run and MFU: the work under a mask, counted without running the kernel, and the keys of a KV cache. A
// mechanism may have these members:
//     PairCount expected_pairs(int NH, int T) const   where the mask depends on the data
//     bool expects_at_most() const                    these are an upper bound
//     double further_pairs(int NH, int T) const       pairs that only the forward pass computes, summed over the heads
//     double cached_keys(int T) const                 keys, with values, that a cache needs; otherwise from kept_keys()
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/mechanism.h"

/// Counts for one sequence, summed over the heads.
struct PairCount {
    double pairs = 0, tiles = 0;
};

/// Counts the visible pairs in rows [i0, i1) and columns [j0, j1), cut into squares of `size`. Mixed squares are divided into
/// squares of an eighth, few of which a diagonal crosses.
template <class P>
double pairs_in(const P& policy, int h, int i0, int i1, int j0, int j1, int size) {
    double pairs = 0;
    for (int i = i0; i < i1; i += size)
        for (int j = j0; j < j1; j += size) {
            const int past_i = std::min(i1, i + size), past_j = std::min(j1, j + size);
            if (size == 1) {
                pairs += policy.visible(h, i, j);
                continue;
            }
            const Tile verdict = policy.tile(h, i, past_i, j, past_j);
            if (verdict == Tile::full) pairs += double(past_i - i) * (past_j - j);
            if (verdict == Tile::mixed) pairs += pairs_in(policy, h, i, past_i, j, past_j, size / 8);
        }
    return pairs;
}

struct MixedTile {
    int h, i0, j0;
};

template <class P>
double count_exactly(const P& policy, const std::vector<MixedTile>& mixed, int T) {
    double pairs = 0;   // a sum of integers: the order does not matter
#pragma omp parallel for reduction(+ : pairs) schedule(dynamic, 16)
    for (size_t n = 0; n < mixed.size(); n++) {
        const auto [h, i0, j0] = mixed[n];
        pairs += pairs_in(policy, h, i0, std::min(T, i0 + TILE), j0, std::min(T, j0 + TILE), TILE / 8);
    }
    return pairs;
}

/// Estimates from `samples` rows of mixed tiles. Multiples of the golden ratio, modulo 1, spread them evenly over tiles and rows
/// for every period of the mask.
template <class P>
double estimate(const P& policy, const std::vector<MixedTile>& mixed, int T, int samples) {
    double pairs = 0;
#pragma omp parallel for reduction(+ : pairs)
    for (int n = 0; n < samples; n++) {
        const double place = std::fmod(n * 0.6180339887498949, 1.0) * double(mixed.size());
        const auto [h, i0, j0] = mixed[size_t(place)];
        const int i = i0 + int((place - std::floor(place)) * TILE);
        for (int j = j0; i < T && j < std::min(T, j0 + TILE); j++) pairs += policy.visible(h, i, j);
    }
    return pairs / samples * double(mixed.size()) * TILE;
}

/// Counts the pairs and tiles that tile() and visible() allow. The count is exact unless more than `most` tiles are mixed, as in
/// strided patterns of long sequences. Pairs are then estimated within a few parts in a thousand, and T = 32768 takes a fraction of
/// a second per layer.
template <class P>
PairCount count_pairs(const P& policy, int NH, int T, size_t most = 1 << 14) {
    PairCount count;
    std::vector<MixedTile> mixed;
    for (int h = 0; h < NH; h++)
        for (int i0 = 0; i0 < T; i0 += TILE)
            for (int j0 = 0; j0 < T; j0 += TILE) {
                const int i1 = std::min(T, i0 + TILE), j1 = std::min(T, j0 + TILE);
                const Tile verdict = policy.tile(h, i0, i1, j0, j1);
                count.tiles += verdict != Tile::hidden;
                if (verdict == Tile::full) count.pairs += double(i1 - i0) * (j1 - j0);
                if (verdict == Tile::mixed) mixed.push_back({h, i0, j0});
            }
    count.pairs += mixed.size() <= most ? count_exactly(policy, mixed, T) : estimate(policy, mixed, T, 1 << 17);
    return count;
}

/// The pairs and tiles that a sequence of T visits, summed over the heads.
template <class P>
PairCount expected_pairs(const P& policy, int NH, int T) {
    if constexpr (requires { policy.expected_pairs(NH, T); }) return policy.expected_pairs(NH, T);
    else return count_pairs(policy, NH, T);
}

template <class P>
bool expects_at_most(const P& policy) {
    if constexpr (requires { policy.expects_at_most(); }) return policy.expects_at_most();
    else return false;
}
template <class P>
double further_pairs(const P& policy, int NH, int T) {
    if constexpr (requires { policy.further_pairs(NH, T); }) return policy.further_pairs(NH, T);
    else return 0;
}

inline double kept_of(const KeptKeys& kept, int T) { return double(std::min(int64_t(T), int64_t(kept.leading) + kept.recent)); }
inline double kept_of(const KeptChunks& kept, int T) {
    return double((T - 1) / kept.chunk) * kept.of_chunk + (T - 1) % kept.chunk + 1;
}

/// The number of the first T keys that a KV cache must keep to compute the rows from T - 1 on, averaged over key/value heads.
template <class P>
double cached_keys(const P& policy, int T) {
    if constexpr (requires { policy.cached_keys(T); }) return policy.cached_keys(T);
    else return kept_of(policy.kept_keys(), T);
}
