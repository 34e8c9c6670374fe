// Numbers per head that E1 reads and that stand for one weight each, as it is or bent: c = softplus(gamma), say. A policy that has
// features().head such numbers says
//     size_t head_weight(int h, int n) const        where the weight of number n of head h lies in the flat buffer
//     static N head_number(N weight, int n)         the number
//     static N head_number_slope(N weight, int n)   its derivative
// all of them constexpr.
#pragma once
#include "attention/kernel/policy.h"
#include "model/device/device.h"

/// What head_weight() answers for a number that is 1 and not trained.
inline constexpr size_t CONSTANT_ONE = size_t(-1);

/// numbers (NH, features().head), which is Extras::head.
template <class P, class X>
void head_numbers_forward(CPU, X* numbers, const P& policy, const X* weights, int NH) {
    const int count = policy.features().head;
    for (int h = 0; h < NH; h++)
        for (int n = 0; n < count; n++) {
            const size_t at = policy.head_weight(h, n);
            numbers[h * count + n] = at == CONSTANT_ONE ? X(1) : P::head_number(weights[at], n);
        }
}

/// dweights += the gradients dnumbers (B, NH, features().head), which come as one partial sum per sequence.
template <class P, class X>
void head_numbers_backward(CPU, X* dweights, const P& policy, const X* weights, const X* dnumbers, int B, int NH) {
    const int count = policy.features().head;
    for (int b = 0; b < B; b++)
        for (int h = 0; h < NH; h++)
            for (int n = 0; n < count; n++) {
                const size_t at = policy.head_weight(h, n);
                if (at == CONSTANT_ONE) continue;
                dweights[at] += dnumbers[(size_t(b) * NH + h) * count + n] * P::head_number_slope(weights[at], n);
            }
}

#ifdef WITH_GPU

/// Block h, thread n: number n of head h.
template <class P, class X>
__global__ void head_numbers_forward_kernel(float* numbers, const P policy, const X* weights) {
    const int h = blockIdx.x, n = threadIdx.x, count = policy.features().head;
    if (n >= count) return;
    const size_t at = policy.head_weight(h, n);
    numbers[h * count + n] = at == CONSTANT_ONE ? 1 : P::head_number(to_float(weights[at]), n);
}

template <class P, class X>
__global__ void head_numbers_backward_kernel(float* dweights, const P policy, const X* weights, const float* dnumbers, int B) {
    const int h = blockIdx.x, n = threadIdx.x, count = policy.features().head;
    if (n >= count) return;
    const size_t at = policy.head_weight(h, n);
    if (at == CONSTANT_ONE) return;
    float sum = 0;
    for (int b = 0; b < B; b++) sum += dnumbers[(size_t(b) * gridDim.x + h) * count + n];
    dweights[at] += sum * P::head_number_slope(to_float(weights[at]), n);
}

template <class P, class X>
void head_numbers_forward(GPU device, float* numbers, const P& policy, const X* weights, int NH) {
    const int count = policy.features().head, threads = int(blocks_for(count, WARP)) * WARP;
    if (count) launch(device, head_numbers_forward_kernel<P, X>, Grid(NH), threads, 0, numbers, policy, weights);
}

template <class P, class X>
void head_numbers_backward(GPU device, float* dweights, const P& policy, const X* weights, const float* dnumbers, int B, int NH) {
    const int count = policy.features().head, threads = int(blocks_for(count, WARP)) * WARP;
    if (count) launch(device, head_numbers_backward_kernel<P, X>, Grid(NH), threads, 0, dweights, policy, weights, dnumbers, B);
}

#endif
