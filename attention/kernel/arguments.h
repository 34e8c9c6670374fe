// The arguments of attention, the same on every device: of one call of the tiled kernel, and of one layer. A layer is a policy's
// preprocessing around one or more kernel calls.
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
/// count[n] tiles from tiles[n * stride] on, n = (b * NH + h) * query_tiles + t. Policy::tile() still classifies each of them.
struct TileList {
    const int* count = nullptr;
    const int* tiles = nullptr;
    int stride = 0;
    constexpr explicit operator bool() const { return count != nullptr; }
};

/// A mask as data, pair by pair and the same for all heads: query i of sequence b sees key 64 t + c if bit c of its word t is set. For
/// a policy with reads_bits.
struct PairBits {
    uint64_t* words = nullptr;   // (B, T, tiles_of(T))
    int T = 0;
    constexpr explicit operator bool() const { return words != nullptr; }
    constexpr uint64_t& word(int b, int i, int tile) const { return words[(size_t(b) * T + i) * tiles_of(T) + tile]; }
    constexpr bool sees(int b, int i, int j) const { return word(b, i, j / TILE) >> (j % TILE) & 1; }
};

/// Any of these may be null. Entropy is in nats; a row that sees nothing has 0. tile_max is the largest z of the row in the key tile,
/// -infinity in a tile that was not visited. pairs and tiles count the kernel's actual work. A tile is TILE x TILE on every device: where
/// a kernel takes more rows at once, a tile counts if it was part of a visited rectangle and is not hidden by the list or the policy
/// (TileWalk::judge_listed). The count is thus the same as in a kernel that goes tile by tile.
template <class X>
struct Statistics {
    Wide<X>* entropy = nullptr;    // (B, NH, T)
    Wide<X>* tile_max = nullptr;   // (B, NH, T, ceil(S / TILE))
    Wide<X>* pairs = nullptr;      // (B, NH, T) number of keys that the row saw
    Wide<X>* tiles = nullptr;      // (B, NH, ceil(T / TILE)) number of key tiles that the query tile visited
    Wide<X>* pair_gate = nullptr;  // (B, NH, T) sum of Policy::pair_gate() over those keys; not written if the policy has none
    constexpr explicit operator bool() const { return entropy || tile_max || pairs || tiles || pair_gate; }

    /// The statistics of gated branch n of a layer (Policy::branch_names()). Each array holds all branches in turn, with `rows`
    /// (B, NH, T) or `query_tiles` elements each. tile_max is left out, because its size depends on the branch's keys.
    Statistics of_branch(int n, size_t rows, size_t query_tiles) const {
        auto part = [n](Wide<X>* all, size_t size) { return all ? all + n * size : nullptr; };
        return {part(entropy, rows), nullptr, part(pairs, rows), part(tiles, query_tiles), part(pair_gate, rows)};
    }
};

template <class X>
struct AttentionForward {
    int B, T, S;   // sequences; queries and keys per sequence
    int NH, NKV, HS;
    Heads<const X> q;   // (B, T, NH, HS)
    Heads<const X> k;   // (B, S, NKV, HS); query head h reads head h / (NH / NKV)
    Heads<const X> v;   // (B, S, NKV, HS)

    // Inputs of score(), with the sizes of Policy::features(); null for size 0.
    const Wide<X>* head = nullptr;     // (NH, features.head)
    const Wide<X>* row = nullptr;      // (B, NH, T, features.row)
    const Wide<X>* column = nullptr;   // (B, NH, features.column, padded(S))
    const Wide<X>* tile = nullptr;     // (B, NH, tiles_of(T), tiles_of(S))

    TileList list;                     // tiles of a mask that the policy does not compute
    PairBits bits = {};                // pairs of such a mask
    const Wide<X>* gate = nullptr;     // (B, T, NH) factor on the output
    const int* q_position = nullptr;   // (B, NH, T) each row's token position; null: its index; -1: padding,
    const int* k_position = nullptr;   // (B, NH, S) which sees nothing and is seen by nothing
    Documents documents = {};          // varlen: a query sees its own document only, and positions count from the document's start

    X* out;                   // (B, T, NH, HS) before the gate
    X* gated_out = nullptr;   // (B, T, NH, HS) gate * out; needed with a gate only
    Wide<X>* lse;             // (B, NH, T) log-sum-exp; -infinity for a row that sees nothing
    Statistics<X> statistics = {};
};

/// All gradients are overwritten. dhead has one partial sum per sequence.
template <class X>
struct AttentionBackward {
    const X* dout;                   // (B, T, NH, HS) gradient of the output, after the gate if there is one
    const Wide<X>* dlse = nullptr;   // (B, NH, T); null: zero
    Heads<Wide<X>> dq, dk;           // wide: the GPU accumulates dq over key tiles in memory, and RoPE's backward reads both
    Heads<X> dv;
    Wide<X>* dhead = nullptr;     // (B, NH, features.head)
    Wide<X>* drow = nullptr;      // (B, NH, T, features.row)
    Wide<X>* dcolumn = nullptr;   // (B, NH, features.column, padded(S))
    Wide<X>* dtile = nullptr;     // (B, NH, tiles_of(T), tiles_of(S)), for visited tiles only
    Wide<X>* dgate = nullptr;     // (B, T, NH)
    std::byte* workspace = nullptr;   // attention_workspace() bytes on a GPU; unused on the CPU
};

// ----------------------------------------------------------------------------------------------------------------- the layer

/// The number of values that score() reads.
struct Features {
    int head = 0;     // per head
    int row = 0;      // per head and query
    int column = 0;   // per query head and key
    bool tile = false;   // one per head, query tile and key tile
    int token = 0;       // per token; not read by score(), kept by preprocess() for preprocess_backward()
};

/// The sizes of one attention layer: sequences, tokens per sequence, channels, query heads, key/value heads, head size.
struct LayerShape {
    int B, T, C, NH, NKV, HS;
};

/// The inputs of an attention layer: the block's normed input and the projections, before and after RoPE.
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
    Documents documents = {};      // empty, or documents to keep apart (varlen; LayerFacts::keeps_documents_apart)

    constexpr size_t token(int b, int t) const { return size_t(b) * T + t; }
    constexpr const X* query(const X* base, int b, int t, int h) const { return base + token(b, t) * qk_row + size_t(h) * HS; }
    constexpr const X* key(const X* base, int b, int t, int h) const { return query(base, b, t, h / (NH / NKV)); }
    constexpr const X* value(int b, int t, int h) const { return v + token(b, t) * v_row + size_t(h / (NH / NKV)) * HS; }
};

/// The inputs of score() and the output gate, filled by preprocess(); shapes as in AttentionForward. Their gradients have the same
/// layout, without `auxiliary`.
template <class X>
struct ScoreInputs {
    Wide<X>* head = nullptr;     // (NH, features.head); as a gradient (B, NH, features.head)
    Wide<X>* row = nullptr;      // (B, NH, T, features.row)
    Wide<X>* column = nullptr;   // (B, NH, features.column, padded(T))
    Wide<X>* token = nullptr;    // (B, T, features.token); as a gradient, uninitialised memory for preprocess_backward()
    Wide<X>* gate = nullptr;     // (B, T, NH)

    /// Terms (B, NH) of the auxiliary loss of a policy with has_auxiliary_loss; every forward pass overwrites all of them. Their sum
    /// over all layers, divided by the tokens of the micro-batch, is added to the mean cross-entropy.
    Wide<X>* auxiliary = nullptr;
};

/// preprocess_backward() turns the gradients of the score inputs, in `of`, into these gradients. It overwrites dq_pre and dk_pre and
/// adds to dx and dweights.
template <class X>
struct ScoreInputGradients {
    ScoreInputs<X> of;
    Wide<X>* dq_pre;     // (B, T, NH, HS), token stride LayerInputs::qk_row; null unless the policy has reads_qk_pre
    Wide<X>* dk_pre;     // (B, T, NKV, HS), the same
    X* dx;               // (B, T, C); null unless the policy has reads_x
    Wide<X>* dweights;   // the flat gradient buffer: a tensor's gradient is at dweights + slot.offset
    Wide<X> dloss = 1;   // weight of one token in the step's loss, 1 / tokens: a factor on a policy's own losses and statistics of
                         // this micro-batch
};

/// Allocates the score inputs of a layer with the features `f`, and its gate if `gated`. `copies` is 1, or B for the partial sums of
/// the gradients of the scalars per head.
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

/// The state that a layer's forward pass keeps for its backward pass.
template <class X>
struct LayerState {
    ScoreInputs<X> score_inputs;
    X* out;         // (B, T, NH, HS) before the gate
    X* gated_out;   // (B, T, NH, HS) input of the output projection; the same memory as out without a gate
    Wide<X>* lse;   // (B, NH, T)
    std::byte* kept = nullptr;   // Policy::kept_bytes(), with own_passes
};

/// Gradients with respect to q and k after RoPE, and v.
template <class X>
struct QkvGradients {
    Heads<Wide<X>> q;   // (B, T, NH, HS)
    Heads<Wide<X>> k;   // (B, T, NKV, HS)
    Heads<X> v;         // (B, T, NKV, HS)
};

/// The arguments of the only kernel call of a layer.
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

/// The same for a layer that applies its output gate itself after the kernel, from state.out to state.gated_out.
template <class X>
AttentionForward<X> ungated_arguments(const LayerInputs<X>& in, const LayerState<X>& state, const Statistics<X>& statistics) {
    AttentionForward<X> a = kernel_arguments(in, state, statistics);
    a.gate = nullptr, a.gated_out = nullptr;
    return a;
}
