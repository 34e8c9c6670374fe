// Branches (rows.cuh) in which a token may have several rows, as in overlapping clusters: the outputs of its rows are averaged with
// equal weights, and a token without rows gets 0. With m rows of token t
//     out_t = 1/m sum_r out_r     dout_r = dout_t / m
// Unlike in merge.cuh every row keeps its own softmax, and its backward pass needs its own output and log-sum-exp. A token's rows
// are a linked list: a branch of R rows needs 2 R + T integers per head, however often a token occurs.
#pragma once
#include "attention/branches/merge.cuh"

struct RepeatedRows {
    int count;   // R
    int T, NH;
    int *tokens, *following;   // (B, NH, R) the token of each row; the next row of the same token; -1: none
    int* first;                // (B, NH, T) the first row of each token, or -1
    constexpr size_t at(int b, int h, int row) const { return (size_t(b) * NH + h) * count + row; }
    constexpr int token(int b, int h, int row) const { return tokens[at(b, h, row)]; }
    constexpr int next(int b, int h, int row) const { return following[at(b, h, row)]; }
    constexpr int row(int b, int h, int token) const { return first[(size_t(b) * NH + h) * T + token]; }

    /// The weight of each of the token's rows, 1/m; 0 where it has none.
    template <class W>
    constexpr W share(int b, int h, int token) const {
        int m = 0;
        for (int r = row(b, h, token); r >= 0; r = next(b, h, r)) m++;
        return m > 0 ? W(1) / W(m) : W(0);
    }
};

/// Builds the lists of `rows` from its tokens, later rows first. Precondition: rows 0 .. distinct - 1 have different tokens or
/// none, and so do the next `distinct` rows, and so on.
inline void link_rows(CPU, const RepeatedRows& rows, int B, int /*distinct*/) {
#pragma omp parallel for collapse(2)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < rows.NH; h++) {
            int* first = rows.first + (size_t(b) * rows.NH + h) * rows.T;
            std::fill_n(first, rows.T, -1);
            for (int r = 0; r < rows.count; r++) {
                const int t = rows.token(b, h, r);
                rows.following[rows.at(b, h, r)] = t < 0 ? -1 : first[t];
                if (t >= 0) first[t] = r;
            }
        }
}

/// Log-sum-exp and statistics of token t: averages of its rows' log-sum-exps (-infinity without rows) and entropies, and sums of the
/// kernel's counts.
template <class X>
constexpr void average_statistics(Wide<X>* lse, const Statistics<X>& to, const Branch<X, RepeatedRows>& from, const RowShape& s,
                                  int b, int h, int t) {
    const size_t bh = size_t(b) * s.NH + h, home = bh * s.T + t;
    const Wide<X> share = from.rows.template share<Wide<X>>(b, h, t);
    Wide<X> sum = 0, entropy = 0, pairs = 0;
    for (int r = from.rows.row(b, h, t); r >= 0; r = from.rows.next(b, h, r)) {
        const size_t mine = from.rows.at(b, h, r);
        sum += from.lse[mine];
        if (to.entropy) entropy += from.statistics.entropy[mine];
        if (to.pairs) pairs += from.statistics.pairs[mine];
    }
    lse[home] = share > 0 ? share * sum : Wide<X>(-INFINITY);
    if (to.entropy) to.entropy[home] = share * entropy;
    if (to.pairs) to.pairs[home] = pairs;
    if (to.tiles && t % TILE == 0)
        to.tiles[bh * tiles_of(s.T) + t / TILE] = attributed_tiles(from.statistics.tiles, bh, from.rows.count, s.T, t / TILE);
}

/// Writes out (B, T, NH, HS), lse (B, NH, T) and the requested statistics.
template <class X>
void average_rows(CPU, X* out, Wide<X>* lse, const Branch<X, RepeatedRows>& from, const RowShape& s,
                  const Statistics<X>& statistics) {
#pragma omp parallel for collapse(2)
    for (int b = 0; b < s.B; b++)
        for (int t = 0; t < s.T; t++)
            for (int h = 0; h < s.NH; h++) {
                const X share = from.rows.template share<X>(b, h, t);
                X* const to = out + ((size_t(b) * s.T + t) * s.NH + h) * s.HS;
                std::fill_n(to, s.HS, X(0));
                for (int r = from.rows.row(b, h, t); r >= 0; r = from.rows.next(b, h, r)) {
                    const X* const row = row_at(from.out, from.rows, s, b, r, h);
                    for (int d = 0; d < s.HS; d++) to[d] += share * row[d];
                }
                average_statistics(lse, statistics, from, s, b, h, t);
            }
}

/// dout_r (B, R, NH, HS) of every row from dout (B, T, NH, HS); 0 in padding.
template <class X>
void share_gradient(CPU, X* dout_r, const X* dout, const RepeatedRows& rows, const RowShape& s) {
#pragma omp parallel for collapse(2)
    for (int b = 0; b < s.B; b++)
        for (int r = 0; r < rows.count; r++)
            for (int h = 0; h < s.NH; h++) {
                X* const to = dout_r + ((size_t(b) * rows.count + r) * s.NH + h) * s.HS;
                const X* const from = gathered_row(Heads<const X>{dout, size_t(s.NH) * s.HS}, rows, s, b, r, h);
                const X share = from ? rows.share<X>(b, h, rows.token(b, h, r)) : X(0);
                for (int d = 0; d < s.HS; d++) to[d] = from ? share * from[d] : X(0);
            }
}

#ifdef WITH_GPU

/// One block per head and sequence. Rows that are linked at the same time have different tokens, so threads do not conflict.
template <class Rows>
__global__ void link_rows_kernel(const Rows rows, int distinct) {
    const int h = blockIdx.x, b = blockIdx.y;
    int* first = rows.first + (size_t(b) * rows.NH + h) * rows.T;
    for (int t = threadIdx.x; t < rows.T; t += blockDim.x) first[t] = -1;
    for (int begin = 0; begin < rows.count; begin += distinct) {
        __syncthreads();   // all earlier rows are linked
        for (int r = begin + int(threadIdx.x); r < min(begin + distinct, rows.count); r += blockDim.x) {
            const int t = rows.token(b, h, r);
            rows.following[rows.at(b, h, r)] = t < 0 ? -1 : first[t];
            if (t >= 0) first[t] = r;
        }
    }
}

/// One block per token; 16 bytes per thread and iteration.
template <class X>
__global__ void average_rows_kernel(X* out, float* lse, const Branch<X, RepeatedRows> from, const RowShape s,
                                    const Statistics<X> statistics) {
    constexpr int PIECE = Packed<X>::size;
    const int b = blockIdx.y, t = blockIdx.x;
    for (int n = threadIdx.x; n < s.NH * s.HS / PIECE; n += blockDim.x) {
        const int h = n * PIECE / s.HS, d = n * PIECE % s.HS;
        const float share = from.rows.template share<float>(b, h, t);
        float sums[PIECE] = {};
        for (int r = from.rows.row(b, h, t); r >= 0; r = from.rows.next(b, h, r)) {
            const Packed<X> piece = load_packed(row_at(from.out, from.rows, s, b, r, h) + d);
            for (int k = 0; k < PIECE; k++) sums[k] += share * piece[k];
        }
        write_numbers(out + ((size_t(b) * s.T + t) * s.NH + h) * s.HS + d, sums);
        if (d == 0) average_statistics(lse, statistics, from, s, b, h, t);
    }
}

/// One block per row; 16 bytes per thread and iteration.
template <class X>
__global__ void share_gradient_kernel(X* dout_r, const X* dout, const RepeatedRows rows, const RowShape s) {
    constexpr int PIECE = Packed<X>::size;
    const int b = blockIdx.y, r = blockIdx.x;
    for (int n = threadIdx.x; n < s.NH * s.HS / PIECE; n += blockDim.x) {
        const int h = n * PIECE / s.HS, d = n * PIECE % s.HS;
        const X* from = gathered_row(Heads<const X>{dout, size_t(s.NH) * s.HS}, rows, s, b, r, h);
        float numbers[PIECE] = {};
        if (from) {
            const float share = rows.share<float>(b, h, rows.token(b, h, r));
            const Packed<X> piece = load_packed(from + d);
            for (int k = 0; k < PIECE; k++) numbers[k] = share * piece[k];
        }
        write_numbers(dout_r + ((size_t(b) * rows.count + r) * s.NH + h) * s.HS + d, numbers);
    }
}

inline void link_rows(GPU device, const RepeatedRows& rows, int B, int distinct) {
    launch(device, link_rows_kernel<RepeatedRows>, Grid(rows.NH, B), 256, 0, rows, distinct);
}
/// Precondition of both: HS a multiple of 8.
template <class X>
void average_rows(GPU device, X* out, float* lse, const Branch<X, RepeatedRows>& from, const RowShape& s,
                  const Statistics<X>& statistics) {
    launch(device, average_rows_kernel<X>, Grid(s.T, s.B), 128, 0, out, lse, from, s, statistics);
}
template <class X>
void share_gradient(GPU device, X* dout_r, const X* dout, const RepeatedRows& rows, const RowShape& s) {
    launch(device, share_gradient_kernel<X>, Grid(rows.count, s.B), 128, 0, dout_r, dout, rows, s);
}

#endif
