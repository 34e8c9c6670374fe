// Decoding of MoSA (attention/mosa.cuh): a head selects tokens as they arrive. If it does not select the newest, its output is 0.
#pragma once
#include "attention/decoding/decoding.cuh"
#include "attention/decoding/visited.h"
#include "attention/mosa.cuh"

/// Writes chosen (sequences, NH, room): whether each token has a row in rows (B, NH, T).
struct StoreChosen {
    char* chosen;
    const int* rows;
    int NH, T, room;
    NewKeys where;
    constexpr void operator()(unsigned row, int t) const {
        const int b = int(row) / NH, h = int(row) % NH;
        chosen[(size_t(where.sequence_of(b)) * NH + h) * room + where.position(b, t)] = rows[size_t(row) * T + t] >= 0;
    }
};

template <class Device, class X>
struct Decoding<mosa, Device, X> {
    int room;
    char* chosen;   // (sequences, NH, room)
    Wide<X>* u;     // (sequences, NH) of the rows
    Decoding(const mosa&, BumpAllocator& memory, const CacheRoom& s)
        : room(s.T), chosen(memory.take<char>(size_t(s.B) * s.NH * s.T)), u(memory.take<Wide<X>>(size_t(s.B) * s.NH)) {}

    void prefill(Device device, int sequence, const mosa&, const LayerInputs<X>& in, const X* /*weights*/,
                 const LayerState<X>& state) const {
        store(device, mosa::Kept<X>{BumpAllocator(state.kept), in}.rows, in, {{}, sequence});
    }
    template <class Step>
    void decode(const Step& step, const mosa& m, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) const {
        const mosa::Kept<X> kept{BumpAllocator(state.kept), in};
        TokenChoice c = m.choice(in);
        c.first = 1;   // no row is the first token of a sequence, which every head chooses
        if (m.sparse_heads()) token_linear_forward(step, u, m.router.of(in, weights));
        choose_tokens(step, state.score_inputs.gate, kept.tokens, kept.rows, u, weights + m.tau.offset, c);
        store(step, kept.rows, in, {step.rows});
        attention_forward(step, VisitedKeys(m, chosen, in.NH, in.NH, room, true), ungated_arguments(in, state, Statistics<X>{}));
        gate_rows_forward(step, state.gated_out, state.out, state.score_inputs.gate, size_t(in.B) * in.NH, in.HS);
    }

private:
    void store(Device device, const int* rows, const LayerShape& s, const NewKeys& where) const {
        each_element(device, size_t(s.B) * s.NH, s.T, StoreChosen{chosen, rows, s.NH, s.T, room, where});
    }
};
