// Attention in which every token selects blocks of keys: one softmax over these and the blocks that need no choice (a token's own,
// causally, those just before it, the first ones). The mask is block_bits.cuh's.
#pragma once
#include "attention/blocks/block_bits.cuh"

/// A layer's passes over a choice, with their memory.
template <class Device, class X>
class TokenBlocks {
public:
    /// `fewer`: whether a token may choose fewer blocks than it has slots and candidates.
    TokenBlocks(Device device, BumpAllocator& allocator, const LayerShape& s, const BlockChoice& choice, const Policy& policy,
                bool fewer = false)
        : slots_(choice.slots), fewer_(fewer), mask_(allocator, s, choice, choice.slots > 0),
          kernel_(allocator.take<std::byte>(attention_workspace(device, policy, s.B, s.T, s.T, s.NH))) {}

    /// `a` is a call of the text without a mask, `choice` a BlockChoice.
    void forward(Device device, const ForcedBlocks& forced, const AttentionForward<X>& a, const int* choice) const {
        with_mask(device, forced, a, choice, [&](const auto& policy, const auto& of) { attention_forward(device, policy, of); });
    }
    void backward(Device device, const ForcedBlocks& forced, const AttentionForward<X>& a, AttentionBackward<X> g,
                  const int* choice) const {
        g.workspace = kernel_;
        with_mask(device, forced, a, choice, [&](const auto& policy, const auto& of) { attention_backward(device, policy, of, g); });
    }

private:
    template <class Use>
    void with_mask(Device device, const ForcedBlocks& forced, AttentionForward<X> a, const int* choice, Use use) const {
        if (slots_ == 0) return use(forced, a);
        const auto policy = mask_.template apply<false>(device, forced, a, choice, 1, fewer_);
        use(policy, a);
    }

    int slots_;
    bool fewer_;
    ChoiceMask mask_;
    std::byte* kernel_;
};

/// Base of a mechanism A that keeps nothing but the choice, which has no parameters: the layer's passes. A has
///     forced_blocks()             the blocks that every token sees
///     top                         1 + the maximum number of other blocks that a token chooses
///     block_choice(shape)         sizes of the choice
///     Scratch<X, Device>          memory, with a TokenBlocks `blocks`; it is made from (device, policy, memory, shape)
///     choose(device, choice, in, scratch)
template <class A>
struct AttentionByChoice : Policy {
    using Policy::Policy;

    ForcedBlocks forced(int T) const { return mechanism().forced_blocks().in_text(mechanism().top - 1, T); }
    /// Maximum number of blocks that a token selects in a text of s.T tokens.
    int slots_of(const LayerShape& s) const { return mechanism().forced_blocks().slots(mechanism().top - 1, s.T); }
    bool expects_at_most() const { return mechanism().top > 1; }
    PairCount expected_pairs(int heads, int T) const { return expected_block_pairs(forced(T), mechanism().top - 1, heads, T); }

    template <class X>
    size_t kept_bytes(const LayerShape& s) const {
        return mechanism().block_choice(s).size() * sizeof(int);
    }
    template <class X, class Device>
    size_t workspace_bytes(Device device, const LayerShape& s) const {
        return scratch<X>(device, nullptr, s).allocator.bytes();
    }

    template <class Device, class X>
    void forward(Device device, const LayerInputs<X>& in, const X* /*weights*/, LayerState<X>& state, std::byte* workspace,
                 const Statistics<X>& statistics) const {
        const auto memory = scratch<X>(device, workspace, in);
        int* const choice = reinterpret_cast<int*>(state.kept);
        if (mechanism().block_choice(in).slots > 0) mechanism().choose(device, choice, in, memory);
        memory.blocks.forward(device, forced(in.T), kernel_arguments(in, state, statistics), choice);
    }
    template <class Device, class X>
    void backward(Device device, const LayerInputs<X>& in, const X* /*weights*/, const LayerState<X>& state, const X* dout,
                  const QkvGradients<X>& to, ScoreInputGradients<X>& /*more*/, std::byte* workspace) const {
        scratch<X>(device, workspace, in)
            .blocks.backward(device, forced(in.T), kernel_arguments(in, state, Statistics<X>{}), kernel_gradients(dout, to),
                             reinterpret_cast<const int*>(state.kept));
    }

private:
    const A& mechanism() const { return static_cast<const A&>(*this); }
    template <class X, class Device>
    auto scratch(Device device, std::byte* memory, const LayerShape& s) const {
        return typename A::template Scratch<X, Device>(device, mechanism(), memory, s);
    }
};
