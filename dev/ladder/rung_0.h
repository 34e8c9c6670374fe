// Rung 0: the CPU, in tiles. Causal attention of one head without a T x T matrix, in plain loops: the step from the definition to
// attention/kernel/cpu.h, which does the same for any policy, its products through CBLAS and the rest in SIMD vectors.
// The softmax of a row needs its greatest score before the first exponential, and the tiles of keys come one after the other. So a
// row keeps the greatest score so far and sums relative to it; when a greater one comes, what was summed before shrinks by one
// factor (online softmax, Milakov and Gimelshein 2018). A tile of queries reads each tile of keys once, while it is in the cache.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

namespace rung_0 {

inline constexpr int TILE = 64;

/// A tile of query rows on its way through the keys.
struct QueryTile {
    std::vector<double> largest, sum;   // (TILE) score so far, sum of exp(score - largest)
    std::vector<double> out;            // (TILE, HS) sum of exp(score - largest) v
};

/// Takes the keys [j0, j1) into the rows [i0, i1). q, k, v (T, HS) of one head.
inline void visit_tile(QueryTile& tile, const double* q, const double* k, const double* v, int HS, int i0, int i1, int j0, int j1) {
    std::vector<double> z(TILE);   // scores of a row with the keys of the tile
    for (int i = i0; i < i1; i++) {
        const int r = i - i0, end = std::min(j1, i + 1);   // causal: keys up to the row's own
        if (end <= j0) continue;                           // nothing of this tile is visible to the row
        double largest = tile.largest[r];
        for (int j = j0; j < end; j++) {
            double product = 0;
            for (int d = 0; d < HS; d++) product += q[i * HS + d] * k[j * HS + d];
            z[j - j0] = product / std::sqrt(double(HS));
            largest = std::max(largest, z[j - j0]);
        }
        const double shrink = std::exp(tile.largest[r] - largest);   // exp(-infinity) = 0 in the row's first tile
        tile.largest[r] = largest;
        tile.sum[r] *= shrink;
        for (int d = 0; d < HS; d++) tile.out[r * HS + d] *= shrink;
        for (int j = j0; j < end; j++) {
            const double weight = std::exp(z[j - j0] - largest);
            tile.sum[r] += weight;
            for (int d = 0; d < HS; d++) tile.out[r * HS + d] += weight * v[j * HS + d];
        }
    }
}

/// out (T, HS) and lse (T), the log-sum-exp that a backward pass reads, from q, k, v (T, HS).
inline void attention(double* out, double* lse, const double* q, const double* k, const double* v, int T, int HS) {
    for (int i0 = 0; i0 < T; i0 += TILE) {
        const int i1 = std::min(T, i0 + TILE);
        QueryTile tile{std::vector<double>(TILE, -INFINITY), std::vector<double>(TILE), std::vector<double>(size_t(TILE) * HS)};
        for (int j0 = 0; j0 < i1; j0 += TILE)   // tiles behind the diagonal are hidden
            visit_tile(tile, q, k, v, HS, i0, i1, j0, std::min(T, j0 + TILE));
        for (int i = i0; i < i1; i++) {
            const int r = i - i0;
            for (int d = 0; d < HS; d++) out[i * HS + d] = tile.out[r * HS + d] / tile.sum[r];
            lse[i] = tile.largest[r] + std::log(tile.sum[r]);
        }
    }
}

}   // namespace rung_0
