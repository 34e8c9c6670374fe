// Decoding of SeerAttention-R (attention/seer_r.cuh): the gate's keys of complete blocks and the pooled keys of the newest block, as in
// block_sparse.cuh. Every row chooses.
#pragma once
#include "attention/decoding/block_sparse.cuh"
#include "attention/decoding/visited.h"
#include "attention/seer_r.cuh"

/// The choice of a step's rows: scores (sequences, NKV, blocks) and chosen blocks (sequences, NKV, slots).
template <class W>
struct ChoiceOfRows {
    W* scores;
    int* chosen;
    int slots;
    float threshold;
};

/// Team (b, kv): the row chooses and adds its key.
template <class X>
struct TokenRows {
    using Number = Wide<X>;
    GateTeams<X> gate;
    const X* wq;
    ChoiceOfRows<Wide<X>> choice;
    DecodeRows rows;
    template <class Team>
    constexpr void operator()(const Team& team, unsigned n) const {
        const LayerInputs<X>& in = gate.in;
        const int kv = int(n) % in.NKV, b = int(n) / in.NKV, sequence = rows.sequence[b], t = rows.position[b];
        const int past = t / gate.to.s.block, group = in.NH / in.NKV, width = group * in.HS;
        const size_t list = size_t(sequence) * in.NKV + kv;
        Wide<X> *const query = team.scratch(), *const scores = choice.scores + list * gate.to.s.blocks();
        gate.project(team, query, wq + size_t(kv) * in.HS * width, in.query(in.q_pre, b, 0, kv * group), width, t);
        gate.score_blocks(team, scores, query, sequence, kv, past);
        choose_blocks(team, choice.chosen + list * choice.slots, scores, {.top = choice.slots, .threshold = choice.threshold}, past);
        gate.add_keys(team, b, sequence, kv, t, t + 1);
    }
};

template <class Device, class X>
struct Decoding<seer_r, Device, X> {
    GateState<X> keys;
    ChoiceOfRows<Wide<X>> choice;

    Decoding(const seer_r& p, BumpAllocator& memory, const CacheRoom& room)
        : keys(memory, p.gate_shape(LayerShape(room)).without_queries()) {
        const int slots = p.slots_of(LayerShape(room));
        const size_t lists = size_t(room.B) * room.NKV;
        choice = {memory.take<Wide<X>>(lists * keys.s.blocks()), memory.take<int>(lists * slots), slots, p.threshold};
    }

    void prefill(Device device, int sequence, const seer_r& p, const LayerInputs<X>& in, const X* weights, const LayerState<X>&) const {
        if (!p.is_dense()) add_prompt(device, GateTeams<X>{keys, in, BlockGateUse<X>(weights + p.wk.offset)}, sequence);
    }
    template <class Step>
    void decode(const Step& step, const seer_r& p, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) const {
        if (!p.is_dense())
            each_team<4>(Device(step), size_t(in.B) * in.NKV,
                         TokenRows<X>{{keys, in, BlockGateUse<X>(weights + p.wk.offset)}, weights + p.wq.offset, choice, step.rows},
                         gate_scratch(keys.s));
        attention_forward(step, VisitedBlocks(p.forced(), choice.chosen, in.NH, in.NKV, choice.slots),
                          kernel_arguments(in, state, Statistics<X>{}));
    }
};
