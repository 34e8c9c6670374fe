// Gate self-distillation (SeerAttention): a block gate's scores learn the distribution of dense causal attention over blocks.
//     R_rc = max over rows i of block r and keys j of block c of P_ij                     the pooled map of dense attention
//     t_r  = R_r over the blocks c < r, divided by their sum                              the teacher, which has no gradient
//     p_r  = softmax over c < r of the gate's scores                                      the student
//     L = lambda (mean over the rows r of all gated heads of KL(t_r || p_r))              dL/dscore = lambda (p - t) / rows
// R is computed as exp(max over i of (largest z of row i in the block's tiles - LSE_i)) from two outputs of the attention kernel,
// statistics.tile_max and the log-sum-exp; t is a softmax of these exponents, which is defined however small R is.
// A token's weight in the objective is 1 / tokens, so each sequence counts T times. Each packed document counts as a sequence.
#pragma once
#include "attention/blocks/block_gate.cuh"
#include "attention/kernel/call.h"

/// The distilled rows: of heads from `dense` on, without the first row of each text, which has no block to choose, and without the
/// share `skip` of its rows at the start.
struct Distillation {
    float lambda;
    int dense;
    float skip;

    /// The blocks over which row (b, h, r) is distilled, s.first() to r - 1 or none, and the weight of its divergence: lambda times
    /// its text's tokens over the number of rows.
    struct Row {
        int first, end;
        float weight;
        constexpr int count() const { return end - first; }
    };
    constexpr Row row(const GateShape& s, int b, int h, int r) const {
        const int first = s.first(b, r), tokens = s.tokens_of_text(b, r), blocks = (tokens + s.block - 1) / s.block;
        const int first_row = std::max(1, int(skip * float(blocks))), rows = (s.NH - dense) * (blocks - first_row);
        if (h < dense || r - first < first_row) return {first, first, 0};
        return {first, r, lambda * float(tokens) / float(rows)};
    }
};

/// The maxima (B, NH, T, tiles) and the log-sum-exp (B, NH, T) of dense causal attention. With documents the maxima are by rows of
/// blocks (BlockQueries, BlockKeys).
template <class W>
struct DenseMap {
    const W *tile_max, *lse;

    /// The log of the greatest weight of token t in block c; `row` is its row of the maxima.
    constexpr W of_token(const GateShape& s, int b, int h, int row, int t, int c) const {
        const int of_block = s.block / TILE;
        const size_t rows = (size_t(b) * s.NH + h) * s.T;
        W largest = -1e30f;
        for (int tile = c * of_block; tile < (c + 1) * of_block; tile++) {
            const W here = tile_max[(rows + row) * tiles_of(s.T) + tile] - lse[rows + t];
            if (here > largest) largest = here;
        }
        return largest;
    }
    /// log R_rc.
    constexpr W exponent(const GateShape& s, int b, int h, int r, int c) const {
        const int begin = s.queries_begin(b, r), count = s.tokens(b, r);
        W largest = -1e30f;
        for (int i = 0; i < count; i++) {
            const W here = of_token(s, b, h, r * s.block + i, begin + i, c);
            if (here > largest) largest = here;
        }
        return largest;
    }
};

/// A teacher for distil(): the shape (B, heads, rows, N) of scores, the distilled part of each row, and the teacher's logarithms.
template <class W>
struct BlockTeacher {
    DenseMap<W> map;
    GateShape s;
    Distillation d;
    constexpr int heads() const { return s.NH; }
    constexpr int rows() const { return s.blocks(); }
    constexpr Distillation::Row row(int b, int h, int r) const { return d.row(s, b, h, r); }
    constexpr W exponent(int b, int h, int r, int c) const { return map.exponent(s, b, h, r, c); }
};

/// dscores (B, heads, rows, N) = the gradient of the objective per unit of dloss, zero outside the distilled rows; divergences
/// (B, heads, rows) = each row's contribution to the objective. A teacher has BlockTeacher's members.
template <class X, class Teacher>
void distil(CPU, X* dscores, X* divergences, const X* scores, const Teacher& teacher) {
    const int N = teacher.s.blocks();
    const auto log_sum = [](const X* x, int n) {
        X largest = x[0], sum = 0;
        for (int c = 1; c < n; c++) largest = std::max(largest, x[c]);
        for (int c = 0; c < n; c++) sum += std::exp(x[c] - largest);
        return largest + std::log(sum);
    };
#pragma omp parallel for collapse(3)
    for (int b = 0; b < teacher.s.B; b++)
        for (int h = 0; h < teacher.heads(); h++)
            for (int r = 0; r < teacher.rows(); r++) {
                const size_t row = (size_t(b) * teacher.heads() + h) * teacher.rows() + r;
                const X* mine = scores + row * N;
                X* to = dscores + row * N;
                std::fill_n(to, N, X(0));
                divergences[row] = 0;
                const Distillation::Row of = teacher.row(b, h, r);
                if (of.count() == 0) continue;
                for (int c = of.first; c < of.end; c++) to[c] = teacher.exponent(b, h, r, c);
                const X of_teacher = log_sum(to + of.first, of.count()), of_student = log_sum(mine + of.first, of.count());
                for (int c = of.first; c < of.end; c++) {
                    const X log_t = to[c] - of_teacher, log_p = mine[c] - of_student, t = std::exp(log_t);
                    divergences[row] += of.weight * t * (log_t - log_p);
                    to[c] = of.weight * (std::exp(log_p) - t);
                }
            }
}

/// scores (B, NH, N, N) = log R_rc for past blocks c: the output of a perfect gate.
template <class X>
void scores_of_map(CPU, X* scores, const DenseMap<X>& map, const GateShape& s) {
    const int N = s.blocks();
#pragma omp parallel for collapse(3)
    for (int b = 0; b < s.B; b++)
        for (int h = 0; h < s.NH; h++)
            for (int r = 0; r < N; r++)
                for (int c = s.first(b, r); c < r; c++) scores[s.of_query(b, h, r) * N + c] = map.exponent(s, b, h, r, c);
}

/// auxiliary (heads) = sums over the rows of divergences (heads / group, rows), divided equally among the heads of a group; zero if
/// rows is 0.
template <class X>
void sum_divergences(CPU, X* auxiliary, const X* divergences, int heads, int rows, int group = 1) {
    for (int n = 0; n < heads; n++) {
        X sum = 0;
        for (int r = 0; r < rows; r++) sum += divergences[size_t(n / group) * rows + r];
        auxiliary[n] = sum / X(group);
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
template <class W, class Teacher>
__global__ void distil_kernel(W* dscores, W* divergences, const W* scores, const Teacher teacher) {
    using namespace distillation;
    auto& shared = dynamic_shared<Shared>();
    const int r = blockIdx.x, h = blockIdx.y, b = blockIdx.z, N = teacher.s.blocks(), lane = threadIdx.x;
    const Distillation::Row of = teacher.row(b, h, r);
    const size_t row = (size_t(b) * teacher.heads() + h) * teacher.rows() + r;
    for (int c = lane; c < N; c += THREADS)
        if (c < of.first || c >= of.end) dscores[row * N + c] = 0;
    const W* mine = scores + row * N + of.first;   // c counts from the first below
    W* to = dscores + row * N + of.first;
    for (int c = lane; c < of.count(); c += THREADS) to[c] = teacher.exponent(b, h, r, of.first + c);
    const float of_teacher = log_sum(to, of.count(), shared), of_student = log_sum(mine, of.count(), shared);
    float sum = 0;
    for (int c = lane; c < of.count(); c += THREADS) {
        const float log_t = to[c] - of_teacher, log_p = mine[c] - of_student, t = expf(log_t);
        sum += t * (log_t - log_p);
        to[c] = of.weight * (expf(log_p) - t);
    }
    sum = block_sum<WARPS>(sum, shared.parts);
    if (lane == 0) divergences[row] = of.count() > 0 ? of.weight * sum : 0;
}

/// Block (r, h, b).
template <class W>
__global__ void scores_of_map_kernel(W* scores, const DenseMap<W> map, const GateShape s) {
    const int r = blockIdx.x, h = blockIdx.y, b = blockIdx.z;
    for (int c = s.first(b, r) + threadIdx.x; c < r; c += blockDim.x)
        scores[s.of_query(b, h, r) * s.blocks() + c] = map.exponent(s, b, h, r, c);
}
inline void scores_of_map(GPU device, float* scores, const DenseMap<float>& map, const GateShape& s) {
    launch(device, scores_of_map_kernel<float>, Grid(s.blocks(), s.NH, s.B), 64, 0, scores, map, s);
}

/// One warp per head.
template <class W>
__global__ void sum_divergences_kernel(W* auxiliary, const W* divergences, int rows, int group) {
    const int n = blockIdx.x;
    W sum = 0;
    for (int r = threadIdx.x; r < rows; r += WARP) sum += divergences[size_t(n / group) * rows + r];
    sum = warp_sum(sum);
    if (threadIdx.x == 0) auxiliary[n] = sum / W(group);
}

template <class Teacher>
void distil(GPU device, float* dscores, float* divergences, const float* scores, const Teacher& teacher) {
    using namespace distillation;
    const Grid grid(teacher.rows(), teacher.heads(), teacher.s.B);
    launch(device, distil_kernel<float, Teacher>, grid, THREADS, sizeof(Shared), dscores, divergences, scores, teacher);
}
inline void sum_divergences(GPU device, float* auxiliary, const float* divergences, int heads, int rows, int group = 1) {
    launch(device, sum_divergences_kernel<float>, Grid(heads), WARP, 0, auxiliary, divergences, rows, group);
}

#endif
