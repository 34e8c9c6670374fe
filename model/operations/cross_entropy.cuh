// Cross-entropy of next-token prediction, in nats, with its gradient in place of the logits.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "model/device/device.h"
#include "model/device/math.h"

/// losses (rows) = log sum exp(logits (rows, V)) - logits[target]; then logits = dloss (softmax(logits) - onehot(target)) when
/// `dloss` is not 0. A negative target is ignored: loss 0, gradient 0.
template <class X>
void cross_entropy(CPU, Wide<X>* losses, X* logits, const int32_t* targets, int rows, int V, Wide<X> dloss) {
#pragma omp parallel for
    for (int row = 0; row < rows; row++) {
        X* z = logits + size_t(row) * V;
        losses[row] = 0;
        if (targets[row] < 0) {
            std::fill(z, z + V, X(0));
            continue;
        }
        X largest = z[0], total = 0;
#pragma omp simd reduction(max : largest)
        for (int v = 0; v < V; v++) largest = std::max(largest, z[v]);
        const X target = z[targets[row]];
#pragma omp simd reduction(+ : total)
        for (int v = 0; v < V; v++) total += exp_of(z[v] - largest);
        losses[row] = largest + std::log(total) - target;
        if (dloss == X(0)) continue;
        const X factor = dloss / total;
#pragma omp simd
        for (int v = 0; v < V; v++) z[v] = factor * exp_of(z[v] - largest);
        z[targets[row]] -= dloss;
    }
}

#ifdef WITH_GPU

namespace softmax {
inline constexpr int THREADS = 512;
inline constexpr int BATCH = 4;   // 16-byte reads that a thread has in flight

struct Shared {
    float parts[THREADS / WARP];
};

/// A batch of this thread's logits from column `first` on, -infinity past the end of the row.
template <class X>
__device__ __forceinline__ void read_batch(float (&z)[BATCH][Packed<X>::size], const X* logits, int first, int V) {
    constexpr int N = Packed<X>::size;
    for (int b = 0; b < BATCH; b++) {
        const int v = first + b * THREADS * N;
        if (v < V) read_numbers(z[b], logits + v);
        else
            for (int n = 0; n < N; n++) z[b][n] = -INFINITY;
    }
}
}   // namespace softmax

/// One row per block. The first pass over the row finds its maximum and its sum together: the sum so far is rescaled when a batch
/// raises the maximum. The second one replaces logits with their gradient, from the end of the row, which is the part most likely
/// still in a cache.
template <class X>
__global__ void __launch_bounds__(softmax::THREADS)
    cross_entropy_kernel(float* losses, X* logits, const int32_t* targets, int V, float dloss) {
    constexpr int N = Packed<X>::size, stride = softmax::THREADS * N * softmax::BATCH;
    auto& shared = dynamic_shared<softmax::Shared>();
    X* row = logits + size_t(blockIdx.x) * V;
    const int target = targets[blockIdx.x], mine = threadIdx.x * N;
    if (target < 0) {
        const float zeros[N] = {};
        for (int v = mine; v < V; v += softmax::THREADS * N) write_streaming(row + v, zeros);
        if (threadIdx.x == 0) losses[blockIdx.x] = 0;
        return;
    }
    const float target_logit = to_float(row[target]);   // before the gradient takes its place
    float z[softmax::BATCH][N], largest = -3.402823466e38f, total = 0;
    for (int first = mine; first < V; first += stride) {
        softmax::read_batch(z, row, first, V);
        const float before = largest;
        for (int k = 0; k < softmax::BATCH * N; k++) largest = fmaxf(largest, z[k / N][k % N]);
        total *= __expf(before - largest);
        for (int k = 0; k < softmax::BATCH * N; k++) total += __expf(z[k / N][k % N] - largest);
    }
    const float own = largest;
    largest = block_max(own, shared.parts, softmax::THREADS / WARP);
    total = block_sum<softmax::THREADS / WARP>(total * __expf(own - largest), shared.parts);
    if (threadIdx.x == 0) losses[blockIdx.x] = largest + logf(total) - target_logit;
    if (dloss == 0) return;

    const float factor = dloss / total;
    for (int first = (V - 1) / stride * stride + mine; first >= 0; first -= stride) {
        softmax::read_batch(z, row, first, V);
        for (int b = 0; b < softmax::BATCH; b++) {
            const int v = first + b * softmax::THREADS * N;
            if (v >= V) break;
            for (int n = 0; n < N; n++) z[b][n] = factor * __expf(z[b][n] - largest) - (v + n == target ? dloss : 0.0f);
            write_streaming(row + v, z[b]);
        }
    }
}

template <class X>
void cross_entropy(GPU device, Wide<X>* losses, X* logits, const int32_t* targets, int rows, int V, Wide<X> dloss) {
    require_multiple_of_8("cross-entropy", "the size of the vocabulary", V);
    launch(device, cross_entropy_kernel<X>, rows, softmax::THREADS, sizeof(softmax::Shared), losses, logits, targets, V, dloss);
}
#endif
