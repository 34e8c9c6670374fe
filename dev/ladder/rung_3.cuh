// Rung 3: online softmax, and tiles in registers.
// One walk over the keys: the sums are kept relative to the greatest score so far and rescaled when a greater one comes (Milakov
// and Gimelshein 2018). Every score is computed once: 4 HS operations per pair instead of 6 HS. A warp owns 8 query rows. For
// the scores each lane takes one of 32 keys: a piece of K that it has read serves 8 rows, so that 17 reads of shared memory feed
// 64 multiplications. For the values each lane takes HS / 32 columns of all 8 rows: 12 reads for 64 multiplications or more.
// What is left to gain is the unit that multiplies.
#pragma once
#include "dev/ladder/problem.h"

namespace rung_3 {

inline constexpr int WARPS = 8, THREADS = WARPS * WARP, ROWS = 8, QUERIES = WARPS * ROWS, KEYS = 32;

template <int HS>
struct Shared {
    alignas(16) float q[QUERIES][HS];
    SharedTile<bf16, KEYS, HS> k, v;   // rows lie in different banks: here every lane reads a row of its own
    alignas(16) float weights[WARPS][ROWS][KEYS];
};

template <int HS>
__device__ __forceinline__ void fetch_queries(float (&to)[QUERIES][HS], const bf16* head, const LadderProblem& p, int i0) {
    for (int n = threadIdx.x; n < QUERIES * HS; n += THREADS)
        to[n / HS][n % HS] = i0 + n / HS < p.T ? to_float(head[size_t(i0 + n / HS) * p.row() + n % HS]) : 0;
}

/// scores[r] = the warp's row r against the lane's key.
template <int HS>
__device__ __forceinline__ void score(float (&scores)[ROWS], const Shared<HS>& shared, int warp, int lane) {
    for (float& s : scores) s = 0;
#pragma unroll 2
    for (int d = 0; d < HS; d += 8) {
        const Packed<bf16> k = load_packed(&shared.k.x[lane][d]);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float q[8];
            read_numbers(q, &shared.q[warp * ROWS + r][d]);
#pragma unroll
            for (int n = 0; n < 8; n++) scores[r] += q[n] * k[n];
        }
    }
}

/// out[r][c] += the weights of row r times column c of the lane's columns 2 lane, 2 lane + 1, 2 lane + 64, ...
template <int HS>
__device__ __forceinline__ void add_values(float (&out)[ROWS][HS / 32], const Shared<HS>& shared, int warp, int lane) {
#pragma unroll 2
    for (int j = 0; j < KEYS; j += 4) {
        float v[4][HS / 32];
#pragma unroll
        for (int n = 0; n < 4 * HS / 64; n++) {
            const bf16* at = &shared.v.x[j + n % 4][2 * lane + n / 4 * 64];
            const float2 pair = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(at));
            v[n % 4][n / 4 * 2] = pair.x, v[n % 4][n / 4 * 2 + 1] = pair.y;
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float weight[4];
            read_numbers(weight, &shared.weights[warp][r][j]);
#pragma unroll
            for (int n = 0; n < 4 * HS / 32; n++) out[r][n / 4] += weight[n % 4] * v[n % 4][n / 4];
        }
    }
}

template <int HS>
__global__ void __launch_bounds__(THREADS) attention_kernel(const LadderProblem p) {
    auto& shared = dynamic_shared<Shared<HS>>();
    const int i0 = int(blockIdx.x) * QUERIES, h = blockIdx.y, b = blockIdx.z;
    const int warp = int(threadIdx.x) / WARP, lane = int(threadIdx.x) % WARP, first = i0 + warp * ROWS;
    fetch_queries(shared.q, p.q + p.at(b, 0, h), p, i0);

    float out[ROWS][HS / 32] = {}, largest[ROWS], total[ROWS] = {};   // total: of the lane's keys
    for (float& m : largest) m = -INFINITY;
    for (int j0 = 0; j0 < min(i0 + QUERIES, p.T); j0 += KEYS) {
        __syncthreads();   // the tile before has been used
        fetch<THREADS, HS>(shared.k.x, p.k + p.at(b, 0, h), p, j0), fetch<THREADS, HS>(shared.v.x, p.v + p.at(b, 0, h), p, j0);
        __syncthreads();
        float scores[ROWS];
        score(scores, shared, warp, lane);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float mine = j0 + lane <= first + r ? scores[r] : -INFINITY;   // key 0 is visible to all: largest is finite
            const float greatest = fmaxf(largest[r], warp_max(mine));
            const float rescale = exp2_of((largest[r] - greatest) * to_base_2(HS));
            const float weight = exp2_of((mine - greatest) * to_base_2(HS));
            largest[r] = greatest;
            total[r] = total[r] * rescale + weight;
#pragma unroll
            for (float& sum : out[r]) sum *= rescale;
            shared.weights[warp][r][lane] = weight;
        }
        __syncwarp();
        add_values(out, shared, warp, lane);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float inverse = 1 / warp_sum(total[r]);
#pragma unroll
        for (int c = 0; c < HS / 32; c++)
            if (first + r < p.T)
                p.out[p.at(b, first + r, h) + 2 * lane + c % 2 + c / 2 * 64] = from_float<bf16>(out[r][c] * inverse);
    }
}

inline void attention(GPU device, const LadderProblem& p) {
    for_ladder_head_size(p.HS, [&](auto HS) {
        launch(device, attention_kernel<HS>, Grid(blocks_for(p.T, QUERIES), p.NH, p.B), THREADS, sizeof(Shared<HS>), p);
    });
}

}   // namespace rung_3
