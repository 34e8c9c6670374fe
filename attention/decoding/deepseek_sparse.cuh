// Decoding of DeepSeek sparse attention (attention/deepseek_sparse.cuh): the indexer's keys, and the newest token's choice.
#pragma once
#include "attention/decoding/decoding.cuh"
#include "attention/decoding/visited.h"
#include "attention/deepseek_sparse.cuh"

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

/// The keys from which the rows of a step choose, and their choice.
template <class X>
struct IndexedKeys {
    int room;
    X* keys;           // (sequences, room, D) of the indexer
    Wide<X>* scores;   // (sequences, room) of the rows
    char* chosen;      // (sequences, room) by the last row
};

/// Team (row, KEYS keys): I_ts of the row and the keys up to its own.
template <class X>
struct ScoreIndexKeys {
    using Number = Wide<X>;
    static constexpr int KEYS = 16;
    IndexedKeys<X> of;
    Index<X> x;
    DecodeRows rows;
    Number scale;
    constexpr int pieces() const { return (of.room + KEYS - 1) / KEYS; }
    template <class Team>
    constexpr void operator()(const Team& team, unsigned n) const {
        const int b = int(n) / pieces(), first = int(n) % pieces() * KEYS, end = std::min(rows.position[b] + 1, first + KEYS);
        for (int j = first; j < end; j++) {
            const X* const key = of.keys + (size_t(rows.sequence[b]) * of.room + j) * x.s.D;
            Number score = 0;
            for (int h = 0; h < x.s.heads; h++)
                score += x.weight(b, 0, h, scale) * std::max(Number(0), team.joint_product(x.query(b, 0, h), key, x.s.D));
            if (team.first() == 0) of.scores[size_t(b) * of.room + j] = score;
        }
    }
};

/// chosen (count) = the `top` keys with the greatest scores, ties going to earlier keys.
template <class W>
void choose_among(const ThreadTeam<W>&, char* chosen, const W* scores, int count, int top) {
    KeyCut<W> cut{-INFINITY, count};
    if (count > top) cut = KeyCuts<W>().find(scores, count, top);
    for (int j = 0; j < count; j++) chosen[j] = scores[j] > cut.score || (scores[j] == cut.score && cut.equal-- > 0);
}
#ifdef WITH_GPU
__device__ inline void choose_among(const BlockTeam<1>& team, char* chosen, const float* scores, int count, int top) {
    using namespace choosing;
    Cut cut{0, count};   // below the key of any score
    if (count > top) cut = cut_of_greatest(scores, TileChoice{.top = top, .local = 0}, count - 1);
    ChosenByCut by_cut(cut);
    for (int first = 0; first < count; first += WARP) {
        const int j = first + team.first();
        const bool take = by_cut.has(j < count, j < count ? ordered(scores[j]) : 0);
        if (j < count) chosen[j] = take;
    }
}
#endif

/// Teams are rows.
template <class X>
struct ChooseForRows {
    using Number = Wide<X>;
    IndexedKeys<X> of;
    DecodeRows rows;
    int top;
    template <class Team>
    constexpr void operator()(const Team& team, unsigned b) const {
        choose_among(team, of.chosen + size_t(rows.sequence[b]) * of.room, of.scores + size_t(b) * of.room, rows.position[b] + 1, top);
    }
};

template <class Device, class X>
struct Decoding<deepseek_sparse, Device, X> {
    static constexpr int AT_ONCE = std::is_same_v<Device, CPU> ? 16 : 256;   // tokens of a prompt
    Index<X> memory_of_rows;   // of the tokens of one call
    IndexedKeys<X> kept;

    Decoding(const deepseek_sparse& p, BumpAllocator& memory, const CacheRoom& s)
        : memory_of_rows(memory, {std::max(s.B, AT_ONCE), 1, p.heads, p.dim, p.HS}),
          kept{s.T, memory.take<X>(size_t(s.B) * s.T * p.dim), memory.take<Wide<X>>(size_t(s.B) * s.T),
               memory.take<char>(size_t(s.B) * s.T)} {}

    void prefill(Device device, int sequence, const deepseek_sparse& p, LayerInputs<X> in, const X* weights, const LayerState<X>&) const {
        const int tokens = in.T;
        const Angles<Wide<X>> angles{in.cosine, in.sine};
        const X* const x = in.x;
        for (int first = 0; first < tokens; first += AT_ONCE) {
            in.T = std::min(AT_ONCE, tokens - first), in.x = x + size_t(first) * in.C;
            in.cosine = angles.from(first, in.HS).cosine, in.sine = angles.from(first, in.HS).sine;
            const Index<X> now = of_tokens(1, in.T);
            index_forward(device, now, in, weights, p.tensors);
            each_element(device, in.T, now.s.D, StoreIndexKeys<X>{kept.keys, kept.room, now, {{}, sequence, first}});
        }
    }
    template <class Step>
    void decode(const Step& step, const deepseek_sparse& p, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) const {
        const Index<X> now = of_tokens(in.B, 1);
        index_forward(Device(step), now, in, weights, p.tensors, {.of_token = step.rows.position});
        each_element(step, in.B, now.s.D, StoreIndexKeys<X>{kept.keys, kept.room, now, {step.rows}});
        const ScoreIndexKeys<X> scores{kept, now, step.rows, now.scale()};
        each_team<1>(Device(step), size_t(in.B) * scores.pieces(), scores);
        each_team<1>(Device(step), in.B, ChooseForRows<X>{kept, step.rows, p.most()});
        attention_forward(step, VisitedKeys(p, kept.chosen, in.NH, 1, kept.room, false), kernel_arguments(in, state, Statistics<X>{}));
    }

private:
    Index<X> of_tokens(int B, int T) const {
        Index<X> now = memory_of_rows;
        now.s.B = B, now.s.T = T;
        return now;
    }
};
