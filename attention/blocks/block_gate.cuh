// The block gate (SeerAttention, Gao et al. 2024; the Adaptive Sparse Transformer Block): one score for each query head, block r of
// queries and block c of keys, from q and k before RoPE.
//     Kp_c = [max; min; mean] of k over block c             kg_c = RoPE(Wk Kp_c, position of c's first token)    Wk (NKV, HS, 3 HS)
//     Qp_r = q of r's first token, or a mean (GateQuery)    qg_r = RoPE(Wq Qp_r, position of r's first token)    Wq (NH, HS, HS)
//     score_rc = HS^-1/2 qg_r.kg_c
// Scores are for c < r only: block r itself holds keys that its first rows must not see. Everything is computed in Wide<X>; among
// equal keys the first counts as maximum and as minimum.
// Packed documents have their own blocks, numbered as in document_blocks.h. score_rc is for blocks c of r's document, where r is not its
// first block. RoPE places block n at position n block, so blocks are as far apart as in the document alone.
#pragma once
#include "attention/blocks/document_blocks.h"
#include "attention/kernel/naive.h"
#include "attention/scores/rotate_heads.cuh"
#include "attention/scores/small_products.cuh"

/// Representation of a block's queries. `own` looks ahead: the first row of a block would depend on the last. So does `oracle`, whose
/// scores are not the gate's but the logarithms of the pooled dense map (distil.cuh).
enum class GateQuery { first, previous, own, oracle };

/// Sizes and the tokens of each block, for both devices: N blocks of `block` tokens, the last of which may be shorter.
struct GateShape {
    int B, T, NH, NKV, HS;
    int block;
    GateQuery query;
    Documents documents = {};
    constexpr int blocks() const { return (T + block - 1) / block; }
    /// The shape of a gate whose queries are single tokens: no block of queries is pooled or has memory.
    constexpr GateShape without_queries() const { return {B, T, 0, NKV, HS, block, query, documents}; }
    constexpr size_t of_query(int b, int h, int r) const { return (size_t(b) * NH + h) * blocks() + r; }
    constexpr size_t of_key(int b, int kv, int c) const { return (size_t(b) * NKV + kv) * blocks() + c; }

    constexpr DocumentBlocks in_row() const { return {block, block, T, documents}; }
    /// The number of token t's block.
    constexpr int number(int b, int t) const { return in_row().first(b, t) + in_row().past(b, t); }

    /// The first token of block c of keys; -1: it is incomplete, or no block has this number.
    constexpr int keys_begin(int b, int c) const {
        return !documents && (c + 1) * block > T ? -1 : in_row().begin(b, c);
    }
    /// The first token of block r of queries. With documents -1: no block with past blocks has this number.
    constexpr int queries_begin(int b, int r) const { return documents ? in_row().following(b, r) : r * block; }
    /// The first block of its text: blocks first(b, r) to r - 1 are in its past. If no block has the number, the range is empty.
    constexpr int first(int b, int r) const {
        if (!documents) return 0;
        const int begin = queries_begin(b, r);
        return begin < 0 ? r + 1 : in_row().first(b, begin);
    }
    constexpr int tokens_of_text(int b, int r) const {
        const int begin = queries_begin(b, r);
        return begin < 0 ? 0 : in_row().tokens(b, begin);
    }
    /// Number of queries in block r.
    constexpr int tokens(int b, int r) const { return std::min(block, tokens_of_text(b, r) - (r - first(b, r)) * block); }

    /// The tokens whose mean represents the queries of block r; none for `previous` in the first block.
    struct Span {
        int first, count;
        constexpr bool has(int t) const { return t >= first && t < first + count; }
    };
    constexpr Span pooled(int b, int r) const {
        const int begin = queries_begin(b, r);
        if (begin < 0) return {0, 0};
        if (query == GateQuery::first) return {begin, 1};
        if (query == GateQuery::previous) return r > first(b, r) ? Span{begin - block, block} : Span{0, 0};
        return {begin, tokens(b, r)};
    }
};

/// GateShape::first() as an argument of choose_tiles().
struct FirstBlock {
    GateShape s;
    constexpr int operator()(int b, int r) const { return s.first(b, r); }
};

/// Results of the gate before its scores, or gradients of them.
template <class W>
struct GateArrays {
    W* query_inputs;   // (B, NH, N, HS) Qp
    W* key_inputs;     // (B, NKV, N, 3 HS) Kp
    W* queries;        // (B, NH, N, HS) qg
    W* keys;           // (B, NKV, N, HS) kg

    GateArrays(BumpAllocator& allocator, const GateShape& s) {
        const size_t q = size_t(s.B) * s.NH * s.blocks() * s.HS, k = size_t(s.B) * s.NKV * s.blocks() * s.HS;
        query_inputs = allocator.take<W>(q), key_inputs = allocator.take<W>(3 * k);
        queries = allocator.take<W>(q), keys = allocator.take<W>(k);
    }
};

/// Kept from the forward pass for the backward pass, in W = Wide<X>.
template <class W>
struct GateMemory : GateArrays<W> {
    int* extremes;   // (B, NKV, N, 2, HS) the tokens with the largest and the smallest k
    W* scores;       // (B, NH, N, N); undefined for c >= r and for other documents

    GateMemory(BumpAllocator& allocator, const GateShape& s) : GateArrays<W>(allocator, s) {
        extremes = allocator.take<int>(size_t(s.B) * s.NKV * s.blocks() * 2 * s.HS);
        scores = allocator.take<W>(size_t(s.B) * s.NH * s.blocks() * s.blocks());
    }
};

/// Rows are (b, block, query or key head).
template <class X>
struct PoolBlocks {
    using W = Wide<X>;
    GateMemory<W> to;
    const X *q_pre, *k_pre;
    size_t row;
    GateShape s;
    constexpr void operator()(unsigned at, int d) const {
        const int heads = s.NH + s.NKV, head = int(at) % heads, n = int(at) / heads % s.blocks(), b = int(at) / heads / s.blocks();
        if (head < s.NH) pool_query(b, head, n, d);
        else pool_key(b, head - s.NH, n, d);
    }

    constexpr void pool_query(int b, int h, int r, int d) const {
        const GateShape::Span of = s.pooled(b, r);
        W sum = 0;
        for (int t = of.first; t < of.first + of.count; t++)
            sum += widened(q_pre[(size_t(b) * s.T + t) * row + size_t(h) * s.HS + d]);
        to.query_inputs[s.of_query(b, h, r) * s.HS + d] = of.count ? sum / W(of.count) : W(0);
    }
    /// Element d of everything pooled from block c of key head kv; zero for an incomplete block, which no row reads.
    constexpr void pool_key(int b, int kv, int c, int d) const {
        const size_t at = s.of_key(b, kv, c);
        const int first = s.keys_begin(b, c);
        W greatest = 0, smallest = 0, sum = 0;
        int of_greatest = -1, of_smallest = -1;
        for (int t = first; first >= 0 && t < first + s.block; t++) {
            const W k = widened(k_pre[(size_t(b) * s.T + t) * row + size_t(kv) * s.HS + d]);
            if (of_greatest < 0 || k > greatest) greatest = k, of_greatest = t;
            if (of_smallest < 0 || k < smallest) smallest = k, of_smallest = t;
            sum += k;
        }
        to.key_inputs[(at * 3 + 0) * s.HS + d] = greatest;
        to.key_inputs[(at * 3 + 1) * s.HS + d] = smallest;
        to.key_inputs[(at * 3 + 2) * s.HS + d] = sum / W(s.block);
        to.extremes[(at * 2 + 0) * s.HS + d] = of_greatest;
        to.extremes[(at * 2 + 1) * s.HS + d] = of_smallest;
    }
};
template <class Device, class X>
void pool(Device device, const GateMemory<Wide<X>>& memory, const LayerInputs<X>& in, const GateShape& s) {
    each_element(device, size_t(s.B) * s.blocks() * (s.NH + s.NKV), s.HS, PoolBlocks<X>{memory, in.q_pre, in.k_pre, in.qk_row, s});
}

/// Rows are tokens; dq_pre and dk_pre are overwritten.
template <class W>
struct PoolBackward {
    W *dq_pre, *dk_pre;
    size_t row;
    GateArrays<W> g;
    GateMemory<W> memory;
    GateShape s;
    constexpr void operator()(unsigned token, int n) const {
        const int b = int(token) / s.T, t = int(token) % s.T, head = n / s.HS, d = n % s.HS, m = n - s.NH * s.HS;
        if (m < 0) dq_pre[token * row + n] = dquery(b, t, head, d);
        else dk_pre[token * row + m] = dkey(b, t, head - s.NH, d);
    }

    /// The gradient of element d of one token's query, from the pooled query that it is part of.
    constexpr W dquery(int b, int t, int h, int d) const {
        const int r = s.number(b, t) + (s.query == GateQuery::previous);
        const GateShape::Span of = r < s.blocks() ? s.pooled(b, r) : GateShape::Span{0, 0};
        return of.has(t) ? g.query_inputs[s.of_query(b, h, r) * s.HS + d] / W(of.count) : W(0);
    }
    constexpr W dkey(int b, int t, int kv, int d) const {
        const int c = s.number(b, t), first = s.keys_begin(b, c);
        if (first < 0 || !GateShape::Span{first, s.block}.has(t)) return 0;
        const size_t at = s.of_key(b, kv, c);
        W sum = g.key_inputs[(at * 3 + 2) * s.HS + d] / W(s.block);
        for (int n = 0; n < 2; n++)
            if (memory.extremes[(at * 2 + n) * s.HS + d] == t) sum += g.key_inputs[(at * 3 + n) * s.HS + d];
        return sum;
    }
};

/// An array (B, heads, N, width) as factors; `together` consecutive heads make one matrix of together * N rows.
template <class W>
Factor<W> block_rows(const W* data, int heads, int N, int width, int together = 1) {
    const size_t head = size_t(N) * width;
    return {data, heads * head, together * head, 0, size_t(width), 1};
}
template <class W>
SmallProduct<W> block_product(W* data, int heads, int N, int width, int together = 1) {
    const size_t head = size_t(N) * width;
    return {data, heads * head, together * head};
}
/// The same array with its sequences as summands, for gradients of shared weights.
template <class W>
Factor<W> summed_rows(const W* data, int heads, int N, int width) {
    const size_t head = size_t(N) * width;
    return {data, 0, head, heads * head, size_t(width), 1};
}
/// Weights (heads, out, in).
template <class X>
Factor<X> head_weights(const X* data, int out, int in) {
    return {data, 0, size_t(out) * in, 0, size_t(in), 1};
}

/// Applies RoPE in place to rows (B, heads, N, HS): block n at position n block, its first token's in a row of one text. direction is 1,
/// or -1 for the gradient.
template <class Device, class X>
void rotate_blocks(Device device, Wide<X>* rows, int heads, const LayerInputs<X>& in, const GateShape& s, int direction) {
    const size_t row = s.HS;
    rotate_heads(device, Heads<Wide<X>>{rows, row}, Heads<const Wide<X>>{rows, row}, {in.cosine, in.sine}, s.B * heads, s.blocks(),
                 1, s.HS, direction, {.stride = s.block});
}

/// Computes memory.keys from the pooled inputs of pool().
template <class Device, class X>
void gate_keys(Device device, const GateMemory<Wide<X>>& memory, const LayerInputs<X>& in, const X* wk, const GateShape& s) {
    const int HS = s.HS, N = s.blocks();
    small_products(device, block_product(memory.keys, s.NKV, N, HS), block_rows(memory.key_inputs, s.NKV, N, 3 * HS),
                   head_weights(wk, HS, 3 * HS).transposed(), {s.B, s.NKV, N, HS, 3 * HS}, Wide<X>(1), Write::overwrite);
    rotate_blocks(device, memory.keys, s.NKV, in, s, 1);
}

/// Turns the gradient dkeys (B, NKV, N, HS) into the gradient of the keys before RoPE; dwk = or += the gradient of wk.
template <class Device, class X>
void gate_keys_backward(Device device, Wide<X>* dwk, Wide<X>* dkeys, const GateMemory<Wide<X>>& memory, const LayerInputs<X>& in,
                        const GateShape& s, Write write) {
    const int HS = s.HS, N = s.blocks();
    rotate_blocks(device, dkeys, s.NKV, in, s, -1);
    small_products(device, SmallProduct<Wide<X>>{dwk, 0, size_t(HS) * 3 * HS}, summed_rows(dkeys, s.NKV, N, HS).transposed(),
                   summed_rows(memory.key_inputs, s.NKV, N, 3 * HS), {1, s.NKV, HS, 3 * HS, N, s.B}, Wide<X>(1), write);
}

/// Computes memory.scores and all their intermediate results. `wq` (NH, HS, HS), `wk` (NKV, HS, 3 HS).
template <class Device, class X>
void gate_scores(Device device, const GateMemory<Wide<X>>& memory, const LayerInputs<X>& in, const X* wq, const X* wk,
                 const GateShape& s) {
    using W = Wide<X>;
    const int HS = s.HS, N = s.blocks(), group = s.NH / s.NKV;
    pool(device, memory, in, s);
    small_products(device, block_product(memory.queries, s.NH, N, HS), block_rows(memory.query_inputs, s.NH, N, HS),
                   head_weights(wq, HS, HS).transposed(), {s.B, s.NH, N, HS, HS}, W(1), Write::overwrite);
    rotate_blocks(device, memory.queries, s.NH, in, s, 1);
    gate_keys(device, memory, in, wk, s);
    small_products(device, block_product(memory.scores, s.NH, N, N, group), block_rows(memory.queries, s.NH, N, HS, group),
                   block_rows(memory.keys, s.NKV, N, HS).transposed(), {s.B, s.NKV, group * N, N, HS}, W(1) / std::sqrt(W(HS)),
                   Write::overwrite);
}

/// Computes dq_pre and dk_pre (token stride LayerInputs::qk_row, overwritten) and dwq, dwk (added to) from dscores (B, NH, N, N),
/// which are zero for c >= r.
template <class Device, class X>
void gate_scores_backward(Device device, const GateArrays<Wide<X>>& g, Wide<X>* dq_pre, Wide<X>* dk_pre, Wide<X>* dwq,
                          Wide<X>* dwk, const Wide<X>* dscores, const GateMemory<Wide<X>>& memory, const LayerInputs<X>& in,
                          const X* wq, const X* wk, const GateShape& s) {
    using W = Wide<X>;
    const int HS = s.HS, N = s.blocks(), group = s.NH / s.NKV;
    const W scale = W(1) / std::sqrt(W(HS));
    const Factor<W> d = block_rows(dscores, s.NH, N, N, group);
    small_products(device, block_product(g.queries, s.NH, N, HS, group), d, block_rows(memory.keys, s.NKV, N, HS),
                   {s.B, s.NKV, group * N, HS, N}, scale, Write::overwrite);
    small_products(device, block_product(g.keys, s.NKV, N, HS), d.transposed(), block_rows(memory.queries, s.NH, N, HS, group),
                   {s.B, s.NKV, N, HS, group * N}, scale, Write::overwrite);
    rotate_blocks(device, g.queries, s.NH, in, s, -1);
    small_products(device, SmallProduct<W>{dwq, 0, size_t(HS) * HS}, summed_rows(g.queries, s.NH, N, HS).transposed(),
                   summed_rows(memory.query_inputs, s.NH, N, HS), {1, s.NH, HS, HS, N, s.B}, W(1), Write::add);
    gate_keys_backward(device, dwk, g.keys, memory, in, s, Write::add);
    small_products(device, block_product(g.query_inputs, s.NH, N, HS), block_rows(g.queries, s.NH, N, HS),
                   head_weights(wq, HS, HS), {s.B, s.NH, N, HS, HS}, W(1), Write::overwrite);
    small_products(device, block_product(g.key_inputs, s.NKV, N, 3 * HS), block_rows(g.keys, s.NKV, N, HS),
                   head_weights(wk, HS, 3 * HS), {s.B, s.NKV, N, 3 * HS, HS}, W(1), Write::overwrite);
    each_element(device, size_t(s.B) * s.T, (s.NH + s.NKV) * HS, PoolBackward<W>{dq_pre, dk_pre, in.qk_row, g, memory, s});
}
