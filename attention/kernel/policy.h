// The interface between the tiled kernel and a mechanism. The defaults are causal attention; a variant is a struct derived from Policy
// that overrides what differs. Conventions: i query, j key, h query head, token positions from 0;
//     a_ij = HS^-1/2 q_i.k_j     z_ij = score(a_ij)     P_ij = exp(z_ij - LSE_i) on the visible pairs     O_i = sum_j P_ij v_j
// Six things can differ:
//   score         score(), score_backward(): z = f(a), with scalars per head and features per query row and key column
//   mask          tile(), visible(): the tiles to visit, and the visible pairs of a mixed tile; or a TileList, or PairBits
//                 (arguments.h)
//   output gate   gates_output(): one factor on O per token and head
//   positions     (arguments.h) rows and columns may be selected or permuted tokens
//   log-sum-exp   (arguments.h) LSE as an output, its gradient as an input: several calls can make one softmax
//   statistics    (arguments.h) entropy of each row, its maximum in each tile, visible pairs, visited tiles, pair_gate()
#pragma once
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "attention/kernel/arguments.h"
#include "model/config.h"
#include "model/device/math.h"
#include "model/tensors.h"

enum class Tile {
    hidden,   // no pair is visible: the kernel skips the tile
    mixed,    // visible() masks pair by pair
    full,     // every pair is visible: no mask
};

/// The inputs of score(): one query and a few consecutive keys. N is a SIMD vector of keys on the CPU, a single float on a GPU thread.
template <class N>
struct Pair {
    using X = Element<N>;
    const X* head_scalars;      // (features().head) of this head
    const X* row_features;      // (features().row) of query i
    const X* column_features;   // feature f of the key in lane l at column_features[f * column_stride + l]
    size_t column_stride;
    X i;   // position of the query
    N j;   // positions of the keys
    X tile_bias = 0;

    /// The bias of this query tile and key tile (Features::tile).
    constexpr X tile() const { return tile_bias; }

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

/// The first `leading` keys of a sequence and the last `recent`, including the newest row's own.
struct KeptKeys {
    int leading = 0, recent = std::numeric_limits<int>::max();
};
/// The same for a sequence in chunks of `chunk` tokens: the last `of_chunk` <= chunk keys of each complete chunk, and all of the newest.
struct KeptChunks {
    int chunk, of_chunk;
};

/// The largest number of features of one kind that score() can read. The limit comes from the GPU's backward pass and holds on every
/// device.
inline constexpr int MOST_FEATURES = 264;

/// The defaults. A variant's constructor takes (config, layer). Its methods are const and may not depend on tokens after i. Kernels
/// receive a copy as an argument, so the struct holds plain values only, no pointers into host memory. The methods that kernels call
/// (score, mask) are constexpr, so that nvcc compiles them for the GPU.
struct Policy {
    constexpr Policy(const Config&, int /*layer*/) {}

    static std::vector<Setting> settings() { return {}; }

    /// Adds the variant's own tensors of this layer; `prefix` is "model.layers.{i}.self_attn.".
    void declare(TensorList&, const std::string& /*prefix*/) {}

    /// Whether this run trains the tensor. The engine calls trains() of every layer for every tensor of the model; a single false
    /// freezes the tensor. A frozen tensor keeps its value and is left out of the gradient norm.
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

    /// Whether score() is the gate of sixteen hidden units in kernel/unit_gate.cuh, with the features described there. The GPU's bf16
    /// kernels have specialised code for it.
    static constexpr bool gate_of_units = false;

    /// Statistics. Whether each pair has a learned gate, a factor between 0 and 1 on its score or weight; pair_gate() returns it. A
    /// monitor shows the mean over all pairs. A pair without a gate counts as 1.
    static constexpr bool gates_pairs = false;
    template <class N>
    constexpr N pair_gate(const Pair<N>&) const {
        return broadcast<N>(1);
    }

    /// Mask. tile() classifies a rectangle of positions [i0, i1) x [j0, j1). Tile::mixed is always correct.
    constexpr Tile tile(int /*h*/, int i0, int i1, int j0, int j1) const { return causal_tile(i0, i1, j0, j1); }
    constexpr bool visible(int /*h*/, int i, int j) const { return j <= i; }
    static constexpr bool long_visible = false;   // visible() is too long to unroll over all pairs of a GPU thread

    /// Whether AttentionForward::bits replaces visible() in mixed tiles. The bits then combine the selection of keys, causality and
    /// documents; tile() still decides which tiles are full.
    static constexpr bool reads_bits = false;

    /// For accounting only: the number of the first T keys that a KV cache must keep to compute the rows from T - 1 on, averaged over
    /// key/value heads. A data-dependent policy may also define `PairCount expected_pairs(int NH, int T) const`: the pairs and tiles
    /// that a sequence of T visits, summed over the heads. Without it, they are counted by tile() and visible().
    double cached_keys(int T) const { return T; }

    /// Whether expected_pairs() is only an upper bound because the count depends on the data.
    bool expects_at_most() const { return false; }

    /// Additional pairs of a sequence, summed over the heads, that only the forward pass computes.
    double further_pairs(int /*NH*/, int /*T*/) const { return 0; }

    /// Output gate. Whether preprocess() fills a gate (B, T, NH) that multiplies the output. The GPU's backward kernel applies gates
    /// only for a policy that defines gates_output() itself, and refuses them for others. With own_passes, forward() fills the gate,
    /// which a monitor then shows, and writes gated_out.
    bool gates_output() const { return false; }

    /// reads_qk_pre: preprocess() reads q and k before RoPE, and preprocess_backward() writes their gradient.
    /// reads_x: preprocess() reads the block's normed input, and preprocess_backward() adds to its gradient.
    static constexpr bool reads_qk_pre = false;
    static constexpr bool reads_x = false;

    /// Whether the policy adds an auxiliary loss to the objective (load balance, distillation of a gate). The forward pass then writes
    /// its value to ScoreInputs::auxiliary, and preprocess_backward() adds its gradients times ScoreInputGradients::dloss.
    static constexpr bool has_auxiliary_loss = false;

    /// A mechanism that needs more than preprocess() and one kernel call has own_passes: it defines forward() and backward() (arguments
    /// in layer.h), the bytes that forward() keeps for backward(), and the bytes of workspace while either runs.
    static constexpr bool own_passes = false;
    template <class X>
    size_t kept_bytes(const LayerShape&) const {
        return 0;
    }
    template <class X, class Device>
    size_t workspace_bytes(Device, const LayerShape&) const {
        return 0;
    }

    /// Names of a layer's gated branches for a monitor. One empty name, unless a policy with own_passes sums several gated softmaxes; it
    /// then writes the statistics of branch n to Statistics::of_branch(n).
    std::vector<std::string> branch_names() const { return {""}; }

    /// The factors (B, T, NH) on each branch's output in the last forward pass; null for a branch without factors.
    template <class X>
    std::vector<const Wide<X>*> branch_gates(const LayerShape&, const LayerState<X>& state) const {
        return {state.score_inputs.gate};
    }

    /// For pictures of its mask, a policy that attends to something other than the model's own keys and values may define
    /// `bool sees(const LayerInputs<X>&, const LayerState<X>&, int h, int i, int j) const`: whether query i of head h read key j in the
    /// last forward pass.

    /// Whether q and k are rotated by RoPE. Without it scores ignore positions unless the variant encodes them itself.
    bool rotates() const { return true; }

    /// The keys that rows after the newest may see: a KV cache holds no others.
    constexpr KeptKeys kept_keys() const { return {}; }

    /// preprocess() runs before the kernel and fills the inputs of score() and the output gate. preprocess_backward() runs after it and
    /// turns the gradients of those inputs into gradients of tensors, q, k and x. See LayerInputs, ScoreInputs and ScoreInputGradients
    /// in arguments.h.
    template <class Device, class Inputs, class X, class ScoreInputs>
    void preprocess(Device, const Inputs&, const X* /*weights*/, ScoreInputs&) const {}
    template <class Device, class Inputs, class X, class ScoreInputs, class Gradients>
    void preprocess_backward(Device, const Inputs&, const X* /*weights*/, const ScoreInputs&, Gradients&) const {}

    /// For tests and tables.
    /// is_causal: no output depends on later tokens. False for a published form that looks ahead.
    /// has_exact_gradients: backward is the derivative of forward. False for straight-through estimators, and for published gradients
    /// that omit a term.
    /// sorts_tokens: tokens are sorted by content, so that later tokens shift the tile boundaries of a row's sums, and so its last
    /// bits.
    bool is_causal() const { return true; }
    bool has_exact_gradients() const { return true; }
    static constexpr bool sorts_tokens = false;

    /// Whether a token's output is independent of the other documents of its row (LayerInputs::documents, varlen). One kernel call keeps
    /// documents apart. Return false if the policy passes positions other than tokens to the kernel, or if tokens reach each other in
    /// other ways (pooled keys, selection over a row), unless all of these count from a document's first token.
    bool keeps_documents_apart() const { return true; }

    /// Whether this form is not causal and meant for complete texts, such as a prompt. Training is refused with a message that names
    /// options_to_train.
    bool needs_known_text() const { return false; }
    static constexpr const char* options_to_train = "";

    /// Whether the auxiliary loss compares with a teacher, a function of q and k that counts as constant. Its gradients are then exact
    /// for tensors but not for q, k and x.
    bool has_teacher() const { return false; }

    /// Whether single tokens select by scores that bf16 rounds: near a tie, double selects differently.
    static constexpr bool tokens_choose = false;

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
