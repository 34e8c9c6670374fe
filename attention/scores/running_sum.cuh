// Sums over the tokens of a sequence, from the first token up to each of them, for every head:
//     S_n = sum_{m <= n} term(b, h, m)
// A task is a struct of pointers and values with
//     term(b, h, n)         a summand
//     store(b, h, n, S_n)   what becomes of the sum
// both constexpr; store(b, h, n) may overwrite what term(b, h, n) reads, and nothing that any other term() reads. Sums from the last
// token down count n from there. Sums are in double on every device: of a hundred thousand summands that all have the same sign,
// float32 would leave two digits in the difference of two neighbouring sums.
#pragma once
#include "attention/kernel/arguments.h"
#include "attention/kernel/decode.h"
#include "attention/kernel/next_rows.cuh"

template <class Task>
void running_sum(CPU, const Task& task, int B, int NH, int T) {
#pragma omp parallel for collapse(2)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < NH; h++) {
            double sum = 0;
            for (int n = 0; n < T; n++) sum += task.term(b, h, n), task.store(b, h, n, sum);
        }
}

/// The next row of a text: its sums go on from those of the row before, which the task finds among what is kept, as before(keys, h).
template <class X, class More, class Task>
void running_sum(const NextRow<X, More>& device, const Task& task, int /*B*/, int NH, int /*T*/) {
    for (int h = 0; h < NH; h++) task.store(0, h, 0, task.before(*device.keys, h) + task.term(0, h, 0));
}

#ifdef WITH_GPU
inline constexpr int RUNNING_SUM_THREADS = 256;

/// One block per (head, sequence). A thread has a piece of the tokens: it adds its piece up, and goes through it again from the sum
/// of all pieces before.
template <class Task>
__global__ void running_sum_kernel(const Task task, int T) {
    auto& pieces = dynamic_shared<double[RUNNING_SUM_THREADS]>();
    const int h = blockIdx.x, b = blockIdx.y, piece = (T + RUNNING_SUM_THREADS - 1) / RUNNING_SUM_THREADS;
    const int first = min(T, int(threadIdx.x) * piece), end = min(T, first + piece);
    double sum = 0;
    for (int n = first; n < end; n++) sum += task.term(b, h, n);
    pieces[threadIdx.x] = sum;
    __syncthreads();
    sum = 0;
    for (int before = 0; before < int(threadIdx.x); before++) sum += pieces[before];
    for (int n = first; n < end; n++) sum += task.term(b, h, n), task.store(b, h, n, sum);
}

/// The next rows of texts: block b, a thread for each head.
template <class Task, class X>
__global__ void running_sum_of_rows_kernel(const Task task, const TextKeys<X> keys, const DecodeRows rows) {
    const int b = blockIdx.x;
    const LastFeatures<X> last{keys, rows.sequence[b], rows.position[b] - 1};
    for (int h = threadIdx.x; h < keys.NH; h += blockDim.x) task.store(b, h, 0, task.before(last, h) + task.term(b, h, 0));
}

template <class X, class More, class Task>
void running_sum(const NextRows<X, More>& device, const Task& task, int B, int /*NH*/, int /*T*/) {
    launch(device, running_sum_of_rows_kernel<Task, X>, B, 2 * WARP, 0, task, device.keys, device.rows);
}

template <class Task>
void running_sum(GPU device, const Task& task, int B, int NH, int T) {
    launch(device, running_sum_kernel<Task>, Grid(NH, B), RUNNING_SUM_THREADS, RUNNING_SUM_THREADS * sizeof(double), task, T);
}
#endif
