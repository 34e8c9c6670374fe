// What an attention mechanism may say to the tiled kernel. Plain causal attention is every answer at its default; a variant is a
// struct derived from Policy that overrides only what differs. Conventions: i query, j key, h query head, token positions from 0;
//     a_ij = HS^-1/2 q_i.k_j     z_ij = score(a_ij)     P_ij = exp(z_ij - LSE_i) on the visible pairs     O_i = sum_j P_ij v_j
// The six extension points:
//   E1 score(), score_backward()   z = f(a): may read numbers per head, features per query row and per key column
//   E2 tile(), visible()           which tiles are visited, which pairs inside a mixed tile count; or a TileList (arguments.h)
//   E3 gated()                     multiplies O by a number per token and head
//   E4 position arrays             (arguments.h) rows and columns may be chosen or permuted tokens
//   E5 log-sum-exp                 (arguments.h) LSE out, its gradient in: several calls can make one softmax
//   E6 statistics                  (arguments.h) entropy of rows, maximum of every row in every tile, pairs seen, tiles visited,
//                                  pair_gate()
#pragma once
#include <cstddef>
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

/// What E1 sees of one row's pairs with the next few keys. N is a SIMD vector of keys on the CPU, one float on a GPU thread.
template <class N>
struct Pair {
    using X = Element<N>;
    const X* head_numbers;      // (features().head) of this head
    const X* row_features;      // (features().row) of query i
    const X* column_features;   // feature f of the key in lane l at column_features[f * column_stride + l]
    size_t column_stride;
    X i;   // position of the query
    N j;   // positions of the keys
    X tile_number = 0;

    /// The number of this query tile and key tile (Features::tile).
    constexpr X tile() const { return tile_number; }

    constexpr X head(int f) const { return head_numbers[f]; }
    constexpr X row(int f) const { return row_features[f]; }
    constexpr N column(int f) const { return load<N>(column_features + f * column_stride); }

    /// row(index(i - j)): a row feature chosen by the distance of each pair (relative positions, block biases).
    template <class Index>
    constexpr N row_by_distance(Index index) const {
        if constexpr (LANES_OF<N> == 1) return row_features[index(int(i - j))];
        else return rows_by_distances(index);
    }

private:
    /// For packs; not constexpr, because nvcc knows no lanes of a pack.
    template <class Index>
    N rows_by_distances(Index index) const {
        N picked{};
        for (int lane = 0; lane < LANES_OF<N>; lane++) picked[lane] = row_features[index(int(i - j[lane]))];
        return picked;
    }
};

/// Where score_backward() leaves the gradients of what score() read. Everything is summed in float32 in a fixed order.
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

/// Features of one kind that E1 can have: what the GPU's backward pass has room for, and so the same on every device.
inline constexpr int MOST_FEATURES = 264;

/// The default answers. A variant's constructor takes (config, layer); its methods are const and may not depend on tokens after i.
/// Kernels get a copy of it as an argument: what they call (E1, E2) is constexpr, so that nvcc compiles it for the GPU, and it
/// holds numbers only, no pointers into the host's memory.
struct Policy {
    Policy(const Config&, int /*layer*/) {}

    static std::vector<Setting> settings() { return {}; }

    /// Adds the variant's own tensors of this layer; `prefix` is "model.layers.{i}.self_attn.".
    void declare(TensorList&, const std::string& /*prefix*/) {}

    /// Whether this run trains the tensor; every layer's policy is asked for each tensor of the whole model, and one no freezes it.
    /// What is frozen keeps its value and takes no part in the norm of the gradient.
    bool trains(const std::string& /*tensor*/) const { return true; }

    /// E1. `dz` is dL/dz; the result is dL/da. Forward comes before the mask, so z of a hidden pair must only be finite.
    constexpr Features features() const { return {}; }
    template <class N>
    constexpr N score(N a, const Pair<N>&) const {
        return a;
    }
    template <class N>
    constexpr N score_backward(N dz, N /*a*/, const Pair<N>&, PairGradients<N>&) const {
        return dz;
    }

    /// E6. Whether each pair has a learned gate, a factor between 0 and 1 on its score or on its weight, and that factor: its mean
    /// over all pairs is what a monitor shows of it. A pair without one counts as 1.
    static constexpr bool gates_pairs = false;
    template <class N>
    constexpr N pair_gate(const Pair<N>&) const {
        return broadcast<N>(1);
    }

    /// E2. tile() judges a rectangle of positions [i0, i1) x [j0, j1); it may say mixed when it is not sure, never more.
    constexpr Tile tile(int /*h*/, int i0, int i1, int j0, int j1) const { return causal_tile(i0, i1, j0, j1); }
    constexpr bool visible(int /*h*/, int i, int j) const { return j <= i; }

    /// For the accounting only. How many of the first T keys a cache must keep so that the rows from T - 1 on can be computed, per
    /// key/value head on average. A policy that selects by the data may also say how many pairs and tiles a sequence of T visits,
    /// summed over the heads: `PairCount expected_pairs(int NH, int T) const`; without it tile() and visible() are counted.
    double cached_keys(int T) const { return T; }

    /// Whether expected_pairs() is the most that it can be, where the number itself hangs on the data.
    bool expects_at_most() const { return false; }

    /// Pairs of a sequence, summed over the heads, whose scores and weighted values are computed beside those, forward alone.
    double further_pairs(int /*NH*/, int /*T*/) const { return 0; }

    /// E3. Whether preprocess() fills a gate (B, T, NH) that multiplies the output.
    bool gated() const { return false; }

    /// Whether preprocess() reads q and k before RoPE (and its backward writes their gradient), or the block's normed input (and its
    /// backward adds to the gradient of that).
    static constexpr bool reads_qk_pre = false;
    static constexpr bool reads_x = false;

    /// Whether the policy adds a loss of its own to the objective (a balance loss, a gate's distillation). It then reports its value on
    /// the way forward, in Extras::auxiliary, and adds its gradients, times ExtraGradients::dloss, in preprocess_backward().
    static constexpr bool has_auxiliary_loss = false;

    /// A mechanism that is more than one call of the kernel after preprocess() has forward() and backward() of its own instead
    /// (layer.h says what they get), and says how many bytes it keeps from one to the other and how many it needs while one runs.
    static constexpr bool composite = false;
    template <class X>
    size_t kept_bytes(const LayerShape&) const {
        return 0;
    }
    template <class X, class Device>
    size_t workspace_bytes(Device, const LayerShape&) const {
        return 0;
    }

    /// What a monitor calls the softmaxes of a layer: one without a name, unless a composite sums several with a gate each. It then
    /// leaves the statistics of number n in Statistics::of_branch(n).
    std::vector<std::string> branch_names() const { return {""}; }

    /// What the last forward pass multiplied the output of each of them with, (B, T, NH); null where that is nothing.
    template <class X>
    std::vector<const Wide<X>*> branch_gates(const LayerShape&, const LayerState<X>& state) const {
        return {state.extras.gate};
    }

    /// A policy whose values are not the model's may say for pictures of its mask what its last forward pass has read:
    /// `bool sees(const LayerInputs<X>&, const LayerState<X>&, int h, int i, int j) const`, query i of head h key j.

    /// Whether q and k are rotated by RoPE. Positions are then no business of the scores unless the variant brings its own.
    static constexpr bool rotates = true;

    /// Before the kernel: fill what E1 and E3 read. After it: turn their gradients into gradients of tensors, q, k and x.
    /// See LayerInputs, Extras and their gradients in arguments.h.
    template <class Device, class Inputs, class X, class Extras>
    void preprocess(Device, const Inputs&, const X* /*weights*/, Extras&) const {}
    template <class Device, class Inputs, class X, class Extras, class Gradients>
    void preprocess_backward(Device, const Inputs&, const X* /*weights*/, const Extras&, Gradients&) const {}

    /// What tests and tables ask. Whether outputs depend on nothing behind the row: a published form that looks ahead says no. Whether
    /// the backward pass is the derivative of the forward pass: straight-through gradients, and published ones that leave a term out,
    /// are not. Whether tokens are sorted by what they hold: later ones then shift the tiles that a row's sums are cut into, and so
    /// its last bits.
    bool is_causal() const { return true; }
    bool has_exact_gradients() const { return true; }
    static constexpr bool sorts_tokens = false;

    /// Whether this form, which is not causal, is for texts that are there as a whole, a prompt say: training through it is refused;
    /// the refusal names the options that can be trained with.
    bool needs_known_text() const { return false; }
    static constexpr const char* options_to_train = "";

    /// Whether the policy's own loss compares with something of q and k that it holds still (a teacher): its gradients are then the
    /// derivatives for tensors, and for q, k and x they are not.
    bool has_teacher() const { return false; }

    /// Whether single tokens choose something by scores that bf16 rounds: what double chooses otherwise near a tie.
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
