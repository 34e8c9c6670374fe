// What attention over chosen blocks (block_sparse.cuh) keeps of a text that is being written, on the CPU: the gate's keys of whole
// blocks, what the block that is being written has pooled so far, and what its rows visit. All its rows visit the same blocks, so that
// the choice is made once, at its first token.
#pragma once
#include <algorithm>
#include <vector>

#include "attention/blocks/block_gate.cuh"
#include "attention/kernel/decode.h"
#include "attention/masks/select.cuh"

/// How the gate of a layer works: its weights wq (NH, HS, HS) and wk (NKV, HS, 3 HS), and what is done with its scores.
template <class X>
struct BlockGateUse {
    const X *wq, *wk;
    TileChoice choice;
    bool visits_all;   // whatever the scores
};

template <class X>
class BlockText {
public:
    /// room.blocks() blocks at most.
    BlockText(BumpAllocator& memory, const GateShape& room) : s_(room) {
        const size_t N = s_.blocks(), keys = row(s_.NKV), queries = row(s_.NH);
        gate_keys_ = memory.take<X>(N * keys), pooled_ = memory.take<X>(3 * keys);
        query_sum_ = memory.take<X>(queries), gate_query_ = memory.take<X>(queries);
        scores_ = memory.take<X>(s_.NH * N), visits_ = memory.take<char>(s_.NH * N);
    }

    /// Row t of `in` is the text's next token.
    void add(const LayerInputs<X>& in, int t, const BlockGateUse<X>& use) {
        const int place = tokens_ % s_.block;
        const X *q = in.query(in.q_pre, 0, t, 0), *k = in.key(in.k_pre, 0, t, 0);
        if (place == 0) choose(in, q, tokens_ / s_.block, use);
        pool(q, k, place);
        tokens_++;
        if (place + 1 == s_.block) complete(in, tokens_ / s_.block - 1, use);
    }

    /// Whether the rows of the block that is being written visit block c in head h, and their score for it.
    bool visits(int h, int c) const { return visits_[size_t(h) * s_.blocks() + c]; }
    X score(int h, int c) const { return scores_[size_t(h) * s_.blocks() + c]; }

private:
    size_t row(int heads) const { return size_t(heads) * s_.HS; }

    /// Pools the queries q (NH, HS) and keys k (NKV, HS) of token `place` of the block.
    void pool(const X* q, const X* k, int place) {
        X *greatest = pooled_, *smallest = pooled_ + row(s_.NKV), *sum = pooled_ + 2 * row(s_.NKV);
        for (size_t d = 0; d < row(s_.NKV); d++) {
            greatest[d] = place ? std::max(greatest[d], k[d]) : k[d];
            smallest[d] = place ? std::min(smallest[d], k[d]) : k[d];
            sum[d] = place ? sum[d] + k[d] : k[d];
        }
        for (size_t d = 0; d < row(s_.NH); d++) query_sum_[d] = place ? query_sum_[d] + q[d] : q[d];
    }

    /// The gate's key of block c.
    void complete(const LayerInputs<X>& in, int c, const BlockGateUse<X>& use) {
        const int HS = s_.HS;
        X* const keys = gate_keys_ + c * row(s_.NKV);
        std::vector<X> inputs(3 * HS);
        for (int kv = 0; kv < s_.NKV; kv++) {
            for (int n = 0; n < 3; n++) std::copy_n(pooled_ + n * row(s_.NKV) + size_t(kv) * HS, HS, &inputs[n * HS]);
            for (int d = 0; d < HS; d++) inputs[2 * HS + d] /= X(s_.block);
            for (int d = 0; d < HS; d++)
                keys[kv * HS + d] = inner_product(use.wk + (size_t(kv) * HS + d) * 3 * HS, inputs.data(), 3 * HS);
        }
        rotate(keys, s_.NKV, in, c);
    }

    /// Scores and visits of block r, whose first token has the queries q (NH, HS).
    void choose(const LayerInputs<X>& in, const X* q, int r, const BlockGateUse<X>& use) {
        const int HS = s_.HS, N = s_.blocks(), group = s_.NH / s_.NKV;
        const bool first = s_.query == GateQuery::first;
        std::vector<X> input(HS);
        for (int h = 0; h < s_.NH; h++) {
            for (int d = 0; d < HS; d++) {
                const X mean = r > 0 ? query_sum_[h * HS + d] / X(s_.block) : X(0);
                input[d] = first ? q[h * HS + d] : mean;
            }
            for (int d = 0; d < HS; d++) gate_query_[h * HS + d] = inner_product(use.wq + (size_t(h) * HS + d) * HS, input.data(), HS);
        }
        rotate(gate_query_, s_.NH, in, r);
        for (int h = 0; h < s_.NH; h++) {
            X* const scores = scores_ + size_t(h) * N;
            for (int c = 0; c < r; c++)
                scores[c] = inner_product(gate_query_ + h * HS, gate_keys_ + c * row(s_.NKV) + h / group * HS, HS) / std::sqrt(X(HS));
            const CandidateSoftmax<X> softmax(scores, use.choice, r);
            for (int c = 0; c <= r; c++)
                visits_[size_t(h) * N + c] = use.visits_all || chosen(scores, use.choice, softmax, h, r, c);
        }
    }

    /// In place, to the position of block c's first token.
    void rotate(X* x, int heads, const LayerInputs<X>& in, int c) const {
        const size_t width = row(heads);
        rotate_heads(CPU{}, Heads<X>{x, width}, Heads<const X>{x, width},
                     Angles<Wide<X>>{in.cosine, in.sine}.from(c * s_.block, s_.HS), 1, 1, heads, s_.HS, 1);
    }

    GateShape s_;
    int tokens_ = 0;
    X* gate_keys_;               // (blocks, NKV, HS) kg
    X* pooled_;                  // (3, NKV, HS) greatest, smallest and sum of the keys of the last block
    X *query_sum_, *gate_query_; // (NH, HS) of the last block
    X* scores_;                  // (NH, blocks)
    char* visits_;               // (NH, blocks)
};
