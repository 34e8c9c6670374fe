// Turns each token's choice of key blocks into a list of the tokens that chose each block: rows of queries, block after block, the
// tokens of a block ascending and padded to whole tiles, so that a tile of rows visits the tiles of one block and nothing else.
// (Loop over key blocks first: Flash Sparse Attention, arXiv 2508.18224.)
// A row's place in its tile depends on earlier tokens alone, so no sum depends on later ones.
#pragma once
#include <climits>
#include <vector>

#include "attention/kernel/rows.cuh"
#include "attention/masks/choose_blocks.cuh"
#include "model/base/error.h"
#include "model/device/device.h"

/// Fails if the choice has more rows than an int can count. `option` (`key`) sets the number of blocks per token.
inline void require_countable(const BlockChoice& c, const char* option, const char* key, const char* way_out) {
    if (int64_t(padded(c.T)) * std::max(c.slots, 1) + int64_t(c.blocks()) * TILE <= INT_MAX) return;
    fail(Exit::usage, option, " (", key, "): ", c.slots, " chosen blocks of ", c.block, " tokens for each of ", c.T,
         " are more than 2^31 rows; ", way_out);
}

/// A `Rows` of queries (rows.cuh): the tokens in slots first .. first + slots - 1 of the choice.
struct BlockRows {
    static constexpr bool per_head = true;
    int count;                // R: enough for any choice
    int T;
    BlockChoice choice;
    int first, slots;
    int* tokens = nullptr;    // (B, choosers, R) the token of each row; -1: padding
    int* places = nullptr;    // (B, choosers, T, slots) the row of each slot, or -1
    int* sizes = nullptr;     // (B, choosers, blocks) tokens that chose the block
    int* tile_count = nullptr;   // (B, NH, R / TILE), and (.., block / TILE) the key tiles of each tile of rows
    int* tiles = nullptr;

    BlockRows(const BlockChoice& c, int first_, int slots_)   // a block's last tile may have a single row in use
        : count(slots_ ? padded(c.T) * slots_ + c.blocks() * TILE : 0), T(c.T), choice(c), first(first_), slots(slots_) {}
    void take(BumpAllocator& allocator) {
        const size_t lists = size_t(choice.B) * choice.choosers, row_tiles = size_t(choice.B) * choice.NH * tiles_of(count);
        tokens = allocator.take<int>(lists * count), places = allocator.take<int>(lists * T * slots);
        sizes = allocator.take<int>(lists * choice.blocks());
        tile_count = allocator.take<int>(row_tiles), tiles = allocator.take<int>(row_tiles * of_block());
    }

    constexpr int of_block() const { return choice.block / TILE; }
    constexpr size_t list(int b, int chooser) const { return size_t(b) * choice.choosers + chooser; }
    constexpr int chooser(int h) const { return h / (choice.NH / choice.choosers); }
    constexpr int token(int b, int h, int row) const { return tokens[list(b, chooser(h)) * count + row]; }
    constexpr const int* places_of(int b, int h, int token) const {
        return places + (list(b, chooser(h)) * T + token) * slots;
    }
    constexpr int row(int b, int h, int token) const { return places_of(b, h, token)[0]; }
    constexpr int next(int b, int h, int row) const {
        const int* of_token = places_of(b, h, token(b, h, row));
        int s = 0;
        while (of_token[s] != row) s++;
        return s + 1 < slots ? of_token[s + 1] : -1;
    }
    constexpr TileList tile_list() const { return {tile_count, tiles, of_block()}; }

    /// The first row of block n. begin(.., blocks()) is one past the last row in use.
    constexpr int begin(int b, int chooser, int n) const {
        int rows = 0;
        for (int m = 0; m < n; m++) rows += padded(sizes[list(b, chooser) * choice.blocks() + m]);
        return rows;
    }
    /// Writes the key tiles of a tile of rows; none for n = blocks().
    constexpr void write_tiles(int b, int h, int row_tile, int n) const {
        const size_t at = (size_t(b) * choice.NH + h) * tiles_of(count) + row_tile;
        const int exist = n < choice.blocks() ? std::min(of_block(), tiles_of(T) - n * of_block()) : 0;
        tile_count[at] = exist;
        for (int m = 0; m < exist; m++) tiles[at * of_block() + m] = n * of_block() + m;
    }
};

/// Fills the lists of `rows` from the choice.
inline void list_block_rows(CPU, const BlockRows& rows, const int* choice) {
    const BlockChoice& c = rows.choice;
    const int blocks = c.blocks(), group = c.NH / c.choosers;
#pragma omp parallel for collapse(2)
    for (int b = 0; b < c.B; b++)
        for (int chooser = 0; chooser < c.choosers; chooser++) {
            int* const sizes = rows.sizes + rows.list(b, chooser) * blocks;
            int* const tokens = rows.tokens + rows.list(b, chooser) * rows.count;
            int* const places = rows.places + rows.list(b, chooser) * c.T * rows.slots;
            std::fill_n(sizes, blocks, 0), std::fill_n(tokens, rows.count, -1);
            for (int n = 0; n < c.T * rows.slots; n++) {
                const int block = choice[c.of_token(b, chooser, n / rows.slots) + rows.first + n % rows.slots];
                if (block >= 0) sizes[block]++;
            }
            std::vector<int> next(blocks + 1);   // row of each block
            for (int n = 0; n < blocks; n++) next[n + 1] = next[n] + padded(sizes[n]);
            for (int n = 0, tile = 0; n <= blocks; n++)
                for (const int end = tiles_of(n < blocks ? next[n + 1] : rows.count); tile < end; tile++)
                    for (int h = chooser * group; h < (chooser + 1) * group; h++) rows.write_tiles(b, h, tile, n);
            for (int n = 0; n < c.T * rows.slots; n++) {
                const int block = choice[c.of_token(b, chooser, n / rows.slots) + rows.first + n % rows.slots];
                places[n] = block < 0 ? -1 : next[block]++;
                if (block >= 0) tokens[places[n]] = n / rows.slots;
            }
        }
}

#ifdef WITH_GPU

/// Calls use(t, slot, n) in order for each token t that chose the block in one of the pass's slots; n counts them. Returns their
/// number. One warp, one token per lane.
template <class Use>
__device__ int each_token_of_block(const BlockRows& rows, const int* choice, int b, int chooser, int block, Use use) {
    const BlockChoice& c = rows.choice;
    int n = 0;
    for (int t0 = (block + 1) * c.block; t0 < c.T; t0 += WARP) {
        const int t = t0 + int(threadIdx.x);
        int slot = -1;
        for (int s = 0; t < c.T && s < rows.slots; s++)
            if (choice[c.of_token(b, chooser, t) + rows.first + s] == block) slot = s;
        const unsigned chose = __ballot_sync(ALL_LANES, slot >= 0);
        if (slot >= 0) use(t, slot, n + __popc(chose & ((1u << threadIdx.x) - 1)));
        n += __popc(chose);
    }
    return n;
}

/// One warp per (block, chooser, sequence).
inline __global__ void count_block_rows_kernel(const BlockRows rows, const int* choice) {
    const int n = blockIdx.x, chooser = blockIdx.y, b = blockIdx.z;
    const int size = each_token_of_block(rows, choice, b, chooser, n, [](int, int, int) {});
    if (threadIdx.x == 0) rows.sizes[rows.list(b, chooser) * rows.choice.blocks() + n] = size;
}

/// The same grid plus one block, which handles slots without a choice and rows without a block.
inline __global__ void list_block_rows_kernel(const BlockRows rows, const int* choice) {
    const int n = blockIdx.x, chooser = blockIdx.y, b = blockIdx.z, lane = threadIdx.x;
    const BlockChoice& c = rows.choice;
    const int group = c.NH / c.choosers, begin = rows.begin(b, chooser, n);
    const bool rest = n == c.blocks();
    const int end = rest ? rows.count : begin + padded(rows.sizes[rows.list(b, chooser) * c.blocks() + n]);
    int* const tokens = rows.tokens + rows.list(b, chooser) * rows.count;
    int* const places = rows.places + rows.list(b, chooser) * c.T * rows.slots;
    for (int tile = begin / TILE + lane; tile < end / TILE; tile += WARP)
        for (int h = chooser * group; h < (chooser + 1) * group; h++) rows.write_tiles(b, h, tile, n);
    for (int s = lane; rest && s < c.T * rows.slots; s += WARP)
        if (choice[c.of_token(b, chooser, s / rows.slots) + rows.first + s % rows.slots] < 0) places[s] = -1;
    const int used = rest ? 0 : each_token_of_block(rows, choice, b, chooser, n, [&](int t, int slot, int at) {
        tokens[begin + at] = t;
        places[t * rows.slots + slot] = begin + at;
    });
    for (int r = begin + used + lane; r < end; r += WARP) tokens[r] = -1;
}

inline void list_block_rows(GPU device, const BlockRows& rows, const int* choice) {
    const BlockChoice& c = rows.choice;
    launch(device, count_block_rows_kernel, Grid(c.blocks(), c.choosers, c.B), WARP, 0, rows, choice);
    launch(device, list_block_rows_kernel, Grid(c.blocks() + 1, c.choosers, c.B), WARP, 0, rows, choice);
}

#endif
