// Rows of a branch: a branch may attend among selected tokens only, or take tokens in another order, so that keys that belong
// together share tiles. The CPU's kernel reads each row in place (cpu.h). For the GPU's kernel, and for routing, q, k and v are
// gathered into the order of the branch, one copy per query head, and gradients are scatter-added. Every element is written by one
// thread, which adds in the order of heads.
// A `Rows` maps rows of a branch to tokens, per sequence b and query head h:
//     int count, T;                  rows of the branch, R, and tokens of the text
//     static constexpr bool per_head whether every query head has its own rows
//     int token(b, h, row) const     -1: padding, an empty row
//     int row(b, h, token) const     -1: the token is not in the branch
//     int next(b, h, row) const      another row of the row's token, or -1; if tokens may have several rows (repeated_rows.cuh)
//     W share<W>(b, h, token) const  the factor of a token's rows in scatter_add_rows(); if it is not 1
#pragma once
#include <algorithm>

#include "attention/kernel/call.h"

/// Row r is token r.
struct RowsInOrder {
    static constexpr bool per_head = false;
    int count = 0, T = count;
    constexpr int token(int /*b*/, int /*h*/, int row) const { return row; }
    constexpr int row(int /*b*/, int /*h*/, int token) const { return token; }
};

/// Rows from memory: tokens (B, NH, R) and the inverse, rows (B, NH, T).
struct ListedRows {
    static constexpr bool per_head = true;
    int count;         // R
    int T, NH;
    const int* tokens;
    const int* rows;
    constexpr int token(int b, int h, int row) const { return tokens[(size_t(b) * NH + h) * count + row]; }
    constexpr int row(int b, int h, int token) const { return rows[(size_t(b) * NH + h) * T + token]; }
};

/// Sequences, tokens, query heads, and heads of the array outside the branch (NH or NKV).
struct RowShape {
    int B, T, NH, heads, HS;
    constexpr int group() const { return NH / heads; }
};

/// A branch's row of one query head in the array outside the branch; null for padding.
template <class X, class Rows>
constexpr const X* gathered_row(const Heads<const X>& from, const Rows& rows, const RowShape& s, int b, int r, int h) {
    const int token = rows.token(b, h, r);
    return token < 0 ? nullptr : from.data + (size_t(b) * s.T + token) * from.row + size_t(h / s.group()) * s.HS;
}

/// Row r of one query head inside the branch; null for r = -1.
template <class X, class Rows>
constexpr const X* row_at(const X* from, const Rows& rows, const RowShape& s, int b, int r, int h) {
    return r < 0 ? nullptr : from + ((size_t(b) * rows.count + r) * s.NH + h) * s.HS;
}

/// One token of one query head inside the branch; null if it is not in the branch.
template <class X, class Rows>
constexpr const X* row_of_token(const X* from, const Rows& rows, const RowShape& s, int b, int t, int h) {
    return row_at(from, rows, s, b, rows.row(b, h, t), h);
}

/// Whether a token may have several rows.
template <class Rows>
inline constexpr bool repeats_tokens = requires(const Rows& rows) { rows.next(0, 0, 0); };

template <class Rows>
constexpr int next_row(const Rows& rows, int b, int h, int row) {
    if constexpr (repeats_tokens<Rows>) return rows.next(b, h, row);
    else return -1;
}

/// The factor of a token's rows in a sum over them.
template <class W, class Rows>
constexpr W share_of_rows(const Rows& rows, int b, int h, int token) {
    if constexpr (requires { rows.template share<W>(b, h, token); }) return rows.template share<W>(b, h, token);
    else return 1;
}

/// Gathers `from` (B, T, heads, HS) into `to` (B, R, NH, HS), in the order of the branch.
template <class X, class Rows>
void gather_rows(CPU, X* to, Heads<const X> from, const Rows& rows, const RowShape& s) {
#pragma omp parallel for collapse(2)
    for (int b = 0; b < s.B; b++)
        for (int r = 0; r < rows.count; r++)
            for (int h = 0; h < s.NH; h++) {
                X* row = to + ((size_t(b) * rows.count + r) * s.NH + h) * s.HS;
                const X* source = gathered_row(from, rows, s, b, r, h);
                if (source) std::copy_n(source, s.HS, row);
                else std::fill_n(row, s.HS, X(0));
            }
}

/// Writes `from` (B, R, NH, HS) to `to` (B, T, heads, HS) in text order, or adds it: the sum over a token's rows, times share_of_rows(),
/// and over each group of query heads. The sum of a token outside the branch is zero.
template <class Y, class X, class Rows>
void scatter_add_rows(CPU, Heads<Y> to, const X* from, const Rows& rows, const RowShape& s, Write write) {
#pragma omp parallel for collapse(2)
    for (int b = 0; b < s.B; b++)
        for (int t = 0; t < s.T; t++)
            for (int head = 0; head < s.heads; head++) {
                Y* home = to.data + (size_t(b) * s.T + t) * to.row + size_t(head) * s.HS;
                if (write == Write::overwrite) std::fill_n(home, s.HS, Y(0));
                for (int h = head * s.group(); h < (head + 1) * s.group(); h++) {
                    const X share = share_of_rows<X>(rows, b, h, t);
                    for (int r = rows.row(b, h, t); r >= 0; r = next_row(rows, b, h, r)) {
                        const X* row = row_at(from, rows, s, b, r, h);
                        for (int d = 0; d < s.HS; d++) home[d] += share * row[d];
                    }
                }
            }
}

#ifdef WITH_GPU

/// One block per row of the branch; 16 bytes per thread and iteration.
template <class X, class Rows>
__global__ void gather_rows_kernel(X* to, const Heads<const X> from, const Rows rows, const RowShape s) {
    constexpr int PIECE = Packed<X>::size;
    const int b = blockIdx.y, r = blockIdx.x;
    for (int n = threadIdx.x; n < s.NH * s.HS / PIECE; n += blockDim.x) {
        const int h = n * PIECE / s.HS, d = n * PIECE % s.HS;
        const X* source = gathered_row(from, rows, s, b, r, h);
        Packed<X> piece;
        if (source) piece = load_packed(source + d);
        else
            for (int k = 0; k < PIECE; k++) piece.set(k, 0);
        store_packed(to + ((size_t(b) * rows.count + r) * s.NH + h) * s.HS + d, piece);
    }
}

/// One block per token; four elements per thread and iteration.
template <class Y, class X, class Rows>
__global__ void scatter_add_rows_kernel(const Heads<Y> to, const X* from, const Rows rows, const RowShape s, Write write) {
    constexpr int PIECE = 4;
    const int b = blockIdx.y, t = blockIdx.x;
    for (int n = threadIdx.x; n < s.heads * s.HS / PIECE; n += blockDim.x) {
        const int head = n * PIECE / s.HS, d = n * PIECE % s.HS;
        Y* home = to.data + (size_t(b) * s.T + t) * to.row + n * PIECE;
        float sums[PIECE] = {}, more[PIECE];
        if (write == Write::add) read_numbers(sums, home);
        for (int h = head * s.group(); h < (head + 1) * s.group(); h++) {
            const float share = share_of_rows<float>(rows, b, h, t);
            for (int r = rows.row(b, h, t); r >= 0; r = next_row(rows, b, h, r)) {
                read_numbers(more, row_at(from, rows, s, b, r, h) + d);
                for (int k = 0; k < PIECE; k++) sums[k] += share * more[k];
            }
        }
        write_numbers(home, sums);
    }
}

/// One block per 256 rows of one (b, h).
template <class W, class Rows>
__global__ void gather_scalars_kernel(W* to, const W* from, const Rows rows, int T, W missing) {
    const int h = blockIdx.y, b = blockIdx.z, NH = gridDim.y, r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows.count) return;
    const int t = rows.token(b, h, r);
    to[(size_t(b) * NH + h) * rows.count + r] = t < 0 ? missing : from[(size_t(b) * NH + h) * T + t];
}

/// Preconditions: HS a multiple of 8; rows outside the branch begin at multiples of 16 bytes.
template <class X, class Rows>
void gather_rows(GPU device, X* to, Heads<const X> from, const Rows& rows, const RowShape& s) {
    launch(device, gather_rows_kernel<X, Rows>, Grid(rows.count, s.B), 128, 0, to, from, rows, s);
}
template <class Y, class X, class Rows>
void scatter_add_rows(GPU device, Heads<Y> to, const X* from, const Rows& rows, const RowShape& s, Write write) {
    launch(device, scatter_add_rows_kernel<Y, X, Rows>, Grid(s.T, s.B), 256, 0, to, from, rows, s, write);
}
/// Gathers one scalar per row and query head: to (B, NH, R) = from (B, NH, T) in the order of the branch, `missing` for padding.
template <class W, class Rows>
void gather_scalars(GPU device, W* to, const W* from, const Rows& rows, int B, int T, int NH, W missing) {
    launch(device, gather_scalars_kernel<W, Rows>, Grid(blocks_for(rows.count, 256), NH, B), 256, 0, to, from, rows, T, missing);
}

#endif
