// A token's choice among past blocks by their scores: the `top` greatest of the candidates of a TileChoice (choice.cuh, with blocks
// for tiles), ties going to earlier blocks, in ascending order and then -1. With a threshold, those of them whose share in the softmax over
// all candidates is above it. It has no gradient.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/masks/choice.cuh"

/// The choices of all tokens: (B, choosers, T, slots) block numbers, only of blocks that end before the token. A chooser is a query head,
/// or a group of heads together: choosers is NH or NKV. A block has a multiple of TILE tokens.
struct BlockChoice {
    int B, T, NH, choosers, block, slots;
    constexpr int blocks() const { return (T + block - 1) / block; }
    constexpr size_t of_token(int b, int chooser, int t) const { return ((size_t(b) * choosers + chooser) * T + t) * slots; }
    constexpr size_t size() const { return of_token(B, 0, 0); }
};

/// Writes the choice to `to` (choice.top) from the scores of blocks 0 .. r, which are numbered from `first`. By a team (each_team()).
template <class W>
void choose_blocks(const ThreadTeam<W>&, int* to, const W* scores, const TileChoice& choice, int r, int first = 0) {
    const int candidates = candidates_of(choice, r), chosen = std::min(choice.top, candidates);
    std::vector<int> order(candidates);
    for (int n = 0; n < candidates; n++) order[n] = choice.leading + n;
    auto score = [&](int n) { return scores[n] == scores[n] ? scores[n] : W(-INFINITY); };   // NaN would break the order
    auto better = [&](int x, int y) { return score(x) > score(y) || (score(x) == score(y) && x < y); };
    if (chosen < candidates) std::partial_sort(order.begin(), order.begin() + chosen, order.end(), better);   // few of many
    std::sort(order.begin(), order.begin() + chosen);
    const CandidateSoftmax<W> softmax(scores, choice, r);
    int n = 0;
    for (int m = 0; m < chosen; m++)
        if (softmax.passes(scores[order[m]], choice)) to[n++] = first + order[m];
    std::fill(to + n, to + choice.top, -1);
}

#ifdef WITH_GPU

/// The same, by the first warp; all its lanes must see the scores.
template <int WARPS, class W>
__device__ void choose_blocks(const BlockTeam<WARPS>&, int* to, const W* scores, const TileChoice& choice, int r, int first = 0) {
    using namespace choosing;
    const int lane = int(threadIdx.x) % WARP;
    if (WARPS > 1 && int(threadIdx.x) >= WARP) return;
    const CandidateSoftmax<W> softmax(scores, choice, r);
    const Cut all{0, choice.top};   // below the key of any score
    ChosenByCut by_cut(choice.top < candidates_of(choice, r) ? cut_of_greatest(scores, choice, r) : all);
    const unsigned before = (1u << lane) - 1;
    int n = 0;
    for (int c0 = 0; c0 <= r; c0 += WARP) {
        const int c = c0 + lane;
        const bool candidate = c <= r && !choice.forced(r, c);
        const bool take = by_cut.has(candidate, candidate ? ordered(scores[c]) : 0) && softmax.passes(scores[c], choice);
        const unsigned taken = __ballot_sync(ALL_LANES, take);
        if (take) to[n + __popc(taken & before)] = first + c;
        n += __popc(taken);
    }
    for (n += lane; n < choice.top; n += WARP) to[n] = -1;
}

#endif
