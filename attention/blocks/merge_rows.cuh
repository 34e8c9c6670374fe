// Merges the rows of a pass into a softmax over other keys by log-sum-exps (algebra in merge.cuh). With the present result (out_0,
// lse_0) and a token's rows r:
//     lse = log(exp(lse_0) + sum_r exp(lse_r))     out = exp(lse_0 - lse) out_0 + sum_r exp(lse_r - lse) out_r
#pragma once
#include "attention/branches/merge.cuh"

/// Results over the rows of a pass (rows.cuh, with several rows per token), and the text's results, into which they are merged.
template <class X, class Rows>
struct RowMerge {
    using W = Wide<X>;
    RowShape s;         // heads = NH
    Branch<X, Rows> rows;
    X* out;             // (B, T, NH, HS)
    W* lse;             // (B, NH, T)
    Statistics<X> to;   // entropy, pairs, tiles and gates on pairs, or null

    constexpr size_t text(int b, int h, int t) const { return (size_t(b) * s.NH + h) * s.T + t; }
    constexpr size_t row(int b, int h, int r) const { return (size_t(b) * s.NH + h) * rows.rows.count + r; }
    template <class Use>
    constexpr void each_row(int b, int h, int t, Use use) const {
        for (int r = rows.rows.row(b, h, t); r >= 0; r = next_row(rows.rows, b, h, r)) use(r, rows.lse[row(b, h, r)]);
    }

    constexpr W merged_lse(int b, int h, int t) const {
        W largest = lse[text(b, h, t)], sum = 0;
        each_row(b, h, t, [&](int, W of_row) { largest = std::max(largest, of_row); });
        if (largest == W(-INFINITY)) return largest;
        sum = merge_weight(lse[text(b, h, t)], largest);
        each_row(b, h, t, [&](int, W of_row) { sum += merge_weight(of_row, largest); });
        return largest + std::log(sum);
    }

    /// Writes log-sum-exp and statistics, after out has been merged. The entropy is that of choosing a part and then one of its keys.
    constexpr void finish(int b, int h, int t, W total) const {
        const size_t at = text(b, h, t);
        auto part = [&](W entropy, W own) {
            return own == W(-INFINITY) ? W(0) : merge_weight(own, total) * (entropy + total - own);
        };
        if (to.entropy) to.entropy[at] = part(to.entropy[at], lse[at]);
        each_row(b, h, t, [&](int r, W of_row) {
            if (to.entropy) to.entropy[at] += part(rows.statistics.entropy[row(b, h, r)], of_row);
            if (to.pairs) to.pairs[at] += rows.statistics.pairs[row(b, h, r)];
            if (rows.statistics.pair_gate) to.pair_gate[at] += rows.statistics.pair_gate[row(b, h, r)];
        });
        const size_t bh = size_t(b) * s.NH + h;
        if (to.tiles && t % TILE == 0)
            to.tiles[bh * tiles_of(s.T) + t / TILE] += attributed_tiles(rows.statistics.tiles, bh, rows.rows.count, s.T, t / TILE);
        lse[at] = total;
    }
};

/// For tests: the CPU's kernel resumes from the present result (cpu.h).
template <class X, class Rows>
void merge_rows(CPU, const RowMerge<X, Rows>& m) {
#pragma omp parallel for collapse(2)
    for (int b = 0; b < m.s.B; b++)
        for (int t = 0; t < m.s.T; t++)
            for (int h = 0; h < m.s.NH; h++) {
                const X total = m.merged_lse(b, h, t), kept = merge_weight(m.lse[m.text(b, h, t)], total);
                X* const to = m.out + ((size_t(b) * m.s.T + t) * m.s.NH + h) * m.s.HS;
                for (int d = 0; d < m.s.HS; d++) to[d] *= kept;
                m.each_row(b, h, t, [&](int r, X lse) {
                    const X weight = merge_weight(lse, total), *from = row_at(m.rows.out, m.rows.rows, m.s, b, r, h);
                    for (int d = 0; d < m.s.HS; d++) to[d] += weight * from[d];
                });
                m.finish(b, h, t, total);
            }
}

#ifdef WITH_GPU

/// One block per token, one warp per head at a time: all lanes read the log-sum-exps before the first writes the merged one.
template <class X, class Rows>
__global__ void merge_rows_kernel(const __grid_constant__ RowMerge<X, Rows> m) {
    const int t = blockIdx.x, b = blockIdx.y, lane = int(threadIdx.x) % WARP;
    for (int h = int(threadIdx.x) / WARP; h < m.s.NH; h += int(blockDim.x) / WARP) {
        const float total = m.merged_lse(b, h, t), kept = merge_weight(m.lse[m.text(b, h, t)], total);
        X* const to = m.out + ((size_t(b) * m.s.T + t) * m.s.NH + h) * m.s.HS;
        for (int d = lane; d < m.s.HS; d += WARP) {
            float sum = kept * to_float(to[d]);
            for (int r = m.rows.rows.row(b, h, t); r >= 0; r = next_row(m.rows.rows, b, h, r))
                sum += merge_weight(m.rows.lse[m.row(b, h, r)], total) * to_float(row_at(m.rows.out, m.rows.rows, m.s, b, r, h)[d]);
            to[d] = from_float<X>(sum);
        }
        __syncwarp();
        if (lane == 0) m.finish(b, h, t, total);
    }
}

template <class X, class Rows>
void merge_rows(GPU device, const RowMerge<X, Rows>& m) {
    launch(device, merge_rows_kernel<X, Rows>, Grid(m.s.T, m.s.B), 4 * WARP, 0, m);
}

#endif
