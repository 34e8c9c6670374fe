// Rung 1: one thread per query row, as one would write it for a CPU.
// Softmax needs the greatest score before the first exponential, so a thread walks over its keys twice and computes every score
// twice: 6 HS operations per pair instead of 4 HS. A pair reads q twice, its key twice and its value: 10 HS bytes, less than one
// operation per byte, where a GPU's float32 units alone want about ten per byte of memory. Only the caches help: the 32 threads of
// a warp ask for the same key at the same time. The sums of a row (HS floats) stay in registers.
#pragma once
#include "dev/ladder/problem.h"

namespace rung_1 {

inline constexpr int THREADS = 128;

template <int HS>
__device__ __forceinline__ float dot_product(const bf16* q, const bf16* k) {
    float sum = 0;
#pragma unroll 4
    for (int d = 0; d < HS; d += 8) {
        const Packed<bf16> x = load_packed(q + d), y = load_packed(k + d);
#pragma unroll
        for (int n = 0; n < 8; n++) sum += x[n] * y[n];
    }
    return sum;
}

template <int HS>
__global__ void __launch_bounds__(THREADS) attention_kernel(const LadderProblem p) {
    const int i = int(blockIdx.x) * THREADS + int(threadIdx.x), h = blockIdx.y, b = blockIdx.z;
    if (i >= p.T) return;
    const bf16* q = p.q + p.at(b, i, h);
    float largest = -INFINITY;
    for (int j = 0; j <= i; j++) largest = fmaxf(largest, dot_product<HS>(q, p.k + p.at(b, j, h)));

    float out[HS] = {}, total = 0;
    for (int j = 0; j <= i; j++) {
        const float weight = exp2_of((dot_product<HS>(q, p.k + p.at(b, j, h)) - largest) * to_base_2(HS));
        total += weight;
#pragma unroll
        for (int d = 0; d < HS; d += 8) {
            const Packed<bf16> v = load_packed(p.v + p.at(b, j, h) + d);
#pragma unroll
            for (int n = 0; n < 8; n++) out[d + n] += weight * v[n];
        }
    }
#pragma unroll
    for (int d = 0; d < HS; d++) p.out[p.at(b, i, h) + d] = from_float<bf16>(out[d] / total);
}

inline void attention(GPU device, const LadderProblem& p) {
    for_ladder_head_size(p.HS, [&](auto HS) {
        launch(device, attention_kernel<HS>, Grid(blocks_for(p.T, THREADS), p.NH, p.B), THREADS, 0, p);
    });
}

}   // namespace rung_1
