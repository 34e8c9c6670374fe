// Token embedding: row `token` of the table. The backward pass is a scatter-add; the host sorts a batch's rows by token, so that every
// device sums in a fixed order.
#pragma once
#include <algorithm>
#include <cstdint>

#include "model/batch.h"
#include "model/device/device.h"
#include "model/operations/matrix.h"

/// Precondition: 0 <= token < V (checked once, when shards are opened). out (rows, C) = table (V, C) [tokens (rows)].
template <class X>
void embedding_forward(CPU, X* out, const int32_t* tokens, std::type_identity_t<Matrix<X>> table, int rows, int C) {
#pragma omp parallel for
    for (int row = 0; row < rows; row++) {
        const size_t from = size_t(tokens[row]) * C;
        if (table.bf16) widen(out + size_t(row) * C, table.bf16 + from, C);
        else std::copy_n(table.data + from, C, out + size_t(row) * C);
    }
}

/// Adds the rows of dout (rows, C) to dtable (V, C) [token]. It always adds: with a tied head, dtable already holds the head's gradient.
/// Each thread owns a range of channels for all rows, so the order of summation is fixed.
template <class X>
void embedding_backward(CPU, Wide<X>* dtable, const X* dout, const RowsByToken& by_token, int C) {
    const int width = 32;
#pragma omp parallel for
    for (int c0 = 0; c0 < C; c0 += width)
        for (int n = 0; n < by_token.capacity; n++) {
            const TokenRun run = by_token.runs[n];
            Wide<X>* to = dtable + size_t(run.token) * C;
            for (int r = run.begin; r < run.end; r++)
                for (int c = c0; c < std::min(C, c0 + width); c++) to[c] += dout[size_t(by_token.rows[r]) * C + c];
        }
}

#ifdef WITH_GPU

namespace embedding {
inline constexpr int WARPS = 8;
inline constexpr int PACKS = 4;            // 16-byte loads in flight per thread when copying a row
inline constexpr int SPLIT_BLOCKS = 256;   // maximum, for tokens with several runs
inline constexpr int IN_FLIGHT = 8;        // rows that a thread loads before it needs the first

/// Threads per block for C channels, 16 bytes each: they cover a row or a part of it.
template <class X>
int threads_for(int C) {
    require_multiple_of_8("the embedding", "the number of channels", C);
    return std::min(WARPS, int(blocks_for(C, WARP * Packed<X>::size))) * WARP;
}

/// Run n, or an empty one if n is out of range.
__device__ __forceinline__ TokenRun run_at(const RowsByToken& by, int n) {
    TokenRun run{-1, 0, 0};
    if (n >= 0 && n < by.capacity) run = by.runs[n];
    return run;
}
/// Whether both runs are non-empty and have the same token.
__device__ __forceinline__ bool same_token(const TokenRun& a, const TokenRun& b) {
    return int(a.begin < a.end) & int(b.begin < b.end) & int(a.token == b.token);   // no jump between the loads of the two
}

/// A run with its neighbours.
struct Runs {
    TokenRun before, run, after;
    __device__ Runs(const RowsByToken& by, int n) : before(run_at(by, n - 1)), run(run_at(by, n)), after(run_at(by, n + 1)) {}
    __device__ bool continues() const { return same_token(before, run); }
    __device__ bool is_split() const { return continues() || same_token(run, after); }   // its token has several runs
};

/// Index of the first run at or after `first` whose token differs from that of `run`, which precedes `first`.
__device__ __forceinline__ int end_of_token(const RowsByToken& by, const TokenRun& run, int first) {
    for (;; first += IN_FLIGHT) {
        TokenRun next[IN_FLIGHT];
        for (int k = 0; k < IN_FLIGHT; k++) next[k] = run_at(by, first + k);
        for (int k = 0; k < IN_FLIGHT; k++)
            if (!same_token(run, next[k])) return first + k;
    }
}

/// sum += dout over the run's rows, from channel c on, in the order of the rows.
template <class X>
__device__ __forceinline__ void add_run(float (&sum)[Packed<X>::size], const X* dout, const RowsByToken& by, TokenRun run, int c,
                                        int C) {
    constexpr int N = Packed<X>::size;
    const int last = run.end - 1;
    int rows[IN_FLIGHT];
    for (int k = 0; k < IN_FLIGHT; k++) rows[k] = by.rows[min(run.begin + k, last)];
    for (int first = run.begin; first <= last; first += IN_FLIGHT) {   // past the end, the last row is read again and not added
        float d[IN_FLIGHT][N];
        for (int k = 0; k < IN_FLIGHT; k++) read_numbers<Reuse::streaming>(d[k], dout + size_t(rows[k]) * C + c);
        for (int k = 0; k < IN_FLIGHT; k++) rows[k] = by.rows[min(first + IN_FLIGHT + k, last)];
        for (int k = 0; k < IN_FLIGHT; k++)
            for (int n = 0; n < N; n++) sum[n] = first + k <= last ? sum[n] + d[k][n] : sum[n];
    }
}

/// total += rows [begin, end) of partials (., C), which points to the thread's first channel, in order.
template <int N>
__device__ __forceinline__ void add_sums(float (&total)[N], const float* partials, int begin, int end, int C) {
    constexpr int ROWS = IN_FLIGHT / (N / 4);
    for (int first = begin; first < end; first += ROWS) {
        float sums[ROWS][N] = {};
        for (int k = 0; k < ROWS; k++)
            if (first + k < end) read_numbers(sums[k], partials + size_t(first + k) * C);
        for (int k = 0; k < ROWS; k++)
            for (int n = 0; n < N; n++) total[n] += sums[k][n];
    }
}
}   // namespace embedding

/// One row per warp.
template <class X>
__global__ void embedding_forward_kernel(X* out, const int32_t* tokens, const X* table, int rows, int C) {
    constexpr int N = Packed<X>::size;
    const int row = blockIdx.x * embedding::WARPS + threadIdx.x / WARP;
    if (row >= rows) return;
    const X* const from = table + size_t(tokens[row]) * C;
    for (int first = threadIdx.x % WARP * N; first < C; first += WARP * N * embedding::PACKS) {
        Packed<X> x[embedding::PACKS];
        for (int p = 0; p < embedding::PACKS; p++) x[p] = load_packed_if(first + p * WARP * N < C, from + first + p * WARP * N);
        for (int p = 0; p < embedding::PACKS; p++)
            if (const int c = first + p * WARP * N; c < C) store_packed(out + size_t(row) * C + c, x[p]);
    }
}

template <class X>
void embedding_forward(GPU device, X* out, const int32_t* tokens, const X* table, int rows, int C) {
    require_multiple_of_8("the embedding", "the number of channels", C);
    launch(device, embedding_forward_kernel<X>, blocks_for(rows, embedding::WARPS), embedding::WARPS * WARP, 0, out, tokens, table,
           rows, C);
}

/// One run per block: adds it to the table if it is its token's only run, else writes it to partials (slots, C) while there are slots.
template <class X>
__global__ void embedding_backward_kernel(float* dtable, float* partials, int slots, const X* dout, RowsByToken by_token, int C) {
    constexpr int N = Packed<X>::size;
    const int n = blockIdx.x;
    const embedding::Runs runs(by_token, n);
    const TokenRun run = runs.run;
    const bool split = runs.is_split();
    if (run.begin == run.end || (split && n >= slots)) return;
    float* to = split ? partials + size_t(n) * C : dtable + size_t(run.token) * C;
    for (int c = threadIdx.x * N; c < C; c += blockDim.x * N) {
        float before[N] = {}, sum[N] = {};
        if (!split) read_numbers(before, to + c);
        embedding::add_run(sum, dout, by_token, run, c, C);
        for (int k = 0; k < N; k++) sum[k] += before[k];
        write_numbers(to + c, sum);
    }
}

/// Adds the runs of each split token to the table: partial sums, or dout itself for a run without a slot. Split tokens come first; the
/// block with a token's first run handles the whole token.
template <class X>
__global__ void embedding_backward_split_kernel(float* dtable, const float* partials, int slots, const X* dout,
                                                RowsByToken by_token, int C) {
    constexpr int N = Packed<X>::size;
    for (int first = blockIdx.x;; first += gridDim.x) {
        const embedding::Runs runs(by_token, first);
        if (!runs.is_split()) return;
        if (runs.continues()) continue;
        const int end = embedding::end_of_token(by_token, runs.run, first + 1);
        float* const to = dtable + size_t(runs.run.token) * C;
        for (int c = threadIdx.x * N; c < C; c += blockDim.x * N) {
            float before[N], total[N] = {};
            read_numbers(before, to + c);
            embedding::add_sums(total, partials + c, first, std::min(end, slots), C);
            for (int n = std::max(first, slots); n < end; n++) {
                float sum[N] = {};
                embedding::add_run(sum, dout, by_token, embedding::run_at(by_token, n), c, C);
                for (int k = 0; k < N; k++) total[k] += sum[k];
            }
            for (int k = 0; k < N; k++) total[k] += before[k];
            write_numbers(to + c, total);
        }
    }
}

/// The grids depend only on by_token.capacity, so that one CUDA graph serves every batch. Partial sums go to the workspace while
/// there is room: a smaller workspace costs time and changes no bit.
template <class X>
void embedding_backward(GPU device, Wide<X>* dtable, const X* dout, const RowsByToken& by_token, int C) {
    const int threads = embedding::threads_for<X>(C);
    const int slots = int(std::min(device.workspace.bytes / (C * sizeof(float)), size_t(by_token.capacity)));
    float* partials = reinterpret_cast<float*>(device.workspace.data);
    launch(device, embedding_backward_kernel<X>, by_token.capacity, threads, 0, dtable, partials, slots, dout, by_token, C);
    launch(device, embedding_backward_split_kernel<X>, std::min(by_token.capacity, embedding::SPLIT_BLOCKS), threads, 0, dtable,
           partials, slots, dout, by_token, C);
}
#endif
