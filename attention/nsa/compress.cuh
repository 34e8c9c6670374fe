// Compression of keys or values: blocks of l tokens, one every d tokens, each turned into one key by a small network phi.
//     phi(block) = W2 GELU(W1 flatten(block + pe) + b1)
// A block (l, HS) is consecutive tokens of one key/value head; pe (l, HS) encodes their positions; W1 is (HS, l HS), W2 (HS, HS).
// Blocks are copied, so that both products are of plain matrices. If d < l a token is in several blocks, and its gradient is the sum
// over them in order.
// Blocks of packed documents are numbered by document_blocks.h; numbers without a block have a key that no query sees.
#pragma once
#include "attention/blocks/document_blocks.h"
#include "attention/mechanism.h"
#include "attention/scores/each_element.cuh"
#include "attention/scores/projection.cuh"

/// Compressed key c covers tokens c d .. c d + l - 1, of a document.
struct BlockGrid {
    int l, d;

    /// Blocks that are complete within the first `tokens` tokens.
    constexpr int complete(int tokens) const { return tokens < l ? 0 : (tokens - l) / d + 1; }

    /// Rows of the compressed keys of T tokens. Without a complete block there is still one, which no query sees, so
    /// that kernels always have a key.
    constexpr int rows(int T) const { return complete(T) > 0 ? complete(T) : 1; }
};

/// Attention to compressed keys: key j covers tokens j stride .. j stride + last, and is visible when all of them are in the past and the
/// first is at most `left` back.
struct CompressedMask : Policy {
    int stride, last, left;

    constexpr Tile tile(int /*h*/, int i0, int i1, int j0, int j1) const {
        if (j0 * stride + last > i1 - 1 || i0 - (j1 - 1) * stride > left) return Tile::hidden;
        return (j1 - 1) * stride + last <= i0 && i1 - 1 - j0 * stride <= left ? Tile::full : Tile::mixed;
    }
    constexpr bool visible(int /*h*/, int i, int j) const { return j * stride + last <= i && i - j * stride <= left; }
};

/// The network phi for keys or for values, as slots of the flat buffers.
struct Compressor {
    Slot pe, w1, b1, w2;
};

/// Compresses `inp` (B, T, NKV, HS) to (B, R, NKV, HS), R = grid.rows(T), through HS hidden units.
struct CompressShape {
    int B, T, NKV, HS;
    BlockGrid grid;
    Documents documents = {};
    constexpr DocumentBlocks blocks() const { return {grid.l, grid.d, T, documents}; }
    constexpr size_t keys() const { return size_t(B) * grid.rows(T) * NKV; }
    constexpr int width() const { return grid.l * HS; }
};

/// Rows are (b, h).
struct PlaceBlocks {
    int* positions;
    CompressShape s;
    int NH;
    constexpr void operator()(unsigned bh, int n) const {
        positions[size_t(bh) * s.grid.rows(s.T) + n] = s.blocks().begin(int(bh) / NH, n);
    }
};

/// positions (B, NH, R) of the blocks of packed documents: their first tokens, or -1.
template <class Device>
void place_compressed(Device device, int* positions, const CompressShape& s, int NH) {
    if (s.documents) each_element(device, size_t(s.B) * NH, s.grid.rows(s.T), PlaceBlocks{positions, s, NH});
}

/// Scratch memory of one call.
template <class X>
struct CompressWork {
    X *blocks, *dblocks;        // (keys, l HS) the flattened blocks, pe added
    X *activated, *dhidden;     // (keys, HS)
    CompressWork(BumpAllocator& allocator, const CompressShape& s) {
        blocks = allocator.take<X>(s.keys() * s.width()), dblocks = allocator.take<X>(s.keys() * s.width());
        activated = allocator.take<X>(s.keys() * s.HS), dhidden = allocator.take<X>(s.keys() * s.HS);
    }
};

/// Rows are (b, block, key/value head, token of the block); zero past the end of the sequence, and where there is no block.
template <class X>
struct CopyBlocks {
    X* blocks;
    Heads<const X> inp;
    const X* pe;
    CompressShape s;

    /// One row's elements; `from` is null for a row of zeros.
    struct OfRow {
        X* to;
        const X *from, *pe;
        constexpr void operator()(int n) const { to[n] = narrowed<X>((from ? widened(from[n]) : Wide<X>(0)) + widened(pe[n])); }
    };
    constexpr OfRow of_row(unsigned row) const {
        const unsigned place = row % s.grid.l, key = row / s.grid.l, kv = key % s.NKV, block = key / s.NKV;
        const unsigned b = block / s.grid.rows(s.T);
        const int begin = s.blocks().begin(b, block % s.grid.rows(s.T)), t = begin + int(place);
        const X* const from = begin >= 0 && t < s.T ? inp.data + (size_t(b) * s.T + t) * inp.row + kv * s.HS : nullptr;
        return {blocks + size_t(row) * s.HS, from, pe + place * s.HS};
    }
    constexpr void operator()(unsigned row, int n) const { of_row(row)(n); }
};

/// Rows are (b, token, key/value head): the sum over the blocks that the token is in.
template <class Y, class X>
struct SumBlocks {
    Heads<Y> dinp;
    const X* dblocks;
    CompressShape s;
    bool add;

    constexpr void operator()(unsigned row, int n) const {
        const unsigned kv = row % s.NKV, token = row / s.NKV, b = token / s.T;
        const int l = s.grid.l, d = s.grid.d, rows = s.grid.rows(s.T), t = int(token % s.T);
        const DocumentBlocks blocks = s.blocks();
        const int inside = blocks.inside(b, t), first = blocks.first(b, t);
        Y& to = dinp.data[token * dinp.row + kv * s.HS + n];
        Wide<Y> sum = add ? widened(to) : Wide<Y>(0);
        for (int c = inside < l ? 0 : (inside - l) / d + 1; first + c < rows && c * d <= inside; c++) {
            const int place = inside - c * d;
            if (blocks.begin(b, first + c) != t - place) continue;   // it would extend past the document's end
            sum += widened(dblocks[(((size_t(b) * rows + first + c) * s.NKV + kv) * l + place) * s.HS + n]);
        }
        to = narrowed<Y>(sum);
    }
};

template <class X>
struct ActivateHidden {
    X* activated;
    const X* hidden;
    int width;
    constexpr void operator()(unsigned row, int n) const {
        const size_t at = size_t(row) * width + n;
        activated[at] = narrowed<X>(gelu(widened(hidden[at])));
    }
};

/// dhidden holds the gradient of GELU's output on entry and that of its input on return.
template <class X>
struct ActivateHiddenBackward {
    X* dhidden;
    const X* hidden;
    int width;
    constexpr void operator()(unsigned row, int n) const {
        const size_t at = size_t(row) * width + n;
        dhidden[at] = narrowed<X>(widened(dhidden[at]) * gelu_and_slope(widened(hidden[at])).slope);
    }
};

/// out (columns) += sums over the rows of matrix (rows, columns), in order.
template <class X>
void add_column_sums(CPU, X* out, const X* matrix, size_t rows, int columns) {
    const int width = 32;   // columns that a thread owns
#pragma omp parallel for
    for (int n0 = 0; n0 < columns; n0 += width)
        for (size_t row = 0; row < rows; row++)
            for (int n = n0; n < std::min(columns, n0 + width); n++) out[n] += matrix[row * columns + n];
}
#ifdef WITH_GPU
template <class X>
void add_column_sums(GPU device, Wide<X>* out, const X* matrix, size_t rows, int columns) {
    column_sum(device, out, matrix, rows, columns, Write::add);
}
#endif

/// out (B, R, NKV, HS) = phi of the blocks of inp; `hidden` (B, R, NKV, HS) is kept for the backward pass.
template <class Device, class X>
void compress_forward(Device device, X* out, X* hidden, Heads<const X> inp, const X* weights, const Compressor& phi,
                      const CompressShape& s, const CompressWork<X>& work) {
    const int keys = int(s.keys());
    each_element(device, s.keys() * s.grid.l, s.HS, CopyBlocks<X>{work.blocks, inp, weights + phi.pe.offset, s});
    projection_forward(device, hidden, work.blocks, weights + phi.w1.offset, weights + phi.b1.offset, keys, s.width(), s.HS);
    each_element(device, keys, s.HS, ActivateHidden<X>{work.activated, hidden, s.HS});
    projection_forward(device, out, work.activated, weights + phi.w2.offset, nullptr, keys, s.HS, s.HS);
}

/// dinp (B, T, NKV, HS) = or += from dout (B, R, NKV, HS); the gradients of phi's tensors are added to dweights.
template <class Device, class Y, class X>
void compress_backward(Device device, Heads<Y> dinp, Wide<X>* dweights, const X* dout, const X* hidden, Heads<const X> inp,
                       const X* weights, const Compressor& phi, const CompressShape& s, const CompressWork<X>& work, Write write) {
    const int keys = int(s.keys());
    each_element(device, keys, s.HS, ActivateHidden<X>{work.activated, hidden, s.HS});
    projection_backward_weight(device, dweights + phi.w2.offset, nullptr, dout, work.activated, keys, s.HS, s.HS);
    projection_backward_input(device, work.dhidden, dout, weights + phi.w2.offset, keys, s.HS, s.HS, Write::overwrite);
    each_element(device, keys, s.HS, ActivateHiddenBackward<X>{work.dhidden, hidden, s.HS});

    each_element(device, s.keys() * s.grid.l, s.HS, CopyBlocks<X>{work.blocks, inp, weights + phi.pe.offset, s});
    projection_backward_weight(device, dweights + phi.w1.offset, dweights + phi.b1.offset, work.dhidden, work.blocks, keys, s.width(),
                               s.HS);
    projection_backward_input(device, work.dblocks, work.dhidden, weights + phi.w1.offset, keys, s.width(), s.HS, Write::overwrite);
    add_column_sums(device, dweights + phi.pe.offset, work.dblocks, s.keys(), s.width());
    each_element(device, size_t(s.B) * s.T * s.NKV, s.HS, SumBlocks<Y, X>{dinp, work.dblocks, s, write == Write::add});
}
