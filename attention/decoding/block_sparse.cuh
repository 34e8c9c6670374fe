// Decoding of attention over selected blocks (attention/blocks/block_sparse.cuh): the gate's keys of complete blocks, the pooled
// queries and keys of the newest block, and the blocks that its rows visit. All rows of a block visit the same blocks, so the
// selection is made once, at its first token.
#pragma once
#include <algorithm>
#include <concepts>

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

/// The gate's state.
template <class X>
class GateState {
public:
    GateShape s;           // of s.B sequences of at most s.T tokens
    Wide<X>* gate_keys;    // (sequences, NKV, blocks, HS) kg of complete blocks
    Wide<X>* pooled;       // (sequences, NKV, 3, HS) greatest, smallest and sum of the keys of the newest block
    Wide<X>* query_sum;    // (sequences, NH, HS) of the newest block
    Wide<X>* scores;       // (sequences, NH, blocks)
    char* visits;          // (sequences, NH, blocks)
    int* chosen;           // (sequences, NH, blocks), by the newest block of queries

    GateState(BumpAllocator& memory, const GateShape& room) : s(room) {
        const size_t queries = size_t(s.B) * s.NH, keys = size_t(s.B) * s.NKV;
        gate_keys = memory.take<Wide<X>>(keys * s.blocks() * s.HS), pooled = memory.take<Wide<X>>(keys * 3 * s.HS);
        query_sum = memory.take<Wide<X>>(queries * s.HS), scores = memory.take<Wide<X>>(queries * s.blocks());
        visits = memory.take<char>(queries * s.blocks()), chosen = memory.take<int>(queries * s.blocks());
    }
    /// Of (sequences, NH, blocks), and of (sequences, NH, HS).
    constexpr size_t list(int sequence, int h) const { return (size_t(sequence) * s.NH + h) * s.blocks(); }
    constexpr Wide<X>* query_sum_of(int sequence, int h) const { return query_sum + (size_t(sequence) * s.NH + h) * s.HS; }
    constexpr Wide<X>* pooled_of(int sequence, int kv) const { return pooled + (size_t(sequence) * s.NKV + kv) * 3 * s.HS; }
};

/// The mask and the biases of the rows of a step. `dense`: the first heads, without a gate.
template <class W>
struct GatedBlocks : BiasedTiles {
    const W* scores;   // as in GateState, from the row's sequence on
    const char* visits;
    int NH, blocks, block, dense;
    bool biased;
    template <class X>
    constexpr GatedBlocks(const Policy& p, const GateState<X>& of, int dense_, bool biased_)
        : BiasedTiles(p), scores(of.scores), visits(of.visits), NH(of.s.NH), blocks(of.s.blocks()), block(of.s.block),
          dense(dense_), biased(biased_) {}
    constexpr size_t at(int h, int c) const { return size_t(h) * blocks + c; }
    constexpr GatedBlocks of_row(int sequence) const {
        GatedBlocks row = *this;
        row.scores += at(sequence * NH, 0), row.visits += at(sequence * NH, 0);
        return row;
    }
    constexpr Tile tile(int h, int i0, int i1, int j0, int j1) const {   // a tile lies in one block
        return visits[at(h, j0 / block)] ? causal_tile(i0, i1, j0, j1) : Tile::hidden;
    }
    constexpr W tile_bias(int h, int i, int j) const {
        return biased && h >= dense && j / block < i / block ? -softplus(-scores[at(h, j / block)]) : W(0);
    }
};

/// The gate's functions, by a team for each head, with gate_scratch() numbers of scratch memory.
template <class X>
struct GateTeams {
    using W = Wide<X>;
    GateState<X> to;
    LayerInputs<X> in;
    BlockGateUse<X> use;

    /// product (HS) = RoPE(weight (HS, width) inputs (width), position).
    template <class Team, class Y>
    constexpr void project(const Team& team, W* product, const X* weight, const Y* inputs, int width, int position) const {
        for (int d = team.first(); d < in.HS; d += team.step()) product[d] = team.product(weight + size_t(d) * width, inputs, width);
        team.sync();
        const int half = in.HS / 2;
        for (int d = team.first(); d < half; d += team.step()) {
            const size_t angle = size_t(position) * half + d;
            rotate_pair(product[d], product[d + half], in.cosine[angle], in.sine[angle]);
        }
        team.sync();
    }

    /// Computes scores (r) from a projected query and the keys of the first r blocks.
    template <class Team>
    constexpr void score_blocks(const Team& team, W* scores, const W* query, int sequence, int kv, int r) const {
        for (int c = team.first(); c < r; c += team.step())
            scores[c] = team.product(query, to.gate_keys + to.s.of_key(sequence, kv, c) * in.HS, in.HS) / std::sqrt(W(in.HS));
        team.sync();
    }

    /// Computes scores and visits of block r for query head h of a sequence. q (HS) is its first token's query.
    template <class Team>
    constexpr void choose(const Team& team, int sequence, int h, int r, const X* q) const {
        const int HS = in.HS;
        W *const inputs = team.scratch(), *const query = inputs + HS, *const scores = to.scores + to.list(sequence, h);
        const W* const sum = to.query_sum_of(sequence, h);
        for (int d = team.first(); d < HS; d += team.step())
            inputs[d] = to.s.query == GateQuery::first ? widened(q[d]) : r > 0 ? sum[d] / W(to.s.block) : W(0);
        team.sync();
        project(team, query, use.wq + size_t(h) * HS * HS, inputs, HS, r * to.s.block);
        score_blocks(team, scores, query, sequence, h / (to.s.NH / to.s.NKV), r);
        const TileChoice rule = among_candidates(use.choice, r);
        int* const chosen = to.chosen + to.list(sequence, h);
        char* const visits = to.visits + to.list(sequence, h);
        choose_blocks(team, chosen, scores, rule, r);
        for (int c = team.first(); c <= r; c += team.step())
            visits[c] = use.visits_all || h < rule.dense_heads || rule.forced(r, c);
        team.sync();
        for (int n = team.first(); n < rule.top; n += team.step())
            if (chosen[n] >= 0) visits[chosen[n]] = true;
    }

    /// Adds tokens first .. last - 1 of query head h. A block's first token chooses the blocks that its rows visit.
    template <class Team>
    constexpr void add_queries(const Team& team, int b, int sequence, int h, int first, int last) const {
        W* const sum = to.query_sum_of(sequence, h);
        for (int t = first; t < last; t++) {
            const X* const q = in.query(in.q_pre, b, in.T == 1 ? 0 : t, h);
            const bool begins = t % to.s.block == 0;
            if (begins) choose(team, sequence, h, t / to.s.block, q);
            for (int d = team.first(); d < in.HS; d += team.step()) sum[d] = (begins ? W(0) : sum[d]) + widened(q[d]);
        }
    }

    /// Adds tokens first .. last - 1 of key head kv, all in one block.
    template <class Team>
    constexpr void add_keys(const Team& team, int b, int sequence, int kv, int first, int last) const {
        const int HS = in.HS, c = first / to.s.block;
        const bool begins = first % to.s.block == 0, ends = last % to.s.block == 0;
        W *const kept = to.pooled_of(sequence, kv), *const key = team.scratch(), *const pooled = ends ? key + HS : kept;
        for (int d = team.first(); d < HS; d += team.step()) {
            W greatest = begins ? W(-INFINITY) : kept[d], smallest = begins ? W(INFINITY) : kept[HS + d];
            W sum = begins ? W(0) : kept[2 * HS + d];
            for (int t = first; t < last; t++) {
                const W k = widened(in.query(in.k_pre, b, in.T == 1 ? 0 : t, kv)[d]);
                greatest = std::max(greatest, k), smallest = std::min(smallest, k), sum += k;
            }
            pooled[d] = greatest, pooled[HS + d] = smallest, pooled[2 * HS + d] = ends ? sum / W(to.s.block) : sum;
        }
        if (!ends) return;
        team.sync();
        project(team, key, use.wk + size_t(kv) * HS * 3 * HS, pooled, 3 * HS, c * to.s.block);
        for (int d = team.first(); d < HS; d += team.step()) to.gate_keys[to.s.of_key(sequence, kv, c) * HS + d] = key[d];
    }
};

constexpr size_t gate_scratch(const GateShape& s) { return size_t(4) * s.HS; }

/// Team (c, kv): adds block c of the first in.T tokens of a sequence.
template <class X>
struct PromptKeys {
    using Number = Wide<X>;
    GateTeams<X> gate;
    int sequence;
    template <class Team>
    constexpr void operator()(const Team& team, unsigned n) const {
        const int kv = int(n) % gate.in.NKV, first = int(n) / gate.in.NKV * gate.to.s.block;
        gate.add_keys(team, 0, sequence, kv, first, std::min(gate.in.T, first + gate.to.s.block));
    }
};
/// Team h: adds the last of these tokens, from the second-last block on.
template <class X>
struct PromptQueries {
    using Number = Wide<X>;
    GateTeams<X> gate;
    int sequence;
    template <class Team>
    constexpr void operator()(const Team& team, unsigned h) const {
        const int block = gate.to.s.block, first = std::max(0, (gate.in.T - 1) / block - 1) * block;
        gate.add_queries(team, 0, sequence, int(h), first, gate.in.T);
    }
};
/// Team (b, head): query head `head` of row b, or key head head - NH.
template <class X>
struct BlockGateRows {
    using Number = Wide<X>;
    GateTeams<X> gate;
    DecodeRows rows;
    template <class Team>
    constexpr void operator()(const Team& team, unsigned n) const {
        const int NH = gate.in.NH, heads = NH + gate.in.NKV, head = int(n) % heads, b = int(n) / heads, t = rows.position[b];
        if (head < NH) gate.add_queries(team, b, rows.sequence[b], head, t, t + 1);
        else gate.add_keys(team, b, rows.sequence[b], head - NH, t, t + 1);
    }
};

/// Adds the first in.T tokens of a sequence; queries if the state has any.
template <class Device, class X>
void add_prompt(Device device, const GateTeams<X>& gate, int sequence) {
    const GateShape& s = gate.to.s;
    each_team<4>(device, size_t(s.NKV) * ((gate.in.T + s.block - 1) / s.block), PromptKeys<X>{gate, sequence}, gate_scratch(s));
    each_team<4>(device, s.NH, PromptQueries<X>{gate, sequence}, gate_scratch(s));
}

template <std::derived_from<BlockSparse> A, class Device, class X>
struct Decoding<A, Device, X> {
    GateState<X> blocks;
    Decoding(const A& b, BumpAllocator& memory, const CacheRoom& room) : blocks(memory, b.gate_shape(LayerShape(room))) {}

    void prefill(Device device, int sequence, const A& b, const LayerInputs<X>& in, const X* weights, const LayerState<X>&) const {
        if (b.gate_training == GateTraining::gate_only) return;   // the gate is not used
        add_prompt(device, GateTeams<X>{blocks, in, BlockGateUse<X>(b, weights)}, sequence);
    }
    template <class Step>
    void decode(const Step& step, const A& b, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) const {
        const AttentionForward<X> a = kernel_arguments(in, state, Statistics<X>{});
        if (b.gate_training == GateTraining::gate_only) return attention_forward(step, PlainTiles(b), a);
        if (b.gates_heads()) head_gate_forward(Device(step), state.score_inputs.gate, in, weights, b.head_gate_options());
        each_team<4>(Device(step), size_t(in.B) * (in.NH + in.NKV),
                     BlockGateRows<X>{{blocks, in, BlockGateUse<X>(b, weights)}, step.rows}, gate_scratch(blocks.s));
        attention_forward(step, GatedBlocks<Wide<X>>(b, blocks, b.dense(), b.mask != BlockMask::hard), a);
    }
};
