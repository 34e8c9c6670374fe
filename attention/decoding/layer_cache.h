// The engine's interface to the KV caches of a layer, which decoding.cuh implements.
#pragma once
#include <cstdint>

#include "attention/kernel/call.h"
#include "model/device/memory.h"

/// The capacity of a layer's KV cache, B sequences of T tokens; and the storage type of keys and values (on the CPU).
struct CacheRoom : LayerShape {
    Stored keys = Stored::as_computed;
};

/// The B rows of a decode step, in device memory: row b is the token at position[b] of sequence[b]. No two rows share a sequence.
struct DecodeRows {
    const int32_t *sequence, *position;   // (B)
};

/// Per-layer KV cache of several sequences, each with its own length. Capacity (sequences x tokens) is fixed at construction.
template <class Device, class X>
class LayerCache {
public:
    virtual ~LayerCache() = default;
    virtual size_t bytes() const = 0;

    /// Call once, before the first prefill.
    virtual void allocate() = 0;

    /// Prefill: replaces the cache of one sequence by the first in.T tokens of a new one (in.B == 1), given the `state` of their
    /// forward().
    virtual void prefill(Device device, int sequence, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state) = 0;

    /// Decode: appends one token to each of in.B sequences (in.T == 1) and writes state.gated_out (B, NH, HS), the same rows as
    /// forward() of the sequences so far. On a GPU the launches depend on in.B only. RoPE's table begins at position 0, as for
    /// whole sequences.
    virtual void decode(Device device, const DecodeRows& rows, const LayerInputs<X>& in, const X* weights,
                        LayerState<X>& state) = 0;
};
