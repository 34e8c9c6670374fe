// Decoding of MoBA (attention/moba.cuh): the sums of each block's keys stand for the means. They rank blocks equally.
#pragma once
#include <algorithm>
#include <vector>

#include "attention/blocks/choose_blocks.cuh"
#include "attention/decoding/decoding.cuh"
#include "attention/decoding/visited.h"
#include "attention/moba.cuh"
#include "attention/scores/each_element.cuh"

template <class X>
struct Decoding<moba, CPU, X> {
    int block, tokens = 0;
    size_t row;   // NKV * HS
    X* sums;      // (blocks, NKV, HS) of the keys of each block

    Decoding(const moba& m, BumpAllocator& memory, const CacheRoom& room)
        : block(m.block), row(size_t(room.NKV) * room.HS), sums(memory.take<X>((room.T / block + 1) * row)) {}

    void prefill(const moba&, const LayerInputs<X>& in, const X* /*weights*/, const LayerState<X>&) {
        for (int t = 0; t < in.T; t++) add(in.k + t * in.qk_row);
    }
    template <class Step>
    void decode(const Step& step, const moba& m, const LayerInputs<X>& in, const X* /*weights*/, LayerState<X>& state) {
        const int position = step.keys.tokens(), past = position / block, slots = std::min(m.top - 1, past);
        const AttentionForward<X> a = token_block_arguments(in, state, Statistics<X>{});
        step.keys.append(a);
        add(in.k);
        const std::vector<int> chosen = choose(in, slots, past);
        attend(a, step.keys, [&](int h, QueryRow<X>& row, const KeySpan<X>& keys) {
            row.visit(VisitedBlocks(m.own_block(), chosen.data() + size_t(h) * slots, slots), query_of(a, {}, h, position), keys);
        });
    }

private:
    void add(const X* k) {
        X* const sum = sums + tokens / block * row;
        const bool first = tokens++ % block == 0;
        for (size_t d = 0; d < row; d++) sum[d] = first ? k[d] : sum[d] + k[d];
    }
    /// The `slots` blocks with the greatest products of query and sum among the first `past`, of every query head: (NH, slots).
    std::vector<int> choose(const LayerInputs<X>& in, int slots, int past) const {
        std::vector<int> chosen(size_t(in.NH) * slots), order;
        std::vector<X> scores(past + 1);
        for (int h = 0; h < in.NH; h++) {
            const size_t head = size_t(h / (in.NH / in.NKV)) * in.HS;
            for (int n = 0; n < past; n++) scores[n] = inner_product(in.q + size_t(h) * in.HS, sums + n * row + head, in.HS);
            choose_blocks(CPU{}, chosen.data() + size_t(h) * slots, scores.data(), TileChoice{.top = slots}, past, order);
        }
        return chosen;
    }
};

#ifdef WITH_GPU

/// Block n of a sequence of T tokens.
template <class X>
struct SumBlocks {
    float* sums;   // (blocks, NKV, HS) of the sequence
    const X* k;
    size_t row;
    int T, block, width;
    constexpr void operator()(unsigned n, int d) const {
        float sum = 0;
        for (int t = int(n) * block; t < std::min(T, (int(n) + 1) * block); t++) sum += widened(k[t * row + d]);
        sums[size_t(n) * width + d] = sum;
    }
};

/// Adds the rows' tokens to their blocks.
template <class X>
struct AddToBlocks {
    float* sums;   // (sequences, blocks, NKV, HS)
    const X* k;
    size_t row;
    DecodeRows rows;
    int blocks, block, width;
    constexpr void operator()(unsigned b, int d) const {
        const int position = rows.position[b];
        float& sum = sums[(size_t(rows.sequence[b]) * blocks + position / block) * width + d];
        sum = (position % block ? sum : 0.0f) + widened(k[b * row + d]);
    }
};

/// One warp per (query head, row), with the scores of past blocks in shared memory.
template <class X>
__global__ void choose_for_rows_kernel(int* choice, const float* sums, const LayerInputs<X> in, const DecodeRows rows, int blocks,
                                       int block, int slots) {
    float* scores = &dynamic_shared<float>();
    const int h = blockIdx.x, b = blockIdx.y, sequence = rows.sequence[b], r = rows.position[b] / block, HS = in.HS;
    const X* query = in.query(in.q, b, 0, h);
    for (int n = threadIdx.x; n < r; n += WARP) {
        const float* sum = sums + ((size_t(sequence) * blocks + n) * in.NKV + h / (in.NH / in.NKV)) * HS;
        float score = 0;
        for (int d = 0; d < HS; d++) score += to_float(query[d]) * sum[d];
        scores[n] = score;
    }
    __syncwarp();
    choose_blocks(choice + (size_t(sequence) * in.NH + h) * slots, scores, TileChoice{.top = slots}, r);
}

template <class X>
struct Decoding<moba, GPU, X> {
    LayerShape room;
    int block, blocks, slots;
    float* sums;   // (sequences, blocks, NKV, HS) of the keys of each block
    int* chosen;   // (sequences, NH, slots) by the last row

    Decoding(const moba& m, BumpAllocator& memory, const CacheRoom& room_)
        : room(room_), block(m.block), blocks((room.T + block - 1) / block), slots(m.slots_of(room)),
          sums(memory.take<float>(size_t(room.B) * blocks * width())), chosen(memory.take<int>(size_t(room.B) * room.NH * slots)) {}

    void prefill(const GPU& device, int sequence, const moba&, const LayerInputs<X>& in, const X* /*weights*/,
                 const LayerState<X>&) {
        each_element(device, (in.T + block - 1) / block, width(),
                     SumBlocks<X>{sums + size_t(sequence) * blocks * width(), in.k, in.qk_row, in.T, block, width()});
    }
    template <class Step>
    void decode(const Step& step, const moba& m, const LayerInputs<X>& in, const X* /*weights*/, LayerState<X>& state) const {
        each_element(step, in.B, width(), AddToBlocks<X>{sums, in.k, in.qk_row, step.rows, blocks, block, width()});
        if (slots > 0)
            launch(step, choose_for_rows_kernel<X>, Grid(in.NH, in.B), WARP, sizeof(float) * blocks, chosen, sums, in, step.rows,
                   blocks, block, slots);
        attention_forward(step, VisitedBlocksOfSequences(m.own_block(), chosen, in.NH, in.NH, slots),
                          token_block_arguments(in, state, Statistics<X>{}));
    }

private:
    int width() const { return room.NKV * room.HS; }
};

#endif
