// Masks of decode steps: a row sees the keys, or the blocks of keys, that were chosen for it. `choosers` is the number of query heads, or
// of groups of heads, that choose on their own.
#pragma once
#include "attention/blocks/forced_blocks.h"

/// The chosen keys. With `chosen_rows` a row sees something only if its own key is chosen.
struct VisitedKeys : Policy {
    const char* chosen;   // (sequences, choosers, room)
    int choosers, group, room;
    bool chosen_rows;
    constexpr VisitedKeys(const Policy& p, const char* chosen_, int heads, int choosers_, int room_, bool chosen_rows_)
        : Policy(p), chosen(chosen_), choosers(choosers_), group(heads / choosers_), room(room_), chosen_rows(chosen_rows_) {}
    constexpr VisitedKeys of_row(int sequence) const {
        VisitedKeys row = *this;
        row.chosen += size_t(sequence) * choosers * room;
        return row;
    }
    constexpr const char* of_head(int h) const { return chosen + size_t(h / group) * room; }
    constexpr Tile tile(int h, int i0, int i1, int j0, int j1) const {
        const char* const mine = of_head(h);
        if (chosen_rows && !mine[i0]) return Tile::hidden;
        bool some = false;
        for (int j = j0; j < j1 && !some; j++) some = mine[j];
        return some ? std::min(Tile::mixed, causal_tile(i0, i1, j0, j1)) : Tile::hidden;
    }
    constexpr bool visible(int h, int i, int j) const { return j <= i && of_head(h)[j]; }
};

/// Blocks that rows have chosen: `slots` for each chooser of a sequence; -1: none.
struct ChosenBlocks {
    int choosers, slots;
    int* lists;   // (sequences, choosers, slots)
    constexpr int* of(int sequence, int chooser) const { return lists + (size_t(sequence) * choosers + chooser) * slots; }
};

/// The blocks that every token sees, and the chosen ones.
struct VisitedBlocks : Policy {
    ForcedBlocks forced;
    ChosenBlocks chosen;   // from the row's sequence on
    int group;
    constexpr VisitedBlocks(const ForcedBlocks& forced_, const ChosenBlocks& chosen_, int heads)
        : Policy(forced_), forced(forced_), chosen(chosen_), group(heads / chosen.choosers) {}
    constexpr VisitedBlocks of_row(int sequence) const {
        VisitedBlocks row = *this;
        row.chosen.lists = chosen.of(sequence, 0);
        return row;
    }
    constexpr bool sees(int h, int i, int c) const {
        const int* const mine = chosen.of(0, h / group);
        bool seen = forced.forced(i / forced.block, c);
        for (int n = 0; n < chosen.slots && !seen; n++) seen = mine[n] == c;
        return seen;
    }
    constexpr Tile tile(int h, int i0, int i1, int j0, int j1) const {
        if (j0 / forced.block != (j1 - 1) / forced.block) return Tile::mixed;
        return sees(h, i0, j0 / forced.block) ? causal_tile(i0, i1, j0, j1) : Tile::hidden;
    }
    constexpr bool visible(int h, int i, int j) const { return j <= i && sees(h, i, j / forced.block); }
};
