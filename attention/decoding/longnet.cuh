// Decoding of LongNet (attention/longnet.cuh): all branches in one softmax, in which a key counts once for every branch that has
// the pair.
#pragma once
#include "attention/decoding/decoding.cuh"
#include "attention/longnet.cuh"

template <class X>
struct Decoding<longnet, CPU, X> : KeysAndValues {
    using KeysAndValues::KeysAndValues;

    template <class Step>
    void decode(const Step& step, const longnet& l, const LayerInputs<X>& in, const X* /*weights*/, LayerState<X>& state) const {
        const int position = step.keys.tokens();
        const AttentionForward<X> a = kernel_arguments(in, state, Statistics<X>{});
        step.keys.append(a);
        attend(a, step.keys, [&](int h, QueryRow<X>& row, const KeySpan<X>& keys) {
            for (int n = 0; n < l.branches; n++) row.visit(l.in_text(n), query_of(a, {}, h, position), keys);
        });
    }
};

#ifdef WITH_GPU
template <class X>
struct Decoding<longnet, GPU, X> : KeysAndValues {
    using KeysAndValues::KeysAndValues;

    template <class Step>
    void decode(const Step& step, const longnet& l, const LayerInputs<X>& in, const X* /*weights*/, LayerState<X>& state) const {
        const AttentionForward<X> a = kernel_arguments(in, state, Statistics<X>{});
        append(step, step.keys, a, step.rows);
        DecodeSoftmax<X> softmax(step, step.keys, step.rows, a, l.branches);
        for (int n = 0; n < l.branches; n++) softmax.add(l.in_text(n), a.q);
        softmax.finish();
    }
};
#endif
