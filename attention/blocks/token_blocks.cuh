// Attention in which every token selects blocks of keys: the passes over a given choice (block_rows.cuh). Blocks that need no choice (a
// token's own, causally, those just before it, the first ones) are a mask on the text. The chosen ones extend the same softmax, with
// query rows gathered by block and keys and values in place:
//     lse_i = log sum over all visible j of exp(a_ij)     P_ij = exp(a_ij - lse_i)     D_i = <dO_i, O_i>
// Backward every call takes the lse and D of the whole softmax; dq is summed over a token's rows, dk and dv come out in place.
// The CPU's kernel takes all slots at once. On a GPU queries are copied (more_rows.cuh), so a pass takes a few slots.
// Blocks of packed documents begin anywhere (document_blocks.h): chosen keys are read by block, as in BlockKeys.
#pragma once
#include "attention/blocks/block_rows.cuh"
#include "attention/blocks/choose_blocks.cuh"
#include "attention/blocks/document_blocks.h"
#include "attention/blocks/more_rows.cuh"

/// The blocks that every token sees: the first `leading`, and the last `local` up to its own.
struct ForcedBlocks : Policy {
    int block, leading, local;
    constexpr ForcedBlocks(const Policy& p, int block_, int leading_, int local_)
        : Policy(p), block(block_), leading(leading_), local(local_) {}
    constexpr bool forced(int r, int c) const { return c < leading || c > r - local; }

    /// Number of a text's blocks among which its last token chooses, for T tokens.
    constexpr int candidates(int T) const { return candidates_of({.leading = leading, .local = local}, (T - 1) / block); }
    /// Maximum number of blocks that a token chooses, if it may choose `top`.
    constexpr int slots(int top, int T) const { return std::min(top, candidates(T)); }
    /// This mask; or, where `top` covers all candidates, that of all blocks: nothing is chosen then, and attention is causal.
    constexpr ForcedBlocks in_text(int top, int T) const { return candidates(T) <= top ? ForcedBlocks(*this, block, INT_MAX, 1) : *this; }

    constexpr Tile tile(int /*h*/, int i0, int i1, int j0, int j1) const {
        const int r0 = i0 / block, r1 = (i1 - 1) / block, c0 = j0 / block, c1 = (j1 - 1) / block;
        const Tile causal = causal_tile(i0, i1, j0, j1);
        if (causal == Tile::hidden || !(c0 < leading || c1 > r0 - local)) return Tile::hidden;
        return c1 < leading || c0 > r1 - local ? causal : Tile::mixed;
    }
    constexpr bool visible(int /*h*/, int i, int j) const { return j <= i && forced(i / block, j / block); }
};

/// Pairs and tiles of `heads` heads over T tokens, each of which chooses `slots` past blocks besides the forced ones. A full tile of
/// rows counts as one for each of its block's tiles.
inline PairCount expected_block_pairs(const ForcedBlocks& forced, int slots, int heads, int T) {
    PairCount count = count_pairs(forced, 1, T);
    for (int r = 0; r * forced.block < T; r++) {
        const int free = forced.candidates((r + 1) * forced.block);
        const double tokens = std::min(T, (r + 1) * forced.block) - r * forced.block;
        const double keys = double(std::min(slots, free)) * forced.block;
        count.pairs += tokens * keys, count.tiles += tokens * keys / (TILE * TILE);
    }
    return {count.pairs * heads, count.tiles * heads};
}

/// The arguments of a layer that calls TokenBlocks only: no tile_max, because its calls have different tiles.
template <class X>
AttentionForward<X> token_block_arguments(const LayerInputs<X>& in, const LayerState<X>& state, Statistics<X> statistics) {
    statistics.tile_max = nullptr;
    return kernel_arguments(in, state, statistics);
}

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

    /// `forced` is a ForcedBlocks, `a` a call of the text without a mask, `choice` as in block_rows.cuh.
    template <class P>
    void forward(Device device, const P& forced, const AttentionForward<X>& a, const int* choice) const {
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
    void each_pass(Device device, AttentionForward<X> a, const int* choice, Use use) const {
        if (rows_.slots == 0) return;
        a.statistics.tile_max = nullptr;
        with_keys(a, [&](const auto& keys) {
            more_.gather_keys(device, a, keys);
            for (int first = 0; first < rows_.choice.slots; first += rows_.slots) {
                BlockRows rows = rows_;
                rows.first = first, rows.slots = std::min(rows_.slots, rows.choice.slots - first);
                list_block_rows(device, rows, choice);
                use(more_arguments(a, rows, rows.tile_list()), rows, keys);
            }
        });
    }

    /// Calls use(rows of the keys).
    template <class Use>
    void with_keys(const AttentionForward<X>& a, Use use) const {
        const int block = rows_.choice.block;
        if (a.documents) use(BlockKeys({block, block, a.S, a.documents}));
        else use(RowsInOrder());   // here neighbours are neighbours in memory
    }

    BlockRows rows_;
    MoreRows<Device, X> more_;
    std::byte* kernel_;
};
