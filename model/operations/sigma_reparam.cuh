// sigmaReparam (Zhai et al. 2023, arXiv 2303.06296): linear layers read What = (gamma / sigma(W)) W in place of W, where sigma(W) is
// the spectral norm and gamma is learned. It keeps attention logits from growing, and with them the entropy from collapsing.
// Once per optimiser step, from the vector u of the step before (power iteration):
//     v = W u / |W u|      u' = W^T v / |W^T v|      sigma = v^T W u' = |W^T v|                 u becomes u' after the step
// u, v and u' are constants to the gradient. With G = dL/dWhat, complete over micro-steps and ranks, and p = <G, W>:
//     dgamma = p / sigma      dW = (gamma / sigma) (G - (p / sigma) v u'^T)
// The sources disagree on where gamma starts: at 1 in the authors' JAX code for speech, at sigma(W) in their PyTorch code. Here it
// is sigma(W), so that What starts at W.
// AdamW updates W and gamma, and checkpoints hold W, gamma and u. Two matrix-vector products per matrix and step.
#pragma once
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/operations/adamw.cuh"
#include "model/device/device.h"
#include "model/device/math.h"
#include "model/qwen.h"

/// What the reparametrisation of all linear layers works with, in the device's memory.
template <class W>
struct Sigma {
    int count = 0;                    // linear layers; none: the model is not reparametrised
    int rows = 0, columns = 0;        // the largest OUT and IN among them
    SigmaLinear* linears = nullptr;   // (count)
    W *v = nullptr, *next_u = nullptr;   // (sum of OUT), (sum of IN): SigmaLinear says where each layer's lie; next_u is u'
    W* row_sums = nullptr;            // (sum of OUT) parts of <G, W>
    W* norm = nullptr;                // (count) sigma
};

inline constexpr double SMALLEST_NORM = 1e-30;   // of a matrix of zeros: 0 / 0 would spread

// ---------------------------------------------------------------------------------------------------------------------- CPU

namespace sigma_reparam {
/// Scales x (n) to length 1; returns the length that it had.
template <class W>
W normalise(W* x, int n) {
    const W norm = std::max(std::sqrt(inner_product(x, x, n)), W(SMALLEST_NORM));
    for (int i = 0; i < n; i++) x[i] /= norm;
    return norm;
}

/// v (OUT) and next_u (IN) from weight (OUT, IN) and u; returns sigma. Every sum has one thread: their number changes no bit.
template <class W>
W power_iteration(W* v, W* next_u, const W* weight, const W* u, int OUT, int IN) {
#pragma omp parallel for
    for (int o = 0; o < OUT; o++) v[o] = inner_product(weight + size_t(o) * IN, u, IN);
    normalise(v, OUT);
    const int width = 64;   // columns that a thread owns
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

/// Starts those u and gamma whose tensors `is_new` names, on the host, after W is there: u from the numbers that it was initialised
/// with by `iterations` of power iteration, gamma at sigma(W). `weights` is the whole flat buffer.
template <class W, class IsNew>
void start_sigma(const Qwen& net, W* weights, IsNew is_new, int iterations = 50) {
    for (size_t k = 0; k < net.sigma.size(); k++) {
        const SigmaLinear& s = net.sigma[k];
        W* const u = weights + s.u.offset;
        std::vector<W> v(s.OUT), next_u(s.IN);
        for (int n = 0; n < iterations && is_new(net.sigma_names[k] + ".sigma_u"); n++) {
            sigma_reparam::power_iteration(v.data(), next_u.data(), weights + s.weight.offset, u, s.OUT, s.IN);
            std::copy(next_u.begin(), next_u.end(), u);
        }
        if (is_new(net.sigma_names[k] + ".sigma_gamma"))
            weights[s.gamma.offset] =
                sigma_reparam::power_iteration(v.data(), next_u.data(), weights + s.weight.offset, u, s.OUT, s.IN);
    }
}

/// What in `weights` from W, gamma and u in `raw`; both are whole flat buffers and may be the same one.
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

/// `gradients` from those of What to those of W and gamma. Needs what sigma_forward() left in `all`.
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

/// u = u' in `raw`, unless the step was not taken or u is frozen.
template <class W>
void sigma_advance(CPU, W* raw, const Sigma<W>& all, const StepNumbers* numbers) {
    for (int k = 0; k < all.count && numbers->finite(); k++) {
        const SigmaLinear& s = all.linears[k];
        if (s.moves) std::copy_n(all.next_u + s.next_u, s.IN, raw + s.u.offset);
    }
}

// ---------------------------------------------------------------------------------------------------------------------- GPU
// Block (., k) works on linear layer k: all of a model's in one launch.

#ifdef WITH_GPU

namespace sigma_reparam {
inline constexpr int THREADS = 256, WARPS = THREADS / WARP, COLUMNS = 128;
struct Shared {
    float parts[WARPS];
};

/// The row of the layer that this warp works on, or one past the last. Every warp has a row of its own.
__device__ __forceinline__ int row_of_warp() { return blockIdx.x * WARPS + threadIdx.x / WARP; }

/// <a, b> (n) by one warp, the same on every lane.
__device__ __forceinline__ float warp_dot(const float* a, const float* b, int n) {
    float sum = 0;
    for (int i = threadIdx.x % WARP; i < n; i += WARP) sum += a[i] * b[i];
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

/// Scales v, or next_u with its length going to norm. One block per layer.
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

/// What, rounded to the nearest X. `weights` and `raw` may be the same memory.
template <class X, class W>
__global__ void __launch_bounds__(sigma_reparam::THREADS) sigma_scale_kernel(X* weights, const W* raw, Sigma<W> all) {
    const SigmaLinear s = all.linears[blockIdx.y];
    const int o = sigma_reparam::row_of_warp();
    if (o >= s.OUT) return;
    const float scale = raw[s.gamma.offset] / all.norm[blockIdx.y];
    const size_t row = s.weight.offset + size_t(o) * s.IN;
    for (int i = threadIdx.x % WARP; i < s.IN; i += WARP) weights[row + i] = from_float<X>(scale * raw[row + i]);
}

/// row_sums = the parts of <G, W>.
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

/// dW from G, in place; dgamma is there.
template <class W>
__global__ void __launch_bounds__(sigma_reparam::THREADS) sigma_gradient_kernel(W* gradients, const W* raw, Sigma<W> all) {
    const SigmaLinear s = all.linears[blockIdx.y];
    const int o = sigma_reparam::row_of_warp();
    if (o >= s.OUT) return;
    const float scale = raw[s.gamma.offset] / all.norm[blockIdx.y], along_v = gradients[s.gamma.offset] * all.v[s.v + o];
    float* const g = gradients + s.weight.offset + size_t(o) * s.IN;
    const float* const u = all.next_u + s.next_u;
    for (int i = threadIdx.x % WARP; i < s.IN; i += WARP) g[i] = scale * (g[i] - along_v * u[i]);
}

template <class W>
__global__ void __launch_bounds__(sigma_reparam::THREADS) sigma_advance_kernel(W* raw, Sigma<W> all, const StepNumbers* numbers) {
    const SigmaLinear s = all.linears[blockIdx.y];
    if (!s.moves || !numbers->finite()) return;
    for (int i = threadIdx.x; i < s.IN; i += sigma_reparam::THREADS) raw[s.u.offset + i] = all.next_u[s.next_u + i];
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

inline void sigma_advance(GPU device, float* raw, const Sigma<float>& all, const StepNumbers* numbers) {
    launch(device, sigma_advance_kernel<float>, Grid(1, all.count), sigma_reparam::THREADS, 0, raw, all, numbers);
}
#endif
