// What happens to queries and keys between their projection and attention: Qwen3's QK-norm (RMSNorm over each head, one weight of
// HS numbers for all heads) and rotary position embedding in the rotate-half layout of Qwen and Llama (Su et al. 2021):
//     (x1, x2) = (x[d], x[d + HS/2])  ->  (x1 cos - x2 sin, x2 cos + x1 sin),   angle = position * theta^(-2d/HS)
#pragma once
#include <algorithm>
#include <cmath>

#include "model/device.h"
#include "model/rmsnorm.cuh"

/// cos, sin (T, HS/2) of positions 0 .. T-1; the angles are computed in double.
template <class X>
void rope_table(CPU, X* cosine, X* sine, int T, int HS, double theta) {
#pragma omp parallel for
    for (int t = 0; t < T; t++)
        for (int d = 0; d < HS / 2; d++) {
            const double angle = t * std::pow(theta, -2.0 * d / HS);
            cosine[size_t(t) * (HS / 2) + d] = X(std::cos(angle));
            sine[size_t(t) * (HS / 2) + d] = X(std::sin(angle));
        }
}

/// One head; direction -1 turns back, which is the gradient. `to` may be `x`.
template <class X>
inline void rotate(X* to, const X* x, const X* cosine, const X* sine, int HS, X direction) {
#pragma omp simd
    for (int d = 0; d < HS / 2; d++) {
        const X x1 = x[d], x2 = x[d + HS / 2], s = direction * sine[d];
        to[d] = x1 * cosine[d] - x2 * s;
        to[d + HS / 2] = x2 * cosine[d] + x1 * s;
    }
}

/// out (rows, heads, HS), heads = NH + NKV, from the front of the fused projection qkv (rows, NH + 2 NKV, HS): q and k, normalised
/// where q_weight and k_weight (HS) are given, with rstd (rows, heads) for the backward; copied where they are null.
template <class X>
void qk_norm_forward(CPU, X* out, X* rstd, const X* qkv, const X* q_weight, const X* k_weight, int rows, int NH, int NKV, int HS,
                     double eps) {
    const int heads = NH + NKV;
#pragma omp parallel for
    for (int row = 0; row < rows; row++)
        for (int h = 0; h < heads; h++) {
            X* to = out + (size_t(row) * heads + h) * HS;
            const X* from = qkv + (size_t(row) * (heads + NKV) + h) * HS;
            if (q_weight)
                rstd[size_t(row) * heads + h] = rmsnorm_row(to, from, h < NH ? q_weight : k_weight, HS, eps);
            else
                std::copy_n(from, HS, to);
        }
}

/// dqkv's q and k parts from dqk (rows, heads, HS), the gradient of what qk_norm_forward() wrote; its v part is left alone.
template <class X>
void qk_norm_backward(CPU, X* dqkv, X* dq_weight, X* dk_weight, const X* dqk, const X* qkv, const X* q_weight, const X* k_weight,
                      const X* rstd, int rows, int NH, int NKV, int HS, Write write_weight) {
    const int heads = NH + NKV;
    ThreadSums<X> q_sums(HS), k_sums(HS);
#pragma omp parallel for schedule(static)
    for (int row = 0; row < rows; row++)
        for (int h = 0; h < heads; h++) {
            const size_t at = (size_t(row) * (heads + NKV) + h) * HS;
            const X* from = dqk + (size_t(row) * heads + h) * HS;
            const X* weight = h < NH ? q_weight : k_weight;
            if (!weight)
                std::copy_n(from, HS, dqkv + at);
            else
                rmsnorm_row_backward(dqkv + at, (h < NH ? q_sums : k_sums).mine(), from, qkv + at, weight,
                                     rstd[size_t(row) * heads + h], HS, Write::overwrite);
        }
    if (!q_weight) return;
    q_sums.reduce_to(dq_weight, write_weight);
    k_sums.reduce_to(dk_weight, write_weight);
}

template <class X>
void rotate_heads(X* to, const X* x, const X* cosine, const X* sine, int B, int T, int heads, int HS, X direction) {
#pragma omp parallel for collapse(2)
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++)
            for (int h = 0; h < heads; h++) {
                const size_t at = ((size_t(b) * T + t) * heads + h) * HS, angle = size_t(t) * (HS / 2);
                rotate(to + at, x + at, cosine + angle, sine + angle, HS, direction);
            }
}

/// out = inp (B, T, heads, HS) with every head rotated by its token's position t.
template <class X>
void rope_forward(CPU, X* out, const X* inp, const X* cosine, const X* sine, int B, int T, int heads, int HS) {
    rotate_heads(out, inp, cosine, sine, B, T, heads, HS, X(1));
}

/// The gradient of rope_forward() in place: dx is turned back.
template <class X>
void rope_backward(CPU, X* dx, const X* cosine, const X* sine, int B, int T, int heads, int HS) {
    rotate_heads(dx, dx, cosine, sine, B, T, heads, HS, X(-1));
}
