// The mask of one row of a text that is being written, where single keys have been chosen: causal attention to them.
#pragma once
#include "attention/kernel/policy.h"

struct ChosenTokens : Policy {
    const char* chosen;   // (tokens)
    constexpr ChosenTokens(const Policy& p, const char* chosen_) : Policy(p), chosen(chosen_) {}
    constexpr Tile tile(int /*h*/, int i0, int i1, int j0, int j1) const {
        bool some = false;
        for (int j = j0; j < j1 && !some; j++) some = chosen[j];
        return some ? std::min(Tile::mixed, causal_tile(i0, i1, j0, j1)) : Tile::hidden;
    }
    constexpr bool visible(int /*h*/, int i, int j) const { return j <= i && chosen[j]; }
};

/// The same of rows of several texts on a GPU, of which each head has chosen keys of its own.
struct ChosenByHeads : Policy {
    const char* chosen;   // (texts, heads, room)
    int heads, room;
    constexpr ChosenByHeads(const Policy& p, const char* chosen_, int heads_, int room_)
        : Policy(p), chosen(chosen_), heads(heads_), room(room_) {}
    constexpr ChosenByHeads of_row(int text) const { return {*this, chosen + size_t(text) * heads * room, heads, room}; }
    constexpr ChosenTokens of_head(int h) const { return {*this, chosen + size_t(h) * room}; }
    constexpr Tile tile(int h, int i0, int i1, int j0, int j1) const { return of_head(h).tile(h, i0, i1, j0, j1); }
    constexpr bool visible(int h, int i, int j) const { return of_head(h).visible(h, i, j); }
};

/// The same where a row's heads have chosen together.
struct ChosenTogether : Policy {
    const char* chosen;   // (texts, room)
    int room;
    constexpr ChosenTogether(const Policy& p, const char* chosen_, int room_) : Policy(p), chosen(chosen_), room(room_) {}
    constexpr ChosenTokens of_row(int text) const { return {*this, chosen + size_t(text) * room}; }
};
