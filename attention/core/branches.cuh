// Running one branch of several that merge.cuh puts together: a kernel call over rows that are chosen tokens, or tokens in another
// order (rows.cuh). Branches in the order of the text are attention_layer_forward() and its backward (layer.h) of a policy each.
// Forward, a branch leaves its own out and log-sum-exp, to be merged. Backward, it is given the merged ones: its kernel then
// computes the gradients of the one softmax over all branches as far as its pairs go (merge.cuh has the algebra), to be added up.
#pragma once
#include "attention/core/carve.h"
#include "attention/core/layer.h"
#include "attention/core/merge.cuh"

/// Keys i - left .. i.
struct WindowBranch : Policy {
    int left;
    explicit WindowBranch(int left_) : Policy(Config{}, 0), left(left_) {}
    constexpr Tile tile(int, int i0, int i1, int j0, int j1) const { return window_tile(left, i0, i1, j0, j1); }
    constexpr bool visible(int, int i, int j) const { return j <= i && i - j <= left; }
};

/// Memory for what a branch of R rows reads. Where the query heads of a group have the same rows they can share keys and values
/// (KV = NKV); where they do not, each has its own (KV = NH).
template <class X>
struct BranchInputs {
    int KV;
    X *q, *k, *v;   // (B, R, NH, HS), (B, R, KV, HS) twice
    const int* positions = nullptr;   // (B, NH, R) what the policy judges a row by (E4); null: its index; -1: padding

    BranchInputs(Carve& carve, const LayerShape& s, int R, int KV_) : KV(KV_) {
        const size_t row = size_t(s.B) * R * s.HS;
        q = carve.take<X>(row * s.NH), k = carve.take<X>(row * KV), v = carve.take<X>(row * KV);
    }
};

/// Memory for what it leaves.
template <class X>
struct BranchResults {
    X* out;         // (B, R, NH, HS)
    Wide<X>* lse;   // (B, NH, R)
    Statistics<X> statistics;

    BranchResults() = default;
    BranchResults(Carve& outputs, Carve& carve, const LayerShape& s, int R)
        : BranchResults(outputs.take<X>(size_t(s.B) * s.NH * R * s.HS), carve, s, R) {}
    /// For a branch that leaves its out where the merged one will be (merge_forward()).
    BranchResults(X* out_, Carve& carve, const LayerShape& s, int R) : out(out_) {
        const size_t rows = size_t(s.B) * s.NH * R;
        lse = carve.take<Wide<X>>(rows);
        statistics.entropy = carve.take<Wide<X>>(rows), statistics.pairs = carve.take<Wide<X>>(rows);
        statistics.tiles = carve.take<Wide<X>>(size_t(s.B) * s.NH * tiles_of(R));
    }

    /// Those that merging turns into the ones that are asked for.
    Statistics<X> statistics_for(const Statistics<X>& asked) const {
        Statistics<X> own;
        if (asked.entropy) own.entropy = statistics.entropy;
        if (asked.pairs) own.pairs = statistics.pairs;
        if (asked.tiles) own.tiles = statistics.tiles;
        return own;
    }
    /// As the layer's state of a branch in the order of the text.
    LayerState<X> state() const { return {{}, out, out, lse}; }

    template <class Rows>
    Branch<X, Rows> branch(const Rows& rows) const {
        return {rows, out, lse, statistics};
    }
};

/// Memory for its backward pass besides BranchInputs: merged out, its gradient and log-sum-exp in the branch's order, gradients,
/// and what the kernel needs.
template <class X>
struct BranchGradients {
    X *out, *dout;       // (B, R, NH, HS)
    Wide<X>* lse;        // (B, NH, R)
    Wide<X>*dq, *dk;     // as q and k
    X* dv;
    std::byte* kernel;

    BranchGradients(Carve& carve, const LayerShape& s, int R, int KV, size_t kernel_bytes) {
        const size_t rows = size_t(s.B) * R;
        out = carve.take<X>(rows * s.NH * s.HS), dout = carve.take<X>(rows * s.NH * s.HS), lse = carve.take<Wide<X>>(rows * s.NH);
        dq = carve.take<Wide<X>>(rows * s.NH * s.HS), dk = carve.take<Wide<X>>(rows * KV * s.HS);
        dv = carve.take<X>(rows * KV * s.HS);
        kernel = carve.take<std::byte>(kernel_bytes);
    }
};

/// Gathers q, k and v; the result is the arguments of a kernel call but for its outputs.
template <class Device, class X, class Rows>
AttentionForward<X> gather_inputs(Device device, const BranchInputs<X>& to, const Rows& rows, const LayerInputs<X>& in) {
    const RowShape queries{in.B, in.T, in.NH, in.NH, in.HS}, keys{in.B, in.T, to.KV, in.NKV, in.HS};
    gather_rows(device, to.q, Heads<const X>{in.q, in.qk_row}, rows, queries);
    gather_rows(device, to.k, Heads<const X>{in.k, in.qk_row}, rows, keys);
    gather_rows(device, to.v, Heads<const X>{in.v, in.v_row}, rows, keys);
    AttentionForward<X> a{};
    a.B = in.B, a.T = rows.count, a.S = rows.count, a.NH = in.NH, a.NKV = to.KV, a.HS = in.HS;
    const size_t q_row = size_t(in.NH) * in.HS, k_row = size_t(to.KV) * in.HS;
    a.q = {to.q, q_row}, a.k = {to.k, k_row}, a.v = {to.v, k_row};
    a.q_position = a.k_position = to.positions;
    return a;
}

/// `policy` judges rows, not tokens, and hides those that are padding, unless `memory` has positions.
template <class Device, class X, class P, class Rows>
void branch_forward(Device device, const P& policy, const Rows& rows, const LayerInputs<X>& in, const BranchInputs<X>& memory,
                    const BranchResults<X>& to, const Statistics<X>& asked) {
    AttentionForward<X> a = gather_inputs(device, memory, rows, in);
    a.out = to.out, a.lse = to.lse, a.statistics = to.statistics_for(asked);
    attention_forward(device, policy, a);
}

/// Overwrites or adds to `to`. `merged` has out and lse of all branches together; `own_out` (B, R, NH, HS), where there is one,
/// takes the place of the merged out: then the branches' weights count as constants.
template <class Device, class X, class P, class Rows>
void branch_backward(Device device, const P& policy, const Rows& rows, const LayerInputs<X>& in, const LayerState<X>& merged,
                     X* own_out, const X* dout, const QkvGradients<X>& to, const BranchInputs<X>& memory,
                     const BranchGradients<X>& gradients, Write write = Write::add) {
    using W = Wide<X>;
    AttentionForward<X> a = gather_inputs(device, memory, rows, in);
    const RowShape queries{in.B, in.T, in.NH, in.NH, in.HS}, keys{in.B, in.T, memory.KV, in.NKV, in.HS};
    const size_t q_row = size_t(in.NH) * in.HS, k_row = size_t(memory.KV) * in.HS;
    gather_rows(device, gradients.dout, Heads<const X>{dout, q_row}, rows, queries);
    if (!own_out) gather_rows(device, gradients.out, Heads<const X>{merged.out, q_row}, rows, queries);
    gather_numbers(device, gradients.lse, static_cast<const W*>(merged.lse), rows, in.B, in.T, in.NH, W(-INFINITY));
    a.out = own_out ? own_out : gradients.out, a.lse = gradients.lse;

    AttentionBackward<X> g{};
    g.dout = gradients.dout;
    g.dq = {gradients.dq, q_row}, g.dk = {gradients.dk, k_row}, g.dv = {gradients.dv, k_row};
    g.workspace = gradients.kernel;
    attention_backward(device, policy, a, g);
    send_rows_back(device, to.q, static_cast<const W*>(gradients.dq), rows, queries, write);
    send_rows_back(device, to.k, static_cast<const W*>(gradients.dk), rows, keys, write);
    send_rows_back(device, to.v, static_cast<const X*>(gradients.dv), rows, keys, write);
}
