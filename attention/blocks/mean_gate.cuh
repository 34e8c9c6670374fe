// Mean keys of blocks, and MoBA's gate: a token's score of a block is the dot product of its query and the block's mean key.
#pragma once
#include "attention/blocks/block_rows.cuh"
#include "attention/blocks/document_blocks.h"
#include "attention/kernel/layer.h"
#include "attention/masks/choose_blocks.cuh"
#include "attention/scores/each_element.cuh"
#include "model/device/blas.h"

/// means (B, blocks, NKV, HS): each block's mean key, by number; 0 without a block. Rows are (b, block, key/value head).
template <class Y, class X>
struct MeanKeys {
    Y* means;
    Heads<const X> k;   // (B, T, NKV, HS)
    int count, NKV, HS;   // of blocks in a row of tokens
    DocumentBlocks blocks;
    constexpr void operator()(unsigned row, int d) const {
        const int kv = int(row) % NKV, n = int(row) / NKV % count, b = int(row) / NKV / count, begin = blocks.begin(b, n);
        Wide<X> sum = 0;
        for (int t = begin; begin >= 0 && t < std::min(blocks.T, begin + blocks.length); t++)
            sum += widened(k.data[(size_t(b) * blocks.T + t) * k.row + size_t(kv) * HS + d]);
        means[size_t(row) * HS + d] = narrowed<Y>(sum / Wide<X>(blocks.length));
    }
};

/// The gate's arguments. `means` (B, blocks, NKV, HS) are of all blocks; incomplete ones are in no row's past.
template <class X>
struct MeanGate {
    BlockChoice choice;
    LayerInputs<X> in;
    Wide<X>* means;

    constexpr DocumentBlocks blocks() const { return {choice.block, choice.block, choice.T, in.documents}; }
    constexpr size_t row() const { return size_t(in.NKV) * in.HS; }   // from one block's mean to the next
    constexpr const Wide<X>* mean(int b, int h, int n) const {
        return means + (size_t(b) * choice.blocks() + n) * row() + size_t(h / (in.NH / in.NKV)) * in.HS;
    }
};

template <class X>
void choose_by_scores(CPU, int* choice, const MeanGate<X>& g) {
    const BlockChoice& c = g.choice;
    const int tiles = tiles_of(c.T);
    const TileChoice rule{.top = c.slots};
    const ThreadTeam<X> team(0);
#pragma omp parallel for collapse(3) schedule(dynamic)
    for (int b = 0; b < c.B; b++)
        for (int h = 0; h < c.NH; h++)
            for (int tile = 0; tile < tiles; tile++) {
                const int t0 = tile * TILE, r = t0 / c.block, rows = std::min(TILE, c.T - t0);
                std::vector<X> scores(size_t(TILE) * (r + 1));   // by number up to r, other documents' blocks included
                if (r > 0)
                    gemm(Transpose::no, Transpose::yes, rows, r + 1, g.in.HS, X(1), g.in.query(g.in.q, b, t0, h), g.in.qk_row,
                         g.mean(b, h, 0), g.row(), X(0), scores.data(), r + 1);
                for (int t = t0; t < t0 + rows; t++) {
                    const int first = g.blocks().first(b, t), past = g.blocks().past(b, t);
                    choose_blocks(team, choice + c.of_token(b, h, t), &scores[size_t(t - t0) * (r + 1) + first], rule, past, first);
                }
            }
}

#ifdef WITH_GPU

/// One warp per (token, query head, sequence), with its scores in shared memory.
template <class X>
__global__ void choose_by_means_kernel(int* choice, const __grid_constant__ MeanGate<X> g) {
    float* scores = &dynamic_shared<float>();
    const int t = blockIdx.x, h = blockIdx.y, b = blockIdx.z, first = g.blocks().first(b, t), past = g.blocks().past(b, t);
    const X* query = g.in.query(g.in.q, b, t, h);
    for (int n = threadIdx.x; n < past; n += WARP) {
        const float* mean = g.mean(b, h, first + n);
        float score = 0;
        for (int d = 0; d < g.in.HS; d++) score += to_float(query[d]) * mean[d];
        scores[n] = score;
    }
    __syncwarp();
    choose_blocks(BlockTeam<1>(), choice + g.choice.of_token(b, h, t), scores, TileChoice{.top = g.choice.slots}, past, first);
}

template <class X>
void choose_by_scores(GPU device, int* choice, const MeanGate<X>& g) {
    const BlockChoice& c = g.choice;
    launch(device, choose_by_means_kernel<X>, Grid(c.T, c.NH, c.B), WARP, sizeof(float) * c.blocks(), choice, g);
}

#endif

/// The choice (BlockChoice) of every query head: the past blocks with the greatest scores.
template <class Device, class X>
void choose_by_means(Device device, int* choice, const MeanGate<X>& g) {
    const BlockChoice& c = g.choice;
    each_element(device, size_t(c.B) * c.blocks() * g.in.NKV, g.in.HS,
                 MeanKeys<Wide<X>, X>{g.means, {g.in.k, g.in.qk_row}, c.blocks(), g.in.NKV, g.in.HS, g.blocks()});
    choose_by_scores(device, choice, g);
}
