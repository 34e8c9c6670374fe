// Decoding of MoBA (attention/moba.cuh) by the sum of each block's keys, which ranks blocks as the mean does.
#pragma once
#include "attention/decoding/block_key_sums.cuh"
#include "attention/masks/choose_blocks.cuh"
#include "attention/moba.cuh"

/// Team (b, query head): the row chooses the past blocks with the greatest products of query and sum.
template <class X>
struct ChooseBySums {
    using Number = Wide<X>;
    ChosenBlocks chosen;
    BlockKeySums<X> blocks;
    LayerInputs<X> in;
    DecodeRows rows;
    template <class Team>
    constexpr void operator()(const Team& team, unsigned n) const {
        const int h = int(n) % in.NH, b = int(n) / in.NH, sequence = rows.sequence[b], r = rows.position[b] / blocks.grid.d;
        Wide<X>* const scores = team.scratch();
        for (int c = team.first(); c < r; c += team.step())
            scores[c] = team.product(in.query(in.q, b, 0, h), blocks.sum(sequence, c, h / (in.NH / in.NKV), in.HS), in.HS);
        team.sync();
        choose_blocks(team, chosen.of(sequence, h), scores, {.top = chosen.slots}, r);
    }
};

template <class Device, class X>
struct Decoding<moba, Device, X> {
    BlockKeySums<X> blocks;
    ChosenBlocks chosen;   // by the last row

    Decoding(const moba& m, BumpAllocator& memory, const CacheRoom& room)
        : blocks({m.block, m.block}, memory, room),
          chosen{room.NH, m.slots_of(room), memory.take<int>(size_t(room.B) * room.NH * m.slots_of(room))} {}

    void prefill(Device device, int sequence, const moba&, const LayerInputs<X>& in, const X* /*weights*/, const LayerState<X>&) const {
        blocks.add(device, in, {{}, sequence, 0, in.T});
    }
    template <class Step>
    void decode(const Step& step, const moba& m, const LayerInputs<X>& in, const X* /*weights*/, LayerState<X>& state) const {
        blocks.add(step, in, {step.rows});
        if (chosen.slots > 0)
            each_team<1>(Device(step), size_t(in.B) * in.NH, ChooseBySums<X>{chosen, blocks, in, step.rows}, blocks.blocks);
        attention_forward(step, VisitedBlocks(m.forced_blocks(), chosen, in.NH), kernel_arguments(in, state, Statistics<X>{}));
    }
};
