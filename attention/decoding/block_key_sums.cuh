// Sums of the keys of blocks that have begun, for mechanisms that score blocks by their mean keys. Blocks may overlap (BlockGrid).
#pragma once
#include <algorithm>

#include "attention/decoding/decoding.cuh"
#include "attention/decoding/visited.h"
#include "attention/nsa/compress.cuh"

/// Number of blocks that have begun within T tokens.
constexpr int begun_blocks(const BlockGrid& grid, int T) { return (T + grid.d - 1) / grid.d; }

/// Adds keys to the blocks that contain them. Rows are (b, n): block n of a prompt of `to.count` tokens, or the n-th last of the blocks
/// that have begun with row b's token.
template <class X>
struct AddToBlocks {
    Wide<X>* sums;   // (sequences, blocks, NKV, HS)
    Heads<const X> k;
    NewKeys to;
    BlockGrid grid;
    int blocks, width;
    constexpr int blocks_of_row() const { return to.rows.sequence ? (grid.l + grid.d - 1) / grid.d : begun_blocks(grid, to.count); }
    constexpr void operator()(unsigned row, int d) const {
        const int b = int(row) / blocks_of_row(), n = int(row) % blocks_of_row(), token = to.position(b, 0);   // the first new one
        const int c = to.rows.sequence ? token / grid.d - n : n, begin = c * grid.d, end = std::min(token + to.count, begin + grid.l);
        if (c < 0 || end <= token) return;
        Wide<X>& home = sums[(size_t(to.sequence_of(b)) * blocks + c) * width + d];
        Wide<X> sum = begin < token ? home : Wide<X>(0);
        for (int t = std::max(begin, token); t < end; t++) sum += widened(k.data[(b + t - token) * k.row + d]);
        home = sum;
    }
};

/// Sums of all sequences in the cache.
template <class X>
struct BlockKeySums {
    BlockGrid grid;
    int blocks, width;   // of a sequence; NKV * HS
    Wide<X>* sums;       // (sequences, blocks, NKV, HS)

    BlockKeySums(const BlockGrid& grid_, BumpAllocator& memory, const CacheRoom& room)
        : grid(grid_), blocks(begun_blocks(grid, room.T)), width(room.NKV * room.HS),
          sums(memory.take<Wide<X>>(size_t(room.B) * blocks * width)) {}

    /// The sum (HS) of block c for a key head.
    constexpr const Wide<X>* sum(int sequence, int c, int kv, int HS) const {
        return sums + (size_t(sequence) * blocks + c) * width + size_t(kv) * HS;
    }

    /// Adds a prompt from its first token on, or one token of each row.
    template <class Device>
    void add(const Device& device, const LayerInputs<X>& in, const NewKeys& to) const {
        const AddToBlocks<X> task{sums, {in.k, in.qk_row}, to, grid, blocks, width};
        each_element(device, size_t(in.B) * task.blocks_of_row(), width, task);
    }
};
