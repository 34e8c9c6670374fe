// The masses of AdaSpa's prefill (adaspa.h) on a GPU. The mass of a pair of blocks is a float32 sum, where the CPU adds doubles: blocks
// whose masses are equal up to rounding may be chosen differently.
#pragma once
#include "attention/inference/adaspa.h"
#include "model/device/memory.cuh"

#ifdef WITH_GPU
#include "attention/kernel/forward.cuh"
#include "attention/kernel/features.cuh"

namespace adaspa {

inline constexpr int WARPS = 4, THREADS = WARPS * WARP;

template <class X, int HS>
struct Shared {
    SharedTile<X, TILE, HS> q, k;
    float parts[WARPS];
};

/// A thread's part of sum exp(z_ij - LSE_i) over the visible pairs of the query tile at i0 and the key tile at j0.
template <class X, int HS, class P>
__device__ float tile_mass(Shared<X, HS>& shared, const P& policy, const AttentionForward<X>& a, int h, int i0, int j0) {
    __syncthreads();   // the tiles before are no longer read
    copy_rows<THREADS>(shared.q, a.q.data + size_t(h) * HS, int(a.q.row), i0, a.T - i0);
    copy_rows<THREADS>(shared.k, a.k.data + size_t(h / (a.NH / a.NKV)) * HS, int(a.k.row), j0, a.T - j0);
    wait_for_copies();
    __syncthreads();
    Accumulator<1, TILE / 8> z;
    rows_times_rows(z, shared.q, warp_row(), shared.k, 0);
    const float to_base_2 = rsqrtf(float(HS)) * LOG2_E;
    float mass = 0;
    z.for_each([&](float& product, int r, int c) {
        const int i = i0 + warp_row() + r, j = j0 + c;
        if (i >= a.T || !policy.visible(h, i, j)) return;
        mass += exp2_of(product * to_base_2 - a.lse[size_t(h) * a.T + i] * LOG2_E);
    });
    return mass;
}

/// Block (c, p, h): W_pc of head h, 0 where c > p.
template <class X, int HS, class P>
__global__ void __launch_bounds__(THREADS) block_mass_kernel(float* mass, const P policy, const AttentionForward<X> a, int block) {
    auto& shared = dynamic_shared<Shared<X, HS>>();
    const int c = blockIdx.x, p = blockIdx.y, h = blockIdx.z, blocks = gridDim.x;
    float sum = 0;
    for (int i0 = p * block; c <= p && i0 < min(a.T, (p + 1) * block); i0 += TILE)
        for (int j0 = c * block; j0 < min(i0 + TILE, (c + 1) * block); j0 += TILE) sum += tile_mass(shared, policy, a, h, i0, j0);
    sum = block_sum<WARPS>(sum, shared.parts);
    if (threadIdx.x == 0) mass[(size_t(h) * blocks + p) * blocks + c] = sum;
}

}   // namespace adaspa

/// mass (NH, N, N), in device memory: adaspa_block_mass() of every head, after attention_forward() has left its LSE in a.lse.
template <class X, class P>
void adaspa_block_masses(GPU device, float* mass, const P& policy, const AttentionForward<X>& a, int block) {
    const int blocks = (a.T + block - 1) / block;
    for_head_size(a.HS, [&](auto HS) {
        launch(device, adaspa::block_mass_kernel<X, HS, P>, Grid(blocks, blocks, a.NH), adaspa::THREADS, sizeof(adaspa::Shared<X, HS>),
               mass, policy, a, block);
    });
}

#endif
