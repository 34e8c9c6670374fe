// One attention layer between the fused projection and the output projection: the policy's preprocessing, the tiled kernel, and
// their backward passes. A policy with own_passes calls the kernel itself, any number of times.
#pragma once
#include "attention/kernel/count.h"
#include "attention/kernel/cpu.h"
#ifdef WITH_GPU
#include "attention/kernel/backward.cuh"
#include "attention/kernel/forward.cuh"
#endif
#include "attention/kernel/naive.h"
#include "model/device/memory.cuh"

/// Size of AttentionBackward::workspace in bytes.
template <class P>
size_t attention_workspace(CPU, const P&, int /*B*/, int /*T*/, int /*S*/, int /*NH*/) {
    return 0;
}

/// Bytes that the kernel allocates while it runs: every thread's key tiles on the CPU.
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

/// Bytes of scratch memory while one of a layer's passes runs.
template <class X, class Device, class P>
size_t layer_workspace(Device device, const P& policy, const LayerShape& s) {
    if constexpr (P::traits.own_passes) return policy.template workspace_bytes<X>(device, s);
    else return attention_workspace(device, policy, s.B, s.T, s.T, s.NH);
}

/// Computes state.gated_out (B, T, NH, HS) from x, q, k and v. `weights` is the flat buffer of the policy's slots; `workspace` has
/// layer_workspace() bytes. A mechanism's own forward() takes the same arguments.
template <class Device, class X, class P>
void attention_layer_forward(Device device, const P& policy, const LayerInputs<X>& in, const X* weights, LayerState<X>& state,
                             std::byte* workspace, const Statistics<X>& statistics = {}) {
    if constexpr (P::traits.own_passes) {
        policy.forward(device, in, weights, state, workspace, statistics);
    } else {
        policy.preprocess(device, in, weights, state.score_inputs);
        attention_forward(device, policy, kernel_arguments(in, state, statistics));
    }
}

/// Computes the gradients of q, k and v (overwritten) and of the other inputs of preprocess() from dout, the gradient of gated_out
/// (B, T, NH, HS). more.of is memory for the gradients of the score inputs. A mechanism's own backward() takes the same
/// arguments.
template <class Device, class X, class P>
void attention_layer_backward(Device device, const P& policy, const LayerInputs<X>& in, const X* weights,
                              const LayerState<X>& state, const X* dout, const QkvGradients<X>& to, ScoreInputGradients<X>& more,
                              std::byte* workspace) {
    if constexpr (P::traits.own_passes) {
        policy.backward(device, in, weights, state, dout, to, more, workspace);
    } else {
        AttentionBackward<X> g = kernel_gradients(dout, to, workspace);
        g.dhead = more.of.head, g.drow = more.of.row, g.dcolumn = more.of.column, g.dgate = more.of.gate;
        attention_backward(device, policy, kernel_arguments(in, state, Statistics<X>{}), g);
        policy.preprocess_backward(device, in, weights, state.score_inputs, more);
    }
}
