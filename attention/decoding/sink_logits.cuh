// Decoding of sink logits (attention/sink_logits.cuh), whose forward() makes one kernel call.
#pragma once
#include "attention/decoding/decoding.cuh"
#include "attention/sink_logits.cuh"

template <class Device, class X>
struct Decoding<sink_logits, Device, X> : KeysAndValues {
    using KeysAndValues::KeysAndValues;
};
