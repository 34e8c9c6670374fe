// Decoding of NSA (attention/nsa.cuh): slc's keys, the compressed keys, the newest tokens whose windows are incomplete, and the
// selection of blocks. The layer's own KV cache is win's.
#pragma once
#include <optional>

#include "attention/decoding/decoding.cuh"
#include "attention/decoding/visited.h"
#include "attention/nsa.cuh"

/// ordered (B, l, NKV, HS): the last l of the cached keys or values, `from`, of each row's sequence; undefined while it has fewer.
template <class Device, class X>
struct OrderLatest {
    X* ordered;
    KVCache<Device, X> latest;
    const X* from;   // latest.k or latest.v
    DecodeRows rows;
    int l;
    constexpr void operator()(unsigned row, int n) const {
        const int b = int(row) / l, back = l - 1 - int(row) % l, HS = latest.HS;
        const size_t slot = latest.slots.slot(std::max(0, rows.position[b] - back));
        ordered[size_t(row) * latest.NKV * HS + n] = from[latest.head_at(rows.sequence[b], n / HS) + slot * HS + n % HS];
    }
};

/// Stores the keys and values k, v (B, NKV, HS) of the blocks that end with the rows' tokens, if any. last (B): the last block that is
/// complete with each row's token, or -1.
template <class Device, class X>
struct StoreCompressed {
    KVCache<Device, X> to;
    const X *k, *v;
    int32_t* last;
    DecodeRows rows;
    BlockGrid grid;
    constexpr void operator()(unsigned b, int n) const {
        const int blocks = grid.complete(rows.position[b] + 1);
        if (n == 0) last[b] = blocks - 1;
        if (blocks == grid.complete(rows.position[b])) return;
        const size_t from = b * size_t(to.NKV * to.HS) + n;
        const size_t at = to.head_at(rows.sequence[b], n / to.HS) + size_t(blocks - 1) * to.HS + n % to.HS;
        to.k[at] = k[from], to.v[at] = v[from];
    }
};

/// Copies the choice of the last row of a whole sequence.
struct CopyChoice {
    ChosenBlocks to;
    int sequence;
    const int* from;
    BlockChoice c;   // of one sequence
    constexpr void operator()(unsigned kv, int n) const {
        to.of(sequence, int(kv))[n] = n < c.slots ? from[c.of_token(0, int(kv), c.T - 1) + n] : -1;
    }
};

/// The keys and shares by which the rows of a step choose, and their choice.
template <class Device, class X>
struct NsaChoice {
    BlockGrid grid;
    int every, room;
    KVCache<Device, X> compressed;
    Wide<X>* shares;       // (B, NKV, compressed keys) of the rows
    ChosenBlocks chosen;   // by the last token that chose

    NsaChoice(const nsa& n, BumpAllocator& memory, const CacheRoom& s)
        : grid(n.grid), every(n.selection.every), room(s.T),
          compressed(memory, {{s.B, grid.rows(s.T), s.C, s.NH, s.NKV, s.HS}}, 0, KeptKeys{}),
          shares(memory.take<Wide<X>>(size_t(s.B) * s.NKV * compressed.slots.count())),
          chosen{s.NKV, n.selection.slots(s.T), memory.take<int>(size_t(s.B) * s.NKV * n.selection.slots(s.T))} {}

    Importance<X> importance() const {
        Importance<X> all{};
        all.T = room, all.grid = grid, all.every = every;
        return all;
    }
};

/// Team (b, key head, KEYS compressed keys): the sums over the row's query heads of their attention to each key, in `cmp`.
template <class Device, class X>
struct SharesOfRows {
    using Number = Wide<X>;
    static constexpr int KEYS = 16;
    NsaChoice<Device, X> of;
    AttentionForward<X> cmp;
    DecodeRows rows;
    constexpr int pieces() const { return (of.compressed.slots.count() + KEYS - 1) / KEYS; }
    template <class Team>
    constexpr void operator()(const Team& team, unsigned n) const {
        const int list = int(n) / pieces(), kv = list % cmp.NKV, b = list / cmp.NKV, group = cmp.NH / cmp.NKV;
        const int first = int(n) % pieces() * KEYS, end = std::min(of.grid.complete(rows.position[b] + 1), first + KEYS);
        if (rows.position[b] % of.every) return;
        for (int c = first; c < end; c++) {
            const X* const key = of.compressed.k + of.compressed.head_at(rows.sequence[b], kv) + size_t(c) * cmp.HS;
            Number share = 0;
            for (int h = kv * group; h < (kv + 1) * group; h++) {
                const Number product = team.joint_product(cmp.q.data + b * cmp.q.row + size_t(h) * cmp.HS, key, cmp.HS);
                share += exp_of(product / std::sqrt(Number(cmp.HS)) - cmp.lse[size_t(b) * cmp.NH + h]);
            }
            if (team.first() == 0) of.shares[size_t(list) * of.compressed.slots.count() + c] = share;
        }
    }
};

/// Team (b, key head): the choice by the shares. Rows whose token does not choose keep theirs.
template <class Device, class X>
struct ChooseByShares {
    using Number = Wide<X>;
    NsaChoice<Device, X> of;
    Importance<X> importance;
    DecodeRows rows;
    int NKV;
    template <class Team>
    constexpr void operator()(const Team& team, unsigned n) const {
        const int kv = int(n) % NKV, b = int(n) / NKV, t = rows.position[b], own = t / TILE;
        if (t % of.every) return;
        Number *const scores = team.scratch(), *const shares = of.shares + size_t(n) * of.compressed.slots.count();
        for (int j = team.first(); j <= own; j += team.step()) scores[j] = importance.score(shares, 0, 0, of.grid.complete(t + 1), j);
        team.sync();
        choose_blocks(team, of.chosen.of(rows.sequence[b], kv), scores, choice_of_blocks(of.chosen.slots), own);
    }
};

template <class Device, class X>
struct Decoding<nsa, Device, X> {
    KVCache<Device, X> latest;   // the last l keys and values that cmp compresses
    NsaChoice<Device, X> choice;
    std::optional<KVCache<Device, X>> selected;   // slc's keys where they are not the model's

    // Memory for the rows of a step.
    CompressShape shape;
    CompressWork<X> work;
    X *ordered, *logits;   // (B, l, NKV, HS); (B, 3, NH) of the gates
    int32_t* last_block;   // (B)

    Decoding(const nsa& n, BumpAllocator& memory, const CacheRoom& s)
        : latest(memory, {static_cast<const LayerShape&>(s)}, 0, KeptKeys{0, n.grid.l}), choice(n, memory, s),
          shape{s.B, n.grid.l, s.NKV, s.HS, n.grid}, work(memory, shape) {
        if (!n.shared) selected.emplace(memory, s, 0, KeptKeys{});
        ordered = memory.take<X>(size_t(s.B) * n.grid.l * s.NKV * s.HS), logits = memory.take<X>(size_t(s.B) * BRANCHES * s.NH);
        last_block = memory.take<int32_t>(s.B);
    }

    void prefill(Device device, int sequence, const nsa& n, const LayerInputs<X>& in, const X* /*weights*/,
                 const LayerState<X>& state) const {
        const NsaKept<X> kept = n.kept_in(state, in);
        append_prompt(device, latest, to_compress(n, in, kept), sequence);
        append(device, choice.compressed, n.arguments(CMP, in, kept, state), NewKeys{{}, sequence, 0, n.grid.complete(in.T)});
        if (selected) append_prompt(device, *selected, n.arguments(SLC, in, kept, state), sequence);
        const CopyChoice copy{choice.chosen, sequence, kept.choice, n.selection.choice(in)};
        if (choice.chosen.slots > 0) each_element(device, in.NKV, choice.chosen.slots, copy);
    }

    template <class Step>
    void decode(const Step& step, const nsa& n, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) const {
        const NsaKept<X> kept = n.kept_in(state, in);
        n.project(Device(step), in, weights, kept, logits, {.of_token = step.rows.position});
        attention_forward(step, n.branch(WIN), n.arguments(WIN, in, kept, state));
        const AttentionForward<X> cmp = n.arguments(CMP, in, kept, state), slc = n.arguments(SLC, in, kept, state);
        compress(step, step.rows, n, in, kept, weights);
        attend(step, choice.compressed, {step.rows.sequence, last_block}, cmp, NsaBranch{n, 1, 0, INT_MAX});   // all complete blocks
        const SharesOfRows<Device, X> shares{choice, cmp, step.rows};
        const ChooseByShares<Device, X> choose{choice, choice.importance(), step.rows, in.NKV};
        if (choice.chosen.slots > 0) {
            each_team<1>(Device(step), size_t(in.B) * in.NKV * shares.pieces(), shares);
            each_team<1>(Device(step), size_t(in.B) * in.NKV, choose, tiles_of(choice.room));
        }
        if (selected) append(step, *selected, slc, {step.rows});
        attend(step, selected ? *selected : step.keys, step.rows, slc, VisitedBlocks({n, TILE, 1, 2}, choice.chosen, in.NH));
        gated_sum(Device(step), state.out, kept.branches, size_t(in.B) * in.NH, in.HS);
    }

private:
    static AttentionForward<X> to_compress(const nsa& n, const LayerInputs<X>& in, const NsaKept<X>& kept) {
        AttentionForward<X> a{};
        a.B = in.B, a.S = in.T, a.k = n.keys(in, kept), a.v = n.values(in, kept);
        return a;
    }

    /// Adds the rows' tokens, and the blocks that they complete. `kept` is a forward pass's memory for the rows.
    void compress(Device device, const DecodeRows& rows, const nsa& n, const LayerInputs<X>& in, const NsaKept<X>& kept,
                  const X* weights) const {
        append(device, latest, to_compress(n, in, kept), {rows});
        CompressShape now = shape;
        now.B = in.B;
        const int width = in.NKV * in.HS, l = n.grid.l;
        const auto add = [&](const X* from, X* out, X* hidden, const Compressor& phi) {
            if (completes_none(rows, n.grid)) return;
            each_element(device, size_t(in.B) * l, width, OrderLatest<Device, X>{ordered, latest, from, rows, l});
            compress_forward(device, out, hidden, Heads<const X>{ordered, size_t(width)}, weights, phi, now, work);
        };
        add(latest.k, kept.k, kept.k_hidden, n.phi_k), add(latest.v, kept.v, kept.v_hidden, n.phi_v);
        each_element(device, in.B, width, StoreCompressed<Device, X>{choice.compressed, kept.k, kept.v, last_block, rows, n.grid});
    }

    /// Whether the row completes no block. A GPU's launches do not depend on it.
    static bool completes_none(const DecodeRows& rows, const BlockGrid& grid) {
        if constexpr (std::is_same_v<Device, CPU>) return grid.complete(rows.position[0] + 1) == grid.complete(rows.position[0]);
        else return false;
    }
};
