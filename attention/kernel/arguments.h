// The arguments of attention, the same for every device: of one call of the tiled kernel, and of one layer, which is a policy's
// preprocessing around one or several such calls.
#pragma once
#include <cstddef>

#include "model/device/device.h"
#include "model/device/memory.h"

/// Queries and keys are taken in square tiles of this many tokens.
inline constexpr int TILE = 64;
constexpr int tiles_of(int tokens) { return (tokens + TILE - 1) / TILE; }
constexpr int padded(int tokens) { return tiles_of(tokens) * TILE; }

// ---------------------------------------------------------------------------------------------------------------- the kernel

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

    /// Those of branch n of a layer (Policy::branch_names()), where each array has room for those of all its branches, one behind
    /// the other: `rows` (B, NH, T) and `query_tiles` numbers each. tile_max, whose size depends on the branch's keys, is not among
    /// them.
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

// ----------------------------------------------------------------------------------------------------------------- the layer

/// How many numbers E1 reads.
struct Features {
    int head = 0;     // per head
    int row = 0;      // per head and query
    int column = 0;   // per query head and key
    bool tile = false;   // one per head, query tile and key tile
};

/// The sizes of one attention layer: sequences, tokens, channels, query heads, key/value heads, head size.
struct LayerShape {
    int B, T, C, NH, NKV, HS;
};

/// What an attention layer sees: the block's normed input and the projections, before and after RoPE.
template <class X>
struct LayerInputs : LayerShape {
    const X* x;       // (B, T, C) the normed block input, which the q projection reads
    const X* q_pre;   // q and k after QK-norm and before RoPE; token stride qk_row
    const X* k_pre;
    const X* q;   // after RoPE; token stride qk_row
    const X* k;
    const X* v;   // token stride v_row
    size_t qk_row, v_row;
    const Wide<X>*cosine, *sine;   // (T, HS / 2) RoPE's table

    constexpr size_t token(int b, int t) const { return size_t(b) * T + t; }
    constexpr const X* query(const X* base, int b, int t, int h) const { return base + token(b, t) * qk_row + size_t(h) * HS; }
    constexpr const X* key(const X* base, int b, int t, int h) const { return query(base, b, t, h / (NH / NKV)); }
    constexpr const X* value(int b, int t, int h) const { return v + token(b, t) * v_row + size_t(h / (NH / NKV)) * HS; }
};

/// What preprocess() fills for E1 and E3; laid out as AttentionForward says. Also the layout of their gradients, without `auxiliary`.
template <class X>
struct Extras {
    Wide<X>* head = nullptr;     // (NH, features.head); as a gradient (B, NH, features.head)
    Wide<X>* row = nullptr;      // (B, NH, T, features.row)
    Wide<X>* column = nullptr;   // (B, NH, features.column, padded(T))
    Wide<X>* gate = nullptr;     // (B, T, NH)

    /// (B, NH) parts of the policy's own loss, where it has_auxiliary_loss; all are overwritten in every forward pass. Their sum over
    /// all layers, divided by the tokens of the micro-batch, is what the objective has beside the mean cross-entropy.
    Wide<X>* auxiliary = nullptr;
};

/// What preprocess_backward() turns extras' gradients, in `of`, into. dq_pre and dk_pre are overwritten, dx and dweights added to.
template <class X>
struct ExtraGradients {
    Extras<X> of;
    Wide<X>* dq_pre;     // (B, T, NH, HS), token stride LayerInputs::qk_row; null unless the policy says reads_qk_pre
    Wide<X>* dk_pre;     // (B, T, NKV, HS), the same
    X* dx;               // (B, T, C); null unless the policy says reads_x
    Wide<X>* dweights;   // the flat gradient buffer: a tensor's gradient is at dweights + slot.offset
    Wide<X> dloss = 1;   // the weight of one token in the step's loss, 1 / tokens: what statistics and losses of the policy's own
                         // multiply their sums over this micro-batch with
};

/// Memory for the extras of a layer that reads `f` and is `gated` or not; `copies` is 1, or B for the partial sums of the head
/// numbers' gradients.
template <class Device, class X>
Extras<X> take_extras(Arena<Device>& arena, const Features& f, bool gated, int B, int T, int NH, int copies) {
    Extras<X> e;
    if (f.head) e.head = arena.template take<Wide<X>>(size_t(copies) * NH * f.head);
    if (f.row) e.row = arena.template take<Wide<X>>(size_t(B) * NH * T * f.row);
    if (f.column) e.column = arena.template take<Wide<X>>(size_t(B) * NH * padded(T) * f.column);
    if (gated) e.gate = arena.template take<Wide<X>>(size_t(B) * T * NH);
    return e;
}

/// What a layer keeps from its forward pass for its backward pass.
template <class X>
struct LayerState {
    Extras<X> extras;
    X* out;         // (B, T, NH, HS) before the gate
    X* gated_out;   // (B, T, NH, HS), what the output projection reads; the same memory as out without a gate
    Wide<X>* lse;   // (B, NH, T)
    std::byte* kept = nullptr;   // Policy::kept_bytes() of a composite
};

/// Gradients with respect to q and k after RoPE and v.
template <class X>
struct QkvGradients {
    Heads<Wide<X>> q;   // (B, T, NH, HS)
    Heads<Wide<X>> k;   // (B, T, NKV, HS)
    Heads<X> v;         // (B, T, NKV, HS)
};

/// The call of the kernel that a layer with one call makes.
template <class X>
AttentionForward<X> kernel_arguments(const LayerInputs<X>& in, const LayerState<X>& state, const Statistics<X>& statistics) {
    AttentionForward<X> a{};
    a.B = in.B, a.T = in.T, a.S = in.T;
    a.NH = in.NH, a.NKV = in.NKV, a.HS = in.HS;
    a.q = {in.q, in.qk_row}, a.k = {in.k, in.qk_row}, a.v = {in.v, in.v_row};
    a.head = state.extras.head, a.row = state.extras.row, a.column = state.extras.column, a.gate = state.extras.gate;
    a.out = state.out, a.gated_out = state.extras.gate ? state.gated_out : nullptr, a.lse = state.lse;
    a.statistics = statistics;
    return a;
}
