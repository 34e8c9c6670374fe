// One attention layer between the fused projection and the output projection: the policy's preprocessing, the tiled kernel, and
// back. A composite (Policy::composite) calls the kernel itself, any number of times.
#pragma once
#include "attention/core/count.h"
#include "attention/core/cpu.h"
#ifdef WITH_GPU
#include "attention/core/backward.cuh"
#include "attention/core/forward.cuh"
#endif
#include "attention/core/naive.h"
#include "model/memory.cuh"

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

/// Memory for extras of `policy`; `copies` is 1, or B for the partial sums of the head numbers' gradients.
template <class Device, class X, class P>
Extras<X> take_extras(Arena<Device>& arena, const P& policy, int B, int T, int NH, int copies) {
    const Features f = policy.features();
    Extras<X> e;
    if (f.head) e.head = arena.template take<Wide<X>>(size_t(copies) * NH * f.head);
    if (f.row) e.row = arena.template take<Wide<X>>(size_t(B) * NH * T * f.row);
    if (f.column) e.column = arena.template take<Wide<X>>(size_t(B) * NH * padded(T) * f.column);
    if (policy.gated()) e.gate = arena.template take<Wide<X>>(size_t(B) * T * NH);
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

/// Bytes that AttentionBackward::workspace needs.
template <class P>
size_t attention_workspace(CPU, const P&, int /*B*/, int /*T*/, int /*S*/, int /*NH*/) {
    return 0;
}

/// Bytes that the kernel takes by itself while it runs: on the CPU every thread's key tiles.
template <class X>
size_t kernel_memory(CPU, int S, int HS, Pass pass) {
    return omp_get_max_threads() * KeyTiles<X, RowsInOrder>::bytes(S, HS, pass);
}
#ifdef WITH_GPU
template <class X>
size_t kernel_memory(GPU, int /*S*/, int /*HS*/, Pass) {
    return 0;
}
#endif

/// Bytes of scratch memory that a layer needs while one of its passes runs.
template <class X, class Device, class P>
size_t layer_workspace(Device device, const P& policy, const LayerShape& s) {
    if constexpr (P::composite) return policy.template workspace_bytes<X>(device, s);
    else return attention_workspace(device, policy, s.B, s.T, s.T, s.NH);
}

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

/// state.gated_out (B, T, NH, HS) from x, q, k, v; `weights` is the flat buffer that the policy's slots point into. `workspace` has
/// layer_workspace() bytes. A composite's forward() gets the same arguments.
template <class Device, class X, class P>
void attention_layer_forward(Device device, const P& policy, const LayerInputs<X>& in, const X* weights, LayerState<X>& state,
                             std::byte* workspace, const Statistics<X>& statistics = {}) {
    if constexpr (P::composite) {
        policy.forward(device, in, weights, state, workspace, statistics);
    } else {
        policy.preprocess(device, in, weights, state.extras);
        attention_forward(device, policy, kernel_arguments(in, state, statistics));
    }
}

/// Gradients with respect to q and k after RoPE and v.
template <class X>
struct QkvGradients {
    Heads<Wide<X>> q;   // (B, T, NH, HS)
    Heads<Wide<X>> k;   // (B, T, NKV, HS)
    Heads<X> v;         // (B, T, NKV, HS)
};

/// From dout, the gradient of gated_out (B, T, NH, HS), to those of q, k and v (overwritten) and whatever else preprocess() read;
/// more.of is memory for the extras' gradients. A composite's backward() gets the same arguments.
template <class Device, class X, class P>
void attention_layer_backward(Device device, const P& policy, const LayerInputs<X>& in, const X* weights,
                              const LayerState<X>& state, const X* dout, const QkvGradients<X>& to, ExtraGradients<X>& more,
                              std::byte* workspace) {
    if constexpr (P::composite) {
        policy.backward(device, in, weights, state, dout, to, more, workspace);
    } else {
        AttentionBackward<X> g{};
        g.dout = dout;
        g.dq = to.q, g.dk = to.k, g.dv = to.v;
        g.dhead = more.of.head, g.drow = more.of.row, g.dcolumn = more.of.column, g.dgate = more.of.gate;
        g.workspace = workspace;
        attention_backward(device, policy, kernel_arguments(in, state, Statistics<X>{}), g);
        policy.preprocess_backward(device, in, weights, state.extras, more);
    }
}
