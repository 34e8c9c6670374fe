// Decoding of strided attention (attention/strided.cuh): both branches in one walk over the keys.
#pragma once
#include "attention/decoding/decoding.cuh"
#include "attention/strided.cuh"

template <class Device, class X>
struct Decoding<strided, Device, X> : KeysAndValues {
    using KeysAndValues::KeysAndValues;

    template <class Step>
    void decode(const Step& step, const strided& a, const LayerInputs<X>& in, const X* /*weights*/, LayerState<X>& state) const {
        attention_forward(step, a, kernel_arguments(in, state, Statistics<X>{}));
    }
};
