// Decoding of MoH (attention/moh.cuh), whose forward() makes one kernel call.
#pragma once
#include "attention/decoding/decoding.cuh"
#include "attention/moh.cuh"

template <class Device, class X>
struct Decoding<moh, Device, X> : KeysAndValues {
    using KeysAndValues::KeysAndValues;
};
