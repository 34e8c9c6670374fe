// What happens to queries and keys between their projection and attention: Qwen3's QK-norm (RMSNorm over each head, one weight of
// HS numbers for all heads) and rotary position embedding in the rotate-half layout of Qwen and Llama (Su et al. 2021):
//     (x1, x2) = (x[d], x[d + HS/2])  ->  (x1 cos - x2 sin, x2 cos + x1 sin),   angle = position * theta^(-2d/HS)
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

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

/// One head; direction -1 turns back, which is the gradient.
template <class X>
inline void rotate(X* to, const X* x, const X* cosine, const X* sine, int HS, X direction) {
#pragma omp simd
    for (int d = 0; d < HS / 2; d++) {
        const X x1 = x[d], x2 = x[d + HS / 2], s = direction * sine[d];
        to[d] = x1 * cosine[d] - x2 * s;
        to[d + HS / 2] = x2 * cosine[d] + x1 * s;
    }
}

/// What both directions of the operation below need to know.
template <class X>
struct QkShape {
    int B, T, NH, NKV, HS;
    const X *q_weight, *k_weight;          // (HS) of QK-norm; null: no norm
    const Wide<X>*cosine, *sine;           // (T, HS/2)
    int heads() const { return NH + NKV; }
    size_t qkv_heads() const { return NH + 2 * NKV; }
};

/// QK-norm and RoPE in one pass over the front of the fused projection qkv (B, T, NH + 2 NKV, HS), both outputs (B, T, NH + NKV, HS):
/// `pre` normalised, `out` rotated too. Either may be null. rstd (B, T, NH + NKV) is for the backward; untouched without a norm.
template <class X>
void qk_norm_rope_forward(CPU, X* out, X* pre, Wide<X>* rstd, const X* qkv, const QkShape<X>& s, double eps) {
    const int heads = s.heads(), HS = s.HS;
#pragma omp parallel for
    for (int row = 0; row < s.B * s.T; row++) {
        std::vector<X> own(HS);
        for (int h = 0; h < heads; h++) {
            const size_t at = size_t(row) * heads + h, angle = size_t(row % s.T) * (HS / 2);
            const X* from = qkv + (row * s.qkv_heads() + h) * HS;
            X* normed = pre ? pre + at * HS : own.data();
            if (s.q_weight) rstd[at] = rmsnorm_row(normed, from, h < s.NH ? s.q_weight : s.k_weight, HS, eps);
            else std::copy_n(from, HS, normed);
            if (out) rotate(out + at * HS, normed, s.cosine + angle, s.sine + angle, HS, X(1));
        }
    }
}

/// dqkv's q and k parts from dqk (B, T, NH + NKV, HS), the gradient of `out`, and dpre, that of `pre`, which may be null; dqkv's v
/// part is left alone.
template <class X>
void qk_norm_rope_backward(CPU, X* dqkv, Wide<X>* dq_weight, Wide<X>* dk_weight, const Wide<X>* dqk, const Wide<X>* dpre,
                           const X* qkv, const Wide<X>* rstd, const QkShape<X>& s, Write write_weight) {
    const int heads = s.heads(), HS = s.HS;
    ThreadSums<X> q_sums(HS), k_sums(HS);
#pragma omp parallel for schedule(static)
    for (int row = 0; row < s.B * s.T; row++) {
        std::vector<X> dnormed(HS);
        for (int h = 0; h < heads; h++) {
            const size_t at = size_t(row) * heads + h, angle = size_t(row % s.T) * (HS / 2);
            const size_t to = (row * s.qkv_heads() + h) * HS;
            rotate(dnormed.data(), dqk + at * HS, s.cosine + angle, s.sine + angle, HS, X(-1));
            for (int d = 0; d < HS && dpre; d++) dnormed[d] += dpre[at * HS + d];
            if (!s.q_weight)
                std::copy_n(dnormed.data(), HS, dqkv + to);
            else
                rmsnorm_row_backward(dqkv + to, (h < s.NH ? q_sums : k_sums).mine(), dnormed.data(), qkv + to,
                                     h < s.NH ? s.q_weight : s.k_weight, rstd[at], HS, Write::overwrite);
        }
    }
    if (!s.q_weight) return;
    q_sums.reduce_to(dq_weight, write_weight);
    k_sums.reduce_to(dk_weight, write_weight);
}
