// SwiGLU (Shazeer 2020): out = silu(gate) * up, silu(x) = x sigmoid(x). Gate and up come from one fused projection.
#pragma once
#include <cstddef>

#include "model/device.h"
#include "model/math.h"

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
