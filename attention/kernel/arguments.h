// The arguments of attention, the same on every device: of one call of the tiled kernel, and of one layer, which is a policy's
// preprocessing around one or more such calls.
#pragma once
#include <cstddef>
#include <cstdint>

#include "model/base/bf16.h"
#include "model/batch.h"
#include "model/device/device.h"
#include "model/device/memory.h"

/// Side of the square tiles that queries and keys are cut into, in tokens.
inline constexpr int TILE = 64;
constexpr int tiles_of(int tokens) { return (tokens + TILE - 1) / TILE; }
constexpr int padded(int tokens) { return tiles_of(tokens) * TILE; }

// ---------------------------------------------------------------------------------------------------------------- the kernel

/// One matrix per token: (B, T, heads, HS) inside rows that may be longer, such as q, k and v inside the fused projection.
template <class X>
struct Heads {
    X* data;
    size_t row;   // elements from one token to the next; head h starts at h * HS
};

/// A mask as data: the key tiles that each query tile may visit, in ascending order. Query tile t of head h of sequence b has the
/// count[n] tiles from tiles[n * stride] on, n = (b * NH + h) * query_tiles + t. Policy::tile() still judges each of them.
struct TileList {
    const int* count = nullptr;
    const int* tiles = nullptr;
    int stride = 0;
    constexpr explicit operator bool() const { return count != nullptr; }
};

/// A mask as data, pair by pair and the same for all heads: bit c of word t of query i of sequence b says whether it sees key
/// 64 t + c. For a policy that reads_bits.
struct PairBits {
    uint64_t* words = nullptr;   // (B, T, tiles_of(T))
    int T = 0;
    constexpr explicit operator bool() const { return words != nullptr; }
    constexpr uint64_t& word(int b, int i, int tile) const { return words[(size_t(b) * T + i) * tiles_of(T) + tile]; }
    constexpr bool sees(int b, int i, int j) const { return word(b, i, j / TILE) >> (j % TILE) & 1; }
};

/// Any of these may be null. Entropy is in nats; a row that sees nothing has 0. tile_max is the largest z of the row in the key
/// tile, -infinity where it was not visited. pairs and tiles count what the kernel actually did. A tile is TILE x TILE on every
/// device: where a kernel takes more rows at once, a tile counts when it was part of a visited rectangle and its own verdict (of
/// the list and the policy, see TileWalk::judge_listed) is not hidden, so the count is that of a kernel that goes tile by tile.
template <class X>
struct Statistics {
    Wide<X>* entropy = nullptr;    // (B, NH, T)
    Wide<X>* tile_max = nullptr;   // (B, NH, T, ceil(S / TILE))
    Wide<X>* pairs = nullptr;      // (B, NH, T) how many keys the row saw
    Wide<X>* tiles = nullptr;      // (B, NH, ceil(T / TILE)) how many key tiles the query tile visited
    Wide<X>* pair_gate = nullptr;  // (B, NH, T) sum of Policy::pair_gate() over those keys; left alone where the policy has none
    constexpr explicit operator bool() const { return entropy || tile_max || pairs || tiles || pair_gate; }

    /// The statistics of gated branch n of a layer (Policy::branch_names()). Each array holds those of all branches, one after the
    /// other: `rows` (B, NH, T) or `query_tiles` elements each. tile_max is left out: its size depends on the branch's keys.
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

    // What score() reads, of the sizes in Policy::features(); null where that is nothing.
    const Wide<X>* head = nullptr;     // (NH, features.head)
    const Wide<X>* row = nullptr;      // (B, NH, T, features.row)
    const Wide<X>* column = nullptr;   // (B, NH, features.column, padded(S))
    const Wide<X>* tile = nullptr;     // (B, NH, tiles_of(T), tiles_of(S))

    TileList list;                     // of a mask that the policy does not compute
    PairBits bits = {};                // and its pairs
    const Wide<X>* gate = nullptr;     // (B, T, NH) on the output
    const int* q_position = nullptr;   // (B, NH, T) each row's token position; null: its index; -1: padding,
    const int* k_position = nullptr;   // (B, NH, S) which sees nothing and is seen by nothing
    Documents documents = {};          // a query sees its own only, and the policy judges positions as counted from its beginning

    X* out;                   // (B, T, NH, HS) before the gate
    X* gated_out = nullptr;   // (B, T, NH, HS) gate * out; needed with a gate only
    Wide<X>* lse;             // (B, NH, T) log-sum-exp; -infinity where a row sees nothing
    Statistics<X> statistics = {};
};

/// All gradients are overwritten. dhead has one partial sum per sequence.
template <class X>
struct AttentionBackward {
    const X* dout;                   // (B, T, NH, HS), of the gated output where there is a gate
    const Wide<X>* dlse = nullptr;   // (B, NH, T); null: zero
    Heads<Wide<X>> dq, dk;           // wide: the GPU accumulates dq over key tiles in memory, and RoPE's backward reads both
    Heads<X> dv;
    Wide<X>* dhead = nullptr;     // (B, NH, features.head)
    Wide<X>* drow = nullptr;      // (B, NH, T, features.row)
    Wide<X>* dcolumn = nullptr;   // (B, NH, features.column, padded(S))
    Wide<X>* dtile = nullptr;     // (B, NH, tiles_of(T), tiles_of(S)), only of tiles that are visited
    Wide<X>* dgate = nullptr;     // (B, T, NH)
    std::byte* workspace = nullptr;   // attention_workspace() bytes; the CPU needs none
};

// ----------------------------------------------------------------------------------------------------------------- the layer

/// How many values score() reads.
struct Features {
    int head = 0;     // per head
    int row = 0;      // per head and query
    int column = 0;   // per query head and key
    bool tile = false;   // one per head, query tile and key tile
    int token = 0;       // per token, which score() does not read: what preprocess() keeps for its backward
};

/// The sizes of one attention layer: sequences, tokens, channels, query heads, key/value heads, head size.
struct LayerShape {
    int B, T, C, NH, NKV, HS;
};

/// A text that is to be written: at most T tokens, B is 1; and how the layer keeps their keys and values.
struct TextRoom : LayerShape {
    Stored keys = Stored::as_computed;
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
    Documents documents = {};      // empty, or to be kept apart (LayerFacts::keeps_documents_apart)

    constexpr size_t token(int b, int t) const { return size_t(b) * T + t; }
    constexpr const X* query(const X* base, int b, int t, int h) const { return base + token(b, t) * qk_row + size_t(h) * HS; }
    constexpr const X* key(const X* base, int b, int t, int h) const { return query(base, b, t, h / (NH / NKV)); }
    constexpr const X* value(int b, int t, int h) const { return v + token(b, t) * v_row + size_t(h / (NH / NKV)) * HS; }
};

/// What preprocess() fills for score() and the output gate; shapes as in AttentionForward. Their gradients have the
/// same layout, without `auxiliary`.
template <class X>
struct ScoreInputs {
    Wide<X>* head = nullptr;     // (NH, features.head); as a gradient (B, NH, features.head)
    Wide<X>* row = nullptr;      // (B, NH, T, features.row)
    Wide<X>* column = nullptr;   // (B, NH, features.column, padded(T))
    Wide<X>* token = nullptr;    // (B, T, features.token); as a gradient memory for preprocess_backward(), not set
    Wide<X>* gate = nullptr;     // (B, T, NH)

    /// (B, NH) terms of the policy's own loss, where it has_auxiliary_loss; every forward pass overwrites them all. Their sum over
    /// all layers, divided by the tokens of the micro-batch, is added to the mean cross-entropy.
    Wide<X>* auxiliary = nullptr;
};

/// preprocess_backward() turns the gradients of the score inputs, in `of`, into these. dq_pre and dk_pre are
/// overwritten, dx and dweights added to.
template <class X>
struct ScoreInputGradients {
    ScoreInputs<X> of;
    Wide<X>* dq_pre;     // (B, T, NH, HS), token stride LayerInputs::qk_row; null unless the policy says reads_qk_pre
    Wide<X>* dk_pre;     // (B, T, NKV, HS), the same
    X* dx;               // (B, T, C); null unless the policy says reads_x
    Wide<X>* dweights;   // the flat gradient buffer: a tensor's gradient is at dweights + slot.offset
    Wide<X> dloss = 1;   // the weight of one token in the step's loss, 1 / tokens: a policy's own losses and statistics multiply
                         // their sums over this micro-batch by it
};

/// Memory for the score inputs of a layer that reads `f` and is `gated` or not; `copies` is 1, or B for the partial sums of the
/// gradients of the scalars per head.
template <class X>
ScoreInputs<X> take_score_inputs(BumpAllocator& allocator, const Features& f, bool gated, int B, int T, int NH, int copies) {
    ScoreInputs<X> e;
    if (f.head) e.head = allocator.take<Wide<X>>(size_t(copies) * NH * f.head);
    if (f.row) e.row = allocator.take<Wide<X>>(size_t(B) * NH * T * f.row);
    if (f.column) e.column = allocator.take<Wide<X>>(size_t(B) * NH * padded(T) * f.column);
    if (f.token) e.token = allocator.take<Wide<X>>(size_t(B) * T * f.token);
    if (gated) e.gate = allocator.take<Wide<X>>(size_t(B) * T * NH);
    return e;
}

/// What a layer keeps from its forward pass for its backward pass.
template <class X>
struct LayerState {
    ScoreInputs<X> score_inputs;
    X* out;         // (B, T, NH, HS) before the gate
    X* gated_out;   // (B, T, NH, HS), what the output projection reads; the same memory as out without a gate
    Wide<X>* lse;   // (B, NH, T)
    std::byte* kept = nullptr;   // Policy::kept_bytes(), with own_passes
};

/// Gradients with respect to q and k after RoPE and v.
template <class X>
struct QkvGradients {
    Heads<Wide<X>> q;   // (B, T, NH, HS)
    Heads<Wide<X>> k;   // (B, T, NKV, HS)
    Heads<X> v;         // (B, T, NKV, HS)
};

/// Arguments of the kernel call of a layer that makes only one.
template <class X>
AttentionForward<X> kernel_arguments(const LayerInputs<X>& in, const LayerState<X>& state, const Statistics<X>& statistics) {
    AttentionForward<X> a{};
    a.B = in.B, a.T = in.T, a.S = in.T;
    a.NH = in.NH, a.NKV = in.NKV, a.HS = in.HS;
    a.q = {in.q, in.qk_row}, a.k = {in.k, in.qk_row}, a.v = {in.v, in.v_row};
    a.head = state.score_inputs.head, a.row = state.score_inputs.row, a.column = state.score_inputs.column;
    a.gate = state.score_inputs.gate;
    a.documents = in.documents;
    a.out = state.out, a.gated_out = a.gate ? state.gated_out : nullptr, a.lse = state.lse;
    a.statistics = statistics;
    return a;
}

/// The same for a layer that multiplies the output by its gates itself, after the kernel: from state.out to state.gated_out.
template <class X>
AttentionForward<X> ungated_arguments(const LayerInputs<X>& in, const LayerState<X>& state, const Statistics<X>& statistics) {
    AttentionForward<X> a = kernel_arguments(in, state, statistics);
    a.gate = nullptr, a.gated_out = nullptr;
    return a;
}
