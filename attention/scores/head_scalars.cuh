// Scalars per head that score() reads, each a function of one weight: c = softplus(gamma), for instance. A policy with
// features().head of them defines
//     size_t head_weight(int h, int n) const        offset of the weight of scalar n of head h in the flat buffer
//     static N head_scalar(N weight, int n)         the scalar
//     static N head_scalar_slope(N weight, int n)   its derivative
// all constexpr, and, where a scalar is not trained,
//     double constant_scalar() const                its value
#pragma once
#include "attention/mechanism.h"
#include "model/device/device.h"

/// Returned by head_weight() for a scalar that is not trained.
inline constexpr size_t CONSTANT_SCALAR = size_t(-1);

/// Scalar n of head h.
template <class P, class X>
constexpr Wide<X> head_scalar_of(const P& policy, const X* weights, int h, int n) {
    const size_t at = policy.head_weight(h, n);
    if constexpr (requires { policy.constant_scalar(); })
        if (at == CONSTANT_SCALAR) return Wide<X>(policy.constant_scalar());
    return P::head_scalar(widened(weights[at]), n);
}

/// Fills scalars (NH, features().head), which is ScoreInputs::head.
template <class P, class X>
void head_scalars_forward(CPU, X* scalars, const P& policy, const X* weights, int NH) {
    const int count = policy.features().head;
    for (int h = 0; h < NH; h++)
        for (int n = 0; n < count; n++) scalars[h * count + n] = head_scalar_of(policy, weights, h, n);
}

/// dweights += the gradients from dscalars (B, NH, features().head), one partial sum per sequence.
template <class P, class X>
void head_scalars_backward(CPU, X* dweights, const P& policy, const X* weights, const X* dscalars, int B, int NH) {
    const int count = policy.features().head;
    for (int b = 0; b < B; b++)
        for (int h = 0; h < NH; h++)
            for (int n = 0; n < count; n++) {
                const size_t at = policy.head_weight(h, n);
                if (at == CONSTANT_SCALAR) continue;
                dweights[at] += dscalars[(size_t(b) * NH + h) * count + n] * P::head_scalar_slope(weights[at], n);
            }
}

#ifdef WITH_GPU

/// Block h, thread n: scalar n of head h.
template <class P, class X>
__global__ void head_scalars_forward_kernel(float* scalars, const P policy, const X* weights) {
    const int h = blockIdx.x, n = threadIdx.x, count = policy.features().head;
    if (n < count) scalars[h * count + n] = head_scalar_of(policy, weights, h, n);
}

template <class P, class X>
__global__ void head_scalars_backward_kernel(float* dweights, const P policy, const X* weights, const float* dscalars, int B) {
    const int h = blockIdx.x, n = threadIdx.x, count = policy.features().head;
    if (n >= count) return;
    const size_t at = policy.head_weight(h, n);
    if (at == CONSTANT_SCALAR) return;
    float sum = 0;
    for (int b = 0; b < B; b++) sum += dscalars[(size_t(b) * gridDim.x + h) * count + n];
    dweights[at] += sum * P::head_scalar_slope(to_float(weights[at]), n);
}

template <class P, class X>
void head_scalars_forward(GPU device, float* scalars, const P& policy, const X* weights, int NH) {
    const int count = policy.features().head, threads = int(blocks_for(count, WARP)) * WARP;
    if (count) launch(device, head_scalars_forward_kernel<P, X>, Grid(NH), threads, 0, scalars, policy, weights);
}

template <class P, class X>
void head_scalars_backward(GPU device, float* dweights, const P& policy, const X* weights, const float* dscalars, int B, int NH) {
    const int count = policy.features().head, threads = int(blocks_for(count, WARP)) * WARP;
    if (count) launch(device, head_scalars_backward_kernel<P, X>, Grid(NH), threads, 0, dweights, policy, weights, dscalars, B);
}

#endif

/// Base of a mechanism that has such scalars and no other features; NH is its number of heads.
template <class Mechanism>
struct HeadScalars : Policy {
    using Policy::Policy;

    template <class Device, class X>
    void preprocess(Device device, const LayerInputs<X>&, const X* weights, ScoreInputs<X>& to) const {
        head_scalars_forward(device, to.head, mechanism(), weights, mechanism().NH);
    }
    template <class Device, class X>
    void preprocess_backward(Device device, const LayerInputs<X>& in, const X* weights, const ScoreInputs<X>&,
                             ScoreInputGradients<X>& g) const {
        head_scalars_backward(device, g.dweights, mechanism(), weights, g.of.head, in.B, mechanism().NH);
    }

private:
    const Mechanism& mechanism() const { return static_cast<const Mechanism&>(*this); }
};
