// What NSA keeps of a text that is being written, on the CPU: slc's keys, the last tokens that phi has not seen all windows of, the
// compressed keys, and the choice of blocks. The layer's own cache of keys is win's.
#pragma once
#include <optional>

#include "attention/kernel/decode.h"
#include "attention/nsa/compress.cuh"
#include "attention/nsa/importance.cuh"
#include "attention/nsa/nsa_memory.cuh"

/// The keys or the values of cmp.
template <class X>
class CompressedText {
public:
    CompressedText(BumpAllocator& memory, const LayerShape& room, const BlockGrid& grid)
        : shape_{1, grid.l, room.NKV, room.HS, room.HS, grid},
          latest_(memory.take<X>(grid.l * row())),
          hidden_(memory.take<X>(row())),
          compressed_(memory.take<X>(grid.rows(room.T) * row())),
          work_(memory, shape_) {}

    const X* compressed() const { return compressed_; }   // (complete blocks, NKV, HS)

    /// The first T tokens (T, NKV, HS), whose complete blocks have been compressed.
    void begin(Heads<const X> tokens, const X* compressed, int T) {
        std::copy_n(compressed, shape_.grid.complete(T) * row(), compressed_);
        for (int t = std::max(0, T - shape_.grid.l); t < T; t++) keep(tokens.data + t * tokens.row, t);
    }

    /// Token t (NKV, HS); the block that it completes, if any, is compressed.
    void add(const X* token, int t, const X* weights, const Compressor& phi) {
        keep(token, t);
        const BlockGrid& grid = shape_.grid;
        const int blocks = grid.complete(t + 1);
        if (blocks == grid.complete(t)) return;
        std::rotate(latest_, latest_ + (t + 1) % grid.l * row(), latest_ + grid.l * row());   // in the order of the text, once per block
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

/// The compressed keys as an argument of attend_next_row().
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
struct NsaText {
    CompressedText<X> k, v;
    std::optional<KeyCache<X>> selected;   // slc's keys where they are not the model's
    BlockGrid grid;
    int slots;
    int* choice;   // (NKV, slots) of the last token that chose

    NsaText(BumpAllocator& memory, const CacheRoom& room, const BlockGrid& grid_, bool shared, int slots_)
        : k(memory, room, grid_), v(memory, room, grid_), grid(grid_), slots(slots_) {
        if (!shared) selected.emplace(memory, room, 0, KeptKeys{});
        choice = memory.take<int>(size_t(room.NKV) * slots);
    }

    CompressedKeys<X> compressed(int complete, const LayerShape& s) const { return {complete, k.compressed(), v.compressed(), s}; }

    /// The choice of token t, after its attention to the compressed keys, `cmp`.
    void choose(const AttentionForward<X>& cmp, int t) const {
        const int own = t / TILE, complete = grid.complete(t + 1), group = cmp.NH / cmp.NKV;
        Importance<X> importance{};
        importance.T = t + 1, importance.grid = grid;
        std::vector<int> order;
        for (int kv = 0; kv < cmp.NKV; kv++) {
            std::vector<X> shares(complete), scores(own + 1);
            for (int h = kv * group; h < (kv + 1) * group; h++)
                for (int c = 0; c < complete; c++) {
                    const X* const key = k.compressed() + (size_t(c) * cmp.NKV + kv) * cmp.HS;
                    shares[c] += exp_of(inner_product(cmp.q.data + size_t(h) * cmp.HS, key, cmp.HS) / std::sqrt(X(cmp.HS)) - cmp.lse[h]);
                }
            for (int j = 0; j <= own; j++) scores[j] = importance.score(shares.data(), 0, 0, complete, j);
            choose_blocks(CPU{}, choice + kv * slots, scores.data(), choice_of_blocks(slots), own, order);
        }
    }
};
