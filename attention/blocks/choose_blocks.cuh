// A token's choice among past blocks by their scores: the `top` greatest of the candidates of a TileChoice (select.cuh, with blocks
// for tiles), ties going to earlier blocks, in ascending order and then -1. It has no gradient.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/masks/select.cuh"

/// Number of blocks that a token in block r may choose from.
constexpr int candidates_of(const TileChoice& choice, int r) {
    return std::max(0, r + 1 - choice.leading - choice.local);
}

/// Writes the choice to `to` (choice.top) from the scores of blocks 0 .. r. `order` is scratch memory.
template <class W>
void choose_blocks(CPU, int* to, const W* scores, const TileChoice& choice, int r, std::vector<int>& order) {
    const int candidates = candidates_of(choice, r), chosen = std::min(choice.top, candidates);
    order.resize(candidates);
    for (int n = 0; n < candidates; n++) order[n] = choice.leading + n;
    auto score = [&](int n) { return scores[n] == scores[n] ? scores[n] : W(-INFINITY); };   // NaN would break the order
    auto better = [&](int x, int y) { return score(x) > score(y) || (score(x) == score(y) && x < y); };
    if (chosen < candidates) std::partial_sort(order.begin(), order.begin() + chosen, order.end(), better);   // few of many
    std::sort(order.begin(), order.begin() + chosen);
    std::copy_n(order.begin(), chosen, to);
    std::fill(to + chosen, to + choice.top, -1);
}

#ifdef WITH_GPU

/// The same, by one warp; all lanes must see the scores.
template <class W>
__device__ void choose_blocks(int* to, const W* scores, const TileChoice& choice, int r) {
    using namespace choosing;
    const int lane = int(threadIdx.x) % WARP;
    ChosenByCut by_cut(cut_of_greatest(scores, choice, r));
    const unsigned before = (1u << lane) - 1;
    int n = 0;
    for (int first = 0; first <= r; first += WARP) {
        const int c = first + lane;
        const bool candidate = c <= r && !choice.forced(r, c);
        const bool take = by_cut.has(candidate, candidate ? ordered(scores[c]) : 0);
        const unsigned taken = __ballot_sync(ALL_LANES, take);
        if (take) to[n + __popc(taken & before)] = c;
        n += __popc(taken);
    }
    for (n += lane; n < choice.top; n += WARP) to[n] = -1;
}

#endif
