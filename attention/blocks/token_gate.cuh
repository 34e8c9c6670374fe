// The block gate for single tokens (SeerAttention-R): a score for every token, key/value head and block of keys.
//     qg_t = RoPE(Wq [q_t of the head's g query heads], position of t)     Wq (NKV, HS, g HS)
//     kg_c = RoPE(Wk [max; min; mean of k over block c], position of c's first token)     Wk (NKV, HS, 3 HS), as in block_gate.cuh
//     score_tc = HS^-1/2 qg_t.kg_c
// Only past blocks have scores: those that end before the token's own begins. q and k are taken before RoPE and count as constants: the
// gate's gradient reaches Wq and Wk alone. Blocks of packed documents: document_blocks.h.
#pragma once
#include "attention/blocks/block_rows.cuh"
#include "attention/blocks/distil.cuh"
#include "attention/masks/choose_blocks.cuh"

/// The gate's memory, in W = Wide<X>.
template <class W>
struct TokenGate {
    GateShape s;
    GateMemory<W> of_keys;
    int* positions;        // (B, NKV, T) RoPE positions of queries
    W *queries, *scores;   // (B, NKV, T, HS) qg, (B, NKV, T, N)

    TokenGate(BumpAllocator& allocator, const GateShape& shape) : s(shape), of_keys(allocator, shape.without_queries()) {
        positions = allocator.take<int>(rows());
        queries = allocator.take<W>(rows() * s.HS), scores = allocator.take<W>(rows() * s.blocks());
    }

    constexpr size_t rows() const { return size_t(s.B) * s.NKV * s.T; }
    constexpr const W* scores_of(int b, int kv, int t) const { return scores + ((size_t(b) * s.NKV + kv) * s.T + t) * s.blocks(); }
};

/// Positions of gate queries: as far from their document's blocks, which rotate_blocks() places at n block, as in the document alone.
template <class W>
struct PlaceGateQueries {
    TokenGate<W> gate;
    constexpr void operator()(unsigned row, int t) const {
        const int b = int(row) / gate.s.NKV;
        const DocumentBlocks blocks = gate.s.in_row();
        gate.positions[size_t(row) * gate.s.T + t] = blocks.first(b, t) * blocks.length + blocks.inside(b, t);
    }
};

/// Rotates gate.queries in place; direction is 1, or -1 for the gradient.
template <class Device, class X>
void rotate_gate_queries(Device device, const TokenGate<Wide<X>>& gate, const LayerInputs<X>& in, int direction) {
    const GateShape& s = gate.s;
    const size_t row = s.HS;
    rotate_heads(device, Heads<Wide<X>>{gate.queries, row}, Heads<const Wide<X>>{gate.queries, row}, {in.cosine, in.sine},
                 s.B * s.NKV, s.T, 1, s.HS, direction, {.of_token = gate.positions});
}

/// Computes gate.scores and all their intermediate results.
template <class Device, class X>
void token_gate_scores(Device device, const TokenGate<Wide<X>>& gate, const LayerInputs<X>& in, const X* wq, const X* wk) {
    using W = Wide<X>;
    const GateShape& s = gate.s;
    const int HS = s.HS, N = s.blocks(), width = s.NH / s.NKV * HS;
    pool(device, gate.of_keys, in, s.without_queries());
    gate_keys(device, gate.of_keys, in, wk, s);
    const Factor<X> q{in.q_pre, s.T * in.qk_row, size_t(width), 0, in.qk_row, 1};
    small_products(device, block_product(gate.queries, s.NKV, s.T, HS), q,
                   head_weights(wq, HS, width).transposed(), {s.B, s.NKV, s.T, HS, width}, W(1), Write::overwrite);
    each_element(device, size_t(s.B) * s.NKV, s.T, PlaceGateQueries<W>{gate});
    rotate_gate_queries(device, gate, in, 1);
    small_products(device, block_product(gate.scores, s.NKV, s.T, N), block_rows(gate.queries, s.NKV, s.T, HS),
                   block_rows(gate.of_keys.keys, s.NKV, N, HS).transposed(), {s.B, s.NKV, s.T, N, HS}, W(1) / std::sqrt(W(HS)),
                   Write::overwrite);
}

// ---- the choice

/// The choice (BlockChoice) of every key/value head: each token's blocks by the `rule` among its past ones. Teams are (b, head, t).
template <class W>
struct ChooseByGate {
    using Number = W;
    int* choice;
    TokenGate<W> gate;
    BlockChoice c;
    TileChoice rule;
    template <class Team>
    constexpr void operator()(const Team& team, unsigned n) const {
        const int t = int(n) % c.T, kv = int(n) / c.T % c.choosers, b = int(n) / c.T / c.choosers;
        const int first = gate.s.in_row().first(b, t), past = gate.s.in_row().past(b, t);
        choose_blocks(team, choice + c.of_token(b, kv, t), gate.scores_of(b, kv, t) + first, rule, past, first);
    }
};
template <class Device, class W>
void choose_by_gate(Device device, int* choice, const TokenGate<W>& gate, const BlockChoice& c, const TileChoice& rule) {
    each_team<1>(device, size_t(c.B) * c.choosers * c.T, ChooseByGate<W>{choice, gate, c, rule});
}

// ---- distillation

/// A teacher for distil(): the greatest weight that a query head of the group gives to a key of the block.
template <class W>
struct TokenTeacher {
    DenseMap<W> map;
    GateShape s;
    float lambda;
    constexpr int heads() const { return s.NKV; }
    constexpr int rows() const { return s.T; }
    constexpr Distillation::Row row(int b, int /*kv*/, int t) const {
        const int first = s.in_row().first(b, t);
        return {first, first + s.in_row().past(b, t), lambda / float(s.NKV)};
    }
    constexpr W exponent(int b, int kv, int t, int c) const {
        const int group = s.NH / s.NKV, row = BlockQueries(s.in_row()).row(b, 0, t);   // without documents t
        W largest = -1e30f;
        for (int h = kv * group; h < (kv + 1) * group; h++) {
            const W here = map.of_token(s, b, h, row, t, c);
            if (here > largest) largest = here;
        }
        return largest;
    }
};

/// Computes dwq and dwk (overwritten) from dscores (B, NKV, T, N), which are zero outside a token's past. gate.queries and dkeys
/// (B, NKV, N, HS) become the gradients of queries and keys.
template <class Device, class X>
void token_gate_backward(Device device, Wide<X>* dwq, Wide<X>* dwk, Wide<X>* dkeys, const Wide<X>* dscores,
                         const TokenGate<Wide<X>>& gate, const LayerInputs<X>& in) {
    using W = Wide<X>;
    const GateShape& s = gate.s;
    const int HS = s.HS, N = s.blocks(), width = s.NH / s.NKV * HS;
    const W scale = W(1) / std::sqrt(W(HS));
    const Factor<W> d = block_rows(dscores, s.NKV, s.T, N);
    small_products(device, block_product(dkeys, s.NKV, N, HS), d.transposed(), block_rows(gate.queries, s.NKV, s.T, HS),
                   {s.B, s.NKV, N, HS, s.T}, scale, Write::overwrite);
    gate_keys_backward(device, dwk, dkeys, gate.of_keys, in, s, Write::overwrite);
    small_products(device, block_product(gate.queries, s.NKV, s.T, HS), d, block_rows(gate.of_keys.keys, s.NKV, N, HS),
                   {s.B, s.NKV, s.T, HS, N}, scale, Write::overwrite);
    rotate_gate_queries(device, gate, in, -1);
    small_products(device, SmallProduct<W>{dwq, 0, size_t(HS) * width}, summed_rows(gate.queries, s.NKV, s.T, HS).transposed(),
                   Factor<X>{in.q_pre, 0, size_t(width), s.T * in.qk_row, in.qk_row, 1}, {1, s.NKV, HS, width, s.T, s.B}, W(1),
                   Write::overwrite);
}
