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
        add_row(out, weight, p.v + p.at(b, j, h));
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
