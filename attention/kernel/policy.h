// The questions the tiled kernel asks a mechanism. All default answers together are causal attention; a variant is a struct derived
// from Policy that overrides only what differs. Conventions: i query, j key, h query head, token positions from 0;
//     a_ij = HS^-1/2 q_i.k_j     z_ij = score(a_ij)     P_ij = exp(z_ij - LSE_i) on the visible pairs     O_i = sum_j P_ij v_j
// Six things can differ:
//   score         score(), score_backward(): z = f(a); may read scalars per head and features per query row and key column
//   mask          tile(), visible(): which tiles are visited and which pairs of a mixed tile count; or a TileList, or PairBits
//                 (arguments.h)
//   output gate   gates_output(): multiplies O by one factor per token and head
//   positions     (arguments.h) rows and columns may be selected or permuted tokens
//   log-sum-exp   (arguments.h) LSE out, its gradient in: several calls can make one softmax
//   statistics    (arguments.h) entropy of each row, its maximum in each tile, pairs seen, tiles visited, pair_gate()
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
    mixed,    // visible() decides pair by pair
    full,     // every pair is visible: no mask
};

/// What score() sees: one query and the next few keys. N is a SIMD vector of keys on the CPU, a single float on a GPU thread.
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

    /// row(index(i - j)): the row feature is selected by the distance of each pair (relative positions, block biases).
    template <class Index>
    constexpr N row_by_distance(Index index) const {
        if constexpr (LANES_OF<N> == 1) return row_features[index(int(i - j))];
        else return rows_by_distances(index);
    }

private:
    /// For packs; not constexpr, because nvcc cannot index the lanes of a pack.
    template <class Index>
    N rows_by_distances(Index index) const {
        N picked{};
        for (int lane = 0; lane < LANES_OF<N>; lane++) picked[lane] = row_features[index(int(i - j[lane]))];
        return picked;
    }
};

/// Where score_backward() accumulates the gradients of what score() read. Sums are in float32, in a fixed order.
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

/// The keys that rows to come can see: the first `leading` of the text and the last `recent`, the newest row's own among them.
struct KeptKeys {
    int leading = 0, recent = std::numeric_limits<int>::max();
};
/// Or, of a text that is cut into chunks of `chunk` tokens, the last `of_chunk` <= chunk of each chunk and what there is of the newest.
struct KeptChunks {
    int chunk, of_chunk;
};

/// The most features of one kind that score() can read: what the GPU's backward pass has room for,
/// and so the limit on every device.
inline constexpr int MOST_FEATURES = 264;

/// The default answers. A variant's constructor takes (config, layer); its methods are const and may not depend on tokens after i.
/// Kernels receive a copy as an argument: the methods that they call (score, mask) are constexpr, so that nvcc compiles them for
/// the GPU, and the struct holds plain values only, no pointers into host memory.
struct Policy {
    constexpr Policy(const Config&, int /*layer*/) {}

    static std::vector<Setting> settings() { return {}; }

    /// Adds the variant's own tensors of this layer; `prefix` is "model.layers.{i}.self_attn.".
    void declare(TensorList&, const std::string& /*prefix*/) {}

    /// Whether this run trains the tensor. Every layer's policy is asked about every tensor of the model, and a single no freezes
    /// it. A frozen tensor keeps its value and is left out of the gradient norm.
    bool trains(const std::string& /*tensor*/) const { return true; }

    /// Score. score() runs before the mask, so z of a hidden pair only has to be finite. score_backward() computes z once more, is
    /// told dL/dz = dz_of(z), which it has to ask for exactly once, and returns dL/da.
    constexpr Features features() const { return {}; }
    template <class N>
    constexpr N score(N a, const Pair<N>&) const {
        return a;
    }
    template <class N, class Loss>
    constexpr N score_backward(N a, const Pair<N>&, PairGradients<N>&, Loss dz_of) const {
        return dz_of(a);
    }

    /// Whether score() is the one of kernel/unit_gate.cuh, a gate of sixteen hidden units with the features described there, for
    /// which the GPU's bf16 kernels have specialised code.
    static constexpr bool gate_of_units = false;

    /// Statistics. Whether each pair has a learned gate, a factor between 0 and 1 on its score or weight, and that factor; a
    /// monitor shows its mean over all pairs. A pair without a gate counts as 1.
    static constexpr bool gates_pairs = false;
    template <class N>
    constexpr N pair_gate(const Pair<N>&) const {
        return broadcast<N>(1);
    }

    /// Mask. tile() judges a rectangle of positions [i0, i1) x [j0, j1); in doubt it says mixed.
    constexpr Tile tile(int /*h*/, int i0, int i1, int j0, int j1) const { return causal_tile(i0, i1, j0, j1); }
    constexpr bool visible(int /*h*/, int i, int j) const { return j <= i; }
    static constexpr bool long_visible = false;   // too long to be unrolled over all pairs of a GPU thread

    /// Whether AttentionForward::bits takes visible()'s place in mixed tiles. They are then what the choice of keys, causality and
    /// documents leave visible; tile() still says which tiles are full.
    static constexpr bool reads_bits = false;

    /// For accounting only: how many of the first T keys a cache must keep to compute the rows from T - 1 on, per key/value head on
    /// average. A data-dependent policy may also say how many pairs and tiles a sequence of T visits, summed over the heads:
    /// `PairCount expected_pairs(int NH, int T) const`; without it tile() and visible() are counted.
    double cached_keys(int T) const { return T; }

    /// Whether expected_pairs() is an upper bound, the actual count depending on the data.
    bool expects_at_most() const { return false; }

    /// Additional pairs of a sequence, summed over the heads, whose scores and weighted values only the forward pass computes.
    double further_pairs(int /*NH*/, int /*T*/) const { return 0; }

    /// Output gate. Whether preprocess() fills a gate (B, T, NH) that multiplies the output. The GPU's backward kernel applies
    /// gates only for a policy that has a gates_output() of its own, and refuses them for others. With own_passes, forward() fills the
    /// gate, which is then what a monitor shows, and writes gated_out.
    bool gates_output() const { return false; }

    /// Whether preprocess() reads q and k before RoPE (and its backward writes their gradient), or the block's normed input (and
    /// its backward adds to the gradient of that).
    static constexpr bool reads_qk_pre = false;
    static constexpr bool reads_x = false;

    /// Whether the policy adds a loss of its own to the objective (load balance, distillation of a gate). The forward pass then
    /// reports its value in ScoreInputs::auxiliary, and preprocess_backward() adds its gradients times ScoreInputGradients::dloss.
    static constexpr bool has_auxiliary_loss = false;

    /// A mechanism that needs more than preprocess() and one call of the kernel has own_passes: its own forward() and backward()
    /// (arguments in layer.h), the bytes kept from one to the other, and the bytes needed while either runs.
    static constexpr bool own_passes = false;
    template <class X>
    size_t kept_bytes(const LayerShape&) const {
        return 0;
    }
    template <class X, class Device>
    size_t workspace_bytes(Device, const LayerShape&) const {
        return 0;
    }

    /// Names of a layer's gated branches for a monitor: one empty name, unless a policy with own_passes sums several softmaxes,
    /// each under a gate. It then writes the statistics of branch n to Statistics::of_branch(n).
    std::vector<std::string> branch_names() const { return {""}; }

    /// The factors that the last forward pass multiplied each branch's output by (B, T, NH); null where there are none.
    template <class X>
    std::vector<const Wide<X>*> branch_gates(const LayerShape&, const LayerState<X>& state) const {
        return {state.score_inputs.gate};
    }

    /// A policy that attends to something other than the model's own keys and values may define, for pictures of its mask,
    /// what its last forward pass read: `bool sees(const LayerInputs<X>&, const LayerState<X>&, int h, int i, int j) const`,
    /// whether query i of head h saw key j.

    /// Whether q and k are rotated by RoPE. Without it scores ignore positions unless the variant encodes them itself.
    bool rotates() const { return true; }

    /// Writing text. Which keys a layer keeps, and whether it can compute the rows of a text one after the other, from what it has kept:
    /// by its own forward() of one row (NextRow, decode.h), of which a policy with own_passes may have an overload
    ///     void forward(NextRow<X, Text<X>>, const LayerInputs<X>&, const X* weights, LayerState<X>&, std::byte*, const Statistics<X>&)
    /// and what it keeps besides keys is a nested `template <class X> struct Text` with the members of NothingMore, in memory that is as
    /// the text before has left it. Without, and in a form that is not causal, every row costs a pass over the whole text. On a GPU rows of
    /// several texts are computed side by side, by forward() with NextRows (next_rows.cuh) as its device, and a policy with a Text needs a
    /// `Texts` that keeps the same there.
    static constexpr bool writes_row_by_row = true;
    constexpr KeptKeys kept_keys() const { return {}; }

    /// Before the kernel: fill what score() and the output gate read. After it: turn those gradients into gradients of tensors, q,
    /// k and x. See LayerInputs, ScoreInputs and ScoreInputGradients in arguments.h.
    template <class Device, class Inputs, class X, class ScoreInputs>
    void preprocess(Device, const Inputs&, const X* /*weights*/, ScoreInputs&) const {}
    template <class Device, class Inputs, class X, class ScoreInputs, class Gradients>
    void preprocess_backward(Device, const Inputs&, const X* /*weights*/, const ScoreInputs&, Gradients&) const {}

    /// For tests and tables.
    /// is_causal: no output depends on later tokens; a published form that looks ahead says no.
    /// has_exact_gradients: backward is the derivative of forward; straight-through estimators, and published
    /// gradients that omit a term, are not.
    /// sorts_tokens: tokens are sorted by content. Later tokens then shift the tile boundaries of a
    /// row's sums, and so its last bits.
    bool is_causal() const { return true; }
    bool has_exact_gradients() const { return true; }
    static constexpr bool sorts_tokens = false;

    /// Whether nothing that a token gets depends on other documents of its row, where LayerInputs::documents tells them apart. Through
    /// one call of the kernel it does not. A policy says no if it hands other positions than tokens to the kernel, or if tokens reach
    /// each other in other ways too (pooled keys, choices over a row), unless all that counts from a document's first token.
    bool keeps_documents_apart() const { return true; }

    /// Whether this form is not causal and meant for texts that are complete in advance, such as a prompt. Training with it is
    /// refused, and the refusal names the options that can be trained.
    bool needs_known_text() const { return false; }
    static constexpr const char* options_to_train = "";

    /// Whether the policy's own loss compares with a teacher, a function of q and k that counts as constant: its gradients are then
    /// exact for tensors but not for q, k and x.
    bool has_teacher() const { return false; }

    /// Whether single tokens make a discrete choice by scores that bf16 rounds: near a tie, double chooses differently.
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
