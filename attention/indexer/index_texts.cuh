// The indexer's keys of texts that are being written on a GPU, and what the next rows of these texts choose. (On the CPU, for one text:
// deepseek_sparse.cuh.)
#pragma once
#include "attention/indexer/choose_keys.cuh"
#include "attention/kernel/next_rows.cuh"

#ifdef WITH_GPU

/// The keys of x join those of their texts.
template <class X>
struct KeepIndexKeys {
    X* keys;   // (texts, room, D)
    int room;
    Index<X> x;
    NewKeys to;
    constexpr void operator()(unsigned token, int d) const {
        const int b = int(token) / x.s.T, t = int(token) % x.s.T;
        const size_t key = size_t(to.text_of(b)) * room + to.position(b, to.first + t);
        keys[key * x.s.D + d] = x.key(b, t)[d];
    }
};

/// Block (key tile, row): I_ts of the row and the keys up to its own, a warp for every fourth.
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

/// One warp per row: `chosen` (texts, room) of its text, the `top` keys with the greatest scores (rows, room), ties to the earlier.
inline __global__ void choose_for_text_kernel(char* chosen, const float* scores, const DecodeRows rows, int room, int top) {
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
class IndexTexts {
    static constexpr int AT_ONCE = 256;   // tokens of a prompt

public:
    /// For room.B texts of at most room.T tokens each.
    IndexTexts(BumpAllocator& memory, const LayerShape& room, const IndexShape& of_one)
        : room_(room.T), rows_(memory, {std::max(room.B, AT_ONCE), 1, of_one.heads, of_one.D, of_one.HS}),
          keys_(memory.take<X>(size_t(room.B) * room.T * of_one.D)), scores_(memory.take<float>(size_t(room.B) * room.T)),
          chosen_(memory.take<char>(size_t(room.B) * room.T)) {}

    void begin(GPU device, int text, LayerInputs<X> in, const X* weights, const IndexTensors& tensors) const {
        const int tokens = in.T;
        const Angles<float> angles{in.cosine, in.sine};
        const X* const x = in.x;
        for (int first = 0; first < tokens; first += AT_ONCE) {
            in.T = std::min(AT_ONCE, tokens - first), in.x = x + size_t(first) * in.C;
            in.cosine = angles.from(first, in.HS).cosine, in.sine = angles.from(first, in.HS).sine;
            const Index<X> now = of_tokens(1, in.T);
            index_forward(device, now, in, weights, tensors);
            each_element(device, in.T, now.s.D, KeepIndexKeys<X>{keys_, room_, now, {{}, text, first}});
        }
    }

    /// The tokens of rows, their scores of all keys of their texts, and the `top` greatest.
    void choose(GPU device, const LayerInputs<X>& in, const X* weights, const IndexTensors& tensors, const DecodeRows& rows, int top) const {
        const Index<X> now = of_tokens(in.B, 1);
        index_forward(device, now, in, weights, tensors, {.of_token = rows.position});
        each_element(device, in.B, now.s.D, KeepIndexKeys<X>{keys_, room_, now, {rows}});
        launch(device, index_rows_kernel<X>, Grid(tiles_of(room_), in.B), indexing::THREADS, 0, scores_, keys_, now, rows, room_,
               now.scale());
        launch(device, choose_for_text_kernel, in.B, WARP, 0, chosen_, scores_, rows, room_, top);
    }

    const char* chosen() const { return chosen_; }   // (texts, room)
    int room() const { return room_; }

private:
    Index<X> of_tokens(int B, int T) const {
        Index<X> now = rows_;
        now.s.B = B, now.s.T = T;
        return now;
    }

    int room_;
    Index<X> rows_;   // memory for the tokens of one call
    X* keys_;         // (texts, room, D)
    float* scores_;   // (texts, room) of the rows
    char* chosen_;
};

#endif
