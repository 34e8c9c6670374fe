// Decoding of InfLLM-V2 (attention/infllm_v2.cuh): the sums of the keys of every compressed block, complete or not.
#pragma once
#include "attention/decoding/block_key_sums.cuh"
#include "attention/infllm_v2.cuh"

/// The choice of the rows of a step.
template <class X>
struct LargestShares {
    BlockKeySums<X> blocks;
    Importance<X> importance;
    TileChoice rule;
    int width;        // of a row of `work`
    Wide<X>* work;    // (sequences, NKV, 3, width): scores of a query head, shares of the group, scores of blocks of TILE
    ChosenBlocks chosen;   // by the last row

    LargestShares(const infllm_v2& a, BumpAllocator& memory, const CacheRoom& room)
        : blocks(a.grid, memory, room), importance{}, rule(a.rule(room)), width(std::max(blocks.blocks, tiles_of(room.T))),
          work(memory.take<Wide<X>>(size_t(room.B) * room.NKV * 3 * width)),
          chosen{room.NKV, rule.top, memory.take<int>(size_t(room.B) * room.NKV * rule.top)} {
        importance.T = room.T, importance.grid = a.grid, importance.pool = Pool::largest;
    }
    Wide<X> scale(int HS) const { return 1 / (std::sqrt(Wide<X>(HS)) * Wide<X>(blocks.grid.l)); }
};

/// Team (b, key head): a softmax over the complete compressed blocks for each query head of the group, and the row's choice.
template <class X>
struct ChooseLargest {
    using Number = Wide<X>;
    LargestShares<X> of;
    LayerInputs<X> in;
    DecodeRows rows;
    Wide<X> scale;
    template <class Team>
    constexpr void operator()(const Team& team, unsigned n) const {
        const int kv = int(n) % in.NKV, b = int(n) / in.NKV, sequence = rows.sequence[b], t = rows.position[b], own = t / TILE;
        const int complete = of.blocks.grid.complete(t + 1), group = in.NH / in.NKV;
        Number *const z = of.work + size_t(n) * 3 * of.width, *const shares = z + of.width, *const scores = shares + of.width;
        for (int h = kv * group; h < (kv + 1) * group; h++) {
            Number largest = -1e30f, total = 0;
            for (int c = team.first(); c < complete; c += team.step()) {   // a member reads and writes its own blocks only
                z[c] = team.product(in.query(in.q, b, 0, h), of.blocks.sum(sequence, c, kv, in.HS), in.HS) * scale;
                largest = std::max(largest, z[c]);
            }
            largest = team.max(largest);
            for (int c = team.first(); c < complete; c += team.step()) total += z[c] = std::exp(z[c] - largest);
            total = team.sum(total);
            for (int c = team.first(); c < complete; c += team.step())
                shares[c] = (h == kv * group ? Number(0) : shares[c]) + z[c] / total;
        }
        team.sync();
        for (int j = team.first(); j <= own; j += team.step()) scores[j] = of.importance.score(shares, 0, 0, complete, j);
        team.sync();
        choose_blocks(team, of.chosen.of(sequence, kv), scores, of.rule, own);
    }
};

template <class Device, class X>
struct Decoding<infllm_v2, Device, X> {
    LargestShares<X> choice;
    Decoding(const infllm_v2& a, BumpAllocator& memory, const CacheRoom& room) : choice(a, memory, room) {}

    void prefill(Device device, int sequence, const infllm_v2&, const LayerInputs<X>& in, const X* /*weights*/,
                 const LayerState<X>&) const {
        choice.blocks.add(device, in, {{}, sequence, 0, in.T});
    }
    template <class Step>
    void decode(const Step& step, const infllm_v2& m, const LayerInputs<X>& in, const X* /*weights*/, LayerState<X>& state) const {
        choice.blocks.add(step, in, {step.rows});
        if (choice.rule.top > 0)
            each_team<1>(Device(step), size_t(in.B) * in.NKV, ChooseLargest<X>{choice, in, step.rows, choice.scale(in.HS)});
        attention_forward(step, VisitedBlocks(m.forced_blocks(), choice.chosen, in.NH), kernel_arguments(in, state, Statistics<X>{}));
    }
};
