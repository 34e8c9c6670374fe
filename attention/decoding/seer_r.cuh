// Decoding of SeerAttention-R (attention/seer_r.cuh): the gate's keys of complete blocks and the pooled keys of the newest block, as in
// block_sparse.cuh. Every row chooses.
#pragma once
#include "attention/decoding/block_sparse.cuh"
#include "attention/decoding/visited.h"
#include "attention/seer_r.cuh"

/// Team (b, kv): the row chooses and adds its key.
template <class X>
struct TokenRows {
    using Number = Wide<X>;
    GateTeams<X> gate;
    const X* wq;
    Wide<X>* scores;   // (sequences, NKV, blocks)
    ChosenBlocks chosen;
    float threshold;
    DecodeRows rows;
    template <class Team>
    constexpr void operator()(const Team& team, unsigned n) const {
        const LayerInputs<X>& in = gate.in;
        const int kv = int(n) % in.NKV, b = int(n) / in.NKV, sequence = rows.sequence[b], t = rows.position[b];
        const int past = t / gate.to.s.block, group = in.NH / in.NKV, width = group * in.HS;
        Wide<X> *const query = team.scratch(), *const mine = scores + (size_t(sequence) * in.NKV + kv) * gate.to.s.blocks();
        gate.project(team, query, wq + size_t(kv) * in.HS * width, in.query(in.q_pre, b, 0, kv * group), width, t);
        gate.score_blocks(team, mine, query, sequence, kv, past);
        choose_blocks(team, chosen.of(sequence, kv), mine, {.top = chosen.slots, .threshold = threshold}, past);
        gate.add_keys(team, b, sequence, kv, t, t + 1);
    }
};

template <class Device, class X>
struct Decoding<seer_r, Device, X> {
    GateState<X> keys;
    Wide<X>* scores;       // (sequences, NKV, blocks)
    ChosenBlocks chosen;   // by the last row

    Decoding(const seer_r& p, BumpAllocator& memory, const CacheRoom& room)
        : keys(memory, p.gate_shape(LayerShape(room)).without_queries()),
          scores(memory.take<Wide<X>>(size_t(room.B) * room.NKV * keys.s.blocks())),
          chosen{room.NKV, p.slots_of(room), memory.take<int>(size_t(room.B) * room.NKV * p.slots_of(room))} {}

    void prefill(Device device, int sequence, const seer_r& p, const LayerInputs<X>& in, const X* weights, const LayerState<X>&) const {
        if (!p.is_dense()) add_prompt(device, GateTeams<X>{keys, in, BlockGateUse<X>(weights + p.wk.offset)}, sequence);
    }
    template <class Step>
    void decode(const Step& step, const seer_r& p, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) const {
        if (!p.is_dense())
            each_team<4>(Device(step), size_t(in.B) * in.NKV,
                         TokenRows<X>{{keys, in, BlockGateUse<X>(weights + p.wk.offset)}, weights + p.wq.offset, scores, chosen,
                                      p.threshold, step.rows},
                         gate_scratch(keys.s));
        attention_forward(step, VisitedBlocks(p.forced(), chosen, in.NH), kernel_arguments(in, state, Statistics<X>{}));
    }
};
