// Cross-entropy of next-token prediction, in nats; the gradient overwrites the logits.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "model/device/device.h"
#include "model/device/math.h"

#ifdef WITH_GPU
#include <cuda_pipeline.h>
#endif

/// losses (rows) = log sum exp(logits (rows, V)) - logits[target]; then, if dloss != 0, logits = dloss (softmax(logits) -
/// onehot(target)). A negative target is ignored: loss 0, gradient 0. `weight` (1), unless null, is a factor of dloss in device
/// memory: a captured graph reads it at each launch.
template <class X>
void cross_entropy(CPU, Wide<X>* losses, X* logits, const int32_t* targets, int rows, int V, Wide<X> dloss,
                   const Wide<X>* weight = nullptr) {
    const bool has_gradient = dloss != X(0);
    if (weight) dloss *= *weight;
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
        if (!has_gradient) continue;
        const X factor = dloss / total;
#pragma omp simd
        for (int v = 0; v < V; v++) z[v] = factor * exp_of(z[v] - largest);
        z[targets[row]] -= dloss;
    }
}

#ifdef WITH_GPU

namespace softmax {
inline constexpr int THREADS = 512;
inline constexpr int BATCH = 4;   // 16-byte loads in flight per thread

/// A kept row directly follows it in memory.
struct alignas(16) Shared {
    float parts[THREADS / WARP];
};

template <class X>
size_t bytes_to_keep(int V) {
    return sizeof(Shared) + size_t(V) * sizeof(X);
}

/// pack[n] in one instruction, where bf16's conversion takes two or three.
template <class X>
__device__ __forceinline__ float number(const Packed<X>& pack, int n) {
    if constexpr (std::is_same_v<X, float>) return pack[n];
    const uint32_t two = reinterpret_cast<const uint32_t*>(pack.data)[n / 2];
    return __uint_as_float(n % 2 ? two & 0xffff0000u : two << 16);
}
}   // namespace softmax

/// The first pass over a row is an online softmax: maximum and sum together, the sum rescaled whenever the maximum grows. The second
/// pass overwrites the logits with the gradient. If a block KEEPS its row in shared memory, it takes every gridDim.x-th row: both passes
/// read shared memory, and the second one starts the copy of the next row into each place that it has read. Else it takes one row and
/// reads it twice, from the end of the row on, which is most likely still cached. Both give the same bits. A thread reads in all passes
/// what it has copied; the target's logit, which another thread has copied, is read after a barrier.
template <class X, bool KEEPS>
__global__ void __launch_bounds__(softmax::THREADS)
    cross_entropy_kernel(float* losses, X* logits, const int32_t* targets, int rows, int V, float dloss, const float* weight) {
    constexpr int N = Packed<X>::size, across = softmax::THREADS * N, stride = across * softmax::BATCH;
    auto& shared = dynamic_shared<softmax::Shared>();
    X* const kept = reinterpret_cast<X*>(&shared + 1);
    const int mine = threadIdx.x * N;
    const float of_target = dloss * (weight ? *weight : 1.0f);
    auto keep = [&](const X* row, int first) {
        for (int b = 0; b < softmax::BATCH && first + b * across < V; b++)
            __pipeline_memcpy_async(kept + first + b * across, row + first + b * across, sizeof(Packed<X>));
    };
    if (KEEPS) {
#pragma unroll 1
        for (int first = mine; first < V; first += stride) keep(logits + size_t(blockIdx.x) * V, first);
    }
    for (int r = blockIdx.x; r < rows; r += gridDim.x) {
        X *const row = logits + size_t(r) * V, *const next = r + int(gridDim.x) < rows ? row + size_t(gridDim.x) * V : nullptr;
        const X* const z_row = KEEPS ? kept : row;
        const int target = targets[r];   // needed only after the row has been read
        if (KEEPS) __pipeline_commit(), __pipeline_wait_prior(0);
        float largest = -3.402823466e38f, total = 0;
        for (int first = mine; first < V; first += stride) {
            Packed<X> z[softmax::BATCH];
            for (int b = 0; b < softmax::BATCH; b++) z[b] = load_packed_if(first + b * across < V, z_row + first + b * across);
            const float before = largest;
            for (int b = 0; b < softmax::BATCH && first + b * across < V; b++)
                for (int n = 0; n < N; n++) largest = fmaxf(largest, softmax::number(z[b], n));
            total *= __expf(before - largest);
            for (int b = 0; b < softmax::BATCH && first + b * across < V; b++)
                for (int n = 0; n < N; n++) total += __expf(softmax::number(z[b], n) - largest);
        }
        const float own = largest;
        largest = block_max(own, shared.parts, softmax::THREADS / WARP);
        const float target_logit = target < 0 ? 0 : to_float(z_row[target]);   // before the gradient or the next row takes its place
        total = block_sum<softmax::THREADS / WARP>(total * __expf(own - largest), shared.parts);
        if (threadIdx.x == 0) losses[r] = target < 0 ? 0 : largest + logf(total) - target_logit;
        if (!KEEPS && target >= 0 && dloss == 0) return;

        const float factor = of_target / total;
        const int last = (V - 1) / stride * stride;
        for (int at = 0; at <= last; at += stride) {
            const int first = mine + (KEEPS ? at : last - at);
            Packed<X> z[softmax::BATCH];
            for (int b = 0; b < softmax::BATCH; b++) z[b] = load_packed_if(first + b * across < V, z_row + first + b * across);
            if (KEEPS && next) keep(next, first);
            for (int b = 0; b < softmax::BATCH && first + b * across < V; b++) {
                const int v = first + b * across;
                float d[N];
                auto share = [&](int n) { return __expf(softmax::number(z[b], n) - largest); };
                for (int n = 0; n < N; n++) d[n] = factor * share(n);
                if (unsigned(target - v) < N)   // one pack of the row
                    for (int n = 0; n < N; n++) d[n] = v + n == target ? fmaf(factor, share(n), -of_target) : d[n];
                for (int n = 0; n < N && target < 0; n++) d[n] = 0;
                write_numbers<Reuse::streaming>(row + v, d);
            }
        }
        if (!KEEPS) return;
    }
}

template <class X>
void cross_entropy(GPU device, Wide<X>* losses, X* logits, const int32_t* targets, int rows, int V, Wide<X> dloss,
                   const Wide<X>* weight = nullptr) {
    require_multiple_of_8("cross-entropy", "the size of the vocabulary", V);
    const size_t to_keep = softmax::bytes_to_keep<X>(V);
    if (dloss != 0 && to_keep <= max_shared_memory()) {
        const auto kernel = cross_entropy_kernel<X, true>;
        launch(device, kernel, std::min<size_t>(rows, resident_blocks(kernel, softmax::THREADS, to_keep)), softmax::THREADS, to_keep,
               losses, logits, targets, rows, V, dloss, weight);
    } else {
        launch(device, cross_entropy_kernel<X, false>, rows, softmax::THREADS, sizeof(softmax::Shared), losses, logits, targets, rows,
               V, dloss, weight);
    }
}
#endif
