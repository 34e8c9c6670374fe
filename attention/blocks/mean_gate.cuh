// MoBA's gate: a token's score of a block is the dot product of its query and the block's mean key.
#pragma once
#include "attention/blocks/block_rows.cuh"
#include "attention/blocks/choose_blocks.cuh"
#include "attention/blocks/document_blocks.h"
#include "attention/kernel/layer.h"
#include "attention/scores/each_element.cuh"
#include "model/device/blas.h"

/// means (B, NKV, blocks, HS): each block's mean key, by number; 0 without a block. Incomplete blocks are in no row's past.
template <class X>
struct BlockMeans {
    Wide<X>* means;
    const X* k;   // (B, T, NKV, HS)
    size_t row;
    LayerShape s;
    int block;
    Documents documents = {};
    constexpr int blocks() const { return (s.T + block - 1) / block; }
    constexpr DocumentBlocks grid() const { return {block, block, s.T, documents}; }
    constexpr size_t of(int b, int kv, int n) const { return ((size_t(b) * s.NKV + kv) * blocks() + n) * s.HS; }

    constexpr void average(int b, int kv, int n, int d) const {
        Wide<X> sum = 0;
        const int begin = grid().begin(b, n);
        for (int t = begin; begin >= 0 && t < std::min(s.T, begin + block); t++)
            sum += widened(k[(size_t(b) * s.T + t) * row + size_t(kv) * s.HS + d]);
        means[of(b, kv, n) + d] = sum / Wide<X>(block);
    }
};

/// The choice (block_rows.cuh) of every query head: the past blocks with the greatest scores.
template <class X>
void choose_by_means(CPU, int* choice, const BlockMeans<X>& m, const LayerInputs<X>& in, const BlockChoice& c) {
    const int N = m.blocks(), tiles = tiles_of(c.T);
    const TileChoice rule{.top = c.slots};
#pragma omp parallel for collapse(3)
    for (int b = 0; b < c.B; b++)
        for (int kv = 0; kv < in.NKV; kv++)
            for (int n = 0; n < N; n++)
                for (int d = 0; d < in.HS; d++) m.average(b, kv, n, d);
#pragma omp parallel for collapse(3) schedule(dynamic)
    for (int b = 0; b < c.B; b++)
        for (int h = 0; h < c.NH; h++)
            for (int tile = 0; tile < tiles; tile++) {
                const int t0 = tile * TILE, r = t0 / c.block, rows = std::min(TILE, c.T - t0);
                std::vector<X> scores(size_t(TILE) * (r + 1));   // by number up to r, other documents' blocks included
                std::vector<int> order;
                if (r > 0)
                    gemm(Transpose::no, Transpose::yes, rows, r, in.HS, X(1), in.query(in.q, b, t0, h), in.qk_row,
                         m.means + m.of(b, h / (in.NH / in.NKV), 0), in.HS, X(0), scores.data(), r + 1);
                for (int t = t0; t < t0 + rows; t++) {
                    const int first = m.grid().first(b, t), own = m.grid().inside(b, t) / c.block;
                    int* const to = choice + c.of_token(b, h, t);
                    choose_blocks(CPU{}, to, &scores[size_t(t - t0) * (r + 1) + first], rule, own, order);
                    number_in_row(to, c.slots, first);
                }
            }
}

#ifdef WITH_GPU

/// Block (n, key/value head, sequence), one thread per element.
template <class X>
__global__ void block_means_kernel(const BlockMeans<X> m) {
    for (int d = threadIdx.x; d < m.s.HS; d += blockDim.x) m.average(blockIdx.z, blockIdx.y, blockIdx.x, d);
}

/// One warp per (token, query head, sequence), with its scores in shared memory.
template <class X>
__global__ void choose_by_means_kernel(int* choice, const BlockMeans<X> m, const X* q, const BlockChoice c) {
    float* scores = &dynamic_shared<float>();
    const int t = blockIdx.x, h = blockIdx.y, b = blockIdx.z, HS = m.s.HS;
    const int first = m.grid().first(b, t), own = m.grid().inside(b, t) / c.block;
    const X* query = q + (size_t(b) * c.T + t) * m.row + size_t(h) * HS;
    for (int n = threadIdx.x; n < own; n += WARP) {
        const float* mean = m.means + m.of(b, h / (c.NH / m.s.NKV), first + n);
        float score = 0;
        for (int d = 0; d < HS; d++) score += to_float(query[d]) * mean[d];
        scores[n] = score;
    }
    __syncwarp();
    int* const to = choice + c.of_token(b, h, t);
    choose_blocks(to, scores, TileChoice{.top = c.slots}, own);
    __syncwarp();
    if (threadIdx.x == 0) number_in_row(to, c.slots, first);
}

template <class X>
void choose_by_means(GPU device, int* choice, const BlockMeans<X>& m, const LayerInputs<X>& in, const BlockChoice& c) {
    launch(device, block_means_kernel<X>, Grid(m.blocks(), in.NKV, c.B), 64, 0, m);
    launch(device, choose_by_means_kernel<X>, Grid(c.T, c.NH, c.B), WARP, sizeof(float) * m.blocks(), choice, m, in.q, c);
}

#endif
