// Elementwise loops written once for both devices, and simple operations on heads that mechanisms with own_passes need between kernel
// calls.
#pragma once
#include <algorithm>

#include "attention/kernel/call.h"

/// Calls task(row, n) for every n < width of every row. A task is a struct of pointers and values with a constexpr operator(). It may
/// have of_row(row), whose result is called with each n: for values shared by a row, which compilers do not hoist out of the loop.
/// Precondition: no call reads what another one writes, and each sums in a fixed order.
template <class Task>
void each_element(CPU, size_t rows, int width, const Task& task) {
#pragma omp parallel for if (rows * size_t(width) >= 512)   // starting threads costs more than a few numbers
    for (size_t row = 0; row < rows; row++)
        if constexpr (requires { task.of_row(0u); }) {   // shared values of a row are computed once
            const auto element = task.of_row(unsigned(row));
            for (int n = 0; n < width; n++) element(n);
        } else {
            for (int n = 0; n < width; n++) task(unsigned(row), n);
        }
}

#ifdef WITH_GPU
/// `lanes` adjacent threads share a row.
template <class Task>
__global__ void each_element_kernel(const Task task, unsigned rows, int width, int lanes) {
    const int together = int(blockDim.x) / lanes, mine = int(threadIdx.x) / lanes;
    const unsigned row = blockIdx.x * together + mine;
    if (mine >= together || row >= rows) return;
    for (int n = int(threadIdx.x) % lanes; n < width; n += lanes) task(row, n);
}

template <class Task>
void each_element(GPU device, size_t rows, int width, const Task& task) {
    const int threads = 256, lanes = std::min(width, threads);
    launch(device, each_element_kernel<Task>, blocks_for(rows, threads / lanes), threads, 0, task, unsigned(rows), width, lanes);
}
#endif

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
    each_element(device, tokens, heads * HS, AddHeads<Y, X>{to, from, true});
}

/// to (tokens, heads, HS) = 0.
template <class Device, class Y>
void clear_heads(Device device, Heads<Y> to, int tokens, int heads, int HS) {
    each_element(device, tokens, heads * HS, AddHeads<Y, Y>{to, {nullptr, 0}, false});
}

/// to += scale from. Rows are elements.
template <class Y>
struct AddScaled {
    Y* to;
    const Y* from;
    Y scale;
    constexpr void operator()(unsigned n, int) const { to[n] += scale * from[n]; }
};
