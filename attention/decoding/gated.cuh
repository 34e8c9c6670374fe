// Decoding of gated attention (attention/gated.cuh), whose forward() makes one kernel call.
#pragma once
#include "attention/decoding/decoding.cuh"
#include "attention/gated.cuh"

template <class Device, class X>
struct Decoding<gated, Device, X> : KeysAndValues {
    using KeysAndValues::KeysAndValues;
};
