// Decoding of LongNet (attention/longnet.cuh): all branches in one softmax, in which a key counts once for every branch that has
// the pair.
#pragma once
#include "attention/decoding/decoding.cuh"
#include "attention/longnet.cuh"

template <class Device, class X>
struct Decoding<longnet, Device, X> : KeysAndValues {
    using KeysAndValues::KeysAndValues;

    template <class Step>
    void decode(const Step& step, const longnet& l, const LayerInputs<X>& in, const X* /*weights*/, LayerState<X>& state) const {
        const AttentionForward<X> a = kernel_arguments(in, state, Statistics<X>{});
        append(step, step.keys, a, {step.rows});
        DecodeSoftmax softmax(step, step.keys, step.rows, a, l.branches);
        for (int n = 0; n < l.branches; n++) softmax.add(l.in_text(n), a.q);
        softmax.finish();
    }
};
