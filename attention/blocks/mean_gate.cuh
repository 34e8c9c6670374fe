// MoBA's gate: a token's score of a block is the product of its query with the mean of the block's keys.
#pragma once
#include "attention/blocks/block_rows.cuh"
#include "attention/blocks/choose_blocks.cuh"
#include "attention/kernel/layer.h"
#include "attention/kernel/next_rows.cuh"
#include "attention/scores/each_element.cuh"
#include "model/device/blas.h"

/// means (B, NKV, blocks, HS) of the keys of whole blocks; the last one, if it is not whole, is nobody's past.
template <class X>
struct BlockMeans {
    Wide<X>* means;
    const X* k;   // (B, T, NKV, HS)
    size_t row;
    LayerShape s;
    int block;
    constexpr int blocks() const { return (s.T + block - 1) / block; }
    constexpr size_t of(int b, int kv, int n) const { return ((size_t(b) * s.NKV + kv) * blocks() + n) * s.HS; }

    constexpr void average(int b, int kv, int n, int d) const {
        Wide<X> sum = 0;
        for (int t = n * block; t < std::min(s.T, (n + 1) * block); t++)
            sum += widened(k[(size_t(b) * s.T + t) * row + size_t(kv) * s.HS + d]);
        means[of(b, kv, n) + d] = sum / Wide<X>(block);
    }
};

/// choice (block_rows.cuh), of every query head: the greatest scores among past blocks.
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
                std::vector<X> scores(size_t(TILE) * (r + 1));
                std::vector<int> order;
                if (r > 0)
                    gemm(Transpose::no, Transpose::yes, rows, r, in.HS, X(1), in.query(in.q, b, t0, h), in.qk_row,
                         m.means + m.of(b, h / (in.NH / in.NKV), 0), in.HS, X(0), scores.data(), r + 1);
                for (int t = t0; t < t0 + rows; t++)
                    choose_blocks(CPU{}, choice + c.of_token(b, h, t), &scores[size_t(t - t0) * (r + 1)], rule, r, order);
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
    const int t = blockIdx.x, h = blockIdx.y, b = blockIdx.z, r = t / c.block, HS = m.s.HS;
    const X* query = q + (size_t(b) * c.T + t) * m.row + size_t(h) * HS;
    for (int n = threadIdx.x; n < r; n += WARP) {
        const float* mean = m.means + m.of(b, h / (c.NH / m.s.NKV), n);
        float score = 0;
        for (int d = 0; d < HS; d++) score += to_float(query[d]) * mean[d];
        scores[n] = score;
    }
    __syncwarp();
    choose_blocks(choice + c.of_token(b, h, t), scores, TileChoice{.top = c.slots}, r);
}

template <class X>
void choose_by_means(GPU device, int* choice, const BlockMeans<X>& m, const LayerInputs<X>& in, const BlockChoice& c) {
    launch(device, block_means_kernel<X>, Grid(m.blocks(), in.NKV, c.B), 64, 0, m);
    launch(device, choose_by_means_kernel<X>, Grid(c.T, c.NH, c.B), WARP, sizeof(float) * m.blocks(), choice, m, in.q, c);
}

// ---- the next rows of texts: sums of blocks instead of means, which choose the same

/// Block n of a text of T tokens.
template <class X>
struct SumBlocks {
    float* sums;   // (blocks, NKV, HS) of the text
    const X* k;
    size_t row;
    int T, block, width;
    constexpr void operator()(unsigned n, int d) const {
        float sum = 0;
        for (int t = int(n) * block; t < std::min(T, (int(n) + 1) * block); t++) sum += widened(k[t * row + d]);
        sums[size_t(n) * width + d] = sum;
    }
};

/// The tokens of rows join their blocks.
template <class X>
struct AddToBlocks {
    float* sums;   // (texts, blocks, NKV, HS)
    const X* k;
    size_t row;
    TextRows rows;
    int blocks, block, width;
    constexpr void operator()(unsigned b, int d) const {
        const int position = rows.position[b];
        float& sum = sums[(size_t(rows.text[b]) * blocks + position / block) * width + d];
        sum = (position % block ? sum : 0.0f) + widened(k[b * row + d]);
    }
};

/// One warp per (query head, row), with the scores of past blocks in shared memory.
template <class X>
__global__ void choose_for_rows_kernel(int* choice, const float* sums, const LayerInputs<X> in, const TextRows rows, int blocks,
                                       int block, int slots) {
    float* scores = &dynamic_shared<float>();
    const int h = blockIdx.x, b = blockIdx.y, text = rows.text[b], r = rows.position[b] / block, HS = in.HS;
    const X* query = in.query(in.q, b, 0, h);
    for (int n = threadIdx.x; n < r; n += WARP) {
        const float* sum = sums + ((size_t(text) * blocks + n) * in.NKV + h / (in.NH / in.NKV)) * HS;
        float score = 0;
        for (int d = 0; d < HS; d++) score += to_float(query[d]) * sum[d];
        scores[n] = score;
    }
    __syncwarp();
    choose_blocks(choice + (size_t(text) * in.NH + h) * slots, scores, TileChoice{.top = slots}, r);
}

/// Sums of the keys of each block of texts that are being written.
template <class X>
struct BlockSums {
    LayerShape room;
    int block, blocks;
    float* sums;   // (texts, blocks, NKV, HS)
    BlockSums(BumpAllocator& memory, const LayerShape& room_, int block_)
        : room(room_), block(block_), blocks((room.T + block - 1) / block), sums(memory.take<float>(size_t(room.B) * blocks * width())) {}

    void begin(GPU device, int text, const LayerInputs<X>& in) const {
        each_element(device, (in.T + block - 1) / block, width(),
                     SumBlocks<X>{sums + size_t(text) * blocks * width(), in.k, in.qk_row, in.T, block, width()});
    }
    void add(GPU device, const LayerInputs<X>& in, const TextRows& rows) const {
        each_element(device, in.B, width(), AddToBlocks<X>{sums, in.k, in.qk_row, rows, blocks, block, width()});
    }
    /// choice (texts, NH, slots): the greatest products of queries and sums among past blocks, and then -1.
    void choose(GPU device, int* choice, int slots, const LayerInputs<X>& in, const TextRows& rows) const {
        launch(device, choose_for_rows_kernel<X>, Grid(in.NH, in.B), WARP, sizeof(float) * blocks, choice, sums, in, rows, blocks, block,
               slots);
    }

private:
    int width() const { return room.NKV * room.HS; }
};

#endif
