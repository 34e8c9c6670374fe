// Decoding of sinks with positions inside the cache (attention/sinks_cache.cuh): window and sinks in one softmax, with two
// rotations of the query.
#pragma once
#include "attention/decoding/decoding.cuh"
#include "attention/sinks_cache.cuh"

template <class X>
struct Decoding<sinks_cache, CPU, X> : KeysAndValues {
    using KeysAndValues::KeysAndValues;

    template <class Step>
    void decode(const Step& step, const sinks_cache& s, const LayerInputs<X>& in, const X* /*weights*/,
                LayerState<X>& state) const {
        const int position = step.keys.tokens(), in_cache = std::min(position, s.last_position());
        const AttentionForward<X> a = kernel_arguments(in, state, Statistics<X>{});
        const size_t q_row = size_t(in.NH) * in.HS;
        std::vector<X> q(q_row);
        rotate_heads(CPU{}, Heads<X>{q.data(), q_row}, Heads<const X>{in.q_pre, in.qk_row},
                     Angles<Wide<X>>{in.cosine, in.sine}.from(in_cache, in.HS), 1, 1, in.NH, in.HS, 1);
        step.keys.append(a);
        attend(a, step.keys, [&](int h, QueryRow<X>& row, const KeySpan<X>& keys) {
            row.visit(WindowBranch(s.left), query_of(a, {}, h, position), keys);
            row.visit(SinkBranch(s.leading, s.left), {&q[size_t(h) * in.HS], h, position}, keys);
        });
    }
};

#ifdef WITH_GPU
template <class X>
struct Decoding<sinks_cache, GPU, X> : KeysAndValues {
    X* q;   // (sequences, NH, HS) q' of the rows
    Decoding(const sinks_cache& s, BumpAllocator& memory, const CacheRoom& room)
        : KeysAndValues(s, memory, room), q(memory.take<X>(size_t(room.B) * room.NH * room.HS)) {}

    template <class Step>
    void decode(const Step& step, const sinks_cache& s, const LayerInputs<X>& in, const X* /*weights*/,
                LayerState<X>& state) const {
        const AttentionForward<X> a = kernel_arguments(in, state, Statistics<X>{});
        const size_t q_row = size_t(in.NH) * in.HS;
        rotate_heads(step, Heads<X>{q, q_row}, Heads<const X>{in.q_pre, in.qk_row}, {in.cosine, in.sine}, in.B, 1, in.NH, in.HS, 1,
                     {.last = s.last_position(), .of_token = step.rows.position});
        append(step, step.keys, a, step.rows);
        DecodeSoftmax<X> softmax(step, step.keys, step.rows, a, 2);
        softmax.add(WindowBranch(s.left), a.q);
        softmax.add(SinkBranch(s.leading, s.left), {q, q_row});
        softmax.finish();
    }
};
#endif
