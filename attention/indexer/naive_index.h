// The indexer's scores by the formulas of indexer.cuh, in dense loops.
#pragma once
#include "attention/indexer/indexer.cuh"
#include "attention/kernel/naive.h"

/// weight x, for one token.
template <class X>
std::vector<X> naive_projection(const X* weight, const X* x, int OUT, int C) {
    std::vector<X> out(OUT);
    for (int o = 0; o < OUT; o++) out[o] = dot(weight + size_t(o) * C, x, C);
    return out;
}

/// RoPE of one head (D) at position t: numbers d and d + rotated / 2 are rotated by t theta^(-2 d / rotated).
template <class X>
void naive_index_rope(X* head, const LayerInputs<X>& in, const IndexShape& s, int t) {
    const int half = s.rotated() / 2;
    for (int d = 0; d < half; d++) {
        const size_t angle = size_t(t) * (in.HS / 2) + d * (in.HS / 2) / half;
        const X cosine = in.cosine[angle], sine = in.sine[angle], first = head[d], second = head[d + half];
        head[d] = first * cosine - second * sine, head[d + half] = second * cosine + first * sine;
    }
}

/// Scores (B, T, T); undefined for keys after the query.
template <class X>
std::vector<X> naive_index_scores(const LayerInputs<X>& in, const X* weights, const IndexTensors& at, const IndexShape& s) {
    std::vector<X> scores(size_t(in.B) * in.T * in.T), keys(size_t(in.T) * s.D);
    for (int b = 0; b < in.B; b++)
        for (int t = 0; t < in.T; t++) {
            const X* const x = in.x + in.token(b, t) * in.C;
            std::vector<X> qk = naive_projection(weights + at.wqk, x, int(s.row()), in.C);
            const std::vector<X> w = naive_projection(weights + at.ww, x, s.heads, in.C);
            X* const key = &qk[size_t(s.heads) * s.D];
            X mean = 0, variance = 0;
            for (int d = 0; d < s.D; d++) mean += key[d] / s.D;
            for (int d = 0; d < s.D; d++) variance += (key[d] - mean) * (key[d] - mean) / s.D;
            for (int d = 0; d < s.D; d++)
                key[d] = (key[d] - mean) / std::sqrt(variance + X(1e-6)) * weights[at.norm + d] + weights[at.norm + s.D + d];
            for (int h = 0; h <= s.heads; h++) naive_index_rope(&qk[size_t(h) * s.D], in, s, t);
            std::copy_n(key, s.D, &keys[size_t(t) * s.D]);
            for (int j = 0; j <= t; j++)
                for (int h = 0; h < s.heads; h++)
                    scores[(size_t(b) * in.T + t) * in.T + j] +=
                        w[h] * std::max(X(0), dot(&qk[size_t(h) * s.D], &keys[size_t(j) * s.D], s.D)) / std::sqrt(X(s.heads * s.D));
        }
    return scores;
}
