// Rung 4: tensor cores.
// One instruction of a warp (mma.m16n8k16) does the 2048 multiplications that took 64 instructions, and by their data sheets the
// tensor cores of an A100 or H200 do about fifteen times as many per second as its float32 units. A warp owns 16 query rows. Its
// scores (16 x 64) lie in the registers just as the left factor of the next product must lie, so the weights go from one product
// into the other without shared memory; only Q, K and V are read from there, with ldmatrix, 512 bytes an instruction. Each number
// of K and V serves 16 rows per read instead of 8. Exponentials and rescaling stay on the float32 units: per pair one exponential
// and about five more operations, beside 4 HS on the tensor cores.
#pragma once
#include "dev/ladder/problem.h"

namespace rung_4 {

inline constexpr int WARPS = 4, THREADS = WARPS * WARP, ROWS = 16, QUERIES = WARPS * ROWS, KEYS = 64;

template <int HS>
struct Shared {
    SharedTile<bf16, QUERIES, HS> q;
    SharedTile<bf16, KEYS, HS> k, v;
};

/// A lane's part of its warp's rows: row lane_row() (half 0) and the one 8 below (half 1), see mma.cuh.
template <int HS>
struct Rows {
    Accumulator<1, HS / 8> out;
    float largest[2] = {-INFINITY, -INFINITY};
    float total[2] = {};   // over the lane's own columns
};

/// Turns scores of a tile of keys into weights relative to the greatest score so far. The warp's rows begin at row `i` of the sequence,
/// the keys at `j0`.
template <int HS>
__device__ __forceinline__ void weigh(Rows<HS>& rows, Accumulator<1, KEYS / 8>& s, int i, int j0) {
    s.for_each([&](float& score, int r, int c) {
        if (j0 + c > i + r) score = -INFINITY;
    });
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float greatest = fmaxf(rows.largest[half], s.row_max(half));
        const float rescale = exp2_of((rows.largest[half] - greatest) * to_base_2(HS));
        rows.largest[half] = greatest;
        rows.total[half] *= rescale;
        rows.out.scale_row(half, rescale);
#pragma unroll
        for (int n = 0; n < KEYS / 8 * 2; n++) {
            float& score = s.at(half, n / 2, n % 2);
            score = exp2_of((score - greatest) * to_base_2(HS));
            rows.total[half] += score;
        }
    }
}

/// One tile of keys: scores, weights, and the values times those. The warp's rows begin at row `row` of `q`.
template <int HS>
__device__ __forceinline__ void absorb(Rows<HS>& rows, const SharedTile<bf16, QUERIES, HS>& q, int row,
                                       const SharedTile<bf16, KEYS, HS>& k, const SharedTile<bf16, KEYS, HS>& v, int i, int j0) {
    Accumulator<1, KEYS / 8> s;
    rows_times_rows(s, q, row, k, 0);
    weigh(rows, s, i, j0);
#pragma unroll
    for (int c = 0; c < KEYS; c += 16) {
        const FragmentA<bf16> weights[] = {s.template as_a<bf16>(0, c / 16)};
        registers_times_rows(rows.out, weights, v, c);
    }
}

/// Row `i` of the sequence is the first of the warp.
template <int HS>
__device__ __forceinline__ void write(const Rows<HS>& rows, const LadderProblem& p, int b, int h, int i) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float total = row_sum(rows.total[half]);
        const int token = i + 8 * half + lane_row();
        if (token >= p.T) continue;
#pragma unroll
        for (int n = 0; n < HS / 8; n++) {
            bf16* to = p.out + p.at(b, token, h) + 8 * n + lane_column();
            to[0] = from_float<bf16>(rows.out.at(half, n, 0) / total);
            to[1] = from_float<bf16>(rows.out.at(half, n, 1) / total);
        }
    }
}

template <int HS>
__global__ void __launch_bounds__(THREADS) attention_kernel(const LadderProblem p) {
    auto& shared = dynamic_shared<Shared<HS>>();
    const int i0 = int(blockIdx.x) * QUERIES, h = blockIdx.y, b = blockIdx.z, row = int(threadIdx.x) / WARP * ROWS;
    fetch<THREADS, HS>(shared.q.x, p.q + p.at(b, 0, h), p, i0);
    Rows<HS> rows;
    for (int j0 = 0; j0 < min(i0 + QUERIES, p.T); j0 += KEYS) {
        __syncthreads();   // the tile before has been used
        fetch<THREADS, HS>(shared.k.x, p.k + p.at(b, 0, h), p, j0), fetch<THREADS, HS>(shared.v.x, p.v + p.at(b, 0, h), p, j0);
        __syncthreads();
        absorb(rows, shared.q, row, shared.k, shared.v, i0 + row, j0);
    }
    write(rows, p, b, h, i0 + row);
}

inline void attention(GPU device, const LadderProblem& p) {
    for_ladder_head_size(p.HS, [&](auto HS) {
        launch(device, attention_kernel<HS>, Grid(blocks_for(p.T, QUERIES), p.NH, p.B), THREADS, sizeof(Shared<HS>), p);
    });
}

}   // namespace rung_4
