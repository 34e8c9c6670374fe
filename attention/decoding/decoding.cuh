// Decoding as a client of mechanisms: the KV caches of a layer of variant A. Mechanisms include nothing of this folder.
//
// A mechanism with one kernel call decodes without a line of its own: its forward() runs with a DecodeStep as its device. One with
// several calls has a file of its name here, attention/decoding/NAME.cuh, with a specialisation of Decoding<A, Device, X>: the state of
// sequences besides keys and values, and a step. Without it, every token costs a pass over the whole sequence.
#pragma once
#include <optional>
#include <type_traits>

#include "attention/decoding/attend.cuh"
#include "attention/kernel/layer.h"

/// Needs keys and values only; a decode step is the layer's own forward().
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

/// The decode state of mechanism A besides keys and values, of room.B sequences. Specialisations have
///     Decoding(const A&, BumpAllocator&, const CacheRoom& room)      takes arrays, whose memory is not cleared between sequences
///     prefill(device, int sequence, const A&, in, weights, state)    the first in.T tokens, given the state of their forward()
///     decode(step, const A&, in, weights, state)                     appends to step.keys and writes state.gated_out of the rows
template <class A, class Device, class X>
struct Decoding {};
template <class A, class Device, class X>
    requires(!A::traits.own_passes || A::traits.one_call)
struct Decoding<A, Device, X> : KeysAndValues {
    using KeysAndValues::KeysAndValues;
};

/// Whether variant A decodes token by token.
template <class A, class Device, class X>
constexpr bool decodes = std::is_constructible_v<Decoding<A, Device, X>, const A&, BumpAllocator&, const CacheRoom&>;

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

/// The KV caches of a layer of A, in one block of memory. `mechanism` outlives them.
template <class A, class Device, class X>
class CacheOf final : public LayerCache<Device, X> {
    static_assert(decodes<A, Device, X>, "attention/decoding/NAME.cuh specialises Decoding<A, ...> for one device only; add the other");

public:
    CacheOf(const A& mechanism, const CacheRoom& room) : mechanism_(mechanism), room_(room) { lay_out(); }

    size_t bytes() const override { return memory_.bytes(); }
    void allocate() override {
        memory_.allocate();
        lay_out();
    }

    void prefill(Device device, int sequence, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state) override {
        append_prompt(device, *keys_, kernel_arguments(in, state, Statistics<X>{}), sequence);
        more_->prefill(device, sequence, mechanism_, in, weights, state);
    }

    /// On the CPU the rows of a step are computed one after the other.
    void decode(Device device, const DecodeRows& rows, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) override {
        if constexpr (std::is_same_v<Device, CPU>)
            for (int b = 0; b < in.B; b++) {
                LayerState<X> row = row_of(state, in, b);
                more_->decode(Step{device, *keys_, {rows.sequence + b, rows.position + b}}, mechanism_, row_of(in, b), weights, row);
            }
        else more_->decode(Step{device, *keys_, rows}, mechanism_, in, weights, state);
    }

private:
    using Step = DecodeStep<Device, X, SlotsOf<A>>;

    void lay_out() {
        keys_.emplace(memory_, room_, mechanism_.features().column, mechanism_.kept_keys());
        more_.emplace(mechanism_, memory_, room_);
    }

    const A& mechanism_;
    CacheRoom room_;
    Arena<Device> memory_;
    std::optional<KVCache<Device, X, SlotsOf<A>>> keys_;
    std::optional<Decoding<A, Device, X>> more_;
};
