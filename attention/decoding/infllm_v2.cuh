// Decoding of InfLLM-V2 (attention/infllm_v2.cuh): the sums of the keys of every compressed block, complete or not.
#pragma once
#include <algorithm>
#include <vector>

#include "attention/decoding/decoding.cuh"
#include "attention/decoding/visited.h"
#include "attention/infllm_v2.cuh"
#include "attention/scores/each_element.cuh"

/// The compressed blocks that have begun within T tokens.
constexpr int begun(const BlockGrid& grid, int T) { return (T + grid.d - 1) / grid.d; }
/// The first compressed block that token t is in; the last is t / grid.d.
constexpr int first_with(const BlockGrid& grid, int t) { return t < grid.l ? 0 : (t - grid.l) / grid.d + 1; }

template <class X>
struct Decoding<infllm_v2, CPU, X> {
    int tokens = 0;
    size_t row;   // NKV * HS
    X* sums;      // (blocks, NKV, HS)

    Decoding(const infllm_v2& a, BumpAllocator& memory, const CacheRoom& room)
        : row(size_t(room.NKV) * room.HS), sums(memory.take<X>(begun(a.grid, room.T) * row)) {}

    void prefill(const infllm_v2& a, const LayerInputs<X>& in, const X* /*weights*/, const LayerState<X>&) {
        for (int t = 0; t < in.T; t++) add(a.grid, in.k + t * in.qk_row);
    }
    template <class Step>
    void decode(const Step& step, const infllm_v2& m, const LayerInputs<X>& in, const X* /*weights*/, LayerState<X>& state) {
        const int t = step.keys.tokens(), own = t / TILE, group = in.NH / in.NKV;
        TileChoice rule{.leading = 1, .local = m.local};
        rule.top = std::min(m.top - 1, candidates_of(rule, own));
        const AttentionForward<X> a = token_block_arguments(in, state, Statistics<X>{});
        step.keys.append(a);
        add(m.grid, in.k);
        const std::vector<int> chosen = choose(m, in, rule, t);
        attend(a, step.keys, [&](int h, QueryRow<X>& to, const KeySpan<X>& keys) {
            const VisitedBlocks mask(m.forced_blocks(), chosen.data() + size_t(h / group) * rule.top, rule.top);
            to.visit(mask, query_of(a, {}, h, t), keys);
        });
    }

private:
    void add(const BlockGrid& grid, const X* k) {
        const int t = tokens++;
        for (int c = first_with(grid, t); c <= t / grid.d && t < c * grid.d + grid.l; c++)
            for (size_t d = 0; d < row; d++) sums[c * row + d] = t == c * grid.d ? k[d] : sums[c * row + d] + k[d];
    }
    /// (NKV, rule.top) of token t.
    std::vector<int> choose(const infllm_v2& m, const LayerInputs<X>& in, const TileChoice& rule, int t) const {
        const int own = t / TILE, complete = m.grid.complete(t + 1), group = in.NH / in.NKV;
        Importance<X> importance{};
        importance.T = t + 1, importance.grid = m.grid, importance.pool = Pool::largest;
        std::vector<int> chosen(size_t(in.NKV) * rule.top), order;
        for (int kv = 0; kv < in.NKV && rule.top > 0; kv++) {
            std::vector<X> shares(complete), z(complete), scores(own + 1);
            for (int h = kv * group; h < (kv + 1) * group; h++) {
                for (int c = 0; c < complete; c++)
                    z[c] = inner_product(in.q + size_t(h) * in.HS, sums + c * row + size_t(kv) * in.HS, in.HS) /
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

/// Block c of a sequence of T tokens.
template <class X>
struct SumBegunBlocks {
    float* sums;   // (blocks, NKV, HS) of the sequence
    Heads<const X> k;
    BlockGrid grid;
    int T, width;
    constexpr void operator()(unsigned c, int d) const {
        float sum = 0;
        for (int t = int(c) * grid.d; t < std::min(T, int(c) * grid.d + grid.l); t++) sum += widened(k.data[t * k.row + d]);
        sums[size_t(c) * width + d] = sum;
    }
};

/// Adds the rows' tokens to the blocks that they are in.
template <class X>
struct AddToBegunBlocks {
    float* sums;   // (sequences, blocks, NKV, HS)
    Heads<const X> k;
    DecodeRows rows;
    BlockGrid grid;
    int blocks, width;
    constexpr void operator()(unsigned b, int d) const {
        const int t = rows.position[b];
        for (int c = first_with(grid, t); c <= t / grid.d && t < c * grid.d + grid.l; c++) {
            float& sum = sums[(size_t(rows.sequence[b]) * blocks + c) * width + d];
            sum = (t == c * grid.d ? 0.0f : sum) + widened(k.data[b * k.row + d]);
        }
    }
};

/// One warp per (key head, row): a softmax over the complete compressed blocks for each query head of the group, and the choice. `work`
/// (B, NKV, 3, blocks) has a head's scores, the group's shares and the scores of blocks of TILE.
template <class X>
__global__ void choose_largest_kernel(int* choice, float* work, const float* sums, const LayerInputs<X> in, const DecodeRows rows,
                                      const Importance<X> importance, int blocks, const TileChoice rule) {
    const int kv = blockIdx.x, b = blockIdx.y, sequence = rows.sequence[b], t = rows.position[b], own = t / TILE, HS = in.HS;
    const int complete = importance.grid.complete(t + 1), lane = lane_of(), group = in.NH / in.NKV;
    float *const z = work + (size_t(b) * in.NKV + kv) * 3 * blocks, *const shares = z + blocks, *const scores = shares + blocks;
    const float to_score = rsqrtf(float(HS)) / float(importance.grid.l);
    for (int h = kv * group; h < (kv + 1) * group; h++) {
        const X* const query = in.query(in.q, b, 0, h);
        float largest = -1e30f, total = 0;
        for (int c = lane; c < complete; c += WARP) {   // a lane reads and writes its own blocks only
            const float* const sum = sums + ((size_t(sequence) * blocks + c) * in.NKV + kv) * HS;
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
    LayerShape room;
    BlockGrid grid;
    int blocks;
    TileChoice rule;
    float *sums, *work;   // (sequences, blocks, NKV, HS) of the keys of each compressed block; of a step
    int* chosen;          // (sequences, NKV, rule.top) by the last row

    Decoding(const infllm_v2& a, BumpAllocator& memory, const CacheRoom& room_)
        : room(room_), grid(a.grid), blocks(std::max(begun(grid, room.T), tiles_of(room.T))), rule(a.rule(room)),
          sums(memory.take<float>(size_t(room.B) * blocks * width())), work(memory.take<float>(size_t(room.B) * room.NKV * 3 * blocks)),
          chosen(memory.take<int>(size_t(room.B) * room.NKV * rule.top)) {}

    void prefill(const GPU& device, int sequence, const infllm_v2&, const LayerInputs<X>& in, const X* /*weights*/,
                 const LayerState<X>&) const {
        each_element(device, begun(grid, in.T), width(),
                     SumBegunBlocks<X>{sums + size_t(sequence) * blocks * width(), {in.k, in.qk_row}, grid, in.T, width()});
    }
    template <class Step>
    void decode(const Step& step, const infllm_v2& m, const LayerInputs<X>& in, const X* /*weights*/, LayerState<X>& state) const {
        each_element(step, in.B, width(), AddToBegunBlocks<X>{sums, {in.k, in.qk_row}, step.rows, grid, blocks, width()});
        Importance<X> importance{};
        importance.T = room.T, importance.grid = grid, importance.pool = Pool::largest;
        if (rule.top > 0)
            launch(step, choose_largest_kernel<X>, Grid(in.NKV, in.B), WARP, 0, chosen, work, sums, in, step.rows, importance, blocks,
                   rule);
        attention_forward(step, VisitedBlocksOfSequences(m.forced_blocks(), chosen, in.NH, in.NKV, rule.top),
                          token_block_arguments(in, state, Statistics<X>{}));
    }

private:
    int width() const { return room.NKV * room.HS; }
};

#endif
