// Decoding of NSA (attention/nsa.cuh): slc's keys, the compressed keys, the newest tokens whose windows are incomplete, and the
// selection of blocks. The layer's own KV cache is win's.
#pragma once
#include <optional>

#include "attention/decoding/decoding.cuh"
#include "attention/decoding/visited.h"
#include "attention/nsa.cuh"

/// The keys or values of cmp.
template <class X>
class CompressedSequence {
public:
    CompressedSequence(BumpAllocator& memory, const LayerShape& room, const BlockGrid& grid)
        : shape_{1, grid.l, room.NKV, room.HS, room.HS, grid},
          latest_(memory.take<X>(grid.l * row())),
          hidden_(memory.take<X>(row())),
          compressed_(memory.take<X>(grid.rows(room.T) * row())),
          work_(memory, shape_) {}

    const X* compressed() const { return compressed_; }   // (complete blocks, NKV, HS)

    /// Starts with the first T tokens (T, NKV, HS), whose complete blocks have been compressed.
    void begin(Heads<const X> tokens, const X* compressed, int T) {
        std::copy_n(compressed, shape_.grid.complete(T) * row(), compressed_);
        for (int t = std::max(0, T - shape_.grid.l); t < T; t++) keep(tokens.data + t * tokens.row, t);
    }

    /// Adds token t (NKV, HS) and compresses the block that it completes, if any.
    void add(const X* token, int t, const X* weights, const Compressor& phi) {
        keep(token, t);
        const BlockGrid& grid = shape_.grid;
        const int blocks = grid.complete(t + 1);
        if (blocks == grid.complete(t)) return;
        // In the order of the sequence, once per block.
        std::rotate(latest_, latest_ + (t + 1) % grid.l * row(), latest_ + grid.l * row());
        compress_forward(CPU{}, compressed_ + (blocks - 1) * row(), hidden_, Heads<const X>{latest_, row()}, weights, phi, shape_,
                         work_);
        std::rotate(latest_, latest_ + (grid.l - (t + 1) % grid.l) % grid.l * row(), latest_ + grid.l * row());
    }

private:
    size_t row() const { return size_t(shape_.NKV) * shape_.HS; }
    void keep(const X* token, int t) { std::copy_n(token, row(), latest_ + t % shape_.grid.l * row()); }

    CompressShape shape_;   // of one block
    X *latest_, *hidden_;   // (l, NKV, HS) the last tokens, token t in row t mod l; (NKV, HS)
    X* compressed_;
    CompressWork<X> work_;
};

/// The compressed keys as an argument of attend().
template <class X>
struct CompressedKeys {
    int count;
    const X *k, *v;   // (count, NKV, HS)
    LayerShape s;
    template <class Use>
    void each_span(int h, Use use) const {
        if (count) use(span(h, 0, count));
    }
    size_t tile_size() const { return 0; }
    KeySpan<X> tile(int h, int c, int n, X*) const { return span(h, c, n); }
    KeySpan<X> span(int h, int c, int n) const {
        const size_t row = size_t(s.NKV) * s.HS, at = c * row + size_t(h / (s.NH / s.NKV)) * s.HS;
        return {c, n, {k + at, row}, {v + at, row}};
    }
};

template <class X>
struct Decoding<nsa, CPU, X> {
    CompressedSequence<X> k, v;
    std::optional<KVCache<CPU, X>> selected;   // slc's keys where they are not the model's
    int slots;
    int* choice;   // (NKV, slots) of the last token that chose

    Decoding(const nsa& n, BumpAllocator& memory, const CacheRoom& room)
        : k(memory, room, n.grid), v(memory, room, n.grid), slots(n.selection.slots(room.T)) {
        if (!n.shared) selected.emplace(memory, room, 0, KeptKeys{});
        choice = memory.take<int>(size_t(room.NKV) * slots);
    }

    void prefill(const nsa& n, const LayerInputs<X>& in, const X* /*weights*/, const LayerState<X>& state) {
        const NsaKept<X> kept = n.kept_in(state, in);
        k.begin(n.keys(in, kept), kept.k, in.T), v.begin(n.values(in, kept), kept.v, in.T);
        if (selected) selected->append(n.arguments(SLC, in, kept, state));
        for (int kv = 0; kv < in.NKV; kv++) {
            int* const of_head = choice + kv * slots;
            std::fill_n(of_head, slots, -1);
            std::copy_n(kept.choice + n.selection.choice(in).of_token(0, kv, (in.T - 1) / n.selection.every),
                        n.selection.choice(in).slots, of_head);
        }
    }

    template <class Step>
    void decode(const Step& step, const nsa& n, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) {
        const NsaKept<X> kept = n.kept_in(state, in);
        const int32_t t = step.keys.tokens();
        std::vector<X> logits(BRANCHES * in.NH);
        n.project(CPU{}, in, weights, kept, logits.data(), {.of_token = &t});
        if (selected) selected->append(n.arguments(SLC, in, kept, state));

        attention_forward(step, n.branch(WIN), n.arguments(WIN, in, kept, state));
        k.add(n.keys(in, kept).data, t, weights, n.phi_k), v.add(n.values(in, kept).data, t, weights, n.phi_v);
        const AttentionForward<X> cmp = n.arguments(CMP, in, kept, state), slc = n.arguments(SLC, in, kept, state);
        const CompressedKeys<X> compressed{n.grid.complete(t + 1), k.compressed(), v.compressed(), in};
        attend(cmp, compressed, [&](int h, QueryRow<X>& row, const KeySpan<X>& keys) {
            row.visit(n.branch(CMP), query_of(cmp, {}, h, t), keys);
        });
        if (slots > 0 && t % n.selection.every == 0) choose(n.grid, cmp, t);
        const auto selected_blocks = [&](int h, QueryRow<X>& row, const KeySpan<X>& keys) {
            const VisitedBlocks mask({n, TILE, 1, 2}, choice + h / (in.NH / in.NKV) * slots, slots);
            row.visit(mask, query_of(slc, {}, h, t), keys);
        };
        attend(slc, selected ? *selected : step.keys, selected_blocks);
        gated_sum(CPU{}, state.out, kept.branches, in.NH, in.HS);
    }

private:
    /// The choice of token t, after its attention to the compressed keys, `cmp`.
    void choose(const BlockGrid& grid, const AttentionForward<X>& cmp, int t) const {
        const int own = t / TILE, complete = grid.complete(t + 1), group = cmp.NH / cmp.NKV;
        Importance<X> importance{};
        importance.T = t + 1, importance.grid = grid;
        std::vector<int> order;
        for (int kv = 0; kv < cmp.NKV; kv++) {
            std::vector<X> shares(complete), scores(own + 1);
            for (int h = kv * group; h < (kv + 1) * group; h++)
                for (int c = 0; c < complete; c++) {
                    const X* const key = k.compressed() + (size_t(c) * cmp.NKV + kv) * cmp.HS;
                    shares[c] +=
                        exp_of(inner_product(cmp.q.data + size_t(h) * cmp.HS, key, cmp.HS) / std::sqrt(X(cmp.HS)) - cmp.lse[h]);
                }
            for (int j = 0; j <= own; j++) scores[j] = importance.score(shares.data(), 0, 0, complete, j);
            choose_blocks(CPU{}, choice + kv * slots, scores.data(), choice_of_blocks(slots), own, order);
        }
    }
};

#ifdef WITH_GPU

/// The last l tokens of each sequence: cmp's keys or values.
template <class X>
struct LatestTokens {
    X* tokens;   // (sequences, l, NKV, HS), the one at position p in row p mod l
    int l, width;
    constexpr X& at(int sequence, int position, int d) const { return tokens[(size_t(sequence) * l + position % l) * width + d]; }
};

/// Stores tokens to.first .. to.first + to.count - 1 of each sequence. No two of them share a row.
template <class X>
struct StoreLatest {
    LatestTokens<X> latest;
    Heads<const X> from;
    NewKeys to;
    constexpr void operator()(unsigned row, int d) const {
        const int b = int(row) / to.count, t = to.first + int(row) % to.count;
        latest.at(to.sequence_of(b), to.position(b, t), d) = from.data[row * from.row + d];
    }
};

/// ordered (B, l, NKV, HS): the last l tokens of each row's sequence, undefined while it has fewer.
template <class X>
struct OrderLatest {
    X* ordered;
    LatestTokens<X> latest;
    DecodeRows rows;
    constexpr void operator()(unsigned row, int d) const {
        const int b = int(row) / latest.l, back = latest.l - 1 - int(row) % latest.l;
        ordered[size_t(row) * latest.width + d] = latest.at(rows.sequence[b], std::max(0, rows.position[b] - back), d);
    }
};

/// Stores the keys and values k, v (B, NKV, HS) of the blocks that end with the rows' tokens, if any.
template <class X>
struct StoreCompressed {
    KVCache<GPU, X> to;
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

/// Copies the choice of the last row of a whole sequence to `to`, (NKV, slots) of the sequence's choice.
struct CopyChoice {
    int* to;   // of the sequence
    const int* from;
    BlockChoice c;   // of one sequence
    int slots;
    constexpr void operator()(unsigned kv, int n) const {
        to[kv * slots + n] = n < c.slots ? from[c.of_token(0, int(kv), c.T - 1) + n] : -1;
    }
};

/// Block (64 compressed keys, key head, row): the sum over the row's query heads of their attention to each key. One key per warp at
/// a time.
template <class X>
__global__ void shares_of_rows_kernel(float* shares, const KVCache<GPU, X> keys, const AttentionForward<X> cmp,
                                      const DecodeRows rows, const BlockGrid grid) {
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

/// One warp per (key head, row), with the scores of blocks in shared memory. Rows whose token does not choose keep their choice.
template <class X>
__global__ void choose_for_sequences_kernel(int* choice, const float* shares, const Importance<X> importance, const DecodeRows rows,
                                            int room, int slots) {
    float* scores = &dynamic_shared<float>();
    const int kv = blockIdx.x, b = blockIdx.y, NKV = gridDim.x, position = rows.position[b], own = position / TILE;
    if (position % importance.every) return;
    const int complete = importance.grid.complete(position + 1);
    for (int j = lane_of(); j <= own; j += WARP)
        scores[j] = importance.score(shares + (size_t(b) * NKV + kv) * room, 0, 0, complete, j);
    __syncwarp();
    choose_blocks(choice + (size_t(rows.sequence[b]) * NKV + kv) * slots, scores, choice_of_blocks(slots), own);
}

template <class X>
struct Decoding<nsa, GPU, X> {
    BlockGrid grid;
    int every, slots, room;
    LatestTokens<X> k, v;
    KVCache<GPU, X> compressed;
    std::optional<KVCache<GPU, X>> selected;   // slc's keys where they are not the model's
    int* choice;                               // (sequences, NKV, slots) of the last token that chose

    // Memory for the rows of a step.
    CompressShape shape;
    CompressWork<X> work;
    X *ordered, *logits;   // (B, l, NKV, HS); (B, 3, NH) of the gates
    float* shares;         // (B, NKV, compressed keys)
    int32_t* last_block;   // (B)

    Decoding(const nsa& n, BumpAllocator& memory, const CacheRoom& s)
        : grid(n.grid), every(n.selection.every), slots(n.selection.slots(s.T)), room(s.T), k(latest(memory, s)),
          v(latest(memory, s)), compressed(memory, {s.B, grid.rows(s.T), s.C, s.NH, s.NKV, s.HS}, 0, KeptKeys{}),
          shape{s.B, grid.l, s.NKV, s.HS, s.HS, grid}, work(memory, shape) {
        if (!n.shared) selected.emplace(memory, s, 0, KeptKeys{});
        choice = memory.take<int>(size_t(s.B) * s.NKV * slots);
        ordered = memory.take<X>(size_t(s.B) * grid.l * k.width), logits = memory.take<X>(size_t(s.B) * BRANCHES * s.NH);
        shares = memory.take<float>(size_t(s.B) * s.NKV * compressed.slots.count());
        last_block = memory.take<int32_t>(s.B);
    }

    void prefill(const GPU& device, int sequence, const nsa& n, const LayerInputs<X>& in, const X* /*weights*/,
                 const LayerState<X>& state) {
        const NsaKept<X> kept = n.kept_in(state, in);
        const NewKeys last{{}, sequence, std::max(0, in.T - grid.l), std::min(in.T, grid.l)};
        for (auto [latest, all] : {std::pair(k, n.keys(in, kept)), std::pair(v, n.values(in, kept))})
            each_element(device, last.count, k.width,
                         StoreLatest<X>{latest, {all.data + size_t(last.first) * all.row, all.row}, last});
        append(device, compressed, n.arguments(CMP, in, kept, state), NewKeys{{}, sequence, 0, grid.complete(in.T)});
        if (selected) append_prompt(device, *selected, n.arguments(SLC, in, kept, state), sequence);
        int* const of_sequence = choice + size_t(sequence) * in.NKV * slots;
        if (slots > 0) each_element(device, in.NKV, slots, CopyChoice{of_sequence, kept.choice, n.selection.choice(in), slots});
    }

    template <class Step>
    void decode(const Step& step, const nsa& n, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) const {
        const NsaKept<X> kept = n.kept_in(state, in);
        n.project(GPU(step), in, weights, kept, logits, {.of_token = step.rows.position});
        attention_forward(step, n.branch(WIN), n.arguments(WIN, in, kept, state));
        const AttentionForward<X> cmp = n.arguments(CMP, in, kept, state), slc = n.arguments(SLC, in, kept, state);
        compress(step, step.rows, n, in, kept, weights);
        visit(step, compressed, {step.rows.sequence, last_block}, cmp, NsaBranch{n, 1, 0, INT_MAX});   // all complete blocks
        choose(step, cmp, step.rows);
        if (selected) append(step, *selected, slc, step.rows);
        visit(step, selected ? *selected : step.keys, step.rows, slc,
              VisitedBlocksOfSequences({n, TILE, 1, 2}, choice, in.NH, in.NKV, slots));
        gated_sum(step, state.out, kept.branches, size_t(in.B) * in.NH, in.HS);
    }

private:
    LatestTokens<X> latest(BumpAllocator& memory, const LayerShape& s) const {
        return {memory.take<X>(size_t(s.B) * grid.l * s.NKV * s.HS), grid.l, s.NKV * s.HS};
    }

    /// Adds the rows' tokens, and the blocks that they complete. `kept` is a forward pass's memory for the rows.
    void compress(const GPU& device, const DecodeRows& rows, const nsa& n, const LayerInputs<X>& in, const NsaKept<X>& kept,
                  const X* weights) const {
        CompressShape now = shape;
        now.B = in.B;
        const auto add = [&](const LatestTokens<X>& latest, const Heads<const X>& tokens, X* out, X* hidden,
                             const Compressor& phi) {
            each_element(device, in.B, latest.width, StoreLatest<X>{latest, tokens, {rows}});
            each_element(device, size_t(in.B) * grid.l, latest.width, OrderLatest<X>{ordered, latest, rows});
            compress_forward(device, out, hidden, Heads<const X>{ordered, size_t(latest.width)}, weights, phi, now, work);
        };
        add(k, n.keys(in, kept), kept.k, kept.k_hidden, n.phi_k), add(v, n.values(in, kept), kept.v, kept.v_hidden, n.phi_v);
        each_element(device, in.B, k.width, StoreCompressed<X>{compressed, kept.k, kept.v, rows, grid});
        each_element(device, in.B, 1, LastBlocks{last_block, rows, grid});
    }

    /// Precondition: the attention to the compressed keys, `cmp`, is computed.
    void choose(const GPU& device, const AttentionForward<X>& cmp, const DecodeRows& rows) const {
        if (slots == 0) return;
        Importance<X> importance{};
        importance.T = room, importance.grid = grid, importance.every = every;
        const int keys = compressed.slots.count();
        launch(device, shares_of_rows_kernel<X>, Grid(blocks_for(keys, TILE), cmp.NKV, cmp.B), 4 * WARP, 0, shares, compressed, cmp,
               rows, grid);
        launch(device, choose_for_sequences_kernel<X>, Grid(cmp.NKV, cmp.B), WARP, sizeof(float) * tiles_of(room), choice, shares,
               importance, rows, keys, slots);
    }

    /// Attention of the rows in `a` to `keys` under `mask`.
    template <class Slots, class Mask>
    static void visit(const GPU& device, const KVCache<GPU, X, Slots>& keys, const DecodeRows& rows, const AttentionForward<X>& a,
                      const Mask& mask) {
        DecodeSoftmax<X, Slots> softmax(device, keys, rows, a, 1);
        softmax.add(mask, a.q);
        softmax.finish();
    }
};

#endif
