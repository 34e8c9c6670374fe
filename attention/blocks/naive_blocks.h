// The block gate for the tests' oracles: pooling, projection, RoPE and scores in dense loops, sharing no code with block_gate.cuh.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/blocks/block_gate.cuh"
#include "attention/blocks/naive_choice.h"

/// RoPE(W x, position) with W (HS, width).
template <class X>
std::vector<X> naive_gate_vector(const LayerInputs<X>& in, const X* w, const std::vector<X>& x, int position) {
    const int HS = in.HS, width = int(x.size());
    std::vector<X> y(HS), rotated(HS);
    for (int o = 0; o < HS; o++) y[o] = dot(w + size_t(o) * width, x.data(), width);
    for (int o = 0; o < HS; o++) {
        const size_t angle = size_t(position) * (HS / 2) + o % (HS / 2);
        rotated[o] = y[o] * in.cosine[angle] + (o < HS / 2 ? -y[o + HS / 2] : y[o - HS / 2]) * in.sine[angle];
    }
    return rotated;
}

/// The gate's key of block c, of the key/value head that query head h reads.
template <class X>
std::vector<X> naive_gate_key(const LayerInputs<X>& in, const X* wk, int block, int b, int h, int c) {
    const int HS = in.HS;
    std::vector<X> pooled(3 * HS);
    for (int d = 0; d < HS; d++) {
        std::vector<X> of_block;
        for (int t = c * block; t < (c + 1) * block; t++) of_block.push_back(in.key(in.k_pre, b, t, h)[d]);
        X sum = 0;
        for (X k : of_block) sum += k;
        pooled[d] = *std::max_element(of_block.begin(), of_block.end());
        pooled[HS + d] = *std::min_element(of_block.begin(), of_block.end());
        pooled[2 * HS + d] = sum / block;
    }
    return naive_gate_vector(in, wk + size_t(h / (in.NH / in.NKV)) * HS * 3 * HS, pooled, c * block);
}

/// scores[((b * NH + h) * N + r) * N + c] for c < r. The gate query is the mean of q over block r or r - 1,
/// or q of block r's first token.
template <class X>
std::vector<X> naive_block_scores(const LayerInputs<X>& in, const X* wq, const X* wk, int block, GateQuery gate_query) {
    const int N = (in.T + block - 1) / block, HS = in.HS;
    std::vector<X> scores(size_t(in.B) * in.NH * N * N);
    for (int b = 0; b < in.B; b++)
        for (int h = 0; h < in.NH; h++)
            for (int r = 1; r < N; r++) {
                const int first = (gate_query == GateQuery::previous ? r - 1 : r) * block;
                const int count = gate_query == GateQuery::first ? 1 : std::min(block, in.T - first);
                std::vector<X> pooled(HS);
                for (int t = first; t < first + count; t++)
                    for (int d = 0; d < HS; d++) pooled[d] += in.query(in.q_pre, b, t, h)[d] / count;
                const std::vector<X> query = naive_gate_vector(in, wq + size_t(h) * HS * HS, pooled, r * block);
                for (int c = 0; c < r; c++)
                    scores[((size_t(b) * in.NH + h) * N + r) * N + c] =
                        dot(query.data(), naive_gate_key(in, wk, block, b, h, c).data(), HS) / std::sqrt(X(HS));
            }
    return scores;
}

/// scores[((b * NKV + kv) * T + t) * N + c] of token t for the blocks c before its own.
template <class X>
std::vector<X> naive_token_scores(const LayerInputs<X>& in, const X* wq, const X* wk, int block) {
    const int N = (in.T + block - 1) / block, HS = in.HS, group = in.NH / in.NKV, width = group * HS;
    std::vector<X> scores(size_t(in.B) * in.NKV * in.T * N);
    for (int b = 0; b < in.B; b++)
        for (int kv = 0; kv < in.NKV; kv++) {
            std::vector<std::vector<X>> keys;
            for (int c = 0; c < in.T / block; c++) keys.push_back(naive_gate_key(in, wk, block, b, kv * group, c));
            for (int t = 0; t < in.T; t++) {
                const X* const q = in.query(in.q_pre, b, t, kv * group);   // of the group's heads, one behind the other
                const std::vector<X> query = naive_gate_vector(in, wq + size_t(kv) * HS * width, std::vector<X>(q, q + width), t);
                for (int c = 0; c < t / block; c++)
                    scores[((size_t(b) * in.NKV + kv) * in.T + t) * N + c] = dot(query.data(), keys[c].data(), HS) / std::sqrt(X(HS));
            }
        }
    return scores;
}

/// map[((b * NH + h) * R + r) * N + c]: the logarithm of the largest weight of dense attention between the queries of row group r
/// (`rows` tokens) and the keys of block c. It stands in for scores with GateQuery::oracle, where rows is block.
template <class X>
std::vector<X> naive_dense_map(const LayerInputs<X>& in, int block, int rows) {
    const int N = (in.T + block - 1) / block, R = (in.T + rows - 1) / rows;
    std::vector<X> map(size_t(in.B) * in.NH * R * N, -INFINITY), z(in.T);
    for (int b = 0; b < in.B; b++)
        for (int h = 0; h < in.NH; h++)
            for (int i = 0; i < in.T; i++) {
                X total = 0;
                for (int j = 0; j <= i; j++)
                    total += std::exp(z[j] = dot(in.query(in.q, b, i, h), in.key(in.k, b, j, h), in.HS) / std::sqrt(X(in.HS)));
                for (int j = 0; j <= i; j++) {
                    X& largest = map[((size_t(b) * in.NH + h) * R + i / rows) * N + j / block];
                    largest = std::max(largest, z[j] - std::log(total));
                }
            }
    return map;
}
