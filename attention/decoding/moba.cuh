// Decoding of MoBA (attention/moba.cuh) by the sum of each block's keys, which ranks blocks as the mean does.
#pragma once
#include <algorithm>
#include <vector>

#include "attention/blocks/choose_blocks.cuh"
#include "attention/decoding/block_key_sums.cuh"
#include "attention/decoding/visited.h"
#include "attention/moba.cuh"

template <class X>
struct Decoding<moba, CPU, X> {
    BlockKeySums<CPU, X> blocks;

    Decoding(const moba& m, BumpAllocator& memory, const CacheRoom& room) : blocks({m.block, m.block}, memory, room) {}

    void prefill(const moba&, const LayerInputs<X>& in, const X* /*weights*/, const LayerState<X>&) { blocks.prefill(in); }
    template <class Step>
    void decode(const Step& step, const moba& m, const LayerInputs<X>& in, const X* /*weights*/, LayerState<X>& state) {
        const int position = step.keys.tokens(), past = position / m.block, slots = std::min(m.top - 1, past);
        const AttentionForward<X> a = token_block_arguments(in, state, Statistics<X>{});
        step.keys.append(a);
        blocks.append(in.k);
        const std::vector<int> chosen = choose(in, slots, past);
        attend(a, step.keys, [&](int h, QueryRow<X>& row, const KeySpan<X>& keys) {
            row.visit(VisitedBlocks(m.own_block(), chosen.data() + size_t(h) * slots, slots), query_of(a, {}, h, position), keys);
        });
    }

private:
    /// The `slots` blocks with the greatest products of query and sum among the first `past`, of every query head: (NH, slots).
    std::vector<int> choose(const LayerInputs<X>& in, int slots, int past) const {
        std::vector<int> chosen(size_t(in.NH) * slots), order;
        std::vector<X> scores(past + 1);
        for (int h = 0; h < in.NH; h++) {
            const X* const sums = blocks.sums + size_t(h / (in.NH / in.NKV)) * in.HS;
            for (int n = 0; n < past; n++) scores[n] = inner_product(in.q + size_t(h) * in.HS, sums + n * blocks.row, in.HS);
            choose_blocks(CPU{}, chosen.data() + size_t(h) * slots, scores.data(), TileChoice{.top = slots}, past, order);
        }
        return chosen;
    }
};

#ifdef WITH_GPU

/// One warp per (query head, row), with the scores of past blocks in shared memory.
template <class X>
__global__ void choose_for_rows_kernel(int* choice, const BlockKeySums<GPU, X> blocks, const LayerInputs<X> in, const DecodeRows rows,
                                       int slots) {
    float* scores = &dynamic_shared<float>();
    const int h = blockIdx.x, b = blockIdx.y, sequence = rows.sequence[b], r = rows.position[b] / blocks.grid.d, HS = in.HS;
    const X* query = in.query(in.q, b, 0, h);
    for (int n = threadIdx.x; n < r; n += WARP) {
        const float* sum = blocks.sums + ((size_t(sequence) * blocks.blocks + n) * in.NKV + h / (in.NH / in.NKV)) * HS;
        float score = 0;
        for (int d = 0; d < HS; d++) score += to_float(query[d]) * sum[d];
        scores[n] = score;
    }
    __syncwarp();
    choose_blocks(choice + (size_t(sequence) * in.NH + h) * slots, scores, TileChoice{.top = slots}, r);
}

template <class X>
struct Decoding<moba, GPU, X> {
    int slots;
    BlockKeySums<GPU, X> blocks;
    int* chosen;   // (sequences, NH, slots) by the last row

    Decoding(const moba& m, BumpAllocator& memory, const CacheRoom& room)
        : slots(m.slots_of(room)), blocks({m.block, m.block}, memory, room), chosen(memory.take<int>(size_t(room.B) * room.NH * slots)) {}

    void prefill(const GPU& device, int sequence, const moba&, const LayerInputs<X>& in, const X* /*weights*/,
                 const LayerState<X>&) const {
        blocks.prefill(device, sequence, in);
    }
    template <class Step>
    void decode(const Step& step, const moba& m, const LayerInputs<X>& in, const X* /*weights*/, LayerState<X>& state) const {
        blocks.append(step, in);
        if (slots > 0)
            launch(step, choose_for_rows_kernel<X>, Grid(in.NH, in.B), WARP, sizeof(float) * blocks.blocks, chosen, blocks, in, step.rows,
                   slots);
        attention_forward(step, VisitedBlocksOfSequences(m.own_block(), chosen, in.NH, in.NH, slots),
                          token_block_arguments(in, state, Statistics<X>{}));
    }
};

#endif
