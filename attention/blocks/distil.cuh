// Gate self-distillation (SeerAttention): the scores of a block gate learn from where dense causal attention looks.
//     R_rc = max over rows i of block r and keys j of block c of P_ij                     the pooled map of dense attention
//     t_r  = R_r over the blocks c < r, divided by their sum                              the teacher, which has no gradient
//     p_r  = softmax over c < r of the gate's scores                                      the student
//     L = lambda (mean over the rows r of all gated heads of KL(t_r || p_r))              dL/dscore = lambda (p - t) / rows
// R is computed as exp(max over i of (largest z of row i in the block's tiles - LSE_i)) from two outputs of the attention kernel,
// statistics.tile_max and the log-sum-exp; t is a softmax of these exponents, which is defined however small R is.
// A token's weight in the objective is 1 / tokens, so each sequence counts T times.
#pragma once
#include "attention/blocks/block_gate.cuh"
#include "attention/kernel/walk.h"

/// What is distilled: heads from `dense` on, rows from first_row on (row 0 has no block to choose).
struct Distillation {
    float lambda;
    int dense, first_row;

    /// The weight of one row's divergence: lambda times T over the sequence's number of rows.
    constexpr float row_weight(const GateShape& s) const {
        const int rows = (s.NH - dense) * (s.blocks() - first_row);
        return rows > 0 ? lambda * float(s.T) / float(rows) : 0;
    }
    constexpr bool counts(int h, int r) const { return h >= dense && r >= first_row; }
};

/// The maxima (B, NH, T, tiles) and the log-sum-exp (B, NH, T) of dense causal attention.
template <class W>
struct DenseMap {
    const W *tile_max, *lse;

    /// log R_rc.
    constexpr W exponent(const GateShape& s, int b, int h, int r, int c) const {
        const int tiles = tiles_of(s.T), of_block = s.block / TILE;
        const size_t bh = size_t(b) * s.NH + h;
        W largest = -1e30f;
        for (int i = r * s.block; i < r * s.block + s.tokens(r); i++)
            for (int tile = c * of_block; tile < (c + 1) * of_block; tile++) {
                const W here = tile_max[(bh * s.T + i) * tiles + tile] - lse[bh * s.T + i];
                if (here > largest) largest = here;
            }
        return largest;
    }
};

/// dscores (B, NH, N, N) = the gradient of the objective per unit of dloss, zero where nothing is distilled; divergences (B, NH, N)
/// = each row's contribution to the objective.
template <class X>
void distil(CPU, X* dscores, X* divergences, const X* scores, const DenseMap<X>& map, const GateShape& s, const Distillation& d) {
    const int N = s.blocks();
    const auto log_sum = [](const X* x, int n) {
        X largest = x[0], sum = 0;
        for (int c = 1; c < n; c++) largest = std::max(largest, x[c]);
        for (int c = 0; c < n; c++) sum += std::exp(x[c] - largest);
        return largest + std::log(sum);
    };
#pragma omp parallel for collapse(3)
    for (int b = 0; b < s.B; b++)
        for (int h = 0; h < s.NH; h++)
            for (int r = 0; r < N; r++) {
                const size_t row = s.of_query(b, h, r);
                X* to = dscores + row * N;
                std::fill_n(to, N, X(0));
                divergences[row] = 0;
                if (!d.counts(h, r)) continue;
                for (int c = 0; c < r; c++) to[c] = map.exponent(s, b, h, r, c);
                const X of_teacher = log_sum(to, r), of_student = log_sum(scores + row * N, r), weight = d.row_weight(s);
                for (int c = 0; c < r; c++) {
                    const X log_t = to[c] - of_teacher, log_p = scores[row * N + c] - of_student, t = std::exp(log_t);
                    divergences[row] += weight * t * (log_t - log_p);
                    to[c] = weight * (std::exp(log_p) - t);
                }
            }
}

/// scores (B, NH, N, N) = log R_rc for c < r: what a perfect gate would say.
template <class X>
void scores_of_map(CPU, X* scores, const DenseMap<X>& map, const GateShape& s) {
    const int N = s.blocks();
#pragma omp parallel for collapse(3)
    for (int b = 0; b < s.B; b++)
        for (int h = 0; h < s.NH; h++)
            for (int r = 0; r < N; r++)
                for (int c = 0; c < r; c++) scores[s.of_query(b, h, r) * N + c] = map.exponent(s, b, h, r, c);
}

/// auxiliary (heads) = sums over the rows of divergences (heads, rows); zero where rows is 0.
template <class X>
void sum_divergences(CPU, X* auxiliary, const X* divergences, int heads, int rows) {
    for (int n = 0; n < heads; n++) {
        auxiliary[n] = 0;
        for (int r = 0; r < rows; r++) auxiliary[n] += divergences[size_t(n) * rows + r];
    }
}

#ifdef WITH_GPU

namespace distillation {
inline constexpr int WARPS = 4, THREADS = WARPS * WARP;
struct Shared {
    float parts[WARPS];
};

/// log sum_c exp(x[c]) over c < n, on every thread of the block.
__device__ __forceinline__ float log_sum(const float* x, int n, Shared& shared) {
    float largest = -1e30f, sum = 0;
    for (int c = threadIdx.x; c < n; c += THREADS) largest = fmaxf(largest, x[c]);
    largest = block_max(largest, shared.parts, WARPS);
    for (int c = threadIdx.x; c < n; c += THREADS) sum += expf(x[c] - largest);
    return largest + logf(block_sum<WARPS>(sum, shared.parts));
}
}   // namespace distillation

/// Block (r, h, b). Except in the sums, a thread reads and writes its own blocks c only.
template <class W>
__global__ void distil_kernel(W* dscores, W* divergences, const W* scores, const DenseMap<W> map, const GateShape s,
                              const Distillation d) {
    using namespace distillation;
    auto& shared = dynamic_shared<Shared>();
    const int r = blockIdx.x, h = blockIdx.y, b = blockIdx.z, N = s.blocks(), end = d.counts(h, r) ? r : 0;
    const size_t row = s.of_query(b, h, r);
    const W* mine = scores + row * N;
    W* to = dscores + row * N;
    for (int c = threadIdx.x; c < N; c += THREADS) to[c] = c < end ? map.exponent(s, b, h, r, c) : 0;
    const float of_teacher = log_sum(to, end, shared), of_student = log_sum(mine, end, shared), weight = d.row_weight(s);
    float sum = 0;
    for (int c = threadIdx.x; c < end; c += THREADS) {
        const float log_t = to[c] - of_teacher, log_p = mine[c] - of_student, t = expf(log_t);
        sum += t * (log_t - log_p);
        to[c] = weight * (expf(log_p) - t);
    }
    sum = block_sum<WARPS>(sum, shared.parts);
    if (threadIdx.x == 0) divergences[row] = end > 0 ? weight * sum : 0;
}

/// Block (r, h, b).
template <class W>
__global__ void scores_of_map_kernel(W* scores, const DenseMap<W> map, const GateShape s) {
    const int r = blockIdx.x, h = blockIdx.y, b = blockIdx.z;
    for (int c = threadIdx.x; c < r; c += blockDim.x) scores[s.of_query(b, h, r) * s.blocks() + c] = map.exponent(s, b, h, r, c);
}
inline void scores_of_map(GPU device, float* scores, const DenseMap<float>& map, const GateShape& s) {
    launch(device, scores_of_map_kernel<float>, Grid(s.blocks(), s.NH, s.B), 64, 0, scores, map, s);
}

template <class W>
__global__ void sum_divergences_kernel(W* auxiliary, const W* divergences, int heads, int rows) {
    const int n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= heads) return;
    W sum = 0;
    for (int r = 0; r < rows; r++) sum += divergences[size_t(n) * rows + r];
    auxiliary[n] = sum;
}

inline void distil(GPU device, float* dscores, float* divergences, const float* scores, const DenseMap<float>& map,
                   const GateShape& s, const Distillation& d) {
    using namespace distillation;
    const Grid grid(s.blocks(), s.NH, s.B);
    launch(device, distil_kernel<float>, grid, THREADS, sizeof(Shared), dscores, divergences, scores, map, s, d);
}
inline void sum_divergences(GPU device, float* auxiliary, const float* divergences, int heads, int rows) {
    launch(device, sum_divergences_kernel<float>, Grid(blocks_for(heads, 128)), 128, 0, auxiliary, divergences, heads, rows);
}

#endif
