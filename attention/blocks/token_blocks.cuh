// Attention in which every token chooses blocks of keys: the passes over a choice that has been made (block_rows.cuh says what one
// is). Blocks that no choice is needed for (a token's own, causally, those just before it, the first ones) are a mask on the text;
// the chosen ones join the same softmax, with query rows gathered by block and keys and values in place:
//     lse_i = log sum over all visible j of exp(a_ij)     P_ij = exp(a_ij - lse_i)     D_i = <dO_i, O_i>
// Backward every call gets the lse and D of the whole softmax; dq is summed over the rows of a token, dk and dv come out in place.
// The CPU's kernel reads rows in place and goes on from the result that is there, all slots at once. On a GPU queries are copied,
// and so a few slots at a time, whose results are merged into out.
// Blocks of packed documents begin anywhere (document_blocks.h): the keys of chosen ones are read by block, as BlockKeys has them, in
// place on the CPU and from a copy on a GPU.
#pragma once
#include "attention/blocks/block_rows.cuh"
#include "attention/blocks/choose_blocks.cuh"
#include "attention/blocks/document_blocks.h"
#include "attention/blocks/merge_rows.cuh"
#include "attention/branches/branches.cuh"
#include "attention/kernel/decode.h"
#include "attention/kernel/next_rows.cuh"

/// The blocks that every token sees: the first `leading`, and the last `local` up to its own.
struct ForcedBlocks : Policy {
    int block, leading, local;
    constexpr ForcedBlocks(const Policy& p, int block_, int leading_, int local_)
        : Policy(p), block(block_), leading(leading_), local(local_) {}
    constexpr bool forced(int r, int c) const { return c < leading || c > r - local; }

    constexpr Tile tile(int /*h*/, int i0, int i1, int j0, int j1) const {
        const int r0 = i0 / block, r1 = (i1 - 1) / block, c0 = j0 / block, c1 = (j1 - 1) / block;
        const Tile causal = causal_tile(i0, i1, j0, j1);
        if (causal == Tile::hidden || !(c0 < leading || c1 > r0 - local)) return Tile::hidden;
        return c1 < leading || c0 > r1 - local ? causal : Tile::mixed;
    }
    constexpr bool visible(int /*h*/, int i, int j) const { return j <= i && forced(i / block, j / block); }
};

/// One row of a text that is being written: the blocks that every token sees, and the `chosen` ones.
struct ChosenAndForced : Policy {
    ForcedBlocks forced;
    const int* chosen;
    int slots;
    constexpr ChosenAndForced(const ForcedBlocks& forced_, const int* chosen_, int slots_)
        : Policy(forced_), forced(forced_), chosen(chosen_), slots(slots_) {}

    constexpr bool sees(int i, int c) const {
        bool seen = forced.forced(i / forced.block, c);
        for (int n = 0; n < slots && !seen; n++) seen = chosen[n] == c;
        return seen;
    }
    constexpr Tile tile(int /*h*/, int i0, int i1, int j0, int j1) const {
        if (j0 / forced.block != (j1 - 1) / forced.block) return Tile::mixed;
        return sees(i0, j0 / forced.block) ? causal_tile(i0, i1, j0, j1) : Tile::hidden;
    }
    constexpr bool visible(int /*h*/, int i, int j) const { return j <= i && sees(i, j / forced.block); }
};

/// The same of rows of several texts on a GPU, in which every head chooses, or a group of heads together.
struct ChosenByTexts : Policy {
    ForcedBlocks forced;
    const int* chosen;   // (texts, choosers, slots)
    int heads, choosers, slots;
    constexpr ChosenByTexts(const ForcedBlocks& forced_, const int* chosen_, int heads_, int choosers_, int slots_)
        : Policy(forced_), forced(forced_), chosen(chosen_), heads(heads_), choosers(choosers_), slots(slots_) {}
    constexpr ChosenByTexts of_row(int text) const {
        return {forced, chosen + size_t(text) * choosers * slots, heads, choosers, slots};
    }
    constexpr ChosenAndForced of_head(int h) const { return {forced, chosen + size_t(h / (heads / choosers)) * slots, slots}; }
    constexpr Tile tile(int h, int i0, int i1, int j0, int j1) const { return of_head(h).tile(h, i0, i1, j0, j1); }
    constexpr bool visible(int h, int i, int j) const { return of_head(h).visible(h, i, j); }
};

/// Rows of tokens that chose the block whose tiles they visit: all of its keys are in their past. P is the text's policy.
template <class P>
struct ChosenBlock : P {
    explicit ChosenBlock(const P& text) : P(text) {}
    constexpr Tile tile(int /*h*/, int /*i0*/, int /*i1*/, int /*j0*/, int /*j1*/) const { return Tile::full; }
    constexpr bool visible(int /*h*/, int /*i*/, int /*j*/) const { return true; }
};

/// Arguments of the chosen rows' call from those of the text's. Its keys are in the order of BlockKeys.
template <class X>
AttentionForward<X> chosen_arguments(AttentionForward<X> a, const BlockRows& rows) {
    a.T = rows.count, a.list = rows.tile_list(), a.documents = {};
    a.statistics.tile_max = nullptr;
    return a;
}

/// Pairs and tiles of `heads` heads over a sequence of T, where each token chooses `slots` of its past blocks besides the forced. A
/// tile of rows that is full counts as one for each of its block's tiles.
inline PairCount expected_block_pairs(const ForcedBlocks& forced, int slots, int heads, int T) {
    PairCount count = count_pairs(forced, 1, T);
    for (int r = 0; r * forced.block < T; r++) {
        const int free = candidates_of({.leading = forced.leading, .local = forced.local}, r);
        const double tokens = std::min(T, (r + 1) * forced.block) - r * forced.block;
        const double keys = double(std::min(slots, free)) * forced.block;
        count.pairs += tokens * keys, count.tiles += tokens * keys / (TILE * TILE);
    }
    return {count.pairs * heads, count.tiles * heads};
}

template <class X>
BlockKeys block_keys(const BlockChoice& choice, const AttentionForward<X>& a) {
    return BlockKeys({choice.block, choice.block, a.S, a.documents});
}

template <class Device, class X>
class TokenBlocks;

/// A layer's passes over a choice, with their memory.
template <class X>
class TokenBlocks<CPU, X> {
public:
    TokenBlocks(CPU, BumpAllocator& allocator, const LayerShape&, const BlockChoice& choice, const Policy&)
        : rows_(choice, 0, choice.slots) {
        rows_.take(allocator);
    }

    /// `forced` is a ForcedBlocks, `a` a call of the text without a mask, `choice` in block_rows.cuh.
    template <class P>
    void forward(CPU device, const P& forced, const AttentionForward<X>& a, const int* choice) const {
        attention_forward(device, forced, a);
        if (rows_.slots == 0) return;
        list_block_rows(device, rows_, choice);
        with_keys(a, [&](const auto& keys) {
            attention_forward_queries(device, ChosenBlock(forced), chosen_arguments(a, rows_), rows_, keys);
        });
    }
    /// Overwrites g.dq, g.dk, g.dv and g.dgate.
    template <class P>
    void backward(CPU device, const P& forced, const AttentionForward<X>& a, const AttentionBackward<X>& g,
                  const int* choice) const {
        attention_backward(device, forced, a, g);
        if (rows_.slots == 0) return;
        list_block_rows(device, rows_, choice);
        with_keys(a, [&](const auto& keys) {
            attention_backward_queries(device, ChosenBlock(forced), chosen_arguments(a, rows_), g, rows_, keys);
        });
    }

private:
    /// Calls use(rows of the keys).
    template <class Use>
    void with_keys(const AttentionForward<X>& a, Use use) const {
        if (a.documents) use(block_keys(rows_.choice, a));
        else use(RowsInOrder());   // where neighbours are neighbours in memory
    }
    BlockRows rows_;
};

#ifdef WITH_GPU

/// to (B, R, NH) = from (B, T, NH) in the order of the rows, 0 for padding.
struct GatherGates {
    float* to;
    const float* from;
    BlockRows rows;
    constexpr void operator()(unsigned row, int h) const {
        const int NH = rows.choice.NH, b = int(row) / rows.count, token = rows.token(b, h, int(row) % rows.count);
        to[size_t(row) * NH + h] = token < 0 ? 0 : from[(size_t(b) * rows.T + token) * NH + h];
    }
};

template <class X>
class TokenBlocks<GPU, X> {
    static constexpr int AT_ONCE = 4;   // slots of a pass

public:
    TokenBlocks(GPU device, BumpAllocator& allocator, const LayerShape& s, const BlockChoice& choice, const Policy& policy)
        : rows_(choice, 0, std::min(choice.slots, AT_ONCE)), results_(static_cast<X*>(nullptr), allocator, s, rows_.count) {
        rows_.take(allocator);
        const size_t rows = size_t(s.B) * rows_.count * s.NH * s.HS, keys = size_t(s.B) * s.T * s.NKV * s.HS;
        q_ = allocator.take<X>(rows), results_.out = allocator.take<X>(rows), dout_ = allocator.take<X>(rows);
        gate_ = allocator.take<float>(rows / s.HS);
        dq_ = allocator.take<float>(rows), dk_ = allocator.take<float>(keys), dv_ = allocator.take<X>(keys);
        k_ = allocator.take<X>(keys), v_ = allocator.take<X>(keys);
        kernel_ = allocator.take<std::byte>(attention_workspace(device, policy, s.B, std::max(s.T, rows_.count), s.T, s.NH));
    }
    template <class P>
    void forward(GPU device, const P& forced, const AttentionForward<X>& a, const int* choice) const {
        attention_forward(device, forced, a);
        const AttentionForward<X> by_block = with_keys_by_block(device, a);
        each_pass(device, choice, [&](const BlockRows& rows) {
            AttentionForward<X> chosen = gathered(device, by_block, rows);
            chosen.statistics = results_.statistics_for(a.statistics);
            attention_forward(device, ChosenBlock(forced), chosen);
            merge_rows(device, RowMerge<X, BlockRows>{shape(a), results_.branch(rows), a.out, a.lse, a.statistics});
        });
    }

    template <class P>
    void backward(GPU device, const P& forced, const AttentionForward<X>& a, AttentionBackward<X> g,
                  const int* choice) const {
        g.workspace = kernel_;
        attention_backward(device, forced, a, g);
        const size_t q_row = size_t(a.NH) * a.HS, k_row = size_t(a.NKV) * a.HS;
        const AttentionForward<X> by_block = with_keys_by_block(device, a);
        each_pass(device, choice, [&](const BlockRows& rows) {
            AttentionForward<X> chosen = gathered(device, by_block, rows);
            gather_rows(device, chosen.out, Heads<const X>{a.out, q_row}, rows, shape(a));
            gather_rows(device, dout_, Heads<const X>{g.dout, q_row}, rows, shape(a));
            gather_scalars(device, chosen.lse, static_cast<const float*>(a.lse), rows, a.B, a.T, a.NH, float(-INFINITY));
            if (a.gate) each_element(device, size_t(a.B) * rows.count, a.NH, GatherGates{gate_, a.gate, rows});
            chosen.gate = a.gate ? gate_ : nullptr;
            AttentionBackward<X> of_rows{};
            of_rows.dout = dout_, of_rows.workspace = kernel_;
            of_rows.dq = {dq_, q_row}, of_rows.dk = {dk_, k_row}, of_rows.dv = {dv_, k_row};
            attention_backward(device, ChosenBlock(forced), chosen, of_rows);
            send_rows_back(device, g.dq, static_cast<const float*>(dq_), rows, shape(a), Write::add);
            if (a.documents) {
                const BlockKeys keys = block_keys(rows_.choice, a);
                send_rows_back(device, g.dk, static_cast<const float*>(dk_), keys, key_shape(a), Write::add);
                send_rows_back(device, g.dv, static_cast<const X*>(dv_), keys, key_shape(a), Write::add);
                return;
            }
            add_heads(device, g.dk, Heads<const float>{dk_, k_row}, a.B * a.T, a.NKV, a.HS);
            add_heads(device, g.dv, Heads<const X>{dv_, k_row}, a.B * a.T, a.NKV, a.HS);
        });
    }

private:
    static RowShape shape(const AttentionForward<X>& a) { return {a.B, a.T, a.NH, a.NH, a.HS}; }
    static RowShape key_shape(const AttentionForward<X>& a) { return {a.B, a.S, a.NKV, a.NKV, a.HS}; }

    /// `a` with keys and values in the order of BlockKeys, which in a row of one text is that of the text.
    AttentionForward<X> with_keys_by_block(GPU device, AttentionForward<X> a) const {
        if (!a.documents) return a;
        const BlockKeys keys = block_keys(rows_.choice, a);
        gather_rows(device, k_, a.k, keys, key_shape(a)), gather_rows(device, v_, a.v, keys, key_shape(a));
        a.k = {k_, size_t(a.NKV) * a.HS}, a.v = {v_, size_t(a.NKV) * a.HS};
        return a;
    }

    template <class Use>
    void each_pass(GPU device, const int* choice, Use use) const {
        for (int first = 0; first < rows_.choice.slots; first += AT_ONCE) {
            BlockRows rows = rows_;
            rows.first = first, rows.slots = std::min(AT_ONCE, rows.choice.slots - first);
            list_block_rows(device, rows, choice);
            use(rows);
        }
    }

    /// The arguments of a pass's call, with q in the order of its rows.
    AttentionForward<X> gathered(GPU device, const AttentionForward<X>& a, const BlockRows& rows) const {
        gather_rows(device, q_, a.q, rows, shape(a));
        AttentionForward<X> chosen = chosen_arguments(a, rows);
        chosen.q = {q_, size_t(a.NH) * a.HS};
        chosen.out = results_.out, chosen.lse = results_.lse, chosen.gate = nullptr, chosen.statistics = {};
        return chosen;
    }

    BlockRows rows_;
    BranchResults<X> results_;
    X *q_, *dout_;   // (B, R, NH, HS)
    X *k_, *v_;      // (B, T, NKV, HS) by block, of packed documents
    float* gate_;    // (B, R, NH)
    float *dq_, *dk_;
    X* dv_;
    std::byte* kernel_;
};

#endif
