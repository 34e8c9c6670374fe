// SwiGLU (Shazeer 2020): out = silu(gate) * up with silu(x) = x sigmoid(x). One fused projection computes gate and up.
#pragma once
#include <cstddef>

#include "model/device/device.h"
#include "model/device/math.h"

/// out (rows, F) from gate_up (rows, 2 F): gate first, then up.
template <class X>
void swiglu_forward(CPU, X* out, const X* gate_up, int rows, int F) {
#pragma omp parallel for
    for (int row = 0; row < rows; row++) {
        const X *gate = gate_up + size_t(row) * 2 * F, *up = gate + F;
        X* to = out + size_t(row) * F;
#pragma omp simd
        for (int f = 0; f < F; f++) to[f] = gate[f] * sigmoid(gate[f]) * up[f];
    }
}

/// dgate_up (rows, 2 F) from dout (rows, F):  dup = dout silu(gate);  dgate = dout up s (1 + gate (1 - s)),  s = sigmoid(gate).
template <class X>
void swiglu_backward(CPU, X* dgate_up, const X* dout, const X* gate_up, int rows, int F) {
#pragma omp parallel for
    for (int row = 0; row < rows; row++) {
        const X *gate = gate_up + size_t(row) * 2 * F, *up = gate + F, *d = dout + size_t(row) * F;
        X *dgate = dgate_up + size_t(row) * 2 * F, *dup = dgate + F;
#pragma omp simd
        for (int f = 0; f < F; f++) {
            const X s = sigmoid(gate[f]), silu = gate[f] * s;
            dup[f] = d[f] * silu;
            dgate[f] = d[f] * up[f] * (s + silu * (X(1) - s));
        }
    }
}

#ifdef WITH_GPU

/// sigmoid(x) to the accuracy of the GPU's fast exponential and division.
__device__ __forceinline__ float fast_sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

namespace swiglu {
inline constexpr int THREADS = 256;

/// The place of a thread's 16 bytes; `packs` of them make a row of F.
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

template <class X>
__global__ void swiglu_forward_kernel(X* out, const X* gate_up, int rows, int F) {
    constexpr int N = Packed<X>::size;
    const auto [row, f] = swiglu::place<X>(F / N);
    if (row >= size_t(rows)) return;
    float gate[N], up[N];
    read_numbers(gate, gate_up + row * 2 * F + f);
    read_numbers(up, gate_up + row * 2 * F + F + f);
    for (int n = 0; n < N; n++) up[n] *= gate[n] * fast_sigmoid(gate[n]);
    write_numbers(out + row * F + f, up);
}

template <class X>
void swiglu_forward(GPU device, X* out, const X* gate_up, int rows, int F) {
    launch(device, swiglu_forward_kernel<X>, swiglu::grid<X>(rows, F), swiglu::THREADS, 0, out, gate_up, rows, F);
}

template <class X>
__global__ void swiglu_backward_kernel(X* dgate_up, const X* dout, const X* gate_up, int rows, int F) {
    constexpr int N = Packed<X>::size;
    const auto [row, f] = swiglu::place<X>(F / N);
    if (row >= size_t(rows)) return;
    float d[N], gate[N], up[N];
    read_numbers<Reuse::streaming>(d, dout + row * F + f);
    read_numbers<Reuse::streaming>(gate, gate_up + row * 2 * F + f);
    read_numbers<Reuse::streaming>(up, gate_up + row * 2 * F + F + f);
    for (int n = 0; n < N; n++) {
        const float s = fast_sigmoid(gate[n]), silu = gate[n] * s;
        gate[n] = d[n] * up[n] * (s + silu * (1 - s));
        up[n] = d[n] * silu;
    }
    write_numbers(dgate_up + row * 2 * F + f, gate);
    write_numbers(dgate_up + row * 2 * F + F + f, up);
}

template <class X>
void swiglu_backward(GPU device, X* dgate_up, const X* dout, const X* gate_up, int rows, int F) {
    launch(device, swiglu_backward_kernel<X>, swiglu::grid<X>(rows, F), swiglu::THREADS, 0, dgate_up, dout, gate_up, rows, F);
}
#endif
