// Decoding of sinks with positions inside the cache (attention/sinks_cache.cuh): window and sinks in one softmax, with two
// rotations of the query.
#pragma once
#include "attention/decoding/decoding.cuh"
#include "attention/sinks_cache.cuh"

template <class Device, class X>
struct Decoding<sinks_cache, Device, X> : KeysAndValues {
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
        append(step, step.keys, a, {step.rows});
        DecodeSoftmax softmax(step, step.keys, step.rows, a, 2);
        softmax.add(WindowBranch(s.left), a.q);
        softmax.add(SinkBranch(s.leading, s.left), {q, q_row});
        softmax.finish();
    }
};
