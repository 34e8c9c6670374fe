// Texts with a common beginning (prefix), in two layouts. As rows of one sequence, in which the layers between attention compute each
// token once, the prefix stands once, followed by the rest of every text:
//
//     rows     c c c c  a a  b          two texts
//     texts    c c c c a a | c c c c b
//
// For attention the texts are complete: (B, T), each from its first token on.
#pragma once
#include <algorithm>

#include "model/device/device.h"

/// The rows of one text.
struct SharedText {
    int begin, shared;   // the prefix: first row and number of tokens
    int row, own;        // the rest: first row and number of tokens
    int first;           // 1 for the first text with this prefix, whose copy goes back to the rows

    constexpr int tokens() const { return shared + own; }
    constexpr int row_of(int t) const { return t < shared ? begin + t : row + (t - shared); }
    /// Whether this text writes row_of(t).
    constexpr bool writes(int t) const { return t < tokens() && (first || t >= shared); }
};

/// Gathers the rows of each text from `from` (rows, stride) into `to` (B, T, width), padded with zeros.
template <class X>
void gather_texts(CPU, X* to, const X* from, size_t stride, const SharedText* texts, int B, int T, int width) {
#pragma omp parallel for collapse(2)
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++) {
            X* const row = to + (size_t(b) * T + t) * width;
            if (t < texts[b].tokens()) std::copy_n(from + texts[b].row_of(t) * stride, width, row);
            else std::fill_n(row, width, X{});
        }
}

/// The inverse: scatters the texts' rows in `from` (B, T, width) to `to` (rows, width).
template <class X>
void scatter_texts(CPU, X* to, const X* from, const SharedText* texts, int B, int T, int width) {
#pragma omp parallel for collapse(2)
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++)
            if (texts[b].writes(t)) std::copy_n(from + (size_t(b) * T + t) * width, width, to + size_t(texts[b].row_of(t)) * width);
}

#ifdef WITH_GPU

/// Block (t, b): token t of text b.
template <class X>
__global__ void gather_texts_kernel(X* to, const X* from, size_t stride, const SharedText* texts, int T, int width) {
    const int t = int(blockIdx.x), b = int(blockIdx.y);
    const SharedText text = texts[b];
    X* const row = to + (size_t(b) * T + t) * width;
    const X* const source = from + text.row_of(t) * stride;
    for (int n = int(threadIdx.x) * Packed<X>::size; n < width; n += int(blockDim.x) * Packed<X>::size)
        store_packed(row + n, load_packed_if(t < text.tokens(), source + n));
}
template <class X>
__global__ void scatter_texts_kernel(X* to, const X* from, const SharedText* texts, int T, int width) {
    const int t = int(blockIdx.x), b = int(blockIdx.y);
    const SharedText text = texts[b];
    if (!text.writes(t)) return;
    for (int n = int(threadIdx.x) * Packed<X>::size; n < width; n += int(blockDim.x) * Packed<X>::size)
        store_packed(to + size_t(text.row_of(t)) * width + n, load_packed(from + (size_t(b) * T + t) * width + n));
}

template <class X>
void gather_texts(GPU device, X* to, const X* from, size_t stride, const SharedText* texts, int B, int T, int width) {
    require_multiple_of_8("gathering texts", "the width of a row", width);
    launch(device, gather_texts_kernel<X>, Grid(T, B), 4 * WARP, 0, to, from, stride, texts, T, width);
}
template <class X>
void scatter_texts(GPU device, X* to, const X* from, const SharedText* texts, int B, int T, int width) {
    require_multiple_of_8("scattering texts", "the width of a row", width);
    launch(device, scatter_texts_kernel<X>, Grid(T, B), 4 * WARP, 0, to, from, texts, T, width);
}

#endif
