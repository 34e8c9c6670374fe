// The blocks that slc reads whole (NSA, Yuan et al. 2025, section 3.3.2): their number, the granularity of the choice, the passes.
//     every = 1      every token chooses, as published; rows of queries are gathered by the block that they chose (token_blocks.cuh)
//     every = TILE   the queries of a tile share their first token's choice, which depends on nothing later than any of them. The
//                    kernel visits the chosen tiles, and nothing is gathered. Our form, not the paper's.
#pragma once
#include <optional>

#include "attention/blocks/token_blocks.cuh"
#include "attention/nsa/importance.cuh"

/// The blocks that every query sees without a selection. With a shared selection the list of tiles is the mask, and `leading` makes the
/// policy hide nothing. Gated like the other branches.
struct SelectedBlocks : ForcedBlocks {
    using ForcedBlocks::ForcedBlocks;
    static constexpr Traits traits{.gates_output = true};
};

struct Selection {
    int blocks;   // blocks of TILE tokens per query: the first, its own, the one before it, the chosen ones
    int every;    // 1 or TILE

    constexpr int rows(int T) const { return (T + every - 1) / every; }
    constexpr int slots(int T) const { return std::min(blocks - 3, std::max(tiles_of(T) - 3, 0)); }
    /// Whether every token may see all blocks of T tokens: no token chooses then, and slc is causal attention.
    constexpr bool sees_all(int T) const { return every == 1 && tiles_of(T) <= blocks; }
    constexpr TileChoice rule(int T) const { return choice_of_blocks(slots(T)); }
    SelectedBlocks policy(const Policy& p, int T) const { return {p, TILE, every != 1 || sees_all(T) ? INT_MAX : 1, 2}; }

    /// Row n of a choice belongs to token n * every.
    BlockChoice choice(const LayerShape& s) const {
        const BlockChoice c{s.B, rows(s.T), s.NH, s.NKV, TILE, sees_all(s.T) ? 0 : slots(s.T)};
        require_countable(c, "--nsa-selected", "nsa_selected", "lower it");
        return c;
    }
    /// Whether a query in block r of its document sees block n, by its row of a choice. The document's first block is number `first`.
    bool sees(const int* chosen, int T, int first, int r, int n) const {
        return sees_all(T) || rule(T).forced(r, n) || std::find(chosen, chosen + slots(T), first + n) != chosen + slots(T);
    }
    /// Pairs of one head and sequence.
    PairCount expected_pairs(const Policy& p, int T) const {
        PairCount count = expected_block_pairs({p, TILE, sees_all(T) ? INT_MAX : 1, 2}, slots(T), 1, T);
        if (every == 1) return count;
        count.tiles = 0;
        for (int r = 0; r < tiles_of(T); r++) count.tiles += std::min(r + 1, blocks);
        return count;
    }
};

/// A shared choice as lists of tiles, ascending: count (B, NH, N), tiles (B, NH, N, slots + 3). Rows are (b, h, query tile).
struct ListSelectedTiles {
    int *count, *tiles;
    const int* choice;
    BlockChoice c;   // for N rows

    constexpr int stride() const { return c.slots + 3; }
    constexpr void operator()(unsigned row, int) const {
        const int N = c.T, r = int(row) % N, h = int(row) / N % c.NH, b = int(row) / N / c.NH;
        const int* chosen = choice + c.of_token(b, h / (c.NH / c.choosers), r);
        int* const to = tiles + size_t(row) * stride();
        int n = 0;
        if (r > 1) to[n++] = 0;
        for (int s = 0; s < c.slots && chosen[s] >= 0; s++) to[n++] = chosen[s];
        for (int tile = std::max(r - 1, 0); tile <= r; tile++) to[n++] = tile;
        count[row] = n;
    }
};

/// slc's passes, with their memory.
template <class Device, class X>
class SelectedAttention {
public:
    SelectedAttention(Device device, BumpAllocator& allocator, const LayerShape& s, const Selection& selection, const Policy& p)
        : choice_(selection.choice(s)), policy_(selection.policy(p, s.T)) {
        if (selection.every == 1) {
            tokens_.emplace(device, allocator, s, choice_, policy_);
            return;
        }
        const size_t lists = size_t(s.B) * s.NH * tiles_of(s.T);
        count_ = allocator.take<int>(lists), tiles_ = allocator.take<int>(lists * (choice_.slots + 3));
    }
    /// `a` is a call of the text without a mask.
    void forward(Device device, const AttentionForward<X>& a, const int* choice) const {
        if (tokens_) tokens_->forward(device, policy_, a, choice);
        else attention_forward(device, policy_, listed(device, a, choice));
    }
    /// Overwrites g.dq, g.dk, g.dv and g.dgate.
    void backward(Device device, const AttentionForward<X>& a, const AttentionBackward<X>& g, const int* choice) const {
        if (tokens_) tokens_->backward(device, policy_, a, g, choice);
        else attention_backward(device, policy_, listed(device, a, choice), g);
    }

private:
    AttentionForward<X> listed(Device device, AttentionForward<X> a, const int* choice) const {
        const ListSelectedTiles list{count_, tiles_, choice, choice_};
        each_element(device, size_t(a.B) * a.NH * choice_.T, 1, list);
        a.list = {count_, tiles_, list.stride()};
        return a;
    }

    BlockChoice choice_;
    SelectedBlocks policy_;
    std::optional<TokenBlocks<Device, X>> tokens_;   // where every token chooses
    int *count_ = nullptr, *tiles_ = nullptr;        // where tiles do
};
