// One attention layer between the fused projection and the output projection: the policy's preprocessing, the tiled kernel, and
// back. A mechanism made of several kernel calls overloads attention_layer_forward/backward for its own type.
#pragma once
#include "attention/core/count.h"
#include "attention/core/cpu.h"
#ifdef WITH_GPU
#include "attention/core/backward.cuh"
#include "attention/core/forward.cuh"
#endif
#include "attention/core/naive.h"
#include "model/memory.cuh"

/// What preprocess() fills for E1 and E3; laid out as AttentionForward says. Also the layout of their gradients.
template <class X>
struct Extras {
    Wide<X>* head = nullptr;     // (NH, features.head); as a gradient (B, NH, features.head)
    Wide<X>* row = nullptr;      // (B, NH, T, features.row)
    Wide<X>* column = nullptr;   // (B, NH, features.column, padded(T))
    Wide<X>* gate = nullptr;     // (B, T, NH)
};

/// What preprocess_backward() turns extras' gradients, in `of`, into. dq_pre and dk_pre are overwritten, dx and dweights added to.
template <class X>
struct ExtraGradients {
    Extras<X> of;
    Wide<X>* dq_pre;     // (B, T, NH, HS), token stride LayerInputs::qk_row; null unless the policy says reads_qk_pre
    Wide<X>* dk_pre;     // (B, T, NKV, HS), the same
    X* dx;               // (B, T, C); null unless the policy says reads_x
    Wide<X>* dweights;   // the flat gradient buffer: a tensor's gradient is at dweights + slot.offset
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
    X* gated_out;   // (B, T, NH, HS); the same memory as out without a gate
    Wide<X>* lse;   // (B, NH, T)
};

/// Bytes that AttentionBackward::workspace needs.
template <class P>
size_t attention_workspace(CPU, const P&, int /*B*/, int /*T*/, int /*S*/, int /*NH*/) {
    return 0;
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

/// state.gated_out (B, T, NH, HS) from x, q, k, v; `weights` is the flat buffer that the policy's slots point into.
template <class Device, class X, class P>
void attention_layer_forward(Device device, const P& policy, const LayerInputs<X>& in, const X* weights, LayerState<X>& state,
                             const Statistics<X>& statistics = {}) {
    policy.preprocess(device, in, weights, state.extras);
    attention_forward(device, policy, kernel_arguments(in, state, statistics));
}

/// Gradients with respect to q and k after RoPE and v (overwritten); the extras' gradients land in `dextras`, for
/// attention_extras_backward(), which comes after dq and dk have been turned back through RoPE.
template <class Device, class X, class P>
void attention_layer_backward(Device device, const P& policy, const LayerInputs<X>& in, const LayerState<X>& state, const X* dout,
                              Heads<Wide<X>> dq, Heads<Wide<X>> dk, Heads<X> dv, const Extras<X>& dextras,
                              std::byte* workspace = nullptr) {
    AttentionBackward<X> g{};
    g.dout = dout;
    g.dq = dq, g.dk = dk, g.dv = dv;
    g.dhead = dextras.head, g.drow = dextras.row, g.dcolumn = dextras.column, g.dgate = dextras.gate;
    g.workspace = workspace;
    attention_backward(device, policy, kernel_arguments(in, state, Statistics<X>{}), g);
}
template <class Device, class X, class P>
void attention_extras_backward(Device device, const P& policy, const LayerInputs<X>& in, const X* weights,
                               const LayerState<X>& state, ExtraGradients<X>& gradients) {
    policy.preprocess_backward(device, in, weights, state.extras, gradients);
}
