// Decoding of MoSA (attention/mosa.cuh): a head selects tokens as they arrive. If it does not select the newest, its output is 0.
#pragma once
#include "attention/decoding/decoding.cuh"
#include "attention/decoding/visited.h"
#include "attention/mosa.cuh"

template <class X>
struct Decoding<mosa, CPU, X> {
    int room;
    char* chosen;   // (NH, room)
    Decoding(const mosa&, BumpAllocator& memory, const CacheRoom& s) : room(s.T), chosen(memory.take<char>(size_t(s.NH) * s.T)) {}

    void prefill(const mosa&, const LayerInputs<X>& in, const X* /*weights*/, const LayerState<X>& state) {
        store(0, mosa::Kept<X>(state.kept, in).rows, in);
    }
    template <class Step>
    void decode(const Step& step, const mosa& m, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) {
        const int position = step.keys.tokens();
        const mosa::Kept<X> kept(state.kept, in);
        std::vector<X> u(in.NH);
        TokenChoice c = m.choice(in);
        c.first = position;
        if (m.sparse_heads()) token_linear_forward(CPU{}, u.data(), m.router_of(in, weights));
        choose_tokens(CPU{}, state.score_inputs.gate, kept.tokens, kept.rows, u.data(), weights + m.tau.offset, c);
        store(position, kept.rows, in);
        const AttentionForward<X> a = ungated_arguments(in, state, Statistics<X>{});
        step.keys.append(a);
        attend(a, step.keys, [&](int h, QueryRow<X>& row, const KeySpan<X>& keys) {
            if (kept.rows[h] < 0) return;
            row.visit(VisitedKeys(m, chosen + size_t(h) * room), query_of(a, {}, h, position), keys);
        });
        gate_rows_forward(CPU{}, state.gated_out, state.out, state.score_inputs.gate, in.NH, in.HS);
    }

private:
    /// Records whether tokens from `first` on are chosen; rows (NH, T).
    void store(int first, const int* rows, const LayerShape& s) {
        for (int h = 0; h < s.NH; h++)
            for (int t = 0; t < s.T; t++) chosen[size_t(h) * room + first + t] = rows[size_t(h) * s.T + t] >= 0;
    }
};

#ifdef WITH_GPU
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

template <class X>
struct Decoding<mosa, GPU, X> {
    int room;
    char* chosen;   // (sequences, NH, room)
    float* u;       // (sequences, NH) of the rows
    Decoding(const mosa&, BumpAllocator& memory, const CacheRoom& s)
        : room(s.T), chosen(memory.take<char>(size_t(s.B) * s.NH * s.T)), u(memory.take<float>(size_t(s.B) * s.NH)) {}

    void prefill(const GPU& device, int sequence, const mosa&, const LayerInputs<X>& in, const X* /*weights*/,
                 const LayerState<X>& state) {
        store(device, mosa::Kept<X>(state.kept, in).rows, in, {{}, sequence});
    }
    template <class Step>
    void decode(const Step& step, const mosa& m, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) const {
        const mosa::Kept<X> kept(state.kept, in);
        TokenChoice c = m.choice(in);
        c.first = 1;   // no row is the first token of a sequence, which every head chooses
        if (m.sparse_heads()) token_linear_forward(step, u, m.router_of(in, weights));
        choose_tokens(step, state.score_inputs.gate, kept.tokens, kept.rows, u, weights + m.tau.offset, c);
        store(step, kept.rows, in, {step.rows});
        attention_forward(step, VisitedKeysOfSequences(m, chosen, in.NH, in.NH, room),
                          ungated_arguments(in, state, Statistics<X>{}));
        gate_rows_forward(step, state.gated_out, state.out, state.score_inputs.gate, size_t(in.B) * in.NH, in.HS);
    }

private:
    void store(const GPU& device, const int* rows, const LayerShape& s, const NewKeys& where) const {
        each_element(device, size_t(s.B) * s.NH, s.T, StoreChosen{chosen, rows, s.NH, s.T, room, where});
    }
};
#endif
