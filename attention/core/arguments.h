// The arguments of one call of the tiled attention kernel, the same for every device.
#pragma once
#include <cstddef>

#include "model/device.h"

/// One matrix per token: (B, T, heads, HS) inside rows that may be longer, as q, k and v are inside the fused projection.
template <class X>
struct Heads {
    X* data;
    size_t row;   // elements from one token to the next; head h starts at h * HS
};

/// E2 as data: the key tiles that each query tile may visit, in ascending order. Query tile t of head h of row b has the count[n]
/// tiles from tiles[n * stride] on, n = (b * NH + h) * query_tiles + t. Policy::tile() still judges each of them.
struct TileList {
    const int* count = nullptr;
    const int* tiles = nullptr;
    int stride = 0;
    constexpr explicit operator bool() const { return count != nullptr; }
};

/// E6, each may be null. Entropy is in nats; a row that sees nothing has 0. tile_max is the greatest z of the row in the key
/// tile, -infinity where none was visited. pairs and tiles count what the kernel really did. A tile is TILE x TILE on every
/// device: where a kernel takes more rows at once, a tile counts when it was part of a visited rectangle and its own verdict (of
/// the list and the policy, see TileWalk::judge_listed) is not hidden: the count is that of a kernel that goes tile by tile.
template <class X>
struct Statistics {
    Wide<X>* entropy = nullptr;    // (B, NH, T)
    Wide<X>* tile_max = nullptr;   // (B, NH, T, ceil(S / TILE))
    Wide<X>* pairs = nullptr;      // (B, NH, T) how many keys the row saw
    Wide<X>* tiles = nullptr;      // (B, NH, ceil(T / TILE)) how many key tiles the query tile visited
    Wide<X>* pair_gate = nullptr;  // (B, NH, T) sum of Policy::pair_gate() over those keys; left alone where the policy has none
    constexpr explicit operator bool() const { return entropy || tile_max || pairs || tiles || pair_gate; }

    /// Those of branch n (Policy::branch_names()), where each array has room for those of all branches, one behind the other:
    /// `rows` (B, NH, T) and `query_tiles` numbers each. tile_max, whose size depends on the branch's keys, is not among them.
    Statistics of_branch(int n, size_t rows, size_t query_tiles) const {
        auto part = [n](Wide<X>* all, size_t size) { return all ? all + n * size : nullptr; };
        return {part(entropy, rows), nullptr, part(pairs, rows), part(tiles, query_tiles), part(pair_gate, rows)};
    }
};

template <class X>
struct AttentionForward {
    int B, T, S;   // sequences, queries and keys of each
    int NH, NKV, HS;
    Heads<const X> q;   // (B, T, NH, HS)
    Heads<const X> k;   // (B, S, NKV, HS); query head h reads head h / (NH / NKV)
    Heads<const X> v;   // (B, S, NKV, HS)

    // E1: the numbers behind Policy::features(); null where there are none.
    const Wide<X>* head = nullptr;     // (NH, features.head)
    const Wide<X>* row = nullptr;      // (B, NH, T, features.row)
    const Wide<X>* column = nullptr;   // (B, NH, features.column, padded(S))
    const Wide<X>* tile = nullptr;     // (B, NH, tiles_of(T), tiles_of(S))

    TileList list;                     // E2, when not computed by the policy
    const Wide<X>* gate = nullptr;     // E3 (B, T, NH)
    const int* q_position = nullptr;   // E4 (B, NH, T): the token that a row stands for; null: its index; -1: padding,
    const int* k_position = nullptr;   // E4 (B, NH, S)  which sees nothing and is seen by nobody

    X* out;                   // (B, T, NH, HS) before the gate
    X* gated_out = nullptr;   // (B, T, NH, HS) gate * out; needed with a gate only
    Wide<X>* lse;             // E5 (B, NH, T); -infinity where a row sees nothing
    Statistics<X> statistics = {};
};

/// dq, dk, dv are overwritten, the gradients of features and gate too. dhead has one partial sum per sequence.
template <class X>
struct AttentionBackward {
    const X* dout;                   // (B, T, NH, HS), of the gated output where there is a gate
    const Wide<X>* dlse = nullptr;   // E5 (B, NH, T), null: zero
    Heads<Wide<X>> dq, dk;           // wide: the GPU adds up dq over key tiles in memory, and RoPE's backward reads both
    Heads<X> dv;
    Wide<X>* dhead = nullptr;     // (B, NH, features.head)
    Wide<X>* drow = nullptr;      // (B, NH, T, features.row)
    Wide<X>* dcolumn = nullptr;   // (B, NH, features.column, padded(S))
    Wide<X>* dtile = nullptr;     // (B, NH, tiles_of(T), tiles_of(S)), only of tiles that are visited
    Wide<X>* dgate = nullptr;     // (B, T, NH)
    std::byte* workspace = nullptr;   // attention_workspace() bytes; the CPU needs none
};
