// Attention in which every token selects blocks of keys: the passes over a given choice (block_rows.cuh). Blocks that need no choice (a
// token's own, causally, those just before it, the first ones) are a mask on the text. The chosen ones extend the same softmax, with
// query rows gathered by block and keys and values in place:
//     lse_i = log sum over all visible j of exp(a_ij)     P_ij = exp(a_ij - lse_i)     D_i = <dO_i, O_i>
// Backward every call takes the lse and D of the whole softmax; dq is summed over a token's rows, dk and dv come out in place.
// The CPU's kernel takes all slots at once. On a GPU queries are copied (more_rows.cuh), so a pass takes a few slots.
// Blocks of packed documents begin anywhere (document_blocks.h): chosen keys are read by block, as in BlockKeys.
#pragma once
#include "attention/blocks/block_rows.cuh"
#include "attention/blocks/document_blocks.h"
#include "attention/blocks/forced_blocks.h"
#include "attention/blocks/more_rows.cuh"
#include "attention/masks/choose_blocks.cuh"

/// A layer's passes over a choice, with their memory.
template <class Device, class X>
class TokenBlocks {
    static constexpr int AT_ONCE = std::is_same_v<Device, CPU> ? INT_MAX : 4;   // slots per pass

public:
    TokenBlocks(Device device, BumpAllocator& allocator, const LayerShape& s, const BlockChoice& choice, const Policy& policy)
        : rows_(choice, 0, std::min(choice.slots, AT_ONCE)), more_(device, allocator, s, rows_.count, policy) {
        rows_.take(allocator);
        kernel_ = allocator.take<std::byte>(attention_workspace(device, policy, s.B, std::max(s.T, rows_.count), s.T, s.NH));
    }

    /// `forced` is a ForcedBlocks, `a` a call of the text without a mask, `choice` a BlockChoice. The calls have different tiles, so
    /// tile_max is not written.
    template <class P>
    void forward(Device device, const P& forced, AttentionForward<X> a, const int* choice) const {
        a.statistics.tile_max = nullptr;
        attention_forward(device, forced, a);
        each_pass(device, a, choice, [&](const AttentionForward<X>& chosen, const BlockRows& rows, const auto& keys) {
            more_.forward(device, ChosenBlock(forced), chosen, rows, keys);
        });
    }
    /// Overwrites g.dq, g.dk, g.dv and g.dgate.
    template <class P>
    void backward(Device device, const P& forced, const AttentionForward<X>& a, AttentionBackward<X> g, const int* choice) const {
        g.workspace = kernel_;
        attention_backward(device, forced, a, g);
        each_pass(device, a, choice, [&](const AttentionForward<X>& chosen, const BlockRows& rows, const auto& keys) {
            more_.backward(device, ChosenBlock(forced), chosen, g, rows, keys);
        });
    }

private:
    /// Calls use(arguments, rows of queries, rows of keys) for every pass.
    template <class Use>
    void each_pass(Device device, const AttentionForward<X>& a, const int* choice, Use use) const {
        if (rows_.slots == 0) return;
        const auto passes_with = [&](const auto& keys) {
            more_.gather_keys(device, a, keys);
            for (int first = 0; first < rows_.choice.slots; first += rows_.slots) {
                BlockRows rows = rows_;
                rows.first = first, rows.slots = std::min(rows_.slots, rows.choice.slots - first);
                list_block_rows(device, rows, choice);
                use(more_arguments(a, rows, rows.tile_list()), rows, keys);
            }
        };
        const int block = rows_.choice.block;
        if (a.documents) passes_with(BlockKeys({block, block, a.S, a.documents}));
        else passes_with(RowsInOrder{a.S});   // here neighbours are neighbours in memory
    }

    BlockRows rows_;
    MoreRows<Device, X> more_;
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
