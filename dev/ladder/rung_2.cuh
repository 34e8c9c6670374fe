// Rung 2: K and V come through shared memory.
// The 64 query rows of a block need the same keys. Its threads fetch a tile of 64 keys together, in pieces of 16 bytes, and read
// it 64 times from shared memory: what a pair costs outside of the multiprocessor falls from 10 HS bytes to 6 HS / 64. All
// threads of a warp read the same row at the same time, which is one access for 32 threads. q is in registers now, HS / 2 of
// them beside the HS sums; for HS 128 these are about all that a thread can have. Still two walks over the keys, 6 HS operations
// per pair, and one read of shared memory for eight multiplications.
#pragma once
#include "dev/ladder/problem.h"

namespace rung_2 {

inline constexpr int THREADS = 64, QUERIES = THREADS, KEYS = 64;

template <int HS>
struct Shared {
    alignas(16) bf16 k[KEYS][HS], v[KEYS][HS];
};

template <int HS>
__device__ __forceinline__ float dot_product(const Packed<bf16> (&q)[HS / 8], const bf16 (&k)[HS]) {
    float sum = 0;
#pragma unroll
    for (int d = 0; d < HS; d += 8) {
        const Packed<bf16> y = load_packed(&k[d]);
#pragma unroll
        for (int n = 0; n < 8; n++) sum += q[d / 8][n] * y[n];
    }
    return sum;
}

template <int HS>
__global__ void __launch_bounds__(THREADS) attention_kernel(const LadderProblem p) {
    auto& shared = dynamic_shared<Shared<HS>>();
    const int i0 = int(blockIdx.x) * QUERIES, i = i0 + int(threadIdx.x), h = blockIdx.y, b = blockIdx.z;
    const int end = min(i0 + QUERIES, p.T);   // keys that some row of the block sees
    const bf16 *keys = p.k + p.at(b, 0, h), *values = p.v + p.at(b, 0, h);
    Packed<bf16> q[HS / 8];
#pragma unroll
    for (int d = 0; d < HS; d += 8) q[d / 8] = load_packed(p.q + p.at(b, min(i, p.T - 1), h) + d);

    float largest = -INFINITY;
    for (int j0 = 0; j0 < end; j0 += KEYS) {
        __syncthreads();   // the tile before has been used
        fetch<THREADS, HS>(shared.k, keys, p, j0);
        __syncthreads();
        for (int r = 0; r < KEYS && j0 + r <= i; r++) largest = fmaxf(largest, dot_product(q, shared.k[r]));
    }
    float out[HS] = {}, total = 0;
    for (int j0 = 0; j0 < end; j0 += KEYS) {
        __syncthreads();
        fetch<THREADS, HS>(shared.k, keys, p, j0), fetch<THREADS, HS>(shared.v, values, p, j0);
        __syncthreads();
        for (int r = 0; r < KEYS && j0 + r <= i; r++) {
            const float weight = exp2_of((dot_product(q, shared.k[r]) - largest) * to_base_2(HS));
            total += weight;
            add_row(out, weight, shared.v[r]);
        }
    }
    if (i >= p.T) return;
#pragma unroll
    for (int d = 0; d < HS; d++) p.out[p.at(b, i, h) + d] = from_float<bf16>(out[d] / total);
}

inline void attention(GPU device, const LadderProblem& p) {
    for_ladder_head_size(p.HS, [&](auto HS) {
        launch(device, attention_kernel<HS>, Grid(blocks_for(p.T, QUERIES), p.NH, p.B), THREADS, sizeof(Shared<HS>), p);
    });
}

}   // namespace rung_2
