// sigmaReparam (Zhai et al. 2023, arXiv 2303.06296): linear layers use What = (gamma / sigma(W)) W instead of W, where sigma(W) is the
// spectral norm and gamma is learned. It keeps attention logits from growing, and so attention entropy from collapsing.
// One power iteration per optimiser step, from the previous step's u:
//     v = W u / |W u|      u' = W^T v / |W^T v|      sigma = v^T W u' = |W^T v|                 u becomes u' after the step
// The gradient treats u, v and u' as constants. With G = dL/dWhat, summed over micro-steps and ranks, and p = <G, W>:
//     dgamma = p / sigma      dW = (gamma / sigma) (G - (p / sigma) v u'^T)
// The sources disagree on gamma's initial value: 1 in the authors' JAX code for speech, sigma(W) in their PyTorch code. Here it is
// sigma(W), so that What starts at W.
// AdamW updates W and gamma; checkpoints hold W, gamma and u. The cost is two matrix-vector products per matrix and step.
#pragma once
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/device/device.h"
#include "model/device/math.h"
#include "model/operations/adamw.cuh"
#include "model/tensors.h"

/// State of the reparametrisation of all linear layers, in device memory.
template <class W>
struct Sigma {
    int count = 0;                    // linear layers; 0: the model is not reparametrised
    int rows = 0, columns = 0;        // the largest OUT and IN among them
    SigmaLinear* linears = nullptr;   // (count)
    W *v = nullptr, *next_u = nullptr;   // (sum of OUT), (sum of IN) at the offsets in SigmaLinear; next_u is u'
    W* row_sums = nullptr;            // (sum of OUT) each row's part of <G, W>
    W* norm = nullptr;                // (count) sigma
};

inline constexpr double SMALLEST_NORM = 1e-30;   // avoids 0 / 0 for a matrix of zeros

// ---------------------------------------------------------------------------------------------------------------------- CPU

namespace sigma_reparam {
/// Scales x (n) to unit length; returns its previous length.
template <class W>
W normalise(W* x, int n) {
    const W norm = std::max(std::sqrt(inner_product(x, x, n)), W(SMALLEST_NORM));
    for (int i = 0; i < n; i++) x[i] /= norm;
    return norm;
}

/// Computes v (OUT) and next_u (IN) from weight (OUT, IN) and u (IN); returns sigma. Each sum is by one thread, so the number of threads
/// changes no bit.
template <class W>
W power_iteration(W* v, W* next_u, const W* weight, const W* u, int OUT, int IN) {
#pragma omp parallel for
    for (int o = 0; o < OUT; o++) v[o] = inner_product(weight + size_t(o) * IN, u, IN);
    normalise(v, OUT);
    const int width = 64;   // columns per thread
#pragma omp parallel for
    for (int i0 = 0; i0 < IN; i0 += width) {
        const int end = std::min(IN, i0 + width);
        std::fill(next_u + i0, next_u + end, W(0));
        for (int o = 0; o < OUT; o++)
            for (int i = i0; i < end; i++) next_u[i] += v[o] * weight[size_t(o) * IN + i];
    }
    return normalise(next_u, IN);
}
}   // namespace sigma_reparam

/// Precondition: `weights`, the whole flat buffer on the host, is initialised. Initialises each u and gamma whose tensor name passes
/// `is_new`: u by `iterations` power iterations from its current value, gamma to sigma(W). `names` are the layers' names.
template <class W, class IsNew>
void start_sigma(const std::vector<SigmaLinear>& linears, const std::vector<std::string>& names, W* weights, IsNew is_new,
                 int iterations = 50) {
    for (size_t k = 0; k < linears.size(); k++) {
        const SigmaLinear& s = linears[k];
        W* const u = weights + s.u.offset;
        std::vector<W> v(s.OUT), next_u(s.IN);
        for (int n = 0; n < iterations && is_new(names[k] + ".sigma_u"); n++) {
            sigma_reparam::power_iteration(v.data(), next_u.data(), weights + s.weight.offset, u, s.OUT, s.IN);
            std::copy(next_u.begin(), next_u.end(), u);
        }
        if (is_new(names[k] + ".sigma_gamma"))
            weights[s.gamma.offset] =
                sigma_reparam::power_iteration(v.data(), next_u.data(), weights + s.weight.offset, u, s.OUT, s.IN);
    }
}

/// Writes What to `weights` from W, gamma and u in `raw`; both are whole flat buffers and may be the same one.
template <class W>
void sigma_forward(CPU, W* weights, const W* raw, const Sigma<W>& all) {
    for (int k = 0; k < all.count; k++) {
        const SigmaLinear& s = all.linears[k];
        const W* w = raw + s.weight.offset;
        all.norm[k] = sigma_reparam::power_iteration(all.v + s.v, all.next_u + s.next_u, w, raw + s.u.offset, s.OUT, s.IN);
        const W scale = raw[s.gamma.offset] / all.norm[k];
#pragma omp parallel for simd
        for (size_t n = 0; n < s.weight.size; n++) weights[s.weight.offset + n] = scale * w[n];
    }
}

/// Precondition: sigma_forward() has filled `all`. Turns the gradients of What into gradients of W and gamma, in place.
template <class W>
void sigma_backward(CPU, W* gradients, const W* raw, const Sigma<W>& all) {
    for (int k = 0; k < all.count; k++) {
        const SigmaLinear& s = all.linears[k];
        const W *w = raw + s.weight.offset, *v = all.v + s.v, *u = all.next_u + s.next_u;
        W *g = gradients + s.weight.offset, *sums = all.row_sums + s.v;
#pragma omp parallel for
        for (int o = 0; o < s.OUT; o++) sums[o] = inner_product(g + size_t(o) * s.IN, w + size_t(o) * s.IN, s.IN);
        W product = 0;
        for (int o = 0; o < s.OUT; o++) product += sums[o];
        const W scale = raw[s.gamma.offset] / all.norm[k], dgamma = product / all.norm[k];
        gradients[s.gamma.offset] = dgamma;
#pragma omp parallel for
        for (int o = 0; o < s.OUT; o++)
            for (int i = 0; i < s.IN; i++) {
                W& d = g[size_t(o) * s.IN + i];
                d = scale * (d - dgamma * v[o] * u[i]);
            }
    }
}

/// u = u' in `raw`, unless the step was skipped or u is frozen.
template <class W>
void sigma_advance(CPU, W* raw, const Sigma<W>& all, const StepTotals* totals) {
    for (int k = 0; k < all.count && totals->finite(); k++) {
        const SigmaLinear& s = all.linears[k];
        if (s.moves) std::copy_n(all.next_u + s.next_u, s.IN, raw + s.u.offset);
    }
}

// ---------------------------------------------------------------------------------------------------------------------- GPU
// Blocks (., k) work on linear layer k: one launch covers all layers.

#ifdef WITH_GPU

namespace sigma_reparam {
inline constexpr int THREADS = 256, WARPS = THREADS / WARP, COLUMNS = 128;
inline constexpr int IN_FLIGHT = 8;   // loads that a thread issues before it needs the first
struct Shared {
    float parts[WARPS];
};

/// This warp's row of the layer, which may be past the last. One row per warp.
__device__ __forceinline__ int row_of_warp() { return blockIdx.x * WARPS + threadIdx.x / WARP; }

/// This lane's x[i], x[i + WARP], ... below n, and zeros beyond: all loads are issued before the first value is needed.
struct LaneChunk {
    float x[IN_FLIGHT];
    __device__ LaneChunk(const float* from, int i, int n) {
        for (int k = 0; k < IN_FLIGHT; k++) x[k] = i + k * WARP < n ? from[i + k * WARP] : 0.0f;
    }
    __device__ float operator[](int k) const { return x[k]; }
};

/// Calls use(i, k) for every element k, which is x[i], of the LaneChunk that starts at `first`.
template <class Use>
__device__ __forceinline__ void for_each_in_chunk(int first, int n, Use use) {
    for (int k = 0; k < IN_FLIGHT; k++)
        if (const int i = first + k * WARP; i < n) use(i, k);
}

/// <a, b> of a (n) and b (n) by one warp, returned on every lane.
__device__ __forceinline__ float warp_dot(const float* a, const float* b, int n) {
    float sum = 0;
    for (int i = threadIdx.x % WARP; i < n; i += WARP * IN_FLIGHT) {
        const LaneChunk x(a, i, n), y(b, i, n);
        for (int k = 0; k < IN_FLIGHT; k++) sum += x[k] * y[k];
    }
    return warp_sum(sum);
}
}   // namespace sigma_reparam

/// v = W u, not normalised yet.
template <class W>
__global__ void __launch_bounds__(sigma_reparam::THREADS) sigma_rows_kernel(const W* raw, Sigma<W> all) {
    const SigmaLinear s = all.linears[blockIdx.y];
    const int o = sigma_reparam::row_of_warp();
    if (o >= s.OUT) return;
    const float sum = sigma_reparam::warp_dot(raw + s.weight.offset + size_t(o) * s.IN, raw + s.u.offset, s.IN);
    if (threadIdx.x % WARP == 0) all.v[s.v + o] = sum;
}

/// next_u = W^T v, not normalised yet. Every thread owns a column.
template <class W>
__global__ void __launch_bounds__(sigma_reparam::COLUMNS) sigma_columns_kernel(const W* raw, Sigma<W> all) {
    const SigmaLinear s = all.linears[blockIdx.y];
    const int i = blockIdx.x * sigma_reparam::COLUMNS + threadIdx.x;
    if (i >= s.IN) return;
    const float *w = raw + s.weight.offset + i, *v = all.v + s.v;
    float sum = 0;
#pragma unroll 8
    for (int o = 0; o < s.OUT; o++) sum += v[o] * w[size_t(o) * s.IN];
    all.next_u[s.next_u + i] = sum;
}

/// Normalises v, or next_u (OF_U) with its length written to norm. One block per layer.
template <bool OF_U, class W>
__global__ void __launch_bounds__(sigma_reparam::THREADS) sigma_normalise_kernel(Sigma<W> all) {
    auto& shared = dynamic_shared<sigma_reparam::Shared>();
    const SigmaLinear s = all.linears[blockIdx.y];
    float* const x = OF_U ? all.next_u + s.next_u : all.v + s.v;
    const int n = OF_U ? s.IN : s.OUT;
    float squares = 0;
    for (int i = threadIdx.x; i < n; i += sigma_reparam::THREADS) squares += x[i] * x[i];
    const float norm = fmaxf(sqrtf(block_sum<sigma_reparam::WARPS>(squares, shared.parts)), float(SMALLEST_NORM));
    for (int i = threadIdx.x; i < n; i += sigma_reparam::THREADS) x[i] /= norm;
    if (OF_U && threadIdx.x == 0) all.norm[blockIdx.y] = norm;
}

/// weights = What, rounded to the nearest X. `weights` and `raw` may be the same memory.
template <class X, class W>
__global__ void __launch_bounds__(sigma_reparam::THREADS) sigma_scale_kernel(X* weights, const W* raw, Sigma<W> all) {
    const SigmaLinear s = all.linears[blockIdx.y];
    const int o = sigma_reparam::row_of_warp();
    if (o >= s.OUT) return;
    const float scale = raw[s.gamma.offset] / all.norm[blockIdx.y];
    const size_t row = s.weight.offset + size_t(o) * s.IN;
    for (int first = threadIdx.x % WARP; first < s.IN; first += WARP * sigma_reparam::IN_FLIGHT) {
        const sigma_reparam::LaneChunk w(raw + row, first, s.IN);
        sigma_reparam::for_each_in_chunk(first, s.IN, [&](int i, int k) { weights[row + i] = from_float<X>(scale * w[k]); });
    }
}

/// row_sums = each row's part of <G, W>.
template <class W>
__global__ void __launch_bounds__(sigma_reparam::THREADS) sigma_products_kernel(const W* gradients, const W* raw, Sigma<W> all) {
    const SigmaLinear s = all.linears[blockIdx.y];
    const int o = sigma_reparam::row_of_warp();
    if (o >= s.OUT) return;
    const size_t row = s.weight.offset + size_t(o) * s.IN;
    const float sum = sigma_reparam::warp_dot(gradients + row, raw + row, s.IN);
    if (threadIdx.x % WARP == 0) all.row_sums[s.v + o] = sum;
}

/// dgamma. One block per layer.
template <class W>
__global__ void __launch_bounds__(sigma_reparam::THREADS) sigma_dgamma_kernel(W* gradients, Sigma<W> all) {
    auto& shared = dynamic_shared<sigma_reparam::Shared>();
    const SigmaLinear s = all.linears[blockIdx.y];
    float sum = 0;
    for (int o = threadIdx.x; o < s.OUT; o += sigma_reparam::THREADS) sum += all.row_sums[s.v + o];
    sum = block_sum<sigma_reparam::WARPS>(sum, shared.parts);
    if (threadIdx.x == 0) gradients[s.gamma.offset] = sum / all.norm[blockIdx.y];
}

/// dW from G, in place. Precondition: dgamma is computed.
template <class W>
__global__ void __launch_bounds__(sigma_reparam::THREADS) sigma_gradient_kernel(W* gradients, const W* raw, Sigma<W> all) {
    const SigmaLinear s = all.linears[blockIdx.y];
    const int o = sigma_reparam::row_of_warp();
    if (o >= s.OUT) return;
    const float scale = raw[s.gamma.offset] / all.norm[blockIdx.y], along_v = gradients[s.gamma.offset] * all.v[s.v + o];
    float* const g = gradients + s.weight.offset + size_t(o) * s.IN;
    const float* const u = all.next_u + s.next_u;
    for (int first = threadIdx.x % WARP; first < s.IN; first += WARP * sigma_reparam::IN_FLIGHT) {
        const sigma_reparam::LaneChunk before(g, first, s.IN), of_u(u, first, s.IN);
        sigma_reparam::for_each_in_chunk(first, s.IN, [&](int i, int k) { g[i] = scale * (before[k] - along_v * of_u[k]); });
    }
}

template <class W>
__global__ void __launch_bounds__(sigma_reparam::THREADS) sigma_advance_kernel(W* raw, Sigma<W> all, const StepTotals* totals) {
    const SigmaLinear s = all.linears[blockIdx.y];
    if (!s.moves || !totals->finite()) return;
    const int warp = threadIdx.x / WARP, share = WARP * sigma_reparam::IN_FLIGHT;
    for (int first = warp * share + threadIdx.x % WARP; first < s.IN; first += sigma_reparam::WARPS * share) {
        const sigma_reparam::LaneChunk u(all.next_u + s.next_u, first, s.IN);
        sigma_reparam::for_each_in_chunk(first, s.IN, [&](int i, int k) { raw[s.u.offset + i] = u[k]; });
    }
}

template <class X>
void sigma_forward(GPU device, X* weights, const float* raw, const Sigma<float>& all) {
    namespace n = sigma_reparam;
    const Grid rows(blocks_for(all.rows, n::WARPS), all.count), columns(blocks_for(all.columns, n::COLUMNS), all.count);
    const Grid layers(1, all.count);
    launch(device, sigma_rows_kernel<float>, rows, n::THREADS, 0, raw, all);
    launch(device, sigma_normalise_kernel<false, float>, layers, n::THREADS, sizeof(n::Shared), all);
    launch(device, sigma_columns_kernel<float>, columns, n::COLUMNS, 0, raw, all);
    launch(device, sigma_normalise_kernel<true, float>, layers, n::THREADS, sizeof(n::Shared), all);
    launch(device, sigma_scale_kernel<X, float>, rows, n::THREADS, 0, weights, raw, all);
}

inline void sigma_backward(GPU device, float* gradients, const float* raw, const Sigma<float>& all) {
    namespace n = sigma_reparam;
    const Grid rows(blocks_for(all.rows, n::WARPS), all.count);
    launch(device, sigma_products_kernel<float>, rows, n::THREADS, 0, gradients, raw, all);
    launch(device, sigma_dgamma_kernel<float>, Grid(1, all.count), n::THREADS, sizeof(n::Shared), gradients, all);
    launch(device, sigma_gradient_kernel<float>, rows, n::THREADS, 0, gradients, raw, all);
}

inline void sigma_advance(GPU device, float* raw, const Sigma<float>& all, const StepTotals* totals) {
    launch(device, sigma_advance_kernel<float>, Grid(1, all.count), sigma_reparam::THREADS, 0, raw, all, totals);
}
#endif
