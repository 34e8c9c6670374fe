// The contract of an attention mechanism. A variant is a struct derived from Policy that overrides what differs from causal
// attention; the kernel's parts are policies, too. Conventions: i query, j key, h query head, token positions from 0;
//     a_ij = HS^-1/2 q_i.k_j     z_ij = score(a_ij)     P_ij = exp(z_ij - LSE_i) on the visible pairs     O_i = sum_j P_ij v_j
//
//     settings(), declare(), trains()     options and tensors
//     features(), score()                 z = f(a), with scalars per head and features per query row and key column
//     tile(), visible()                   the mask
//     preprocess()                        fills the features and the output gate from x, q and k
//     forward(), backward()               own passes, for more than one call of the kernel
//     name, naive()                       the variant's name; the formula in dense loops: the oracle of the tests
//     traits, form()                      facts for the engine and the kernel
//
// Other questions are asked from outside: attention/kernel/count.h (expected work), attention/layer_of.h (monitors),
// attention/decoding/.
//
// X is the stored number type (float, double, bf16), Wide<X> that of sums, N one number or a SIMD vector of them in score(). Device
// is CPU or GPU. `weights + slot.offset` is a tensor that declare() has added.
#pragma once
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "model/batch.h"
#include "model/config.h"
#include "model/device/device.h"
#include "model/device/math.h"
#include "model/tensors.h"

/// Side of the square tiles that queries and keys are cut into, in tokens.
inline constexpr int TILE = 64;
constexpr int tiles_of(int tokens) { return (tokens + TILE - 1) / TILE; }
constexpr int padded(int tokens) { return tiles_of(tokens) * TILE; }

enum class Tile {
    hidden,   // no pair is visible: the kernel skips the tile
    mixed,    // visible() masks pair by pair
    full,     // every pair is visible: no mask
};

/// The sizes of one attention layer: sequences, tokens per sequence, channels, query heads, key/value heads, head size.
struct LayerShape {
    int B, T, C, NH, NKV, HS;
};

// ------------------------------------------------------------------------------------------------- the score of a pair

/// The number of values that score() reads.
struct Features {
    int head = 0;     // per head
    int row = 0;      // per head and query
    int column = 0;   // per query head and key
    bool tile = false;    // one per head, query tile and key tile
    bool reach = false;   // per head and sequence, found by a GPU's kernels: the largest |row(f) + column(f)|, or half of either
    int token = 0;       // per token; not read by score(), kept by preprocess() for preprocess_backward()
};

/// How far Features::reach may go for the fast kernel of a gate of units (kernel/separable_gelu.h). Farther, a slower one computes.
inline constexpr float MOST_REACH = 8;

/// The largest number of features of one kind. The limit comes from the GPU's backward pass and holds on every device.
inline constexpr int MOST_FEATURES = 264;

/// The inputs of score(): one query and a few consecutive keys. N is a SIMD vector of keys on the CPU, a single float on a GPU
/// thread.
template <class N>
struct Pair {
    using X = Element<N>;
    const X* head_scalars;      // (features().head) of this head
    const X* row_features;      // (features().row) of query i
    const X* column_features;   // feature f of the key in lane l at column_features[f * column_stride + l]
    size_t column_stride;
    X i;   // position of the query
    N j;   // positions of the keys
    X tile = 0;   // bias of this query tile and key tile (Features::tile)

    constexpr X head(int f) const { return head_scalars[f]; }
    constexpr X row(int f) const { return row_features[f]; }
    constexpr N column(int f) const { return load<N>(column_features + f * column_stride); }

    /// row(index(i - j)): a row feature selected by the distance of each pair (relative positions, block biases).
    template <class Index>
    constexpr N row_by_distance(Index index) const {
        if constexpr (LANES_OF<N> == 1) return row_features[index(int(i - j))];
        else return rows_by_distances(index);
    }

private:
    /// For packs. Not constexpr: nvcc cannot index the lanes of a pack.
    template <class Index>
    N rows_by_distances(Index index) const {
        N picked{};
        for (int lane = 0; lane < LANES_OF<N>; lane++) picked[lane] = row_features[index(int(i - j[lane]))];
        return picked;
    }
};

/// The gradients of score()'s inputs, accumulated by score_backward(). Sums are in float32, in a fixed order.
template <class N>
struct PairGradients {
    using X = Element<N>;
    N* head_sums;   // lane-wise partial sums over all pairs of the head
    N* row_sums;    // lane-wise partial sums over the keys of the row
    X* column_sums;
    size_t column_stride;
    N* tile_sums;   // lane-wise partial sums over the pairs of the tile

    constexpr void head(int f, N d) { head_sums[f] += d; }
    constexpr void row(int f, N d) { row_sums[f] += d; }
    constexpr void column(int f, N d) { store(column_sums + f * column_stride, load<N>(column_sums + f * column_stride) + d); }
    constexpr void tile(N d) { *tile_sums += d; }

    template <class Index>
    constexpr void row_by_distance(const Pair<N>& pair, Index index, N d) {
        if constexpr (LANES_OF<N> == 1) row_sums[index(int(pair.i - pair.j))] += d;
        else rows_by_distances(pair, index, d);
    }

private:
    template <class Index>
    void rows_by_distances(const Pair<N>& pair, Index index, N d) {
        for (int lane = 0; lane < LANES_OF<N>; lane++) row_sums[index(int(pair.i - pair.j[lane]))][lane] += d[lane];
    }
};

// --------------------------------------------------------------------------------------------------------- a layer

/// One matrix per token: (B, T, heads, HS) inside rows that may be longer, such as q, k and v inside the fused projection.
template <class X>
struct Heads {
    X* data;
    size_t row;   // elements from one token to the next; head h starts at h * HS
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
    Documents documents = {};      // empty, or documents to keep apart (varlen; Form::keeps_documents_apart)

    constexpr size_t token(int b, int t) const { return size_t(b) * T + t; }
    constexpr const X* query(const X* base, int b, int t, int h) const { return base + token(b, t) * qk_row + size_t(h) * HS; }
    constexpr const X* key(const X* base, int b, int t, int h) const { return query(base, b, t, h / (NH / NKV)); }
    constexpr const X* value(int b, int t, int h) const { return v + token(b, t) * v_row + size_t(h / (NH / NKV)) * HS; }
};

/// The inputs of score() and the output gate, filled by preprocess(). Their gradients have the same
/// layout, without `auxiliary`.
template <class X>
struct ScoreInputs {
    Wide<X>* head = nullptr;     // (NH, features.head); as a gradient (B, NH, features.head)
    Wide<X>* row = nullptr;      // (B, NH, T, features.row)
    Wide<X>* column = nullptr;   // (B, NH, features.column, padded(T))
    Wide<X>* reach = nullptr;    // (B, NH)
    Wide<X>* token = nullptr;    // (B, T, features.token); as a gradient, uninitialised memory for preprocess_backward()
    Wide<X>* gate = nullptr;     // (B, T, NH)

    /// Terms (B, NH) of the auxiliary loss of a mechanism with has_auxiliary_loss; every forward pass overwrites all of them. Their
    /// sum over all layers, divided by the tokens of the micro-batch, is added to the mean cross-entropy.
    Wide<X>* auxiliary = nullptr;
};

/// preprocess_backward() turns the gradients of the score inputs, in `of`, into these gradients. It overwrites dq_pre and dk_pre
/// and adds to dx and dweights.
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

/// The state that a layer's forward pass keeps for its backward pass.
template <class X>
struct LayerState {
    ScoreInputs<X> score_inputs;
    X* out;         // (B, T, NH, HS) before the gate
    X* gated_out;   // (B, T, NH, HS) input of the output projection; the same memory as out without a gate
    Wide<X>* lse;   // (B, NH, T)
    std::byte* kept = nullptr;   // kept_bytes(), with own passes
};

/// Gradients with respect to q and k after RoPE, and v.
template <class X>
struct QkvGradients {
    Heads<Wide<X>> q;   // (B, T, NH, HS)
    Heads<Wide<X>> k;   // (B, T, NKV, HS)
    Heads<X> v;         // (B, T, NKV, HS)
};

// ----------------------------------------------------------------------------------------------------- the contract

/// The first `leading` keys of a sequence and the last `recent`, including the newest row's own.
struct KeptKeys {
    int leading = 0, recent = std::numeric_limits<int>::max();
};
/// The same for a sequence in chunks of `chunk` tokens: the last `of_chunk` <= chunk keys of each complete chunk, and all of the
/// newest.
struct KeptChunks {
    int chunk, of_chunk;
};

/// Facts of a mechanism, or of a policy of the kernel, at compile time. `traits` of a derived struct replaces all of its base's.
struct Traits {
    bool own_passes = false;           // forward() and backward() call the kernel themselves
    bool one_call = false;             // own passes with a single kernel call on the layer's q, k, v: decoding needs no code of its own
    bool reads_x = false;              // preprocess() reads the block's normed input, its backward adds to dx
    bool reads_qk_pre = false;         // preprocess() reads q and k before RoPE, its backward writes their gradient
    bool has_auxiliary_loss = false;   // a term of the objective, in ScoreInputs::auxiliary (load balance, distillation)
    bool gates_output = false;         // a factor on O per token and head, in ScoreInputs::gate; own passes write gated_out

    // Of the kernel.
    bool gates_pairs = false;     // a factor in (0, 1) on the score or weight of a pair: pair_gate(), shown by a monitor
    bool gate_of_units = false;   // score() is the gate of hidden units that kernel/unit_gate.cuh computes in bf16; P::hidden_units is
                                  // their number, 0 if it is unknown at compile time
    bool reads_bits = false;      // P::bits replaces visible(): selection, causality and documents in one; has the functions of PairBits
    bool few_rows_see = false;    // by bits most rows of a mixed tile see none of its keys: the CPU takes the others alone
    bool long_visible = false;    // visible() is too long to unroll over all pairs of a GPU thread

    // Of the data, for tolerances in tests.
    bool tokens_choose = false;   // single tokens select by scores that bf16 rounds: near a tie, double selects differently
    bool sorts_tokens = false;    // sorted by content: later tokens shift the tile boundaries of a row's sums, and its last bits
};

/// Facts of one layer, which depend on its settings.
struct Form {
    bool is_causal = true;               // no output depends on later tokens
    bool rotates = true;                 // RoPE on q and k
    bool gated = true;                   // has the output gate that Traits::gates_output announces
    bool keeps_documents_apart = true;   // a token's output is independent of the other documents of its row (varlen): true of one
                                         // kernel call, and of pooled keys that count from a document's first token
    bool has_exact_gradients = true;     // backward is the derivative of forward: false for straight-through estimators
    bool has_teacher = false;            // the auxiliary loss compares with a function of q and k that counts as constant, so that
                                         // gradients are exact for tensors, not for q, k and x
    bool needs_known_text = false;       // not causal, for complete sequences: training is refused with options_to_train
};

/// The defaults, which are causal attention. A variant's constructor takes (config, layer). Methods are const and do not depend on
/// tokens after i, unless form().is_causal is false. Kernels receive a copy as an argument, so the struct holds plain values only, no
/// pointers into host memory. The methods that kernels call (score, mask) are constexpr, so that nvcc compiles them for the GPU.
struct Policy {
    constexpr Policy(const Config&, int /*layer*/) {}

    static constexpr Traits traits{};
    Form form() const { return {}; }

    static std::vector<Setting> settings() { return {}; }
    static constexpr const char* options_to_train = "";   // ends the message that refuses Form::needs_known_text

    /// Adds the variant's own tensors of this layer; `prefix` is "model.layers.{i}.self_attn.".
    void declare(TensorList&, const std::string& /*prefix*/) {}

    /// Whether this run trains the tensor. The engine asks every layer about every tensor of the model; a single false freezes it:
    /// it keeps its value and is left out of the gradient norm.
    bool trains(const std::string& /*tensor*/) const { return true; }

    /// Score. score() runs before the mask, so z of a hidden pair only has to be finite. score_backward() recomputes z, calls
    /// dL/dz = dz_of(z) exactly once, and returns dL/da.
    constexpr Features features() const { return {}; }
    template <class N>
    constexpr N score(N a, const Pair<N>&) const {
        return a;
    }
    template <class N, class Loss>
    constexpr N score_backward(N a, const Pair<N>&, PairGradients<N>&, Loss dz_of) const {
        return dz_of(a);
    }

    /// The gate of a pair, where traits.gates_pairs. A pair without one counts as 1.
    template <class N>
    constexpr N pair_gate(const Pair<N>&) const {
        return broadcast<N>(1);
    }

    /// Mask. tile() classifies a rectangle of positions [i0, i1) x [j0, j1). Tile::mixed is always correct. kept_keys(): the keys
    /// that rows after the newest may see (KeptKeys, KeptChunks); a KV cache holds no others.
    constexpr Tile tile(int /*h*/, int i0, int i1, int j0, int j1) const { return causal_tile(i0, i1, j0, j1); }
    constexpr bool visible(int /*h*/, int i, int j) const { return j <= i; }
    constexpr KeptKeys kept_keys() const { return {}; }

    // A variant also has
    //     static constexpr const char* name = "...";
    //     template <class X> void naive(const LayerInputs<X>&, const X* weights, X* out) const;   // out (B, T, NH, HS)
    // and with own passes forward() and backward(), whose arguments are those of attention_layer_forward() and _backward()
    // (attention/kernel/layer.h).
    // Optional for speed: is_plain(i0, i1, j0, j1), true where score() returns a for all pairs of a rectangle as tile() has it; on a GPU
    // modifies_scores, specialise() (attention/kernel/features.cuh).

    /// Own passes: bytes that forward() keeps for backward(), and bytes of workspace while either runs.
    template <class X>
    size_t kept_bytes(const LayerShape&) const {
        return 0;
    }
    template <class X, class Device>
    size_t workspace_bytes(Device, const LayerShape&) const {
        return 0;
    }

    /// preprocess() runs before the kernel and fills the inputs of score() and the output gate. preprocess_backward() runs after it
    /// and turns the gradients of those inputs into gradients of tensors, q, k and x.
    template <class Device, class Inputs, class X, class ScoreInputs>
    void preprocess(Device, const Inputs&, const X* /*weights*/, ScoreInputs&) const {}
    template <class Device, class Inputs, class X, class ScoreInputs, class Gradients>
    void preprocess_backward(Device, const Inputs&, const X* /*weights*/, const ScoreInputs&, Gradients&) const {}

    static constexpr Tile causal_tile(int i0, int i1, int j0, int j1) {
        if (j0 > i1 - 1) return Tile::hidden;
        return j1 - 1 <= i0 ? Tile::full : Tile::mixed;
    }

    /// Keys i - left .. i.
    static constexpr Tile window_tile(int left, int i0, int i1, int j0, int j1) {
        if (j0 > i1 - 1 || i0 - (j1 - 1) > left) return Tile::hidden;
        return j1 - 1 <= i0 && (i1 - 1) - j0 <= left ? Tile::full : Tile::mixed;
    }
};
