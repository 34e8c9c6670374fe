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

/// Pairs, and the most tiles, of `heads` heads over T tokens, each of which chooses `slots` past blocks besides the forced ones. The
/// tokens of a tile make `choices` choices.
inline PairCount expected_block_pairs(const ForcedBlocks& forced, int slots, int heads, int T, int choices = TILE) {
    PairCount count = count_pairs(forced, 1, T);
    for (int r = 0; r * forced.block < T; r++) {
        const int free = forced.candidates((r + 1) * forced.block), tokens = std::min(T, (r + 1) * forced.block) - r * forced.block;
        count.pairs += double(tokens) * std::min(slots, free) * forced.block;
        count.tiles += double(tiles_of(tokens)) * std::min<int64_t>(int64_t(slots) * choices, free) * (forced.block / TILE);
    }
    return {count.pairs * heads, count.tiles * heads};
}
