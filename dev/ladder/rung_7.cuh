// Rung 7: products of a warpgroup, on Hopper.
// Up to here a warp loads fragments of K and V into registers and multiplies them 16 x 8 x 16 at a time. Hopper's tensor cores
// read both factors from shared memory themselves. Four warps start one product of 64 x 64 x 16 (wgmma) with an instruction each, and
// wait for it when they need its result; each has its 16 rows of scores in registers as before, so the softmax stays as it is. The price:
// tiles in an order that the hardware knows (SwizzledTile), a fence between what threads write there and a product that reads it, and
// another before a product reads their registers.
#pragma once
#include "attention/kernel/wgmma.cuh"
#include "dev/ladder/rung_4.cuh"

namespace rung_7 {

using rung_4::KEYS, rung_4::QUERIES, rung_4::ROWS, rung_4::THREADS;

template <int HS>
struct Shared {
    SwizzledTile<bf16, QUERIES, HS> q;
    SwizzledTile<bf16, KEYS, HS> k[2], v[2];
};

/// rung_4::weigh() between two products of the group.
template <int HS>
__device__ __forceinline__ void absorb(rung_4::Rows<HS>& rows, const SwizzledTile<bf16, QUERIES, HS>& q,
                                       const SwizzledTile<bf16, KEYS, HS>& k, const SwizzledTile<bf16, KEYS, HS>& v, int i, int j0) {
    using Scores = Accumulator<1, KEYS / 8>;
    Scores s(typename Scores::Unset{});
    start_rows_times_rows(s, q, 0, k, 0);
    k.finish_products(s);
    rung_4::weigh(rows, s, i, j0);
    FragmentA<bf16> weights[KEYS / 16][1];
#pragma unroll
    for (int c = 0; c < KEYS; c += 16) {
        weights[c / 16][0] = s.template as_a<bf16>(0, c / 16);
        start_registers_times_rows(rows.out, weights[c / 16], v, c);
    }
    v.finish_products(rows.out);
}

template <int HS>
__global__ void __launch_bounds__(THREADS) attention_kernel(const LadderProblem p) {
    if constexpr (!HAS_WGMMA) return without_wgmma();
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
        shared.q.publish();
        __syncthreads();   // this tile is visible to all threads and to products, and the other buffer is no longer read
        if (j0 + KEYS < end) fetch(j0 + KEYS, 1 - buffer);
        absorb(rows, shared.q, shared.k[buffer], shared.v[buffer], i0 + row, j0);
    }
    rung_4::write(rows, p, b, h, i0 + row);
}

inline void attention(GPU device, const LadderProblem& p) {
    for_ladder_head_size(p.HS, [&](auto HS) {
        launch(device, attention_kernel<HS>, Grid(blocks_for(p.T, QUERIES), p.NH, p.B), THREADS, sizeof(Shared<HS>), p);
    });
}

}   // namespace rung_7
