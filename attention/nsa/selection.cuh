// The blocks that slc reads whole (NSA, Yuan et al. 2025, section 3.3.2): their number and the granularity of the choice.
//     every = 1      every token chooses, as published
//     every = TILE   the queries of a tile share their first token's choice, which depends on nothing later than any of them. Our
//                    form, not the paper's.
#pragma once
#include "attention/blocks/block_bits.cuh"
#include "attention/nsa/importance.cuh"

struct Selection {
    int blocks;   // blocks of TILE tokens per query: the first, its own, the one before it, the chosen ones
    int every;    // 1 or TILE

    constexpr int rows(int T) const { return (T + every - 1) / every; }
    constexpr int slots(int T) const { return std::min(blocks - 3, std::max(tiles_of(T) - 3, 0)); }
    /// Whether every token may see all blocks of T tokens: no token chooses then, and slc is causal attention.
    constexpr bool sees_all(int T) const { return every == 1 && tiles_of(T) <= blocks; }
    constexpr TileChoice rule(int T) const { return choice_of_blocks(slots(T)); }

    /// Row n of a choice belongs to token n * every.
    BlockChoice choice(const LayerShape& s) const { return {s.B, rows(s.T), s.NH, s.NKV, TILE, sees_all(s.T) ? 0 : slots(s.T)}; }
    /// Whether a query in block r of its document sees block n, by its row of a choice. The document's first block is number `first`.
    bool sees(const int* chosen, int T, int first, int r, int n) const {
        return sees_all(T) || rule(T).forced(r, n) || std::find(chosen, chosen + slots(T), first + n) != chosen + slots(T);
    }
    /// The blocks that every token of T sees.
    ForcedBlocks forced(const Policy& p, int T) const { return {p, TILE, sees_all(T) ? INT_MAX : rule(T).leading, rule(T).local}; }
    /// Pairs of one head and sequence, and the most tiles.
    PairCount expected_pairs(const Policy& p, int T) const { return expected_block_pairs(forced(p, T), slots(T), 1, T, TILE / every); }
};
