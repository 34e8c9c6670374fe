// A (TILE, TILE) result, sixteen rows for each of a block's four warps, for kernels outside attention's own that read the scores of whole
// tiles.
#pragma once
#include "attention/kernel/features.cuh"

/// The first row of the thread's warp.
inline __device__ int warp_row() { return int(threadIdx.x) / WARP * 16; }

/// Calls use(x, row, column) for the thread's elements.
template <class Use>
__device__ __forceinline__ void for_each_in_warp_rows(float (&x)[TILE / 8][4], Use use) {
#pragma unroll
    for (int n = 0; n < TILE / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) use(x[n][e], warp_row() + lane_row() + e / 2 * 8, 8 * n + lane_column() + e % 2);
}
