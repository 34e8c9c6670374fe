// Rung 5: the next tile arrives while this one is used.
// On rung 4 a block waits for memory, then computes, then waits again: once per tile its tensor cores idle for the way to the
// second-level cache and back and for the 4 HS x 64 bytes of the tile. cp.async copies from memory to shared memory
// without passing through registers and without anybody waiting; with two buffers each tile is on its way during a whole tile's
// arithmetic, 4 HS x 64 x 64 operations. It also saves one of the two barriers per tile, and the registers that held what was
// being fetched. The price is shared memory for two more tiles. Rows that see the most keys start first, so that no long block
// is left over at the end.
#pragma once
#include "dev/ladder/rung_4.cuh"

namespace rung_5 {

using rung_4::KEYS, rung_4::QUERIES, rung_4::ROWS, rung_4::THREADS;

template <int HS>
struct Shared {
    SharedTile<bf16, QUERIES, HS> q;
    SharedTile<bf16, KEYS, HS> k[2], v[2];
};

template <int HS>
__global__ void __launch_bounds__(THREADS) attention_kernel(const LadderProblem p) {
    auto& shared = dynamic_shared<Shared<HS>>();
    const int i0 = int(gridDim.x - 1 - blockIdx.x) * QUERIES, h = blockIdx.y, b = blockIdx.z, row = int(threadIdx.x) / WARP * ROWS;
    const int end = min(i0 + QUERIES, p.T);
    auto fetch = [&](int j0, int buffer) {
        copy_rows<THREADS>(shared.k[buffer], p.k + p.at(b, 0, h), p.row(), j0, p.T - j0);
        copy_rows<THREADS>(shared.v[buffer], p.v + p.at(b, 0, h), p.row(), j0, p.T - j0);
    };
    copy_rows<THREADS>(shared.q, p.q + p.at(b, 0, h), p.row(), i0, p.T - i0);
    fetch(0, 0);
    rung_4::Rows<HS> rows;
    for (int j0 = 0, buffer = 0; j0 < end; j0 += KEYS, buffer = 1 - buffer) {
        wait_for_copies();
        __syncthreads();   // this tile is visible to all threads, and the other buffer is no longer read
        if (j0 + KEYS < end) fetch(j0 + KEYS, 1 - buffer);
        rung_4::absorb(rows, shared.q, row, shared.k[buffer], shared.v[buffer], i0 + row, j0);
    }
    rung_4::write(rows, p, b, h, i0 + row);
}

inline void attention(GPU device, const LadderProblem& p) {
    for_ladder_head_size(p.HS, [&](auto HS) {
        launch(device, attention_kernel<HS>, Grid(blocks_for(p.T, QUERIES), p.NH, p.B), THREADS, sizeof(Shared<HS>), p);
    });
}

}   // namespace rung_5
