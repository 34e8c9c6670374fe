// Backward, rung 1: one thread per query row for dQ, then one per key row for dK and dV.
// Sums are not shared, so no order has to be kept; the price is that both kernels compute P and dP of every pair, 14 HS operations
// instead of 10 HS, on the float32 units and from memory, as in rung_1.cuh. A thread holds HS sums for dQ, and 2 HS for dK and dV:
// with heads of 128 more than the 255 registers that it can have, and the rest lies in its local memory.
#pragma once
#include "dev/ladder/backward_problem.h"

namespace backward_1 {

inline constexpr int THREADS = 128;

struct PairGradient {
    float p, dz;   // P_ij, and dz_ij / sqrt(HS)
};

template <int HS>
__device__ __forceinline__ PairGradient pair_gradient(const LadderProblem& p, int b, int h, int i, int j) {
    const size_t query = p.at(b, i, h), key = p.at(b, j, h), row = p.row_at(b, i, h);
    const float weight = exp2_of(dot_product<HS>(p.q + query, p.k + key) * to_base_2(HS) - p.lse[row] * LOG2_E);
    return {weight, weight * (dot_product<HS>(p.dout + query, p.v + key) - p.D[row]) * rsqrtf(float(HS))};
}

template <int HS>
__global__ void __launch_bounds__(THREADS) queries_kernel(const LadderProblem p) {
    const int i = int(blockIdx.x) * THREADS + int(threadIdx.x), h = blockIdx.y, b = blockIdx.z;
    if (i >= p.T) return;
    float dq[HS] = {};
    for (int j = 0; j <= i; j++) add_row(dq, pair_gradient<HS>(p, b, h, i, j).dz, p.k + p.at(b, j, h));
#pragma unroll
    for (int d = 0; d < HS; d++) p.dq[p.at(b, i, h) + d] = dq[d];
}

template <int HS>
__global__ void __launch_bounds__(THREADS) keys_kernel(const LadderProblem p) {
    const int j = int(blockIdx.x) * THREADS + int(threadIdx.x), h = blockIdx.y, b = blockIdx.z;
    if (j >= p.T) return;
    float dk[HS] = {}, dv[HS] = {};
    for (int i = j; i < p.T; i++) {
        const PairGradient pair = pair_gradient<HS>(p, b, h, i, j);
        add_row(dk, pair.dz, p.q + p.at(b, i, h));
        add_row(dv, pair.p, p.dout + p.at(b, i, h));
    }
#pragma unroll
    for (int d = 0; d < HS; d++) p.dk[p.at(b, j, h) + d] = dk[d], p.dv[p.at(b, j, h) + d] = from_float<bf16>(dv[d]);
}

inline void gradients(GPU device, const LadderProblem& p) {
    row_products(device, p);
    for_ladder_head_size(p.HS, [&](auto HS) {
        const Grid grid(blocks_for(p.T, THREADS), p.NH, p.B);
        launch(device, queries_kernel<HS>, grid, THREADS, 0, p);
        launch(device, keys_kernel<HS>, grid, THREADS, 0, p);
    });
}

}   // namespace backward_1
