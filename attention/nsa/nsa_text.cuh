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

/// The compressed keys as attend_next_row() asks for them.
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
    int* choice;                           // (NKV, slots) of the last token that chose

    CompressedKeys<X> compressed(int complete, const LayerShape& s) const { return {complete, k.compressed(), v.compressed(), s}; }

    NsaText(BumpAllocator& memory, const TextRoom& room, const BlockGrid& grid, bool shared, int slots)
        : k(memory, room, grid), v(memory, room, grid) {
        if (!shared) selected.emplace(memory, room, 0, KeptKeys{});
        choice = memory.take<int>(size_t(room.NKV) * slots);
    }
};
