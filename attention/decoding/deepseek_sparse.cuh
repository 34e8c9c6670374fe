// Decoding of DeepSeek sparse attention (attention/deepseek_sparse.cuh): the indexer's keys, and the newest token's choice.
#pragma once
#include "attention/decoding/decoding.cuh"
#include "attention/decoding/visited.h"
#include "attention/deepseek_sparse.cuh"

template <class X>
struct Decoding<deepseek_sparse, CPU, X> {
    Index<X> one;   // of the newest token
    X* keys;        // (room, dim) of the indexer
    X* scores;      // (room) of the newest token
    char* chosen;   // (room) by the newest token
    Decoding(const deepseek_sparse& p, BumpAllocator& memory, const CacheRoom& room)
        : one(memory, {1, 1, p.heads, p.dim, p.HS}), keys(memory.take<X>(size_t(room.T) * p.dim)), scores(memory.take<X>(room.T)),
          chosen(memory.take<char>(room.T)) {}

    void prefill(const deepseek_sparse& p, const LayerInputs<X>& in, const X* weights, const LayerState<X>&) {
        for (int t = 0; t < in.T; t++) add(p, in, weights, t, t);
    }
    template <class Step>
    void decode(const Step& step, const deepseek_sparse& p, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) {
        const int position = step.keys.tokens();
        const AttentionForward<X> a = kernel_arguments(in, state, Statistics<X>{});
        step.keys.append(a);
        add(p, in, weights, 0, position);
        choose(p, position);
        attend(a, step.keys, [&](int h, QueryRow<X>& row, const KeySpan<X>& keys) {
            row.visit(VisitedKeys(p, chosen), query_of(a, {}, h, position), keys);
        });
    }

private:
    /// Adds token t, which is row n of `in`.
    void add(const deepseek_sparse& p, LayerInputs<X> in, const X* weights, int n, int t) {
        in.T = 1, in.x += size_t(n) * in.C;
        const Angles<Wide<X>> angles = Angles<Wide<X>>{in.cosine, in.sine}.from(t, in.HS);
        in.cosine = angles.cosine, in.sine = angles.sine;
        index_forward(CPU{}, one, in, weights, p.tensors);
        std::copy_n(one.key(0, 0), p.dim, keys + size_t(t) * p.dim);
    }
    /// Writes the choice of token t, the newest.
    void choose(const deepseek_sparse& p, int t) {
        const X scale = one.scale();
        std::fill_n(scores, t + 1, X(0));
        for (int s = 0; s <= t; s++)
            for (int h = 0; h < p.heads; h++) {
                const X product = inner_product(one.query(0, 0, h), keys + size_t(s) * p.dim, p.dim);
                scores[s] += one.weight(0, 0, h, scale) * std::max(X(0), product);
            }
        KeyCut<X> cut{-INFINITY, t + 1};
        if (t + 1 > p.most()) cut = KeyCuts<X>().find(scores, t + 1, p.most());
        for (int s = 0; s <= t; s++) chosen[s] = scores[s] > cut.score || (scores[s] == cut.score && cut.equal-- > 0);
    }
};

#ifdef WITH_GPU

/// Appends the indexer's keys in x to their sequences.
template <class X>
struct StoreIndexKeys {
    X* keys;   // (sequences, room, D)
    int room;
    Index<X> x;
    NewKeys to;
    constexpr void operator()(unsigned token, int d) const {
        const int b = int(token) / x.s.T, t = int(token) % x.s.T;
        const size_t key = size_t(to.sequence_of(b)) * room + to.position(b, to.first + t);
        keys[key * x.s.D + d] = x.key(b, t)[d];
    }
};

/// Block (key tile, row): I_ts of the row and the keys up to its own, one key per warp at a time.
template <class X>
__global__ void index_rows_kernel(float* scores, const X* keys, const Index<X> x, const DecodeRows rows, int room, float scale) {
    const int b = blockIdx.y, first = int(blockIdx.x) * TILE, last = min(rows.position[b], first + TILE - 1), D = x.s.D;
    for (int j = first + int(threadIdx.x) / WARP; j <= last; j += indexing::WARPS) {
        const X* const key = keys + (size_t(rows.sequence[b]) * room + j) * D;
        float score = 0;
        for (int h = 0; h < x.s.heads; h++) {
            float product = 0;
            for (int d = lane_of(); d < D; d += WARP) product += to_float(x.query(b, 0, h)[d]) * to_float(key[d]);
            score += x.weight(b, 0, h, scale) * fmaxf(warp_sum(product), 0);
        }
        if (lane_of() == 0) scores[size_t(b) * room + j] = score;
    }
}

/// One warp per row: writes its sequence's `chosen` (sequences, room), the `top` keys with the greatest scores (rows, room), ties going to
/// earlier keys.
inline __global__ void choose_for_sequence_kernel(char* chosen, const float* scores, const DecodeRows rows, int room, int top) {
    using namespace choosing;
    const int b = blockIdx.x, lane = threadIdx.x, count = rows.position[b] + 1;
    const float* const mine = scores + size_t(b) * room;
    char* const to = chosen + size_t(rows.sequence[b]) * room;
    Cut cut{0, count};   // below the key of any score
    if (count > top) cut = cut_of_greatest(mine, TileChoice{.top = top, .local = 0}, count - 1);
    ChosenByCut by_cut(cut);
    for (int first = 0; first < count; first += WARP) {
        const int j = first + lane;
        const bool take = by_cut.has(j < count, j < count ? ordered(mine[j]) : 0);
        if (j < count) to[j] = take;
    }
}

template <class X>
struct Decoding<deepseek_sparse, GPU, X> {
    static constexpr int AT_ONCE = 256;   // tokens of a prompt
    int room;
    Index<X> memory_of_rows;   // of the tokens of one call
    X* keys;                   // (sequences, room, D) of the indexer
    float* scores;             // (sequences, room) of the rows
    char* chosen;              // (sequences, room) by the last row

    Decoding(const deepseek_sparse& p, BumpAllocator& memory, const CacheRoom& s)
        : room(s.T), memory_of_rows(memory, {std::max(s.B, AT_ONCE), 1, p.heads, p.dim, p.HS}),
          keys(memory.take<X>(size_t(s.B) * s.T * p.dim)), scores(memory.take<float>(size_t(s.B) * s.T)),
          chosen(memory.take<char>(size_t(s.B) * s.T)) {}

    void prefill(const GPU& device, int sequence, const deepseek_sparse& p, LayerInputs<X> in, const X* weights,
                 const LayerState<X>&) {
        const int tokens = in.T;
        const Angles<float> angles{in.cosine, in.sine};
        const X* const x = in.x;
        for (int first = 0; first < tokens; first += AT_ONCE) {
            in.T = std::min(AT_ONCE, tokens - first), in.x = x + size_t(first) * in.C;
            in.cosine = angles.from(first, in.HS).cosine, in.sine = angles.from(first, in.HS).sine;
            const Index<X> now = of_tokens(1, in.T);
            index_forward(device, now, in, weights, p.tensors);
            each_element(device, in.T, now.s.D, StoreIndexKeys<X>{keys, room, now, {{}, sequence, first}});
        }
    }
    template <class Step>
    void decode(const Step& step, const deepseek_sparse& p, const LayerInputs<X>& in, const X* weights,
                LayerState<X>& state) const {
        const Index<X> now = of_tokens(in.B, 1);
        index_forward(step, now, in, weights, p.tensors, {.of_token = step.rows.position});
        each_element(step, in.B, now.s.D, StoreIndexKeys<X>{keys, room, now, {step.rows}});
        launch(step, index_rows_kernel<X>, Grid(tiles_of(room), in.B), indexing::THREADS, 0, scores, keys, now, step.rows, room,
               now.scale());
        launch(step, choose_for_sequence_kernel, in.B, WARP, 0, chosen, scores, step.rows, room, p.most());
        attention_forward(step, VisitedKeysOfSequences(p, chosen, in.NH, 1, room), kernel_arguments(in, state, Statistics<X>{}));
    }

private:
    Index<X> of_tokens(int B, int T) const {
        Index<X> now = memory_of_rows;
        now.s.B = B, now.s.T = T;
        return now;
    }
};

#endif
