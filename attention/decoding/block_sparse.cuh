// Decoding of attention over selected blocks (attention/blocks/block_sparse.cuh): the gate's keys of complete blocks, the pooled
// queries and keys of the newest block, and the blocks that its rows visit. All rows of a block visit the same blocks, so the
// selection is made once, at its first token.
#pragma once
#include <algorithm>
#include <concepts>
#include <vector>

#include "attention/blocks/block_sparse.cuh"
#include "attention/decoding/decoding.cuh"

/// The gate of a layer: its weights wq (NH, HS, HS) and wk (NKV, HS, 3 HS), and the selection by its scores.
template <class X>
struct BlockGateUse {
    const X *wq, *wk;
    TileChoice choice;
    bool visits_all;

    BlockGateUse(const BlockSparse& b, const X* weights)
        : wq(weights + b.wq.offset), wk(weights + b.wk.offset), choice(b.choice), visits_all(b.mask == BlockMask::soft) {}
    /// For gate keys without queries.
    explicit BlockGateUse(const X* wk_) : wq(nullptr), wk(wk_), visits_all(false) {}
};

/// The gate's state: of one sequence on the CPU, of several on a GPU.
template <class Device, class X>
class GateState;

template <class X>
class GateState<CPU, X> {
public:
    /// Capacity: room.blocks() blocks.
    GateState(BumpAllocator& memory, const GateShape& room) : s_(room) {
        const size_t N = s_.blocks(), keys = row(s_.NKV), queries = row(s_.NH);
        gate_keys_ = memory.take<X>(N * keys), pooled_ = memory.take<X>(3 * keys);
        query_sum_ = memory.take<X>(queries), gate_query_ = memory.take<X>(queries);
        scores_ = memory.take<X>(s_.NH * N), visits_ = memory.take<char>(s_.NH * N);
    }

    /// Row t of `in` is the next token.
    void add(const LayerInputs<X>& in, int t, const BlockGateUse<X>& use) {
        const int place = tokens_ % s_.block;
        const X *q = in.query(in.q_pre, 0, t, 0), *k = in.key(in.k_pre, 0, t, 0);
        if (place == 0) choose(in, q, tokens_ / s_.block, use);
        pool(q, k, place);
        tokens_++;
        if (place + 1 == s_.block) complete(in, tokens_ / s_.block - 1, use);
    }

    /// Whether the rows of the newest block visit block c in head h, and their score for it.
    bool visits(int h, int c) const { return visits_[size_t(h) * s_.blocks() + c]; }
    X score(int h, int c) const { return scores_[size_t(h) * s_.blocks() + c]; }
    /// The gate's key of complete block c.
    const X* key(int kv, int c) const { return gate_keys_ + c * row(s_.NKV) + size_t(kv) * s_.HS; }

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

    /// Computes the gate's key of block c.
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

    /// Computes scores and visits of block r, whose first token has the queries q (NH, HS).
    void choose(const LayerInputs<X>& in, const X* q, int r, const BlockGateUse<X>& use) {
        const int HS = s_.HS, N = s_.blocks(), group = s_.NH / s_.NKV;
        const bool first = s_.query == GateQuery::first;
        std::vector<X> input(HS);
        for (int h = 0; h < s_.NH; h++) {
            for (int d = 0; d < HS; d++) {
                const X mean = r > 0 ? query_sum_[h * HS + d] / X(s_.block) : X(0);
                input[d] = first ? q[h * HS + d] : mean;
            }
            for (int d = 0; d < HS; d++)
                gate_query_[h * HS + d] = inner_product(use.wq + (size_t(h) * HS + d) * HS, input.data(), HS);
        }
        rotate(gate_query_, s_.NH, in, r);
        for (int h = 0; h < s_.NH; h++) {
            X* const scores = scores_ + size_t(h) * N;
            for (int c = 0; c < r; c++)
                scores[c] =
                    inner_product(gate_query_ + h * HS, gate_keys_ + c * row(s_.NKV) + h / group * HS, HS) / std::sqrt(X(HS));
            const CandidateSoftmax<X> softmax(scores, use.choice, r);
            for (int c = 0; c <= r; c++)
                visits_[size_t(h) * N + c] = use.visits_all || chosen(scores, use.choice, softmax, h, r, c);
        }
    }

    /// Applies RoPE in place, for the position of block c's first token.
    void rotate(X* x, int heads, const LayerInputs<X>& in, int c) const {
        const size_t width = row(heads);
        rotate_heads(CPU{}, Heads<X>{x, width}, Heads<const X>{x, width},
                     Angles<Wide<X>>{in.cosine, in.sine}.from(c * s_.block, s_.HS), 1, 1, heads, s_.HS, 1);
    }

    GateShape s_;
    int tokens_ = 0;
    X* gate_keys_;               // (blocks, NKV, HS) kg
    X* pooled_;                  // (3, NKV, HS) greatest, smallest and sum of the keys of the newest block
    X *query_sum_, *gate_query_; // (NH, HS) of the newest block
    X* scores_;                  // (NH, blocks)
    char* visits_;               // (NH, blocks)
};

template <std::derived_from<BlockSparse> A, class X>
struct Decoding<A, CPU, X> {
    GateState<CPU, X> blocks;
    Decoding(const A& b, BumpAllocator& memory, const CacheRoom& room) : blocks(memory, b.gate_shape(LayerShape(room))) {}

    void prefill(const A& b, const LayerInputs<X>& in, const X* weights, const LayerState<X>&) {
        if (b.gate_training == GateTraining::gate_only) return;   // the gate is not used
        for (int t = 0; t < in.T; t++) blocks.add(in, t, {b, weights});
    }
    template <class Step>
    void decode(const Step& step, const A& b, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) {
        const AttentionForward<X> a = kernel_arguments(in, state, Statistics<X>{});
        const int position = step.keys.tokens(), own = position / b.block;
        if (b.gate_training == GateTraining::gate_only) return attention_forward(step, PlainTiles(b), a);
        if (b.gates_heads()) head_gate_forward(CPU{}, state.score_inputs.gate, in, weights, b.head_gate_options());
        step.keys.append(a);
        blocks.add(in, 0, {b, weights});
        attend(a, step.keys, [&](int h, QueryRow<X>& row, KeySpan<X> keys) {   // a tile lies in one block
            const int c = keys.first / b.block;
            if (!blocks.visits(h, c)) return;
            if (b.mask != BlockMask::hard && h >= b.dense() && c < own) keys.tile_bias = -softplus(-blocks.score(h, c));
            row.visit(BiasedTiles(b), query_of(a, {}, h, position), keys);
        });
    }
};

#ifdef WITH_GPU

template <class X>
class GateState<GPU, X> {
public:
    GateShape s;        // of s.B sequences of at most s.T tokens
    float* gate_keys;   // (sequences, NKV, blocks, HS)
    float* pooled;      // (sequences, NKV, 3, HS) greatest, smallest and sum of the keys of the newest block
    float* query_sum;   // (sequences, NH, HS) of the newest block
    float* scores;      // (sequences, NH, blocks)
    char* visits;       // (sequences, NH, blocks)

    GateState(BumpAllocator& memory, const GateShape& room) : s(room) {
        const size_t queries = size_t(s.B) * s.NH, keys = size_t(s.B) * s.NKV;
        gate_keys = memory.take<float>(keys * s.blocks() * s.HS), pooled = memory.take<float>(keys * 3 * s.HS);
        query_sum = memory.take<float>(queries * s.HS), scores = memory.take<float>(queries * s.blocks());
        visits = memory.take<char>(queries * s.blocks());
    }
};

/// The mask and the biases of the rows of a step. `dense`: the first heads, without a gate.
struct BlocksOfSequences : BiasedTiles {
    const float* scores;   // as in GateState, from the row's sequence on
    const char* visits;
    int NH, blocks, block, dense;
    bool biased;
    template <class X>
    constexpr BlocksOfSequences(const Policy& p, const GateState<GPU, X>& of, int dense_, bool biased_)
        : BiasedTiles(p), scores(of.scores), visits(of.visits), NH(of.s.NH), blocks(of.s.blocks()), block(of.s.block),
          dense(dense_), biased(biased_) {}
    constexpr size_t at(int h, int c) const { return size_t(h) * blocks + c; }
    constexpr BlocksOfSequences of_row(int sequence) const {
        BlocksOfSequences row = *this;
        row.scores += at(sequence * NH, 0), row.visits += at(sequence * NH, 0);
        return row;
    }
    constexpr Tile tile(int h, int i0, int i1, int j0, int j1) const {   // a tile lies in one block
        return visits[at(h, j0 / block)] ? causal_tile(i0, i1, j0, j1) : Tile::hidden;
    }
    constexpr float tile_bias(int h, int i, int j) const {
        return biased && h >= dense && j / block < i / block ? -softplus(-scores[at(h, j / block)]) : 0.0f;
    }
};

namespace block_gate_decoding {

inline constexpr int THREADS = 128;   // one per element of a head

struct Shared {
    float inputs[3 * THREADS], product[THREADS];
};

/// product = RoPE(weight (HS, width) inputs (width), position).
template <class X, class Y>
__device__ void project(Shared& shared, const X* weight, const Y* inputs, int width, const LayerInputs<X>& in, int position) {
    const int d = threadIdx.x, half = in.HS / 2;
    float sum = 0;
    for (int n = 0; d < in.HS && n < width; n++) sum += to_float(weight[size_t(d) * width + n]) * to_float(inputs[n]);
    __syncthreads();   // inputs have been read
    if (d < in.HS) shared.product[d] = sum;
    __syncthreads();
    if (d < half) {
        const size_t angle = size_t(position) * half + d;
        rotate_pair(shared.product[d], shared.product[d + half], in.cosine[angle], in.sine[angle]);
    }
    __syncthreads();
}

/// Computes scores (r) from the product and the keys of the first r blocks.
template <class X>
__device__ void score_blocks(float* scores, const Shared& shared, const GateState<GPU, X>& to, int sequence, int kv, int r) {
    const GateShape& s = to.s;
    for (int c = threadIdx.x; c < r; c += THREADS) {
        const float* key = to.gate_keys + s.of_key(sequence, kv, c) * s.HS;
        float sum = 0;
        for (int e = 0; e < s.HS; e++) sum += shared.product[e] * key[e];
        scores[c] = sum / sqrtf(float(s.HS));
    }
    __syncthreads();
}

/// Computes scores and visits of block r for query head h of a sequence. q (HS) is its first token's query.
template <class X>
__device__ void choose(Shared& shared, const GateState<GPU, X>& to, const LayerInputs<X>& in, const BlockGateUse<X>& use,
                       int sequence, int h, int r, const X* q, float query_sum) {
    const GateShape& s = to.s;
    const int d = threadIdx.x, HS = s.HS, kv = h / (s.NH / s.NKV);
    const size_t row = (size_t(sequence) * s.NH + h) * s.blocks();
    if (d < HS) shared.inputs[d] = s.query == GateQuery::first ? to_float(q[d]) : r > 0 ? query_sum / float(s.block) : 0.0f;
    __syncthreads();
    project(shared, use.wq + size_t(h) * HS * HS, shared.inputs, HS, in, r * s.block);
    score_blocks(to.scores + row, shared, to, sequence, kv, r);
    const CandidateSoftmax<float> softmax(to.scores + row, use.choice, r);
    for (int c = d; c <= r; c += THREADS)
        to.visits[row + c] = use.visits_all || chosen(to.scores + row, use.choice, softmax, h, r, c);
}

/// Adds tokens first .. last - 1 of query head h. A block's first token chooses the blocks that its rows visit.
template <class X>
__device__ void add_queries(Shared& shared, const GateState<GPU, X>& to, const LayerInputs<X>& in, const BlockGateUse<X>& use,
                            int b, int sequence, int h, int first, int last) {
    const int d = threadIdx.x;
    float* const kept = to.query_sum + (size_t(sequence) * to.s.NH + h) * to.s.HS + d;
    float sum = d < to.s.HS ? *kept : 0.0f;
    for (int t = first; t < last; t++) {
        const X* q = in.query(in.q_pre, b, in.T == 1 ? 0 : t, h);
        if (t % to.s.block == 0) {
            choose(shared, to, in, use, sequence, h, t / to.s.block, q, sum);
            sum = 0;
        }
        if (d < to.s.HS) sum += to_float(q[d]);
    }
    if (d < to.s.HS) *kept = sum;
}

/// Adds tokens first .. last - 1 of key head kv, all in one block.
template <class X>
__device__ void add_keys(Shared& shared, const GateState<GPU, X>& to, const LayerInputs<X>& in, const BlockGateUse<X>& use, int b,
                         int sequence, int kv, int first, int last) {
    const GateShape& s = to.s;
    const int d = threadIdx.x, HS = s.HS, c = first / s.block;
    float* const kept = to.pooled + (size_t(sequence) * s.NKV + kv) * 3 * HS + d;
    float greatest = -INFINITY, smallest = INFINITY, sum = 0;
    if (d < HS && first % s.block) greatest = kept[0], smallest = kept[HS], sum = kept[2 * HS];
    for (int t = first; d < HS && t < last; t++) {
        const float k = to_float(in.query(in.k_pre, b, in.T == 1 ? 0 : t, kv)[d]);
        greatest = fmaxf(greatest, k), smallest = fminf(smallest, k), sum += k;
    }
    if (last % s.block) {
        if (d < HS) kept[0] = greatest, kept[HS] = smallest, kept[2 * HS] = sum;
        return;
    }
    if (d < HS) shared.inputs[d] = greatest, shared.inputs[HS + d] = smallest, shared.inputs[2 * HS + d] = sum / float(s.block);
    __syncthreads();
    project(shared, use.wk + size_t(kv) * HS * 3 * HS, shared.inputs, 3 * HS, in, c * s.block);
    if (d < HS) to.gate_keys[s.of_key(sequence, kv, c) * HS + d] = shared.product[d];
}

/// Block (kv, c): adds block c of the first in.T tokens of a sequence.
template <class X>
__global__ void __launch_bounds__(THREADS)
    prompt_keys_kernel(const GateState<GPU, X> to, const LayerInputs<X> in, const BlockGateUse<X> use, int sequence) {
    const int first = int(blockIdx.y) * to.s.block, last = min(in.T, first + to.s.block);
    add_keys(dynamic_shared<Shared>(), to, in, use, 0, sequence, blockIdx.x, first, last);
}
/// Block h: adds the last of these tokens, from the second-last block on.
template <class X>
__global__ void __launch_bounds__(THREADS)
    prompt_queries_kernel(const GateState<GPU, X> to, const LayerInputs<X> in, const BlockGateUse<X> use, int sequence) {
    const int first = max(0, (in.T - 1) / to.s.block - 1) * to.s.block;
    add_queries(dynamic_shared<Shared>(), to, in, use, 0, sequence, blockIdx.x, first, in.T);
}
/// Block (head, b): query head `head` of row b, or key head head - NH.
template <class X>
__global__ void __launch_bounds__(THREADS)
    rows_kernel(const GateState<GPU, X> to, const LayerInputs<X> in, const BlockGateUse<X> use, const DecodeRows rows) {
    const int head = blockIdx.x, b = blockIdx.y, t = rows.position[b];
    auto& shared = dynamic_shared<Shared>();
    if (head < in.NH) add_queries(shared, to, in, use, b, rows.sequence[b], head, t, t + 1);
    else add_keys(shared, to, in, use, b, rows.sequence[b], head - in.NH, t, t + 1);
}

}   // namespace block_gate_decoding

template <std::derived_from<BlockSparse> A, class X>
struct Decoding<A, GPU, X> {
    GateState<GPU, X> blocks;
    Decoding(const A& b, BumpAllocator& memory, const CacheRoom& room) : blocks(memory, b.gate_shape(LayerShape(room))) {}

    void prefill(const GPU& device, int sequence, const A& b, const LayerInputs<X>& in, const X* weights, const LayerState<X>&) {
        using namespace block_gate_decoding;
        if (b.gate_training == GateTraining::gate_only) return;   // the gate is not used
        const BlockGateUse<X> use(b, weights);
        launch(device, prompt_keys_kernel<X>, Grid(in.NKV, blocks_for(in.T, b.block)), THREADS, sizeof(Shared), blocks, in, use,
               sequence);
        launch(device, prompt_queries_kernel<X>, in.NH, THREADS, sizeof(Shared), blocks, in, use, sequence);
    }
    template <class Step>
    void decode(const Step& step, const A& b, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) const {
        using namespace block_gate_decoding;
        const AttentionForward<X> a = kernel_arguments(in, state, Statistics<X>{});
        if (b.gate_training == GateTraining::gate_only) return attention_forward(step, PlainTiles(b), a);
        if (b.gates_heads()) head_gate_forward(step, state.score_inputs.gate, in, weights, b.head_gate_options());
        launch(step, rows_kernel<X>, Grid(in.NH + in.NKV, in.B), THREADS, sizeof(Shared), blocks, in, BlockGateUse<X>(b, weights),
               step.rows);
        attention_forward(step, BlocksOfSequences(b, blocks, b.dense(), b.mask != BlockMask::hard), a);
    }
};

#endif
