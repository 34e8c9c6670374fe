// Gated feed-forward networks (Shazeer 2020): out = act(gate) * up. One fused projection computes gate and up. The activations are
// x sigmoid(u(x)): SiLU has u = x, which makes SwiGLU; GELU in its approximation by tanh, 0.5 x (1 + tanh(y)) = x sigmoid(2 y), which
// Gemma has, u = 2 sqrt(2/pi) (x + 0.044715 x^3), which makes GeGLU. The functions are named after the first, as are recorded timings.
#pragma once
#include <cstddef>

#include "model/device/device.h"
#include "model/device/math.h"

struct Silu {
    template <class X>
    static constexpr X u(X x) {
        return x;
    }
    template <class X>
    static constexpr X slope(X) {   // du/dx
        return X(1);
    }
};

struct GeluTanh {
    static constexpr double A = 1.5957691216057308, B = 0.044715;   // 2 sqrt(2 / pi)
    template <class X>
    static constexpr X u(X x) {
        return X(A) * x * (X(1) + X(B) * x * x);
    }
    template <class X>
    static constexpr X slope(X x) {
        return X(A) * (X(1) + X(3 * B) * x * x);
    }
};

/// out (rows, F) from gate_up (rows, 2 F): gate first, then up.
template <class Activation = Silu, class X>
void swiglu_forward(CPU, X* out, const X* gate_up, int rows, int F) {
#pragma omp parallel for
    for (int row = 0; row < rows; row++) {
        const X *gate = gate_up + size_t(row) * 2 * F, *up = gate + F;
        X* to = out + size_t(row) * F;
#pragma omp simd
        for (int f = 0; f < F; f++) to[f] = gate[f] * sigmoid(Activation::u(gate[f])) * up[f];
    }
}

/// dgate_up (rows, 2 F) from dout (rows, F):  dup = dout act(gate);  dgate = dout up s (1 + gate (1 - s) u'(gate)),
/// s = sigmoid(u(gate)).
template <class Activation = Silu, class X>
void swiglu_backward(CPU, X* dgate_up, const X* dout, const X* gate_up, int rows, int F) {
#pragma omp parallel for
    for (int row = 0; row < rows; row++) {
        const X *gate = gate_up + size_t(row) * 2 * F, *up = gate + F, *d = dout + size_t(row) * F;
        X *dgate = dgate_up + size_t(row) * 2 * F, *dup = dgate + F;
#pragma omp simd
        for (int f = 0; f < F; f++) {
            const X s = sigmoid(Activation::u(gate[f])), act = gate[f] * s;
            dup[f] = d[f] * act;
            dgate[f] = d[f] * up[f] * (s + act * (X(1) - s) * Activation::slope(gate[f]));
        }
    }
}

#ifdef WITH_GPU

/// sigmoid(x) to the accuracy of the GPU's fast exponential and division.
__device__ __forceinline__ float fast_sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

namespace swiglu {
inline constexpr int THREADS = 256;

/// Where a thread's 16 bytes lie; `packs` of them make a row of F.
struct Place {
    size_t row;
    unsigned f;
};
template <class X>
__device__ __forceinline__ Place place(unsigned packs) {
    const unsigned i = blockIdx.x * THREADS + threadIdx.x;
    return {i / packs, i % packs * Packed<X>::size};
}
template <class X>
Grid grid(int rows, int F, std::source_location at = std::source_location::current()) {
    require_multiple_of_8("SwiGLU", "the width of the feed-forward network", F);
    return {blocks_for(size_t(rows) * (F / Packed<X>::size), THREADS), 1, 1, at};
}
}   // namespace swiglu

template <class X, class Activation>
__global__ void swiglu_forward_kernel(X* out, const X* gate_up, int rows, int F) {
    constexpr int N = Packed<X>::size;
    const auto [row, f] = swiglu::place<X>(F / N);
    if (row >= size_t(rows)) return;
    float gate[N], up[N];
    read_numbers(gate, gate_up + row * 2 * F + f);
    read_numbers(up, gate_up + row * 2 * F + F + f);
    for (int n = 0; n < N; n++) up[n] *= gate[n] * fast_sigmoid(Activation::u(gate[n]));
    write_numbers(out + row * F + f, up);
}

template <class Activation = Silu, class X>
void swiglu_forward(GPU device, X* out, const X* gate_up, int rows, int F) {
    launch(device, swiglu_forward_kernel<X, Activation>, swiglu::grid<X>(rows, F), swiglu::THREADS, 0, out, gate_up, rows, F);
}

template <class X, class Activation>
__global__ void swiglu_backward_kernel(X* dgate_up, const X* dout, const X* gate_up, int rows, int F) {
    constexpr int N = Packed<X>::size;
    const auto [row, f] = swiglu::place<X>(F / N);
    if (row >= size_t(rows)) return;
    float d[N], gate[N], up[N];
    read_streaming(d, dout + row * F + f);
    read_streaming(gate, gate_up + row * 2 * F + f);
    read_streaming(up, gate_up + row * 2 * F + F + f);
    for (int n = 0; n < N; n++) {
        const float s = fast_sigmoid(Activation::u(gate[n])), act = gate[n] * s;
        gate[n] = d[n] * up[n] * (s + act * (1 - s) * Activation::slope(gate[n]));
        up[n] = d[n] * act;
    }
    write_numbers(dgate_up + row * 2 * F + f, gate);
    write_numbers(dgate_up + row * 2 * F + F + f, up);
}

template <class Activation = Silu, class X>
void swiglu_backward(GPU device, X* dgate_up, const X* dout, const X* gate_up, int rows, int F) {
    launch(device, swiglu_backward_kernel<X, Activation>, swiglu::grid<X>(rows, F), swiglu::THREADS, 0, dgate_up, dout, gate_up, rows, F);
}
#endif
