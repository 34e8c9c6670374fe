// Backward, rung 2: tiles on tensor cores, everything computed again where it is needed.
// A block owns 64 rows, either keys or queries, and the tiles of the other kind pass by; each warp owns 16 of the rows, and their
// sums stay in registers as in rung_4.cuh. An owner of keys computes S^T = K Q^T and dP^T = V dO^T, so that P^T and dS^T are left
// factors of dV = P^T dO and dK = dS^T Q; an owner of queries computes S and dP, and dQ = dS K. Nothing passes from block to block,
// and P and dS never leave the registers. The price is that S and dP are computed twice: seven products instead of five.
#pragma once
#include "dev/ladder/backward_problem.h"
#include "dev/ladder/rung_4.cuh"

namespace backward_2 {

using rung_4::ROWS, rung_4::THREADS;

enum class Owner { queries, keys };
inline constexpr int TILE_ROWS = rung_4::QUERIES;

template <int HS>
struct Shared {
    SharedTile<bf16, TILE_ROWS, HS> own[2], other[2];   // keys: K and V; queries: Q and dO
    float lse[TILE_ROWS], D[TILE_ROWS];                 // of the queries, for either owner of the block
};

/// The query tile's numbers. With zeros for rows that do not exist, like their q and dO, these add nothing to any sum.
template <int HS>
__device__ __forceinline__ void fetch_numbers(Shared<HS>& shared, const LadderProblem& p, int b, int h, int i0) {
    const int r = threadIdx.x;
    if (r >= TILE_ROWS) return;
    const bool exists = i0 + r < p.T;
    shared.lse[r] = exists ? p.lse[p.row_at(b, i0 + r, h)] : 0;
    shared.D[r] = exists ? p.D[p.row_at(b, i0 + r, h)] : 0;
}

/// S to P and dP to dS in place; the warp's rows begin at row `row` of the block's, which begin at `own0`, the columns at `other0`.
template <Owner OWNER, int HS>
__device__ __forceinline__ void differentiate(Accumulator<1, TILE_ROWS / 8>& s, Accumulator<1, TILE_ROWS / 8>& ds,
                                              const Shared<HS>& shared, int row, int own0, int other0) {
    constexpr bool KEYS = OWNER == Owner::keys;
#pragma unroll
    for (int n = 0; n < TILE_ROWS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int mine = row + e / 2 * 8 + lane_row(), theirs = 8 * n + lane_column() + e % 2;
            const int query = KEYS ? theirs : mine;   // in its tile
            const int i = KEYS ? other0 + theirs : own0 + mine, j = KEYS ? own0 + mine : other0 + theirs;
            const float p = j <= i ? exp2_of(s.d[0][n][e] * to_base_2(HS) - shared.lse[query] * LOG2_E) : 0;
            ds.d[0][n][e] = p * (ds.d[0][n][e] - shared.D[query]) * rsqrtf(float(HS));
            s.d[0][n][e] = p;
        }
}

/// The warp's rows of a sum to memory.
template <int HS, class X>
__device__ __forceinline__ void write(X* to, const Accumulator<1, HS / 8>& sums, const LadderProblem& p, int b, int h, int row) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int token = row + 8 * half + lane_row();
        if (token >= p.T) continue;
#pragma unroll
        for (int n = 0; n < HS / 8; n++) {
            Two<X> two;
            make_two(two, sums.at(half, n, 0), sums.at(half, n, 1));
            store_two(to + p.at(b, token, h) + 8 * n + lane_column(), two);
        }
    }
}

template <int HS, Owner OWNER>
__global__ void __launch_bounds__(THREADS) gradients_kernel(const LadderProblem p) {
    constexpr bool KEYS = OWNER == Owner::keys;
    auto& shared = dynamic_shared<Shared<HS>>();
    const int own0 = int(blockIdx.x) * TILE_ROWS, h = blockIdx.y, b = blockIdx.z, row = int(threadIdx.x) / WARP * ROWS;
    const size_t head = p.at(b, 0, h);
    fetch<THREADS, HS>(shared.own[0].x, (KEYS ? p.k : p.q) + head, p, own0);
    fetch<THREADS, HS>(shared.own[1].x, (KEYS ? p.v : p.dout) + head, p, own0);
    Accumulator<1, HS / 8> sums, dv;   // sums: dK or dQ
    const int first = KEYS ? own0 : 0, end = KEYS ? p.T : min(own0 + TILE_ROWS, p.T);   // the others beyond are hidden
    for (int other0 = first; other0 < end; other0 += TILE_ROWS) {
        __syncthreads();   // the tile before has been used
        fetch<THREADS, HS>(shared.other[0].x, (KEYS ? p.q : p.k) + head, p, other0);
        fetch<THREADS, HS>(shared.other[1].x, (KEYS ? p.dout : p.v) + head, p, other0);
        fetch_numbers(shared, p, b, h, KEYS ? other0 : own0);
        __syncthreads();
        Accumulator<1, TILE_ROWS / 8> s, ds;
        rows_times_rows(s, shared.own[0], row, shared.other[0], 0);
        rows_times_rows(ds, shared.own[1], row, shared.other[1], 0);
        differentiate<OWNER>(s, ds, shared, row, own0, other0);
#pragma unroll
        for (int c = 0; c < TILE_ROWS; c += 16) {
            const FragmentA<bf16> of_ds[] = {ds.template as_a<bf16>(0, c / 16)}, of_p[] = {s.template as_a<bf16>(0, c / 16)};
            registers_times_rows(sums, of_ds, shared.other[0], c);
            if constexpr (KEYS) registers_times_rows(dv, of_p, shared.other[1], c);
        }
    }
    write<HS>(KEYS ? p.dk : p.dq, sums, p, b, h, own0 + row);
    if constexpr (KEYS) write<HS>(p.dv, dv, p, b, h, own0 + row);
}

inline void gradients(GPU device, const LadderProblem& p) {
    row_products(device, p);
    for_ladder_head_size(p.HS, [&](auto HS) {
        const Grid grid(blocks_for(p.T, TILE_ROWS), p.NH, p.B);
        launch(device, gradients_kernel<HS, Owner::queries>, grid, THREADS, sizeof(Shared<HS>), p);
        launch(device, gradients_kernel<HS, Owner::keys>, grid, THREADS, sizeof(Shared<HS>), p);
    });
}

}   // namespace backward_2
