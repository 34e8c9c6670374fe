// Muon (Jordan et al. 2024) as in torch.optim.Muon with adjust_lr_fn="match_rms_adamw": the momentum of a matrix w (OUT, IN) is
// orthogonalised by Newton-Schulz iterations before it moves the weights.
//     g = clip g;  m = mu m + (1 - mu) g;  u = mu m + (1 - mu) g            Nesterov's momentum
//     x = u / max(|u|, eps);  five times: G = x x^T,  x = a x + (b G + c G^2) x
//     w = w (1 - lr decay) - lr 0.2 sqrt(max(OUT, IN)) x
// x has the singular vectors of u with singular values near 1, so its elements are about 1 / sqrt(max(OUT, IN)) in size. The last
// factor makes that 0.2, the usual size of an AdamW update (Liu et al. 2025, arXiv 2502.16982): one learning rate suits both. A tall
// matrix has G = x^T x on its right, which is the same polynomial with fewer operations. Learning rate, decay and clip are AdamW's.
// An update has two halves, because ZeRO-1 keeps parts of m, and the iterations need whole matrices u.
#pragma once
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <omp.h>

#include "model/device/blas.h"
#include "model/operations/adamw.cuh"
#ifdef WITH_GPU
#include "model/operations/matmul.cuh"
#endif

namespace muon {
inline constexpr double MOMENTUM = 0.95, EPS = 1e-7;
inline constexpr int ITERATIONS = 5;
inline constexpr int THREADS = 256;   // per block of a GPU
inline constexpr float A = 3.4445f, B = -4.7750f, C = 2.0315f;   // of the quintic polynomial

/// The factor of the learning rate for a matrix of this shape.
inline double scale(const MuonMatrix& matrix) { return 0.2 * std::sqrt(double(std::max(matrix.OUT, matrix.IN))); }

/// Memory for the iterations on one matrix at a time, in device memory.
template <class X>
struct Workspace {
    X *x, *next;         // (OUT, IN)
    X *gram, *inner;     // (min(OUT, IN), min(OUT, IN)): G, and b G + c G^2
    double* squares;     // (1) |u|^2
};
}   // namespace muon

/// Muon's state besides the flat buffers, empty in models without its matrices.
template <class X>
struct Muon {
    std::vector<MuonMatrix> matrices;             // matrices of which this shard owns a part
    UpdateRange* ranges = nullptr;                // (range_count) in device memory, muon_ranges()
    int range_count = 0;
    std::vector<muon::Workspace<X>> workspaces;   // each for the largest matrix; one on a GPU, one per thread on the CPU
};

// ---------------------------------------------------------------------------------------------------------------------- CPU

namespace muon {
/// c (M, N) = beta added + alpha op(a) op(b), all packed; added (M, N) may be null; no bias. As matmul() on a GPU.
template <class X>
void matmul(CPU, X* c, Transpose ta, const X* a, Transpose tb, const X* b, const X* /*bias*/, const X* added, int M, int N, int K,
            float alpha = 1, float beta = 1) {
    if (added) std::copy(added, added + size_t(M) * N, c);
    const size_t row_of_a = size_t(ta == Transpose::yes ? M : K), row_of_b = size_t(tb == Transpose::yes ? K : N);
    gemm(ta, tb, M, N, K, X(alpha), a, row_of_a, b, row_of_b, X(added ? beta : 0), c, size_t(N));
}

/// w.x = u (n) / max(|u|, EPS)
template <class X>
void normalise(CPU, const Workspace<X>& w, const X* u, size_t n) {
    sum_of_squares(CPU{}, w.squares, u, n);
    const X scale = X(1 / std::max(std::sqrt(*w.squares), EPS));
    for (size_t i = 0; i < n; i++) w.x[i] = scale * u[i];
}
}   // namespace muon

/// First half. Precondition: `gradients` is a whole flat buffer; `m` the shard's storage (owned_spans()). Replaces the shard's gradients
/// of Muon's matrices by u. Changes nothing if a total is not finite.
template <class X>
void muon_momentum(CPU, Wide<X>* m, Wide<X>* gradients, const Muon<X>& all, const StepTotals* totals, const AdamW& o) {
    if (!totals->finite()) return;
    const X factor = X(clip_factor(std::sqrt(totals->squares), o.grad_clip)), mu = X(muon::MOMENTUM), rest = X(1 - muon::MOMENTUM);
#pragma omp parallel for schedule(static)
    for (int r = 0; r < all.range_count; r++) {
        const UpdateRange range = all.ranges[r];
        X* const own = m + range.held;
        X* const g = gradients + range.begin;
        for (size_t i = 0; i < range.end - range.begin; i++) {
            const X clipped = factor * g[i];
            own[i] = mu * own[i] + rest * clipped;
            g[i] = mu * own[i] + rest * clipped;
        }
    }
}

namespace muon {
/// Precondition: w.x (OUT, IN) has norm 1 or less. The orthogonalised matrix, in w.x or w.next. In bf16 each product is rounded once.
template <class Device, class X>
const X* orthogonalise(Device device, const Workspace<X>& w, int OUT, int IN) {
    const auto no = Transpose::no, yes = Transpose::yes;
    const bool tall = OUT > IN;
    const int K = std::min(OUT, IN), longer = std::max(OUT, IN);
    const X* const nothing = nullptr;
    X *x = w.x, *next = w.next;
    for (int n = 0; n < ITERATIONS; n++) {
        matmul(device, w.gram, tall ? yes : no, x, tall ? no : yes, x, nothing, nothing, K, K, longer);
        matmul(device, w.inner, no, w.gram, no, w.gram, nothing, w.gram, K, K, K, C, B);
        matmul(device, next, no, tall ? x : w.inner, no, tall ? w.inner : x, nothing, x, OUT, IN, K, 1, A);
        std::swap(x, next);
    }
    return x;
}
}   // namespace muon

/// Second half. Precondition: `updates`, a whole flat buffer, has the whole u of every matrix of which the shard owns a part (after
/// muon_momentum(), gathered from all shards). Moves the shard's weights; `weights` and `master` as in adamw_update(). Each matrix is
/// computed by one thread, so that the number of threads changes no bit. Changes nothing if a total is not finite.
template <class X>
void muon_update(CPU device, X* weights, Wide<X>* master, const Wide<X>* updates, const Muon<X>& all, const StepTotals* totals,
                 const AdamW& o, int64_t /*step*/) {
    if (!totals->finite()) return;
    const X keep = X(1 - o.lr * o.weight_decay);
    const int threads = std::min(omp_get_max_threads(), int(all.workspaces.size()));
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (size_t n = 0; n < all.matrices.size(); n++) {
        const MuonMatrix& matrix = all.matrices[n];
        const auto& workspace = all.workspaces[size_t(omp_get_thread_num())];
        muon::normalise(device, workspace, updates + matrix.offset, size_t(matrix.OUT) * size_t(matrix.IN));
        const X* const x = muon::orthogonalise(device, workspace, matrix.OUT, matrix.IN);
        const X rate = X(o.lr * muon::scale(matrix));
        for (int r = matrix.first; r < matrix.first + matrix.count; r++) {
            const UpdateRange range = all.ranges[r];
            for (size_t i = range.begin; i < range.end; i++) weights[i] = master[i] = master[i] * keep - rate * x[i - matrix.offset];
        }
    }
}

#ifdef WITH_GPU

/// One range per block.
template <class W>
__global__ void __launch_bounds__(muon::THREADS)
    muon_momentum_kernel(W* m, W* gradients, const UpdateRange* ranges, const StepTotals* totals, double grad_clip) {
    const UpdateRange range = ranges[blockIdx.x];
    const StepTotals of_step = *totals;
    if (!of_step.finite()) return;
    constexpr float mu = float(muon::MOMENTUM), rest = float(1 - muon::MOMENTUM);
    const float clip = float(clip_factor(sqrt(of_step.squares), grad_clip));
    float *const own = m + range.held, *const g = gradients + range.begin;
    for (size_t i = threadIdx.x; i < range.end - range.begin; i += muon::THREADS) {
        const float clipped = clip * g[i];
        own[i] = mu * own[i] + rest * clipped;
        g[i] = mu * own[i] + rest * clipped;
    }
}

template <class X>
void muon_momentum(GPU device, Wide<X>* m, Wide<X>* gradients, const Muon<X>& all, const StepTotals* totals, const AdamW& o) {
    if (all.range_count == 0) return;
    launch(device, muon_momentum_kernel<Wide<X>>, all.range_count, muon::THREADS, 0, m, gradients, all.ranges, totals, o.grad_clip);
}

template <class X>
__global__ void __launch_bounds__(muon::THREADS) muon_normalise_kernel(X* x, const float* u, size_t n, const double* squares) {
    const size_t i = size_t(blockIdx.x) * muon::THREADS + threadIdx.x;
    if (i < n) x[i] = from_float<X>(u[i] * float(1 / fmax(sqrt(*squares), muon::EPS)));
}

namespace muon {
template <class X>
void normalise(GPU device, const Workspace<X>& w, const Wide<X>* u, size_t n) {
    sum_of_squares(device, w.squares, u, n);
    launch(device, muon_normalise_kernel<X>, blocks_for(n, THREADS), THREADS, 0, w.x, u, n, w.squares);
}
}   // namespace muon

/// One range of a matrix x at `offset` of the flat buffers per block. Rounds as AdamW does.
template <class X>
__global__ void __launch_bounds__(muon::THREADS)
    muon_update_kernel(X* weights, float* master, const X* x, size_t offset, const UpdateRange* ranges, const StepTotals* totals,
                       float rate, adamw::Factors f) {
    const UpdateRange range = ranges[blockIdx.x];
    if (!totals->finite()) return;
    for (size_t i = range.begin + threadIdx.x; i < range.end; i += muon::THREADS) {
        const size_t at = adamw::in_master<X>(i, range.held + (i - range.begin));
        float w = master[at] * f.keep_decaying - rate * to_float(x[i - offset]);
        master[at] = w;
        if (!std::is_same_v<X, float> && f.stochastic) w = adamw::round_stochastically(w, adamw::random_bits(f.key, i));
        weights[i] = from_float<X>(w);
    }
}

template <class X>
void muon_update(GPU device, X* weights, Wide<X>* master, const Wide<X>* updates, const Muon<X>& all, const StepTotals* totals,
                 const AdamW& o, int64_t step) {
    for (const MuonMatrix& matrix : all.matrices) {
        const auto& workspace = all.workspaces[0];
        muon::normalise(device, workspace, updates + matrix.offset, size_t(matrix.OUT) * size_t(matrix.IN));
        const X* const x = muon::orthogonalise(device, workspace, matrix.OUT, matrix.IN);
        launch(device, muon_update_kernel<X>, matrix.count, muon::THREADS, 0, weights, master, x, matrix.offset,
               all.ranges + matrix.first, totals, float(o.lr * muon::scale(matrix)), adamw::factors(o, step));
    }
}
#endif
