// The engine's interface to the KV caches of a layer. Attention variants implement it in decoding.cuh, mechanisms for inference only in
// model/generate/mechanisms.cuh.
#pragma once
#include <optional>
#include <vector>

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

/// A LayerCache in one block of memory. A derived constructor calls lay_out(), which takes all arrays.
template <class Device, class X>
class CacheInBlock : public LayerCache<Device, X> {
public:
    size_t bytes() const override { return memory_.bytes(); }
    void allocate() override {
        memory_.allocate();
        lay_out();
    }

protected:
    virtual void lay_out() = 0;
    Arena<Device> memory_;
};

/// A LayerCache on the CPU with a block of memory for each sequence. Sequence(how, memory, room) takes the arrays of an empty one.
template <class X, class How, class Sequence>
class CachesOfSequences : public LayerCache<CPU, X> {
public:
    /// `how` outlives the cache.
    CachesOfSequences(const How& how, const CacheRoom& room) : how_(how), room_(room), places_(room.B) {
        room_.B = 1;   // of a sequence
        for (Place& place : places_) lay_out(place);
    }

    size_t bytes() const override { return places_.size() * places_.front().memory.bytes(); }
    void allocate() override {
        for (Place& place : places_) place.memory.allocate(), lay_out(place);
    }

protected:
    Sequence& at(int sequence) { return *places_[sequence].sequence; }

    /// Empties a sequence. Its memory still holds the previous sequence's bytes.
    Sequence& restart(int sequence) {
        places_[sequence].memory.rewind(0);
        return lay_out(places_[sequence]);
    }

    const How& how_;
    CacheRoom room_;   // of a sequence

private:
    struct Place {
        Arena<CPU> memory;
        std::optional<Sequence> sequence;
    };
    Sequence& lay_out(Place& place) { return place.sequence.emplace(how_, place.memory, room_); }

    std::vector<Place> places_;
};

/// Row b of `in`, as the next token of a sequence.
template <class X>
LayerInputs<X> row_of(LayerInputs<X> in, int b) {
    in.B = 1;
    in.x += size_t(b) * in.C;
    if (in.q_pre) in.q_pre += b * in.qk_row, in.k_pre += b * in.qk_row;
    in.q += b * in.qk_row, in.k += b * in.qk_row, in.v += b * in.v_row;
    return in;
}

/// `state` for that row: its output is in place, everything else is scratch memory.
template <class X>
LayerState<X> row_of(LayerState<X> state, const LayerShape& s, int b) {
    const size_t at = size_t(b) * s.NH * s.HS;
    state.out += at, state.gated_out += at;
    return state;
}
