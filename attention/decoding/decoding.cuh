// Decoding as a client of mechanisms: the KV caches of a layer of variant A. Mechanisms include nothing of this folder.
//
// A mechanism with one kernel call decodes without a line of its own: its forward() runs with a DecodeStep as its device. One with
// own_passes has a file of its name here, attention/decoding/NAME.cuh, with a specialisation of Decoding<A, Device, X> for both
// devices: the state of a sequence besides keys and values, and a step. Without it, every token costs a pass over the whole
// sequence.
#pragma once
#include <concepts>
#include <memory>
#include <type_traits>

#include "attention/decoding/attend.cuh"
#include "attention/kernel/layer.h"
#include "model/base/error.h"

/// A decode step that needs keys and values only and is the layer's own forward(): base of the specialisations of own_passes whose
/// forward() makes one kernel call.
struct KeysAndValues {
    KeysAndValues(const auto& /*mechanism*/, BumpAllocator&, const CacheRoom&) {}
    void prefill(const auto&...) {}

    template <class Step, class A, class X>
    void decode(const Step& step, const A& mechanism, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) const {
        std::byte* const no_workspace = nullptr;
        attention_layer_forward(step, mechanism, in, weights, state, no_workspace);
    }
};

/// A running sum of a decode step continues the previous token's, in a way of each mechanism's own (forgetting.cuh). The overload for
/// whole sequences would start again at every token.
template <class Device, class X, class Slots, class Task>
void running_sum(const DecodeStep<Device, X, Slots>&, const Task&, int B, int NH, int T) = delete;

/// The decode state of mechanism A besides keys and values: of one sequence on the CPU, of room.B on a GPU. Specialisations have
///     Decoding(const A&, BumpAllocator&, const CacheRoom& room)   takes arrays, whose memory is not cleared between sequences
///     prefill(const A&, in, weights, state)                       CPU: the first in.T tokens, given the state of their forward()
///     prefill(GPU, int sequence, const A&, in, weights, state)    GPU
///     decode(step, const A&, in, weights, state)                  appends to step.keys and writes state.gated_out of the rows
template <class A, class Device, class X>
struct Decoding {};
template <class A, class Device, class X>
    requires(!A::traits.own_passes)
struct Decoding<A, Device, X> : KeysAndValues {
    using KeysAndValues::KeysAndValues;
};

/// Whether variant A decodes token by token.
template <class A, class Device, class X>
constexpr bool decodes = std::is_constructible_v<Decoding<A, Device, X>, const A&, BumpAllocator&, const CacheRoom&>;

/// The KV caches of a layer of A.
template <class A, class Device, class X>
class CacheOf;

/// A sequence's keys, values and further state on the CPU.
template <class A, class X>
struct CachedSequence {
    KVCache<CPU, X, SlotsOf<A>> keys;
    Decoding<A, CPU, X> more;

    CachedSequence(const A& mechanism, BumpAllocator& memory, const CacheRoom& room)
        : keys(memory, room, mechanism.features().column, mechanism.kept_keys()), more(mechanism, memory, room) {}
};

/// On the CPU the rows of a step are computed one after the other.
template <class A, class X>
class CacheOf<A, CPU, X> final : public CachesOfSequences<X, A, CachedSequence<A, X>> {
public:
    using CacheOf::CachesOfSequences::CachesOfSequences;

    void prefill(CPU, int sequence, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state) override {
        CachedSequence<A, X>& one = this->restart(sequence);
        one.keys.append(kernel_arguments(in, state, Statistics<X>{}));
        one.more.prefill(this->how_, in, weights, state);
    }
    void decode(CPU, const DecodeRows& rows, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) override {
        for (int b = 0; b < in.B; b++) {
            CachedSequence<A, X>& one = this->at(rows.sequence[b]);
            LayerState<X> row = row_of(state, in, b);
            one.more.decode(DecodeStep<CPU, X, SlotsOf<A>>{{}, one.keys}, this->how_, row_of(in, b), weights, row);
        }
    }
};

#ifdef WITH_GPU
template <class A, class X>
class CacheOf<A, GPU, X> final : public CacheInBlock<GPU, X> {
    static_assert(decodes<A, GPU, X>,
                  "attention/decoding/NAME.cuh specialises Decoding<A, CPU, X> only; add Decoding<A, GPU, X>");

public:
    CacheOf(const A& mechanism, const CacheRoom& room) : mechanism_(mechanism), room_(room) { lay_out(); }

    void prefill(GPU device, int sequence, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state) override {
        append_prompt(device, *keys_, kernel_arguments(in, state, Statistics<X>{}), sequence);
        more_->prefill(device, sequence, mechanism_, in, weights, state);
    }
    void decode(GPU device, const DecodeRows& rows, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) override {
        more_->decode(DecodeStep<GPU, X, SlotsOf<A>>{device, *keys_, rows}, mechanism_, in, weights, state);
    }

private:
    void lay_out() override {
        keys_.emplace(this->memory_, room_, mechanism_.features().column, mechanism_.kept_keys());
        more_.emplace(mechanism_, this->memory_, room_);
    }

    const A& mechanism_;
    CacheRoom room_;
    std::optional<KVCache<GPU, X, SlotsOf<A>>> keys_;
    std::optional<Decoding<A, GPU, X>> more_;
};
#endif
