// MoBA's gate for the next rows of texts: sums of blocks instead of means, which choose the same.
#pragma once
#include <algorithm>
#include <vector>

#include "attention/blocks/choose_blocks.cuh"
#include "attention/kernel/decode.h"
#include "attention/kernel/next_rows.cuh"
#include "attention/scores/each_element.cuh"

/// Sums of the keys of each block of a text that is being written.
template <class X>
struct MeanText {
    int block, tokens = 0;
    size_t row;   // NKV * HS
    X* sums;      // (blocks, NKV, HS)

    template <class P>
    MeanText(const P& policy, BumpAllocator& memory, const LayerShape& s)
        : block(policy.block), row(size_t(s.NKV) * s.HS), sums(memory.take<X>((s.T / block + 1) * row)) {}
    template <class P>
    void begin(const P&, const LayerInputs<X>& in, const X* /*weights*/, const LayerState<X>&) {
        for (int t = 0; t < in.T; t++) add(in.k + t * in.qk_row);
    }
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

/// Block n of a text of T tokens.
template <class X>
struct SumBlocks {
    float* sums;   // (blocks, NKV, HS) of the text
    const X* k;
    size_t row;
    int T, block, width;
    constexpr void operator()(unsigned n, int d) const {
        float sum = 0;
        for (int t = int(n) * block; t < std::min(T, (int(n) + 1) * block); t++) sum += widened(k[t * row + d]);
        sums[size_t(n) * width + d] = sum;
    }
};

/// The tokens of rows join their blocks.
template <class X>
struct AddToBlocks {
    float* sums;   // (texts, blocks, NKV, HS)
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
    const int h = blockIdx.x, b = blockIdx.y, text = rows.sequence[b], r = rows.position[b] / block, HS = in.HS;
    const X* query = in.query(in.q, b, 0, h);
    for (int n = threadIdx.x; n < r; n += WARP) {
        const float* sum = sums + ((size_t(text) * blocks + n) * in.NKV + h / (in.NH / in.NKV)) * HS;
        float score = 0;
        for (int d = 0; d < HS; d++) score += to_float(query[d]) * sum[d];
        scores[n] = score;
    }
    __syncwarp();
    choose_blocks(choice + (size_t(text) * in.NH + h) * slots, scores, TileChoice{.top = slots}, r);
}

/// Sums of the keys of each block of texts that are being written.
template <class X>
struct BlockSums {
    LayerShape room;
    int block, blocks;
    float* sums;   // (texts, blocks, NKV, HS)
    BlockSums(BumpAllocator& memory, const LayerShape& room_, int block_)
        : room(room_), block(block_), blocks((room.T + block - 1) / block), sums(memory.take<float>(size_t(room.B) * blocks * width())) {}

    void begin(GPU device, int text, const LayerInputs<X>& in) const {
        each_element(device, (in.T + block - 1) / block, width(),
                     SumBlocks<X>{sums + size_t(text) * blocks * width(), in.k, in.qk_row, in.T, block, width()});
    }
    void add(GPU device, const LayerInputs<X>& in, const DecodeRows& rows) const {
        each_element(device, in.B, width(), AddToBlocks<X>{sums, in.k, in.qk_row, rows, blocks, block, width()});
    }
    /// choice (texts, NH, slots): the greatest products of queries and sums among past blocks, and then -1.
    void choose(GPU device, int* choice, int slots, const LayerInputs<X>& in, const DecodeRows& rows) const {
        launch(device, choose_for_rows_kernel<X>, Grid(in.NH, in.B), WARP, sizeof(float) * blocks, choice, sums, in, rows, blocks, block,
               slots);
    }

private:
    int width() const { return room.NKV * room.HS; }
};

/// Those sums, and what the last row of each text has chosen.
template <class X>
struct MeanTexts {
    BlockSums<X> sums;
    int slots;
    int* chosen;   // (texts, NH, slots)

    template <class P>
    MeanTexts(const P& policy, BumpAllocator& memory, const LayerShape& room)
        : sums(memory, room, policy.block), slots(policy.slots_of(room)), chosen(memory.take<int>(size_t(room.B) * room.NH * slots)) {}
    template <class P>
    void begin(GPU device, int text, const P&, const LayerInputs<X>& in, const X* /*weights*/, const LayerState<X>&) {
        sums.begin(device, text, in);
    }
    void choose(GPU device, const LayerInputs<X>& in, const DecodeRows& rows) const {
        sums.add(device, in, rows);
        if (slots > 0) sums.choose(device, chosen, slots, in, rows);
    }
};

#endif
