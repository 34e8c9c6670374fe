// Loops over numbers that both devices share, and the simple operations on heads that composites need between their kernel calls.
#pragma once
#include <algorithm>

#include "attention/kernel/arguments.h"

/// task(row, n) for every n < width of every row. A task is a struct of pointers and numbers with a constexpr operator(); no call
/// reads what another one writes, and each adds up what it writes in a fixed order.
template <class Task>
void each_number(CPU, size_t rows, int width, const Task& task) {
#pragma omp parallel for
    for (size_t row = 0; row < rows; row++)
        for (int n = 0; n < width; n++) task(unsigned(row), n);
}

#ifdef WITH_GPU
/// `lanes` neighbouring threads have one row.
template <class Task>
__global__ void each_number_kernel(const Task task, unsigned rows, int width, int lanes) {
    const int together = int(blockDim.x) / lanes, mine = int(threadIdx.x) / lanes;
    const unsigned row = blockIdx.x * together + mine;
    if (mine >= together || row >= rows) return;
    for (int n = int(threadIdx.x) % lanes; n < width; n += lanes) task(row, n);
}

template <class Task>
void each_number(GPU device, size_t rows, int width, const Task& task) {
    const int threads = 256, lanes = std::min(width, threads);
    launch(device, each_number_kernel<Task>, blocks_for(rows, threads / lanes), threads, 0, task, unsigned(rows), width, lanes);
}
#endif

/// RoPE of tokens 0 .. T-1 of every sequence; direction -1 turns back, which is the gradient.
template <class Y, class X>
struct RotateHeads {
    Heads<Y> to;
    Heads<const X> from;
    const Wide<X>*cosine, *sine;   // (T, HS / 2)
    int T, heads, HS;
    Wide<X> direction;

    constexpr void operator()(unsigned row, int d) const {
        const unsigned token = row / heads, h = row % heads;
        const size_t angle = size_t(token % T) * (HS / 2) + d, first = size_t(h) * HS + d, second = first + HS / 2;
        const X* x = from.data + token * from.row;
        Y* y = to.data + token * to.row;
        const Wide<X> x1 = widened(x[first]), x2 = widened(x[second]), c = cosine[angle], s = direction * sine[angle];
        y[first] = narrowed<Y>(x1 * c - x2 * s);
        y[second] = narrowed<Y>(x2 * c + x1 * s);
    }
};

/// to (B, T, heads, HS) = from (B, T, heads, HS) rotated; both may be the same memory.
template <class Device, class Y, class X>
void rotate_heads(Device device, Heads<Y> to, Heads<const X> from, const Wide<X>* cosine, const Wide<X>* sine, int B, int T,
                  int heads, int HS, int direction) {
    each_number(device, size_t(B) * T * heads, HS / 2,
                RotateHeads<Y, X>{to, from, cosine, sine, T, heads, HS, Wide<X>(direction)});
}

template <class Y, class X>
struct AddHeads {
    Heads<Y> to;
    Heads<const X> from;   // null: zero
    bool add;

    constexpr void operator()(unsigned token, int n) const {
        Y& y = to.data[token * to.row + n];
        Wide<Y> sum = add ? widened(y) : Wide<Y>(0);
        if (from.data) sum += Wide<Y>(widened(from.data[token * from.row + n]));
        y = narrowed<Y>(sum);
    }
};

/// to (tokens, heads, HS) += from.
template <class Device, class Y, class X>
void add_heads(Device device, Heads<Y> to, Heads<const X> from, int tokens, int heads, int HS) {
    each_number(device, tokens, heads * HS, AddHeads<Y, X>{to, from, true});
}

/// to (tokens, heads, HS) = 0.
template <class Device, class Y>
void clear_heads(Device device, Heads<Y> to, int tokens, int heads, int HS) {
    each_number(device, tokens, heads * HS, AddHeads<Y, Y>{to, {nullptr, 0}, false});
}
