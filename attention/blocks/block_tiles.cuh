// Turns scores of blocks (block_gate.cuh) into the kernel's inputs, lists of tiles and a bias per tile, and the gradients of biases into
// gradients of scores.
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
        return a + pair.tile;
    }
    template <class N>
    constexpr N pair_gate(const Pair<N>& pair) const {
        return broadcast<N>(exp_of(pair.tile));
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

/// count (B, NH, tiles) and list (B, NH, tiles, tiles) from the chosen blocks; biases (B, NH, tiles, tiles) from the scores. list or
/// biases may be null. Rows are (b, h, query tile).
template <class W>
struct SpreadBlocks {
    int *count, *list;
    W* biases;
    const int *block_count, *blocks;
    const W* scores;
    BlockTiles t;
    constexpr void operator()(unsigned row, int k) const {
        const int q = int(row) % t.tiles(), h = int(row) / t.tiles() % t.s.NH, b = int(row) / t.tiles() / t.s.NH;
        const size_t at = size_t(row) * t.tiles() + k;
        if (list) {
            const size_t chosen = t.s.of_query(b, h, q / t.of_block());
            const int places = t.count(block_count[chosen], q);
            if (k == 0) count[row] = places;
            if (k < places) list[at] = t.listed(blocks + chosen * t.s.blocks(), k);
        }
        if (biases) biases[at] = t.bias(scores, b, h, q, k);
    }
};

/// dscores (B, NH, N, N) = the gradient through the tiles' biases plus dloss times the distillation's; either may be null. Rows are
/// (b, h, r).
template <class W>
struct GatherDscores {
    W* dscores;
    const W *dbiases, *scores, *distilled;
    W dloss;
    BlockTiles t;
    constexpr void operator()(unsigned row, int c) const {
        const int N = t.s.blocks(), r = int(row) % N, h = int(row) / N % t.s.NH, b = int(row) / N / t.s.NH;
        const size_t at = size_t(row) * N + c;
        W sum = dbiases ? t.dscore(dbiases, scores, b, h, r, c) : W(0);
        if (distilled) sum += dloss * distilled[at];
        dscores[at] = sum;
    }
};

/// The key blocks that each block of queries visits, and their tiles.
struct BlockLists {
    int *block_count, *blocks;   // (B, NH, N), (B, NH, N, N)
    int *count, *list;           // (B, NH, tiles), (B, NH, tiles, tiles)
};

/// Spreads the lists' blocks over tiles, and scores over the biases of tiles; either may be null.
template <class W, class Device>
void spread_blocks(Device device, const BlockLists& to, W* biases, const W* scores, const BlockTiles& t) {
    each_element(device, size_t(t.s.B) * t.s.NH * t.tiles(), t.tiles(),
                 SpreadBlocks<W>{to.count, to.list, biases, to.block_count, to.blocks, scores, t});
}

/// Fills the lists by scores (B, NH, N, N), which may be null where all heads are dense, and the biases of tiles unless null.
template <class W, class Device>
void list_tiles(Device device, const BlockLists& to, W* biases, const W* scores, const TileChoice& visited, const BlockTiles& t) {
    choose_tiles(device, to.block_count, to.blocks, scores, {t.s.B, t.s.NH, t.s.blocks()}, visited, FirstBlock{t.s});
    spread_blocks(device, to, biases, scores, t);
}
