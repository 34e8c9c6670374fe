// Sums of the keys of blocks that have begun, for mechanisms that score blocks by their mean keys. Blocks may overlap (BlockGrid).
#pragma once
#include <algorithm>

#include "attention/decoding/decoding.cuh"
#include "attention/nsa/compress.cuh"
#include "attention/scores/each_element.cuh"

/// Number of blocks that have begun within T tokens.
constexpr int begun_blocks(const BlockGrid& grid, int T) { return (T + grid.d - 1) / grid.d; }
/// The first block that contains token t; the last is t / grid.d.
constexpr int first_block_of(const BlockGrid& grid, int t) { return t < grid.l ? 0 : (t - grid.l) / grid.d + 1; }

template <class Device, class X>
struct BlockKeySums;

/// Sums of one sequence.
template <class X>
struct BlockKeySums<CPU, X> {
    BlockGrid grid;
    int tokens = 0;
    size_t row;   // NKV * HS
    X* sums;      // (blocks, NKV, HS)

    BlockKeySums(const BlockGrid& grid_, BumpAllocator& memory, const CacheRoom& room)
        : grid(grid_), row(size_t(room.NKV) * room.HS), sums(memory.take<X>(begun_blocks(grid, room.T) * row)) {}

    void prefill(const LayerInputs<X>& in) {
        for (int t = 0; t < in.T; t++) append(in.k + t * in.qk_row);
    }
    /// Adds the key (NKV, HS) of the next token.
    void append(const X* k) {
        const int t = tokens++;
        for (int c = first_block_of(grid, t); c <= t / grid.d && t < c * grid.d + grid.l; c++)
            for (size_t d = 0; d < row; d++) sums[c * row + d] = t == c * grid.d ? k[d] : sums[c * row + d] + k[d];
    }
};

#ifdef WITH_GPU

/// Sums block c of a sequence of T tokens.
template <class X>
struct SumBegunBlocks {
    float* sums;   // (blocks, NKV, HS) of the sequence
    Heads<const X> k;
    BlockGrid grid;
    int T, width;
    constexpr void operator()(unsigned c, int d) const {
        float sum = 0;
        for (int t = int(c) * grid.d; t < std::min(T, int(c) * grid.d + grid.l); t++) sum += widened(k.data[t * k.row + d]);
        sums[size_t(c) * width + d] = sum;
    }
};

/// Adds the rows' tokens to the blocks that contain them.
template <class X>
struct AddToBegunBlocks {
    float* sums;   // (sequences, blocks, NKV, HS)
    Heads<const X> k;
    DecodeRows rows;
    BlockGrid grid;
    int blocks, width;
    constexpr void operator()(unsigned b, int d) const {
        const int t = rows.position[b];
        for (int c = first_block_of(grid, t); c <= t / grid.d && t < c * grid.d + grid.l; c++) {
            float& sum = sums[(size_t(rows.sequence[b]) * blocks + c) * width + d];
            sum = (t == c * grid.d ? 0.0f : sum) + widened(k.data[b * k.row + d]);
        }
    }
};

/// Sums of all sequences in the cache.
template <class X>
struct BlockKeySums<GPU, X> {
    BlockGrid grid;
    int blocks, width;   // of a sequence; NKV * HS
    float* sums;         // (sequences, blocks, NKV, HS)

    BlockKeySums(const BlockGrid& grid_, BumpAllocator& memory, const CacheRoom& room)
        : grid(grid_), blocks(begun_blocks(grid, room.T)), width(room.NKV * room.HS),
          sums(memory.take<float>(size_t(room.B) * blocks * width)) {}

    void prefill(const GPU& device, int sequence, const LayerInputs<X>& in) const {
        each_element(device, begun_blocks(grid, in.T), width,
                     SumBegunBlocks<X>{sums + size_t(sequence) * blocks * width, {in.k, in.qk_row}, grid, in.T, width});
    }
    template <class Step>
    void append(const Step& step, const LayerInputs<X>& in) const {
        each_element(step, in.B, width, AddToBegunBlocks<X>{sums, {in.k, in.qk_row}, step.rows, grid, blocks, width});
    }
};

#endif
