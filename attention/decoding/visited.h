// Masks of decode steps: a row sees the keys, or the blocks of keys, that were chosen for it. Types with `OfSequences` are for a GPU,
// where a step has rows of several sequences. `choosers` is the number of query heads, or of groups of heads, that choose on their own.
#pragma once
#include "attention/blocks/token_blocks.cuh"

/// The chosen keys of one head.
struct VisitedKeys : Policy {
    const char* chosen;   // (tokens)
    constexpr VisitedKeys(const Policy& p, const char* chosen_) : Policy(p), chosen(chosen_) {}
    constexpr Tile tile(int /*h*/, int i0, int i1, int j0, int j1) const {
        bool some = false;
        for (int j = j0; j < j1 && !some; j++) some = chosen[j];
        return some ? std::min(Tile::mixed, causal_tile(i0, i1, j0, j1)) : Tile::hidden;
    }
    constexpr bool visible(int /*h*/, int i, int j) const { return j <= i && chosen[j]; }
};
struct VisitedKeysOfSequences : Policy {
    const char* chosen;   // (sequences, choosers, room)
    int choosers, group, room;
    constexpr VisitedKeysOfSequences(const Policy& p, const char* chosen_, int heads, int choosers_, int room_)
        : Policy(p), chosen(chosen_), choosers(choosers_), group(heads / choosers_), room(room_) {}
    constexpr VisitedKeysOfSequences of_row(int sequence) const {
        VisitedKeysOfSequences row = *this;
        row.chosen += size_t(sequence) * choosers * room;
        return row;
    }
    constexpr VisitedKeys of_head(int h) const { return {*this, chosen + size_t(h / group) * room}; }
    constexpr Tile tile(int h, int i0, int i1, int j0, int j1) const { return of_head(h).tile(h, i0, i1, j0, j1); }
    constexpr bool visible(int h, int i, int j) const { return of_head(h).visible(h, i, j); }
};

/// The blocks that every token sees, and the `slots` chosen blocks of one head; -1: none.
struct VisitedBlocks : Policy {
    ForcedBlocks forced;
    const int* chosen;
    int slots;
    constexpr VisitedBlocks(const ForcedBlocks& forced_, const int* chosen_, int slots_)
        : Policy(forced_), forced(forced_), chosen(chosen_), slots(slots_) {}

    constexpr bool sees(int i, int c) const {
        bool seen = forced.forced(i / forced.block, c);
        for (int n = 0; n < slots && !seen; n++) seen = chosen[n] == c;
        return seen;
    }
    constexpr Tile tile(int /*h*/, int i0, int i1, int j0, int j1) const {
        if (j0 / forced.block != (j1 - 1) / forced.block) return Tile::mixed;
        return sees(i0, j0 / forced.block) ? causal_tile(i0, i1, j0, j1) : Tile::hidden;
    }
    constexpr bool visible(int /*h*/, int i, int j) const { return j <= i && sees(i, j / forced.block); }
};
struct VisitedBlocksOfSequences : Policy {
    ForcedBlocks forced;
    const int* chosen;   // (sequences, choosers, slots)
    int choosers, group, slots;
    constexpr VisitedBlocksOfSequences(const ForcedBlocks& forced_, const int* chosen_, int heads, int choosers_, int slots_)
        : Policy(forced_), forced(forced_), chosen(chosen_), choosers(choosers_), group(heads / choosers_), slots(slots_) {}
    constexpr VisitedBlocksOfSequences of_row(int sequence) const {
        VisitedBlocksOfSequences row = *this;
        row.chosen += size_t(sequence) * choosers * slots;
        return row;
    }
    constexpr VisitedBlocks of_head(int h) const { return {forced, chosen + size_t(h / group) * slots, slots}; }
    constexpr Tile tile(int h, int i0, int i1, int j0, int j1) const { return of_head(h).tile(h, i0, i1, j0, j1); }
    constexpr bool visible(int h, int i, int j) const { return of_head(h).visible(h, i, j); }
};
