// The output gate outside of the kernel, on results in memory: where a GPU gathers rows, the gate's order is not the kernel's.
#pragma once
#include "attention/scores/each_element.cuh"

template <class X>
struct GateRows {
    X* gated;
    const X* out;
    const Wide<X>* gate;
    int HS;
    constexpr void operator()(unsigned n, int d) const {
        const size_t at = size_t(n) * HS + d;
        gated[at] = narrowed<X>(gate[n] * widened(out[at]));
    }
};
/// gated (heads, HS) = gate out; `heads` counts the heads of all tokens.
template <class Device, class X>
void gate_rows_forward(Device device, X* gated, const X* out, const Wide<X>* gate, size_t heads, int HS) {
    each_element(device, heads, HS, GateRows<X>{gated, out, gate, HS});
}

/// dout (heads, HS) = gate dgated;  dgate (heads) = <dgated, out>.
template <class X>
void gate_rows_backward(CPU, X* dout, X* dgate, const X* dgated, const X* out, const X* gate, size_t heads, int HS) {
#pragma omp parallel for
    for (size_t n = 0; n < heads; n++) {
        X sum = 0;
        for (int d = 0; d < HS; d++) {
            sum += dgated[n * HS + d] * out[n * HS + d];
            dout[n * HS + d] = gate[n] * dgated[n * HS + d];
        }
        dgate[n] = sum;
    }
}

#ifdef WITH_GPU

/// One warp per head of a token.
template <class X>
__global__ void gate_rows_backward_kernel(X* dout, float* dgate, const X* dgated, const X* out, const float* gate, size_t heads,
                                          int HS) {
    const size_t n = size_t(blockIdx.x) * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (n >= heads) return;
    float sum = 0;
    for (int d = threadIdx.x % WARP; d < HS; d += WARP) {
        const float gradient = to_float(dgated[n * HS + d]);
        sum += gradient * to_float(out[n * HS + d]);
        dout[n * HS + d] = from_float<X>(gate[n] * gradient);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) dgate[n] = sum;
}

template <class X>
void gate_rows_backward(GPU device, X* dout, float* dgate, const X* dgated, const X* out, const float* gate, size_t heads, int HS) {
    launch(device, gate_rows_backward_kernel<X>, blocks_for(heads, 4), 4 * WARP, 0, dout, dgate, dgated, out, gate, heads, HS);
}

#endif
