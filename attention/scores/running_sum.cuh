// Sums over the tokens of a sequence, from the first token up to each of them, for every head:
//     S_n = sum_{m <= n} term(b, h, m)
// A task is a struct of pointers and values with
//     term(b, h, n)         a summand
//     store(b, h, n, S_n)   receives the sum
// both constexpr; store(b, h, n) may overwrite what term(b, h, n) reads, and nothing that any other term() reads. Sums from the last
// token down count n from there. Sums are in double on every device: with a hundred thousand summands of the same sign, float32
// would leave two digits in the difference of two neighbouring sums.
#pragma once
#include "attention/kernel/call.h"

template <class Task>
void running_sum(CPU, const Task& task, int B, int NH, int T) {
#pragma omp parallel for collapse(2)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < NH; h++) {
            double sum = 0;
            for (int n = 0; n < T; n++) sum += task.term(b, h, n), task.store(b, h, n, sum);
        }
}

#ifdef WITH_GPU
inline constexpr int RUNNING_SUM_THREADS = 256;

/// One block per (head, sequence). Each thread owns a piece of the tokens: it sums the piece, then goes through it again from the sum of
/// all pieces before it.
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

template <class Task>
void running_sum(GPU device, const Task& task, int B, int NH, int T) {
    launch(device, running_sum_kernel<Task>, Grid(NH, B), RUNNING_SUM_THREADS, RUNNING_SUM_THREADS * sizeof(double), task, T);
}
#endif
