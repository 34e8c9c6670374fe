// Decoding of InfLLM-V2 (attention/infllm_v2.cuh): the sums of the keys of every compressed block, complete or not.
#pragma once
#include <algorithm>
#include <vector>

#include "attention/decoding/block_key_sums.cuh"
#include "attention/decoding/visited.h"
#include "attention/infllm_v2.cuh"

template <class X>
struct Decoding<infllm_v2, CPU, X> {
    BlockKeySums<CPU, X> blocks;

    Decoding(const infllm_v2& a, BumpAllocator& memory, const CacheRoom& room) : blocks(a.grid, memory, room) {}

    void prefill(const infllm_v2&, const LayerInputs<X>& in, const X* /*weights*/, const LayerState<X>&) { blocks.prefill(in); }
    template <class Step>
    void decode(const Step& step, const infllm_v2& m, const LayerInputs<X>& in, const X* /*weights*/, LayerState<X>& state) {
        const int t = step.keys.tokens(), own = t / TILE, group = in.NH / in.NKV;
        TileChoice rule{.leading = 1, .local = m.local};
        rule.top = std::min(m.top - 1, candidates_of(rule, own));
        const AttentionForward<X> a = token_block_arguments(in, state, Statistics<X>{});
        step.keys.append(a);
        blocks.append(in.k);
        const std::vector<int> chosen = choose(m, in, rule, t);
        attend(a, step.keys, [&](int h, QueryRow<X>& to, const KeySpan<X>& keys) {
            const VisitedBlocks mask(m.forced_blocks(), chosen.data() + size_t(h / group) * rule.top, rule.top);
            to.visit(mask, query_of(a, {}, h, t), keys);
        });
    }

private:
    /// The choice (NKV, rule.top) of token t.
    std::vector<int> choose(const infllm_v2& m, const LayerInputs<X>& in, const TileChoice& rule, int t) const {
        const int own = t / TILE, complete = m.grid.complete(t + 1), group = in.NH / in.NKV;
        Importance<X> importance{};
        importance.T = t + 1, importance.grid = m.grid, importance.pool = Pool::largest;
        std::vector<int> chosen(size_t(in.NKV) * rule.top), order;
        for (int kv = 0; kv < in.NKV && rule.top > 0; kv++) {
            std::vector<X> shares(complete), z(complete), scores(own + 1);
            for (int h = kv * group; h < (kv + 1) * group; h++) {
                for (int c = 0; c < complete; c++)
                    z[c] = inner_product(in.q + size_t(h) * in.HS, blocks.sums + c * blocks.row + size_t(kv) * in.HS, in.HS) /
                           (X(m.grid.l) * std::sqrt(X(in.HS)));
                const X largest = complete ? *std::max_element(z.begin(), z.end()) : X(0);
                X total = 0;
                for (X& p : z) total += p = std::exp(p - largest);
                for (int c = 0; c < complete; c++) shares[c] += z[c] / total;
            }
            for (int j = 0; j <= own; j++) scores[j] = importance.score(shares.data(), 0, 0, complete, j);
            choose_blocks(CPU{}, chosen.data() + size_t(kv) * rule.top, scores.data(), rule, own, order);
        }
        return chosen;
    }
};

#ifdef WITH_GPU

/// One warp per (key head, row): a softmax over the complete compressed blocks for each query head of the group, and the choice. `work`
/// (B, NKV, 3, width) has a head's scores, the group's shares and the scores of blocks of TILE.
template <class X>
__global__ void choose_largest_kernel(int* choice, float* work, int width, const BlockKeySums<GPU, X> blocks, const LayerInputs<X> in,
                                      const DecodeRows rows, const Importance<X> importance, const TileChoice rule) {
    const int kv = blockIdx.x, b = blockIdx.y, sequence = rows.sequence[b], t = rows.position[b], own = t / TILE, HS = in.HS;
    const int complete = importance.grid.complete(t + 1), lane = lane_of(), group = in.NH / in.NKV;
    float *const z = work + (size_t(b) * in.NKV + kv) * 3 * width, *const shares = z + width, *const scores = shares + width;
    const float to_score = rsqrtf(float(HS)) / float(importance.grid.l);
    for (int h = kv * group; h < (kv + 1) * group; h++) {
        const X* const query = in.query(in.q, b, 0, h);
        float largest = -1e30f, total = 0;
        for (int c = lane; c < complete; c += WARP) {   // a lane reads and writes its own blocks only
            const float* const sum = blocks.sums + ((size_t(sequence) * blocks.blocks + c) * in.NKV + kv) * HS;
            float product = 0;
            for (int d = 0; d < HS; d++) product += to_float(query[d]) * sum[d];
            z[c] = product * to_score;
            largest = fmaxf(largest, z[c]);
        }
        largest = warp_max(largest);
        for (int c = lane; c < complete; c += WARP) total += z[c] = exp_of(z[c] - largest);
        total = warp_sum(total);
        for (int c = lane; c < complete; c += WARP) shares[c] = (h == kv * group ? 0.0f : shares[c]) + z[c] / total;
    }
    __syncwarp();
    for (int j = lane; j <= own; j += WARP) scores[j] = importance.score(shares, 0, 0, complete, j);
    __syncwarp();
    choose_blocks(choice + (size_t(sequence) * in.NKV + kv) * rule.top, scores, rule, own);
}

template <class X>
struct Decoding<infllm_v2, GPU, X> {
    int T, width;    // capacity in tokens; width of a row of `work`
    TileChoice rule;
    BlockKeySums<GPU, X> blocks;
    float* work;     // (sequences, NKV, 3, width) of a step
    int* chosen;     // (sequences, NKV, rule.top) by the last row

    Decoding(const infllm_v2& a, BumpAllocator& memory, const CacheRoom& room)
        : T(room.T), width(std::max(begun_blocks(a.grid, T), tiles_of(T))), rule(a.rule(room)), blocks(a.grid, memory, room),
          work(memory.take<float>(size_t(room.B) * room.NKV * 3 * width)),
          chosen(memory.take<int>(size_t(room.B) * room.NKV * rule.top)) {}

    void prefill(const GPU& device, int sequence, const infllm_v2&, const LayerInputs<X>& in, const X* /*weights*/,
                 const LayerState<X>&) const {
        blocks.prefill(device, sequence, in);
    }
    template <class Step>
    void decode(const Step& step, const infllm_v2& m, const LayerInputs<X>& in, const X* /*weights*/, LayerState<X>& state) const {
        blocks.append(step, in);
        Importance<X> importance{};
        importance.T = T, importance.grid = blocks.grid, importance.pool = Pool::largest;
        if (rule.top > 0)
            launch(step, choose_largest_kernel<X>, Grid(in.NKV, in.B), WARP, 0, chosen, work, width, blocks, in, step.rows, importance,
                   rule);
        attention_forward(step, VisitedBlocksOfSequences(m.forced_blocks(), chosen, in.NH, in.NKV, rule.top),
                          token_block_arguments(in, state, Statistics<X>{}));
    }
};

#endif
