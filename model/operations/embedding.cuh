// Token embedding: row `token` of the table. The backward is a scatter; the rows of a batch are sorted by token on the host, so
// that it is a sum in a fixed order on every device.
#pragma once
#include <algorithm>
#include <cstdint>

#include "model/batch.h"
#include "model/device/device.h"

/// out (rows, C) = table (V, C) [tokens (rows)]. Precondition: 0 <= token < V (checked once, when shards are opened).
template <class X>
void embedding_forward(CPU, X* out, const int32_t* tokens, const X* table, int rows, int C) {
#pragma omp parallel for
    for (int row = 0; row < rows; row++) std::copy_n(table + size_t(tokens[row]) * C, C, out + size_t(row) * C);
}

/// dtable (V, C) += the rows of dout (rows, C) at their tokens. Always adds: with a tied head the table already holds the head's
/// gradient. Each thread owns a range of channels for all rows, so the order of the sum never changes.
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
inline constexpr int SPLIT_BLOCKS = 256;   // at most, that look for tokens of several runs

/// Threads for C channels, 16 bytes each, in blocks that cover a row or a part of it.
template <class X>
int threads_for(int C) {
    require_multiple_of_8("the embedding", "the number of channels", C);
    return std::min(WARPS, int(blocks_for(C, WARP * Packed<X>::size))) * WARP;
}

/// Whether runs n and m are non-empty and of the same token.
__device__ __forceinline__ bool same_token(const RowsByToken& by, int n, int m) {
    if (n < 0 || m < 0 || n >= by.capacity || m >= by.capacity) return false;
    const TokenRun a = by.runs[n], b = by.runs[m];
    return a.begin < a.end && b.begin < b.end && a.token == b.token;
}
/// Whether run n is one of several of its token.
__device__ __forceinline__ bool is_split(const RowsByToken& by, int n) {
    return same_token(by, n - 1, n) || same_token(by, n, n + 1);
}

/// Adds dout's numbers of the run's rows from channel c on, in the order of the rows.
template <class X>
__device__ __forceinline__ void add_run(float (&sum)[Packed<X>::size], const X* dout, const RowsByToken& by, TokenRun run, int c,
                                        int C) {
    constexpr int N = Packed<X>::size;
#pragma unroll 8
    for (int r = run.begin; r < run.end; r++) {
        float d[N];
        read_streaming(d, dout + size_t(by.rows[r]) * C + c);
        for (int n = 0; n < N; n++) sum[n] += d[n];
    }
}

template <int N>
__device__ __forceinline__ void add_to(float* to, const float (&sum)[N]) {
    float total[N];
    read_numbers(total, to);
    for (int n = 0; n < N; n++) total[n] += sum[n];
    write_numbers(to, total);
}
}   // namespace embedding

/// A warp copies a row.
template <class X>
__global__ void embedding_forward_kernel(X* out, const int32_t* tokens, const X* table, int rows, int C) {
    constexpr int N = Packed<X>::size;
    const int row = blockIdx.x * embedding::WARPS + threadIdx.x / WARP;
    if (row >= rows) return;
    const X* from = table + size_t(tokens[row]) * C;
    for (int c = threadIdx.x % WARP * N; c < C; c += WARP * N) store_packed(out + size_t(row) * C + c, load_packed(from + c));
}

template <class X>
void embedding_forward(GPU device, X* out, const int32_t* tokens, const X* table, int rows, int C) {
    require_multiple_of_8("the embedding", "the number of channels", C);
    launch(device, embedding_forward_kernel<X>, blocks_for(rows, embedding::WARPS), embedding::WARPS * WARP, 0, out, tokens, table,
           rows, C);
}

/// One run per block: to the table when it is its token's only one, else to partials (slots, C) while there are slots.
template <class X>
__global__ void embedding_backward_kernel(float* dtable, float* partials, int slots, const X* dout, RowsByToken by_token, int C) {
    constexpr int N = Packed<X>::size;
    const int n = blockIdx.x;
    const TokenRun run = by_token.runs[n];
    const bool split = embedding::is_split(by_token, n);
    if (run.begin == run.end || (split && n >= slots)) return;
    float* to = split ? partials + size_t(n) * C : dtable + size_t(run.token) * C;
    for (int c = threadIdx.x * N; c < C; c += blockDim.x * N) {
        float sum[N] = {};
        embedding::add_run(sum, dout, by_token, run, c, C);
        if (split) write_numbers(to + c, sum);
        else embedding::add_to(to + c, sum);
    }
}

/// Adds the runs of each split token to the table: the partial sums, and what found no slot from dout itself. Split tokens come
/// first; the block that meets a token's first run has the token.
template <class X>
__global__ void embedding_backward_split_kernel(float* dtable, const float* partials, int slots, const X* dout,
                                                RowsByToken by_token, int C) {
    constexpr int N = Packed<X>::size;
    for (int first = blockIdx.x; embedding::is_split(by_token, first); first += gridDim.x) {
        if (embedding::same_token(by_token, first - 1, first)) continue;
        for (int c = threadIdx.x * N; c < C; c += blockDim.x * N) {
            float total[N] = {};
            for (int n = first; embedding::same_token(by_token, first, n); n++) {
                float sum[N] = {};
                if (n < slots) read_numbers(sum, partials + size_t(n) * C + c);
                else embedding::add_run(sum, dout, by_token, by_token.runs[n], c, C);
                for (int k = 0; k < N; k++) total[k] += sum[k];
            }
            embedding::add_to(dtable + size_t(by_token.runs[first].token) * C + c, total);
        }
    }
}

/// The grids depend on the capacity of by_token alone, so that a CUDA graph of them serves every batch. Partial sums go to the
/// workspace while there is room: a smaller one costs time and changes no bit.
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
