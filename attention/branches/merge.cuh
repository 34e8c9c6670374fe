// Merging branches of attention into one softmax by their log-sum-exps. A branch has computed a softmax over its own keys, and
// exp(lse_n) is the weight of these keys in a softmax over the keys of all branches. For every row
//     lse = log sum_n exp(lse_n)     w_n = exp(lse_n - lse)     out = sum_n w_n out_n
// A branch that does not have the row, or sees nothing in it (lse_n = -infinity), has weight 0; where no branch sees anything, out
// is 0 and lse -infinity. Backward, since dw_n / dlse_m = w_n ([n = m] - w_m):
//     dout_n = w_n dout     dlse_n = w_n <dout, out_n - out>
// In the kernel of branch n, with P_n its softmax and P = w_n P_n = exp(z - lse), this becomes
//     dz = P_n (<dout_n, v> - <dout_n, out_n> + dlse_n) = P (<dout, v> - <dout, out>)
// which is the backward pass of the one softmax on the branch's pairs. A kernel called with the merged out and lse, and with
// dout unchanged, therefore needs nothing else from the branches' forward passes, and merging has no backward pass
// (branches.cuh). The GPU merges branches this way. On the CPU the kernel resumes from the previous call.
#pragma once
#include "attention/branches/results.cuh"

inline constexpr int MOST_BRANCHES = 8;

template <class X, class Rows>
struct Branches {
    using W = Wide<X>;
    int count = 0;
    Branch<X, Rows> branch[MOST_BRANCHES] = {};

    void add(const Branch<X, Rows>& one) { branch[count++] = one; }

    /// Returns the merged log-sum-exp of a row; weight[n] becomes the weight of branch n.
    constexpr W weigh(W* weight, int NH, int b, int h, int t) const {
        W largest = -INFINITY, sum = 0;
        for (int n = 0; n < count; n++) weight[n] = branch[n].lse_of(NH, b, h, t), largest = std::max(largest, weight[n]);
        for (int n = 0; n < count; n++) weight[n] = merge_weight(weight[n], largest), sum += weight[n];
        if (sum == 0) return largest;
        for (int n = 0; n < count; n++) weight[n] /= sum;
        return largest + std::log(sum);
    }
};

/// Writes the statistics of token t, whose merged log-sum-exp is `lse`: the sums of the kernels' counts, and the entropy of choosing
/// a branch and then one of its keys,
///     sum_n w_n (entropy_n - log w_n),
/// which is that of the merged softmax when no two branches share a key. tile_max is not merged: branches have different tiles.
template <class X, class Rows>
constexpr void merge_statistics(const Statistics<X>& to, Wide<X> lse, const Branches<X, Rows>& all, const RowShape& s, int b,
                                int h, int t) {
    const size_t bh = size_t(b) * s.NH + h;
    Wide<X> entropy = 0, pairs = 0, tiles = 0;
    for (int n = 0; n < all.count; n++) {
        const Branch<X, Rows>& one = all.branch[n];
        const Wide<X> own = one.lse_of(s.NH, b, h, t);
        const size_t from = bh * one.rows.count + size_t(std::max(0, one.rows.row(b, h, t)));
        if (to.entropy && own > Wide<X>(-INFINITY)) entropy += merge_weight(own, lse) * (one.statistics.entropy[from] + lse - own);
        if (to.pairs && one.rows.row(b, h, t) >= 0) pairs += one.statistics.pairs[from];
        if (to.tiles && t % TILE == 0) tiles += attributed_tiles(one.statistics.tiles, bh, one.rows.count, s.T, t / TILE);
    }
    if (to.entropy) to.entropy[bh * s.T + t] = entropy;
    if (to.pairs) to.pairs[bh * s.T + t] = pairs;
    if (to.tiles && t % TILE == 0) to.tiles[bh * tiles_of(s.T) + t / TILE] = tiles;
}

#ifdef WITH_GPU

/// One block per token; 16 bytes per thread and iteration.
template <class X, class Rows>
__global__ void merge_forward_kernel(X* out, float* lse, const __grid_constant__ Branches<X, Rows> all, const RowShape s,
                                     const Statistics<X> statistics) {
    constexpr int PIECE = Packed<X>::size;
    const int b = blockIdx.y, t = blockIdx.x;
    for (int i = threadIdx.x; i < s.NH * s.HS / PIECE; i += blockDim.x) {
        const int h = i * PIECE / s.HS, d = i * PIECE % s.HS;
        float sums[PIECE] = {}, weight[MOST_BRANCHES];
        const float total = all.weigh(weight, s.NH, b, h, t);
        for (int n = 0; n < all.count; n++) {
            if (!(weight[n] > 0)) continue;
            const Packed<X> from = load_packed(row_of_token(all.branch[n].out, all.branch[n].rows, s, b, t, h) + d);
            for (int k = 0; k < PIECE; k++) sums[k] += weight[n] * from[k];
        }
        write_numbers(out + ((size_t(b) * s.T + t) * s.NH + h) * s.HS + d, sums);
        if (d > 0) continue;
        lse[(size_t(b) * s.NH + h) * s.T + t] = total;
        if (statistics) merge_statistics(statistics, total, all, s, b, h, t);
    }
}

/// Writes out (B, T, NH, HS), lse (B, NH, T) and the requested statistics. The first branch's out may be the memory of the merged one if
/// its rows are the text's; nothing else may be shared.
/// Precondition: HS a multiple of 8.
template <class X, class Rows>
void merge_forward(GPU device, X* out, float* lse, const Branches<X, Rows>& all, const RowShape& s,
                   const Statistics<X>& statistics) {
    launch(device, merge_forward_kernel<X, Rows>, Grid(s.T, s.B), 128, 0, out, lse, all, s, statistics);
}

#endif
