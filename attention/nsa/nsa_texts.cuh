// What NSA keeps of texts that are being written on a GPU, and what their next rows choose. (On the CPU, for one text: nsa_text.cuh.)
#pragma once
#include <optional>

#include "attention/kernel/next_rows.cuh"
#include "attention/nsa/importance.cuh"
#include "attention/nsa/nsa_memory.cuh"

#ifdef WITH_GPU

/// The last l tokens of each text: cmp's keys or its values.
template <class X>
struct LatestTokens {
    X* tokens;   // (texts, l, NKV, HS), the one at position p in row p mod l
    int l, width;
    constexpr X& at(int text, int position, int d) const { return tokens[(size_t(text) * l + position % l) * width + d]; }
};

/// Tokens to.first .. to.first + to.count - 1 of each of the sequences, of which no two take one row.
template <class X>
struct KeepLatest {
    LatestTokens<X> latest;
    Heads<const X> from;
    NewKeys to;
    constexpr void operator()(unsigned row, int d) const {
        const int b = int(row) / to.count, t = to.first + int(row) % to.count;
        latest.at(to.text_of(b), to.position(b, t), d) = from.data[row * from.row + d];
    }
};

/// ordered (B, l, NKV, HS): of the text of each row its last l tokens. Before it has as many, the result has no meaning.
template <class X>
struct PutInOrder {
    X* ordered;
    LatestTokens<X> latest;
    DecodeRows rows;
    constexpr void operator()(unsigned row, int d) const {
        const int b = int(row) / latest.l, back = latest.l - 1 - int(row) % latest.l;
        ordered[size_t(row) * latest.width + d] = latest.at(rows.sequence[b], std::max(0, rows.position[b] - back), d);
    }
};

/// The keys and values k, v (B, NKV, HS) of the blocks that end with the rows' tokens, where a block does.
template <class X>
struct KeepCompressed {
    TextKeys<X> to;
    const X *k, *v;
    DecodeRows rows;
    BlockGrid grid;
    constexpr void operator()(unsigned b, int n) const {
        const int blocks = grid.complete(rows.position[b] + 1);
        if (blocks == grid.complete(rows.position[b])) return;
        const size_t from = b * size_t(to.NKV * to.HS) + n;
        const size_t at = to.head_at(rows.sequence[b], n / to.HS) + size_t(blocks - 1) * to.HS + n % to.HS;
        to.k[at] = k[from], to.v[at] = v[from];
    }
};

/// last (B): the last block that is complete with each row's token, or -1.
struct LastBlocks {
    int32_t* last;
    DecodeRows rows;
    BlockGrid grid;
    constexpr void operator()(unsigned b, int) const { last[b] = grid.complete(rows.position[b] + 1) - 1; }
};

/// choice (texts, NKV, slots) of a text: the last of the rows of a whole sequence's.
struct CopyChoice {
    int* to;   // of the text
    const int* from;
    BlockChoice c;   // of one sequence
    int slots;
    constexpr void operator()(unsigned kv, int n) const {
        to[kv * slots + n] = n < c.slots ? from[c.of_token(0, int(kv), c.T - 1) + n] : -1;
    }
};

/// Block (64 compressed keys, key head, row): what the row's query heads together attend to each of them. A warp takes every fourth.
template <class X>
__global__ void shares_of_rows_kernel(float* shares, const TextKeys<X> keys, const AttentionForward<X> cmp, const DecodeRows rows,
                                      const BlockGrid grid) {
    const int kv = blockIdx.y, b = blockIdx.z, first = int(blockIdx.x) * TILE, group = cmp.NH / cmp.NKV;
    const int end = min(grid.complete(rows.position[b] + 1), first + TILE);
    float* const to = shares + (size_t(b) * cmp.NKV + kv) * keys.slots.count();
    for (int c = first + int(threadIdx.x) / WARP; c < end; c += int(blockDim.x) / WARP) {
        const X* const key = keys.k + keys.head_at(rows.sequence[b], kv) + size_t(c) * cmp.HS;
        float share = 0;
        for (int h = kv * group; h < (kv + 1) * group; h++) {
            const X* const query = cmp.q.data + b * cmp.q.row + size_t(h) * cmp.HS;
            float product = 0;
            for (int d = lane_of(); d < cmp.HS; d += WARP) product += to_float(query[d]) * to_float(key[d]);
            share += exp_of(warp_sum(product) * rsqrtf(float(cmp.HS)) - cmp.lse[size_t(b) * cmp.NH + h]);
        }
        if (lane_of() == 0) to[c] = share;
    }
}

/// One warp per (key head, row), with the scores of blocks in shared memory. Rows whose token does not choose keep the choice.
template <class X>
__global__ void choose_for_texts_kernel(int* choice, const float* shares, const Importance<X> importance, const DecodeRows rows, int room,
                                        int slots) {
    float* scores = &dynamic_shared<float>();
    const int kv = blockIdx.x, b = blockIdx.y, NKV = gridDim.x, position = rows.position[b], own = position / TILE;
    if (position % importance.every) return;
    const int complete = importance.grid.complete(position + 1);
    for (int j = lane_of(); j <= own; j += WARP) scores[j] = importance.score(shares + (size_t(b) * NKV + kv) * room, 0, 0, complete, j);
    __syncwarp();
    choose_blocks(choice + (size_t(rows.sequence[b]) * NKV + kv) * slots, scores, choice_of_blocks(slots), own);
}

template <class X>
struct NsaTexts {
    BlockGrid grid;
    int every, slots, room;
    LatestTokens<X> k, v;
    TextKeys<X> compressed;
    std::optional<TextKeys<X>> selected;   // slc's keys where they are not the model's
    int* choice;                           // (texts, NKV, slots) of the last token that chose

    // Of the rows of a step.
    CompressShape shape;
    CompressWork<X> work;
    X *ordered, *logits;   // (B, l, NKV, HS); (B, 3, NH) of the gates
    float* shares;         // (B, NKV, compressed keys)
    int32_t* last_block;   // (B)

    /// For s.B texts of at most s.T tokens each.
    template <class P>
    NsaTexts(const P& policy, BumpAllocator& memory, const LayerShape& s)
        : grid(policy.grid), every(policy.selection.every), slots(policy.selection.slots(s.T)), room(s.T), k(latest(memory, s)),
          v(latest(memory, s)), compressed(memory, {s.B, grid.rows(s.T), s.C, s.NH, s.NKV, s.HS}, 0, KeptKeys{}),
          shape{s.B, grid.l, s.NKV, s.HS, s.HS, grid}, work(memory, shape) {
        if (!policy.shared) selected.emplace(memory, s, 0, KeptKeys{});
        choice = memory.take<int>(size_t(s.B) * s.NKV * slots);
        ordered = memory.take<X>(size_t(s.B) * grid.l * k.width), logits = memory.take<X>(size_t(s.B) * BRANCHES * s.NH);
        shares = memory.take<float>(size_t(s.B) * s.NKV * compressed.slots.count());
        last_block = memory.take<int32_t>(s.B);
    }

    /// The first in.T tokens of a text.
    template <class P>
    void begin(GPU device, int text, const P& policy, const LayerInputs<X>& in, const X* /*weights*/, const LayerState<X>& state) const {
        const NsaKept<X> kept = policy.kept_in(state, in);
        const NewKeys last{{}, text, std::max(0, in.T - grid.l), std::min(in.T, grid.l)};
        for (auto [latest, all] : {std::pair(k, policy.keys(in, kept)), std::pair(v, policy.values(in, kept))})
            each_element(device, last.count, k.width,
                         KeepLatest<X>{latest, {all.data + size_t(last.first) * all.row, all.row}, last});
        append(device, compressed, policy.arguments(CMP, in, kept, state), {{}, text, 0, grid.complete(in.T)});
        if (selected) keep_prompt(device, *selected, policy.arguments(SLC, in, kept, state), text);
        int* const of_text = choice + size_t(text) * in.NKV * slots;
        if (slots > 0) each_element(device, in.NKV, slots, CopyChoice{of_text, kept.choice, policy.selection.choice(in), slots});
    }

    /// Tokens of rows (B, NKV, HS), and the blocks that they complete; `kept` is memory of a forward pass over them.
    void add(GPU device, const DecodeRows& rows, int B, const Heads<const X>& keys, const Heads<const X>& values, const NsaKept<X>& kept,
             const X* weights, const Compressor& phi_k, const Compressor& phi_v) const {
        CompressShape now = shape;
        now.B = B;
        const auto compress = [&](const LatestTokens<X>& latest, const Heads<const X>& tokens, X* out, X* hidden, const Compressor& phi) {
            each_element(device, B, latest.width, KeepLatest<X>{latest, tokens, {rows}});
            each_element(device, size_t(B) * grid.l, latest.width, PutInOrder<X>{ordered, latest, rows});
            compress_forward(device, out, hidden, Heads<const X>{ordered, size_t(latest.width)}, weights, phi, now, work);
        };
        compress(k, keys, kept.k, kept.k_hidden, phi_k), compress(v, values, kept.v, kept.v_hidden, phi_v);
        each_element(device, B, k.width, KeepCompressed<X>{compressed, kept.k, kept.v, rows, grid});
        each_element(device, B, 1, LastBlocks{last_block, rows, grid});
    }

    /// Where rows stand among the compressed keys.
    DecodeRows among_blocks(const DecodeRows& rows) const { return {rows.sequence, last_block}; }

    /// After attention to the compressed keys, `cmp`.
    void choose(GPU device, const AttentionForward<X>& cmp, const DecodeRows& rows) const {
        if (slots == 0) return;
        Importance<X> importance{};
        importance.T = room, importance.grid = grid, importance.every = every;
        const int keys = compressed.slots.count();
        launch(device, shares_of_rows_kernel<X>, Grid(blocks_for(keys, TILE), cmp.NKV, cmp.B), 4 * WARP, 0, shares, compressed, cmp, rows,
               grid);
        launch(device, choose_for_texts_kernel<X>, Grid(cmp.NKV, cmp.B), WARP, sizeof(float) * tiles_of(room), choice, shares, importance,
               rows, keys, slots);
    }

private:
    LatestTokens<X> latest(BumpAllocator& memory, const LayerShape& s) const {
        return {memory.take<X>(size_t(s.B) * grid.l * s.NKV * s.HS), grid.l, s.NKV * s.HS};
    }
};

/// Attention of the next rows in `a` to `keys`, as `policy` lets them see.
template <class X, class P>
void attend_next_rows(const GPU& device, const TextKeys<X>& keys, const DecodeRows& rows, const AttentionForward<X>& a, const P& policy) {
    RowsSoftmax<X> softmax(device, keys, rows, a, 1);
    softmax.add(policy, a.q);
    softmax.finish();
}

#endif
