// The blocks of keys that a token sees without a choice, as a mask, and the number of pairs that a choice among the others adds.
#pragma once
#include <algorithm>
#include <climits>

#include "attention/kernel/count.h"
#include "attention/masks/choice.cuh"

/// The blocks that every token sees: the first `leading`, and the last `local` up to its own.
struct ForcedBlocks : Policy {
    int block, leading, local;
    constexpr ForcedBlocks(const Policy& p, int block_, int leading_, int local_)
        : Policy(p), block(block_), leading(leading_), local(local_) {}
    constexpr bool forced(int r, int c) const { return c < leading || c > r - local; }

    /// Number of a text's blocks among which its last token chooses, for T tokens.
    constexpr int candidates(int T) const { return candidates_of({.leading = leading, .local = local}, (T - 1) / block); }
    /// Maximum number of blocks that a token chooses, if it may choose `top`.
    constexpr int slots(int top, int T) const { return std::min(top, candidates(T)); }
    /// This mask; or, where `top` covers all candidates, the mask of all blocks: no block is chosen then, and attention is causal.
    constexpr ForcedBlocks in_text(int top, int T) const { return candidates(T) <= top ? ForcedBlocks(*this, block, INT_MAX, 1) : *this; }

    constexpr Tile tile(int /*h*/, int i0, int i1, int j0, int j1) const {
        const int r0 = i0 / block, r1 = (i1 - 1) / block, c0 = j0 / block, c1 = (j1 - 1) / block;
        const Tile causal = causal_tile(i0, i1, j0, j1);
        if (causal == Tile::hidden || !(c0 < leading || c1 > r0 - local)) return Tile::hidden;
        return c1 < leading || c0 > r1 - local ? causal : Tile::mixed;
    }
    constexpr bool visible(int /*h*/, int i, int j) const { return j <= i && forced(i / block, j / block); }
};

/// Pairs and tiles of `heads` heads over T tokens, each of which chooses `slots` past blocks besides the forced ones. A full tile of
/// rows counts as one for each of its block's tiles; with `whole_tiles` any other does too, because its tokens choose together.
inline PairCount expected_block_pairs(const ForcedBlocks& forced, int slots, int heads, int T, bool whole_tiles = false) {
    PairCount count = count_pairs(forced, 1, T);
    for (int r = 0; r * forced.block < T; r++) {
        const int free = forced.candidates((r + 1) * forced.block);
        const double tokens = std::min(T, (r + 1) * forced.block) - r * forced.block;
        const double keys = double(std::min(slots, free)) * forced.block;
        count.pairs += tokens * keys, count.tiles += (whole_tiles ? padded(int(tokens)) : tokens) * keys / (TILE * TILE);
    }
    return {count.pairs * heads, count.tiles * heads};
}
