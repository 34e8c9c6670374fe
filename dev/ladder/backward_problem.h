// What every rung of the backward ladder computes: from dO to dQ, dK and dV of the causal attention in problem.h,
//     P_ij = exp(z_ij - LSE_i)     dz_ij = P_ij (<dO_i, v_j> - D_i),  D_i = <dO_i, O_i>     for j <= i
//     dV_j = sum_i P_ij dO_i       dK_j = sum_i dz_ij q_i / sqrt(HS)       dQ_i = sum_j dz_ij k_j / sqrt(HS)
// Five products of 2 HS operations for a visible pair, where the forward pass has two. LSE and O are those of the forward pass.
#pragma once
#include "dev/ladder/problem.h"

/// D, a thread for each row.
template <int HS>
__global__ void row_products_kernel(const LadderProblem p) {
    const int i = int(blockIdx.x) * int(blockDim.x) + int(threadIdx.x), h = blockIdx.y, b = blockIdx.z;
    if (i >= p.T) return;
    p.D[p.row_at(b, i, h)] = dot_product<HS>(p.dout + p.at(b, i, h), p.out + p.at(b, i, h));
}

inline void row_products(GPU device, const LadderProblem& p) {
    for_ladder_head_size(p.HS, [&](auto HS) {
        launch(device, row_products_kernel<HS>, Grid(blocks_for(p.T, 128), p.NH, p.B), 128, 0, p);
    });
}
