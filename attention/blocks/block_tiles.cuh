// Turns scores of blocks (block_gate.cuh) into the kernel's inputs, lists of tiles and a bias per tile, and the gradients of biases into
// those of scores.
#pragma once
#include "attention/blocks/block_gate.cuh"
#include "attention/kernel/layer.h"
#include "attention/masks/select.cuh"

/// The kernel's policy: causal attention with z = a + the tile's bias.
struct BiasedTiles : Policy {
    explicit constexpr BiasedTiles(const Policy& p) : Policy(p) {}
    static constexpr Traits traits{.gates_output = true, .gates_pairs = true};   // by the head gate if any; by 1 in blocks without
    constexpr Features features() const { return {0, 0, 0, true}; }
    template <class N>
    constexpr N score(N a, const Pair<N>& pair) const {
        return a + pair.tile();
    }
    template <class N>
    constexpr N pair_gate(const Pair<N>& pair) const {
        return broadcast<N>(exp_of(pair.tile()));
    }
    template <class N, class Loss>
    constexpr N score_backward(N a, const Pair<N>& pair, PairGradients<N>& to, Loss dz_of) const {
        const N dz = dz_of(score(a, pair));
        to.tile(dz);
        return dz;
    }
};

/// The kernel's policy: plain causal attention, with an output gate.
struct PlainTiles : Policy {
    explicit PlainTiles(const Policy& p) : Policy(p) {}
    static constexpr Traits traits{.gates_output = true};
};

/// From blocks to tiles: block c of the choice has m = block / TILE tiles. With documents tiles are of the rows of blocks (BlockQueries,
/// BlockKeys), own blocks are not listed, and no tile visits the rows between documents.
struct BlockTiles {
    GateShape s;
    int dense;   // the first heads, without a gate
    constexpr int tiles() const { return tiles_of(s.T); }
    constexpr int of_block() const { return s.block / TILE; }
    constexpr size_t row(int b, int h, int tile) const { return (size_t(b) * s.NH + h) * tiles() + tile; }
    constexpr bool gated(int h, int r, int c) const { return h >= dense && c < r; }

    /// The bias of a query tile and key tile.
    template <class W>
    constexpr W bias(const W* scores, int b, int h, int q_tile, int k_tile) const {
        const int r = q_tile / of_block(), c = k_tile / of_block();
        return gated(h, r, c) ? -softplus(-scores[s.of_query(b, h, r) * s.blocks() + c]) : W(0);
    }

    /// Entry n of a query tile's list. Its block visits `blocks`, in ascending order, with its own last.
    constexpr int listed(const int* blocks, int n) const { return blocks[n / of_block()] * of_block() + n % of_block(); }
    constexpr int count(int blocks, int q_tile) const {
        if (s.documents) return std::max(0, blocks - 1) * of_block();
        return (blocks - 1) * of_block() + q_tile % of_block() + 1;
    }

    /// dL/dscore of (r, c) from the gradients of its tiles' biases, whose derivative is sigmoid(-score).
    template <class W>
    constexpr W dscore(const W* dbiases, const W* scores, int b, int h, int r, int c) const {
        if (!gated(h, r, c)) return 0;
        W sum = 0;
        for (int q = r * of_block(); q < (r + 1) * of_block() && q < tiles(); q++)
            for (int k = c * of_block(); k < (c + 1) * of_block(); k++) sum += dbiases[row(b, h, q) * tiles() + k];
        return sum * sigmoid(-scores[s.of_query(b, h, r) * s.blocks() + c]);
    }
};

/// count (B, NH, tiles) and list (B, NH, tiles, tiles) from the chosen blocks; biases (B, NH, tiles, tiles) from the
/// scores. list or biases may be null.
template <class X>
void spread_blocks(CPU, int* count, int* list, X* biases, const int* block_count, const int* blocks, const X* scores,
                   const BlockTiles& t) {
    const int tiles = t.tiles(), N = t.s.blocks();
#pragma omp parallel for collapse(3)
    for (int b = 0; b < t.s.B; b++)
        for (int h = 0; h < t.s.NH; h++)
            for (int q = 0; q < tiles; q++) {
                const size_t row = t.row(b, h, q), chosen = t.s.of_query(b, h, q / t.of_block());
                if (list) count[row] = t.count(block_count[chosen], q);
                for (int n = 0; list && n < count[row]; n++) list[row * tiles + n] = t.listed(blocks + chosen * N, n);
                for (int k = 0; biases && k < tiles; k++) biases[row * tiles + k] = t.bias(scores, b, h, q, k);
            }
}

/// dscores (B, NH, N, N) = the gradient through the tiles' biases plus dloss times the distillation's; either may be null.
template <class X>
void gather_dscores(CPU, X* dscores, const X* dbiases, const X* scores, const X* distilled, X dloss, const BlockTiles& t) {
    const int N = t.s.blocks();
#pragma omp parallel for collapse(3)
    for (int b = 0; b < t.s.B; b++)
        for (int h = 0; h < t.s.NH; h++)
            for (int r = 0; r < N; r++)
                for (int c = 0; c < N; c++) {
                    const size_t at = t.s.of_query(b, h, r) * N + c;
                    dscores[at] = dbiases ? t.dscore(dbiases, scores, b, h, r, c) : X(0);
                    if (distilled) dscores[at] += dloss * distilled[at];
                }
}

#ifdef WITH_GPU

/// Block (query tile, h, b).
template <class W>
__global__ void spread_blocks_kernel(int* count, int* list, W* biases, const int* block_count, const int* blocks, const W* scores,
                                     const BlockTiles t) {
    const int q = blockIdx.x, h = blockIdx.y, b = blockIdx.z, tiles = t.tiles();
    const size_t row = t.row(b, h, q), chosen = t.s.of_query(b, h, q / t.of_block());
    const int places = list ? t.count(block_count[chosen], q) : 0;
    if (list && threadIdx.x == 0) count[row] = places;
    for (int n = threadIdx.x; n < places; n += blockDim.x) list[row * tiles + n] = t.listed(blocks + chosen * t.s.blocks(), n);
    for (int k = threadIdx.x; biases && k < tiles; k += blockDim.x) biases[row * tiles + k] = t.bias(scores, b, h, q, k);
}
inline void spread_blocks(GPU device, int* count, int* list, float* biases, const int* block_count, const int* blocks,
                          const float* scores, const BlockTiles& t) {
    const Grid grid(t.tiles(), t.s.NH, t.s.B);
    launch(device, spread_blocks_kernel<float>, grid, 64, 0, count, list, biases, block_count, blocks, scores, t);
}

/// Block (r, h, b).
template <class W>
__global__ void gather_dscores_kernel(W* dscores, const W* dbiases, const W* scores, const W* distilled, W dloss,
                                      const BlockTiles t) {
    const int r = blockIdx.x, h = blockIdx.y, b = blockIdx.z, N = t.s.blocks();
    for (int c = threadIdx.x; c < N; c += blockDim.x) {
        const size_t at = t.s.of_query(b, h, r) * N + c;
        const W of_biases = dbiases ? t.dscore(dbiases, scores, b, h, r, c) : 0;
        dscores[at] = of_biases + (distilled ? dloss * distilled[at] : 0);
    }
}
inline void gather_dscores(GPU device, float* dscores, const float* dbiases, const float* scores, const float* distilled,
                           float dloss, const BlockTiles& t) {
    const Grid grid(t.s.blocks(), t.s.NH, t.s.B);
    launch(device, gather_dscores_kernel<float>, grid, 64, 0, dscores, dbiases, scores, distilled, dloss, t);
}

#endif

/// The key blocks that each block of queries visits, and their tiles.
struct BlockLists {
    int *block_count, *blocks;   // (B, NH, N), (B, NH, N, N)
    int *count, *list;           // (B, NH, tiles), (B, NH, tiles, tiles)
};

/// Fills the lists by scores (B, heads, N, N) under the rule `visited`, and the biases of tiles unless null.
template <class Device, class W>
void list_tiles(Device device, const BlockLists& to, W* biases, const W* scores, int heads, const TileChoice& visited,
                const BlockTiles& t) {
    choose_tiles(device, to.block_count, to.blocks, scores, {t.s.B, t.s.NH, heads, t.s.blocks()}, visited, FirstBlock{t.s});
    spread_blocks(device, to.count, to.list, biases, to.block_count, to.blocks, scores, t);
}
