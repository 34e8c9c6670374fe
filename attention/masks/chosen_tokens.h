// The mask of one row of a text that is being written, where single keys have been chosen: causal attention to them.
#pragma once
#include <algorithm>

#include "attention/kernel/policy.h"

struct ChosenTokens : Policy {
    const char* chosen;   // (tokens)
    ChosenTokens(const Policy& p, const char* chosen_) : Policy(p), chosen(chosen_) {}
    Tile tile(int /*h*/, int i0, int i1, int j0, int j1) const {
        const bool some = std::find(chosen + j0, chosen + j1, 1) != chosen + j1;
        return some ? std::min(Tile::mixed, causal_tile(i0, i1, j0, j1)) : Tile::hidden;
    }
    bool visible(int /*h*/, int i, int j) const { return j <= i && chosen[j]; }
};
