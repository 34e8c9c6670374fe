// Block selection: from one score per query tile and key tile to the lists of key tiles that the kernel
// visits. The choice has no gradient.
#pragma once
#include "attention/masks/choose_blocks.cuh"

/// Shapes: lists and scores (B, NH, N, N), N = tiles_of(T) entries for each query tile.
struct TileScores {
    int B, NH, N;
};

/// The rule for a list that has a place for every candidate.
constexpr TileChoice among_candidates(TileChoice choice, int r) {
    const int candidates = candidates_of(choice, r);
    choice.top = choice.threshold < 0 ? std::min(choice.top, candidates) : candidates;
    return choice;
}

/// Teams are (b, h, tile).
template <class W, class First>
struct ChooseTiles {
    using Number = W;
    int *count, *tiles;
    const W* scores;
    TileScores s;
    TileChoice choice;
    First first_of;

    template <class Team>
    constexpr void operator()(const Team& team, unsigned n) const {
        const int tile = int(n) % s.N, h = int(n) / s.N % s.NH, b = int(n) / s.N / s.NH, first = first_of(b, tile), r = tile - first;
        const bool dense = h < choice.dense_heads;
        const int leading = dense ? r + 1 : std::min(choice.leading, r + 1);
        const int local = dense ? 0 : r + 1 - leading - candidates_of(choice, r);
        const TileChoice rule = among_candidates(choice, r);
        int *const list = tiles + size_t(n) * s.N, end = leading;
        for (int c = team.first(); c < leading; c += team.step()) list[c] = first + c;
        if (!dense) choose_blocks(team, list + leading, scores + size_t(n) * s.N + first, rule, r, first);
        team.sync();
        while (!dense && end < leading + rule.top && list[end] >= 0) end++;
        team.sync();   // the -1 behind the chosen ones have been read
        for (int c = team.first(); c < local; c += team.step()) list[end + c] = tile + 1 - local + c;
        if (team.first() == 0) count[n] = end + local;
    }
};

/// count (B, NH, N) and tiles (B, NH, N, N), ascending. Tiles of a text count from its first, which first_of(b, r) returns for tile r;
/// r + 1 leaves tile r without a list.
template <class Device, class W, class First>
void choose_tiles(Device device, int* count, int* tiles, const W* scores, const TileScores& s, const TileChoice& choice,
                  First first_of) {
    each_team<1>(device, size_t(s.B) * s.NH * s.N, ChooseTiles<W, First>{count, tiles, scores, s, choice, first_of});
}
