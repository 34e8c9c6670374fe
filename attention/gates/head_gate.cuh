// Head deactivation (Adaptive Sparse Transformer Block): each head decides for each token whether it takes part.
//     u = w_h.[q; k] + b_h     s = sigmoid(u)     g = s where s >= theta, else 0           q and k of the token itself, before RoPE
// dg/ds is 1 where s >= theta and 0 elsewhere: a head that is off comes back only as q and k drift. With `straight_through` it is 1
// everywhere, which is not the derivative of what was computed but keeps such heads exploring.
#pragma once
#include "attention/kernel/naive.h"
#include "model/operations/column_sum.cuh"

/// Offsets of w (NH, 2 HS) and b (NH) in the flat buffers; the first `dense` heads have gate 1.
struct HeadGate {
    size_t weight, bias;
    float theta;
    bool straight_through;
    int dense;

    template <class W>
    constexpr W gate(W u) const {
        const W s = sigmoid(u);
        return s >= W(theta) ? s : W(0);
    }
    template <class W>
    constexpr W slope(W u) const {
        const W s = sigmoid(u);
        return s >= W(theta) || straight_through ? s * (W(1) - s) : W(0);
    }
};

/// gate (B, T, NH).
template <class X>
void head_gate_forward(CPU, X* gate, const LayerInputs<X>& in, const X* weights, const HeadGate& p) {
#pragma omp parallel for
    for (int n = 0; n < in.B * in.T; n++)
        for (int h = 0; h < in.NH; h++) {
            const X* w = weights + p.weight + size_t(h) * 2 * in.HS;
            const X u = dot(w, in.query(in.q_pre, 0, n, h), in.HS) + dot(w + in.HS, in.key(in.k_pre, 0, n, h), in.HS);
            gate[size_t(n) * in.NH + h] = h < p.dense ? X(1) : p.gate(u + weights[p.bias + h]);
        }
}

/// From dgate (B, T, NH), which becomes dL/du in place, to the weights' gradients, dq_pre and dk_pre; all three are added to.
template <class X>
void head_gate_backward(CPU, X* dweights, X* dq_pre, X* dk_pre, X* dgate, const LayerInputs<X>& in, const X* weights,
                        const HeadGate& p, std::byte* /*workspace*/) {
    const int HS = in.HS, group = in.NH / in.NKV;
#pragma omp parallel for
    for (int kv = 0; kv < in.NKV; kv++)   // a thread owns all heads of a key head, so sums keep their order
        for (int h = std::max(kv * group, p.dense); h < (kv + 1) * group; h++) {
            const size_t weight = p.weight + size_t(h) * 2 * HS;
            const X* w = weights + weight;
            X* dw = dweights + weight;
            for (int n = 0; n < in.B * in.T; n++) {
                const X *q = in.query(in.q_pre, 0, n, h), *k = in.key(in.k_pre, 0, n, h);
                const X u = dot(w, q, HS) + dot(w + HS, k, HS) + weights[p.bias + h];
                const X du = dgate[size_t(n) * in.NH + h] * p.slope(u);
                X *dq = dq_pre + n * in.qk_row + size_t(h) * HS, *dk = dk_pre + n * in.qk_row + size_t(kv) * HS;
                for (int d = 0; d < HS; d++) {
                    dw[d] += du * q[d], dw[HS + d] += du * k[d];
                    dq[d] += du * w[d], dk[d] += du * w[HS + d];
                }
                dweights[p.bias + h] += du;
            }
        }
}
inline size_t head_gate_workspace(CPU, const LayerShape&) { return 0; }

#ifdef WITH_GPU

namespace head_gate {
inline constexpr int WARPS = 8, TOKENS = 128;   // tokens per block in the sums of the weights' gradients
}   // namespace head_gate

/// One warp per (token, head). Forward: numbers = gate. Backward: numbers holds dgate on entry and dL/du on return.
template <bool BACKWARD, class X>
__global__ void head_gate_kernel(float* numbers, const __grid_constant__ LayerInputs<X> in, const X* weights, const HeadGate p) {
    const size_t at = size_t(blockIdx.x) * head_gate::WARPS + threadIdx.x / WARP;
    if (at >= size_t(in.B) * in.T * in.NH) return;
    const int n = int(at / in.NH), h = int(at % in.NH);
    const X *q = in.query(in.q_pre, 0, n, h), *k = in.key(in.k_pre, 0, n, h), *w = weights + p.weight + size_t(h) * 2 * in.HS;
    float u = 0;
    for (int d = threadIdx.x % WARP; d < in.HS; d += WARP) u += to_float(w[d]) * to_float(q[d]) + to_float(w[in.HS + d]) * to_float(k[d]);
    u = warp_sum(u) + to_float(weights[p.bias + h]);
    if (threadIdx.x % WARP) return;
    if (BACKWARD) numbers[at] = h < p.dense ? 0 : numbers[at] * p.slope(u);
    else numbers[at] = h < p.dense ? 1 : p.gate(u);
}

/// Block (chunk of tokens, h): partials[chunk] of dw_h, and after all of those of db_h.
template <class X>
__global__ void head_gate_weight_kernel(float* weights, float* biases, const float* du, const __grid_constant__ LayerInputs<X> in) {
    const int h = blockIdx.y, first = blockIdx.x * head_gate::TOKENS, end = min(in.B * in.T, first + head_gate::TOKENS);
    for (int d = threadIdx.x; d < 2 * in.HS; d += blockDim.x) {
        float sum = 0;
        for (int n = first; n < end; n++)
            sum += du[size_t(n) * in.NH + h] *
                   to_float(d < in.HS ? in.query(in.q_pre, 0, n, h)[d] : in.key(in.k_pre, 0, n, h)[d - in.HS]);
        weights[(size_t(blockIdx.x) * in.NH + h) * 2 * in.HS + d] = sum;
    }
    if (threadIdx.x) return;
    float sum = 0;
    for (int n = first; n < end; n++) sum += du[size_t(n) * in.NH + h];
    biases[size_t(blockIdx.x) * in.NH + h] = sum;
}

/// Block n: dq_pre and dk_pre of one token, one thread per element.
template <class X>
__global__ void head_gate_input_kernel(float* dq_pre, float* dk_pre, const float* du, const __grid_constant__ LayerInputs<X> in,
                                       const X* weights, const HeadGate p) {
    const int HS = in.HS, group = in.NH / in.NKV;
    const size_t n = blockIdx.x;
    const float* mine = du + n * in.NH;
    for (int i = threadIdx.x; i < in.NH * HS; i += blockDim.x)
        dq_pre[n * in.qk_row + i] += mine[i / HS] * to_float(weights[p.weight + size_t(i / HS) * 2 * HS + i % HS]);
    for (int i = threadIdx.x; i < in.NKV * HS; i += blockDim.x) {
        float sum = 0;
        for (int h = i / HS * group; h < (i / HS + 1) * group; h++)
            sum += mine[h] * to_float(weights[p.weight + size_t(h) * 2 * HS + HS + i % HS]);
        dk_pre[n * in.qk_row + i] += sum;
    }
}

template <class X>
void head_gate_forward(GPU device, float* gate, const LayerInputs<X>& in, const X* weights, const HeadGate& p) {
    const Grid grid(blocks_for(size_t(in.B) * in.T * in.NH, head_gate::WARPS));
    launch(device, head_gate_kernel<false, X>, grid, head_gate::WARPS * WARP, 0, gate, in, weights, p);
}

inline size_t head_gate_workspace(GPU, const LayerShape& s) {
    return blocks_for(size_t(s.B) * s.T, head_gate::TOKENS) * s.NH * (2 * s.HS + 1) * sizeof(float);
}

template <class X>
void head_gate_backward(GPU device, float* dweights, float* dq_pre, float* dk_pre, float* dgate, const LayerInputs<X>& in,
                        const X* weights, const HeadGate& p, std::byte* workspace) {
    const size_t tokens = size_t(in.B) * in.T, chunks = blocks_for(tokens, head_gate::TOKENS), numbers = size_t(in.NH) * 2 * in.HS;
    float *partials = reinterpret_cast<float*>(workspace), *biases = partials + chunks * numbers;
    const Grid grid(blocks_for(tokens * in.NH, head_gate::WARPS));
    launch(device, head_gate_kernel<true, X>, grid, head_gate::WARPS * WARP, 0, dgate, in, weights, p);
    launch(device, head_gate_weight_kernel<X>, Grid(chunks, in.NH), 128, 0, partials, biases, dgate, in);
    sum_partials(device, dweights + p.weight, partials, chunks, numbers, Write::add);
    sum_partials(device, dweights + p.bias, biases, chunks, size_t(in.NH), Write::add);
    launch(device, head_gate_input_kernel<X>, Grid(tokens), 256, 0, dq_pre, dk_pre, dgate, in, weights, p);
}

#endif
