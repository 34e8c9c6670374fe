// What attention over chosen blocks (block_sparse.cuh) keeps of several texts that are being written on a GPU: what BlockText
// (block_text.cuh) keeps of one on the CPU.
#pragma once
#include "attention/blocks/block_text.cuh"
#include "attention/blocks/block_tiles.cuh"
#include "attention/kernel/next_rows.cuh"

#ifdef WITH_GPU

/// As kernels see it.
struct BlockTexts {
    GateShape s;        // of s.B texts of at most s.T tokens
    float* gate_keys;   // (texts, NKV, blocks, HS)
    float* pooled;      // (texts, NKV, 3, HS) greatest, smallest and sum of the keys of the block that is being written
    float* query_sum;   // (texts, NH, HS) of the last block
    float* scores;      // (texts, NH, blocks)
    char* visits;       // (texts, NH, blocks)

    BlockTexts(BumpAllocator& memory, const GateShape& room) : s(room) {
        const size_t queries = size_t(s.B) * s.NH, keys = size_t(s.B) * s.NKV;
        gate_keys = memory.take<float>(keys * s.blocks() * s.HS), pooled = memory.take<float>(keys * 3 * s.HS);
        query_sum = memory.take<float>(queries * s.HS), scores = memory.take<float>(queries * s.blocks());
        visits = memory.take<char>(queries * s.blocks());
    }
};

/// The mask and the biases of rows of such texts. `dense`: the first heads, without a gate.
struct BlocksOfTexts : BiasedTiles {
    const float* scores;   // BlockTexts, from the row's text on
    const char* visits;
    int NH, blocks, block, dense;
    bool biased;
    constexpr BlocksOfTexts(const Policy& p, const BlockTexts& texts, int dense_, bool biased_)
        : BiasedTiles(p), scores(texts.scores), visits(texts.visits), NH(texts.s.NH), blocks(texts.s.blocks()), block(texts.s.block),
          dense(dense_), biased(biased_) {}
    constexpr size_t at(int h, int c) const { return size_t(h) * blocks + c; }
    constexpr BlocksOfTexts of_row(int text) const {
        BlocksOfTexts row = *this;
        row.scores += at(text * NH, 0), row.visits += at(text * NH, 0);
        return row;
    }
    constexpr Tile tile(int h, int i0, int i1, int j0, int j1) const {   // a tile lies in one block
        return visits[at(h, j0 / block)] ? causal_tile(i0, i1, j0, j1) : Tile::hidden;
    }
    constexpr float tile_bias(int h, int i, int j) const {
        return biased && h >= dense && j / block < i / block ? -softplus(-scores[at(h, j / block)]) : 0.0f;
    }
};

namespace block_texts {

inline constexpr int THREADS = 128;   // for each number of a head

struct Shared {
    float inputs[3 * THREADS], product[THREADS];
};

/// product = RoPE(weight (HS, width) inputs), at the position of block c's first token.
template <class X>
__device__ void project(Shared& shared, const X* weight, int width, const LayerInputs<X>& in, int block, int c) {
    const int d = threadIdx.x, half = in.HS / 2;
    float sum = 0;
    for (int n = 0; d < in.HS && n < width; n++) sum += to_float(weight[size_t(d) * width + n]) * shared.inputs[n];
    __syncthreads();   // inputs have been read
    if (d < in.HS) shared.product[d] = sum;
    __syncthreads();
    if (d < half) {
        const size_t angle = size_t(c) * block * half + d;
        rotate_pair(shared.product[d], shared.product[d + half], in.cosine[angle], in.sine[angle]);
    }
    __syncthreads();
}

/// Scores and visits of block r for query head h of a text, whose first token has the query q (HS).
template <class X>
__device__ void choose(Shared& shared, const BlockTexts& to, const LayerInputs<X>& in, const BlockGateUse<X>& use, int text, int h,
                       int r, const X* q, float query_sum) {
    const GateShape& s = to.s;
    const int d = threadIdx.x, HS = s.HS, kv = h / (s.NH / s.NKV);
    const size_t row = (size_t(text) * s.NH + h) * s.blocks();
    if (d < HS) shared.inputs[d] = s.query == GateQuery::first ? to_float(q[d]) : r > 0 ? query_sum / float(s.block) : 0.0f;
    __syncthreads();
    project(shared, use.wq + size_t(h) * HS * HS, HS, in, s.block, r);
    for (int c = d; c < r; c += THREADS) {
        const float* key = to.gate_keys + s.of_key(text, kv, c) * HS;
        float sum = 0;
        for (int e = 0; e < HS; e++) sum += shared.product[e] * key[e];
        to.scores[row + c] = sum / sqrtf(float(HS));
    }
    __syncthreads();
    const CandidateSoftmax<float> softmax(to.scores + row, use.choice, r);
    for (int c = d; c <= r; c += THREADS)
        to.visits[row + c] = use.visits_all || chosen(to.scores + row, use.choice, softmax, h, r, c);
}

/// Tokens first .. last - 1 of query head h, of which a block's first token chooses what its rows visit.
template <class X>
__device__ void add_queries(Shared& shared, const BlockTexts& to, const LayerInputs<X>& in, const BlockGateUse<X>& use, int b,
                            int text, int h, int first, int last) {
    const int d = threadIdx.x;
    float* const kept = to.query_sum + (size_t(text) * to.s.NH + h) * to.s.HS + d;
    float sum = d < to.s.HS ? *kept : 0.0f;
    for (int t = first; t < last; t++) {
        const X* q = in.query(in.q_pre, b, in.T == 1 ? 0 : t, h);
        if (t % to.s.block == 0) {
            choose(shared, to, in, use, text, h, t / to.s.block, q, sum);
            sum = 0;
        }
        if (d < to.s.HS) sum += to_float(q[d]);
    }
    if (d < to.s.HS) *kept = sum;
}

/// Tokens first .. last - 1 of key head kv, all in one block.
template <class X>
__device__ void add_keys(Shared& shared, const BlockTexts& to, const LayerInputs<X>& in, const BlockGateUse<X>& use, int b, int text,
                         int kv, int first, int last) {
    const GateShape& s = to.s;
    const int d = threadIdx.x, HS = s.HS, c = first / s.block;
    float* const kept = to.pooled + (size_t(text) * s.NKV + kv) * 3 * HS + d;
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
    project(shared, use.wk + size_t(kv) * HS * 3 * HS, 3 * HS, in, s.block, c);
    if (d < HS) to.gate_keys[s.of_key(text, kv, c) * HS + d] = shared.product[d];
}

/// Block (kv, c): block c of the first in.T tokens of a text.
template <class X>
__global__ void __launch_bounds__(THREADS)
    prompt_keys_kernel(const BlockTexts to, const LayerInputs<X> in, const BlockGateUse<X> use, int text) {
    const int first = int(blockIdx.y) * to.s.block, last = min(in.T, first + to.s.block);
    add_keys(dynamic_shared<Shared>(), to, in, use, 0, text, blockIdx.x, first, last);
}
/// Block h: the last tokens of them, from the block before the last on.
template <class X>
__global__ void __launch_bounds__(THREADS)
    prompt_queries_kernel(const BlockTexts to, const LayerInputs<X> in, const BlockGateUse<X> use, int text) {
    const int first = max(0, (in.T - 1) / to.s.block - 1) * to.s.block;
    add_queries(dynamic_shared<Shared>(), to, in, use, 0, text, blockIdx.x, first, in.T);
}
/// Block (head, b): query head `head` of row b, or key head head - NH.
template <class X>
__global__ void __launch_bounds__(THREADS)
    rows_kernel(const BlockTexts to, const LayerInputs<X> in, const BlockGateUse<X> use, const DecodeRows rows) {
    const int head = blockIdx.x, b = blockIdx.y, t = rows.position[b];
    auto& shared = dynamic_shared<Shared>();
    if (head < in.NH) add_queries(shared, to, in, use, b, rows.sequence[b], head, t, t + 1);
    else add_keys(shared, to, in, use, b, rows.sequence[b], head - in.NH, t, t + 1);
}

/// The first in.T tokens of a text.
template <class X>
void begin(const GPU& device, const BlockTexts& to, const LayerInputs<X>& in, const BlockGateUse<X>& use, int text) {
    const size_t shared = sizeof(Shared);
    launch(device, prompt_keys_kernel<X>, Grid(in.NKV, blocks_for(in.T, to.s.block)), THREADS, shared, to, in, use, text);
    launch(device, prompt_queries_kernel<X>, in.NH, THREADS, shared, to, in, use, text);
}
/// A token more of in.B texts.
template <class X>
void add(const GPU& device, const BlockTexts& to, const LayerInputs<X>& in, const BlockGateUse<X>& use, const DecodeRows& rows) {
    launch(device, rows_kernel<X>, Grid(in.NH + in.NKV, in.B), THREADS, sizeof(Shared), to, in, use, rows);
}

}   // namespace block_texts

#endif
