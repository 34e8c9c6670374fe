// RMSNorm (Zhang and Sennrich 2019): out = inp / rms(inp) * weight, rms = sqrt(mean(inp^2) + eps), over the last dimension.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include <omp.h>

#include "model/device/device.h"
#ifdef WITH_GPU
#include "model/operations/column_sum.cuh"
#endif

/// One row: out (n) = inp * rstd * weight; returns rstd = 1 / rms.
template <class X>
inline X rmsnorm_row(X* out, const X* inp, const X* weight, int n, double eps) {
    X squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int c = 0; c < n; c++) squares += inp[c] * inp[c];
    const X rstd = X(1) / std::sqrt(squares / X(n) + X(eps));
#pragma omp simd
    for (int c = 0; c < n; c++) out[c] = inp[c] * rstd * weight[c];
    return rstd;
}

/// One row backward. With xhat = inp * rstd and g = weight * dout:  dinp (+)= rstd (g - xhat mean(g xhat));  dweight += dout xhat.
template <class X>
inline void rmsnorm_row_backward(X* dinp, X* dweight, const X* dout, const X* inp, const X* weight, X rstd, int n, Write write) {
    X product = 0;
#pragma omp simd reduction(+ : product)
    for (int c = 0; c < n; c++) product += weight[c] * dout[c] * inp[c];
    const X mean = product * rstd / X(n);
    const X keep = X(write == Write::add);
#pragma omp simd
    for (int c = 0; c < n; c++) {
        const X xhat = inp[c] * rstd;
        dweight[c] += dout[c] * xhat;
        dinp[c] = (keep ? dinp[c] : X(0)) + rstd * (weight[c] * dout[c] - xhat * mean);
    }
}

/// Per-thread sums (n), reduced in thread order: bit-identical for the same number of threads.
template <class X>
class ThreadSums {
public:
    explicit ThreadSums(int n) : n_(n), stride_((n + 15) / 16 * 16), sums_(size_t(stride_) * omp_get_max_threads()) {}
    X* mine() { return sums_.data() + size_t(stride_) * omp_get_thread_num(); }
    void reduce_to(X* total, Write write) const {
        if (write == Write::overwrite) std::fill(total, total + n_, X(0));
        for (size_t start = 0; start < sums_.size(); start += stride_)
            for (int c = 0; c < n_; c++) total[c] += sums_[start + c];
    }

private:
    int n_, stride_;
    std::vector<X> sums_;
};

/// Computes out (rows, C) and rstd (rows) from inp (rows, C) and weight (C).
template <class X>
void rmsnorm_forward(CPU, X* out, Wide<X>* rstd, const X* inp, const X* weight, int rows, int C, double eps) {
#pragma omp parallel for
    for (int row = 0; row < rows; row++) rstd[row] = rmsnorm_row(out + size_t(row) * C, inp + size_t(row) * C, weight, C, eps);
}

/// Writes or adds the gradients to dinp (rows, C), which holds the residual's gradient, and to dweight (C).
template <class X>
void rmsnorm_backward(CPU, X* dinp, Wide<X>* dweight, const X* dout, const X* inp, const X* weight, const Wide<X>* rstd, int rows,
                      int C, Write write_input, Write write_weight) {
    ThreadSums<X> sums(C);
#pragma omp parallel for schedule(static)
    for (int row = 0; row < rows; row++) {
        const size_t at = size_t(row) * C;
        rmsnorm_row_backward(dinp + at, sums.mine(), dout + at, inp + at, weight, rstd[row], C, write_input);
    }
    sums.reduce_to(dweight, write_weight);
}

#ifdef WITH_GPU

// One row per block. Each thread keeps its `PACKS` x 16 bytes of the row in registers, so that global memory is read once.
namespace rmsnorm {
inline constexpr int WIDEST = 8192;   // channels of the widest row
template <class X>
inline constexpr int THREADS = WIDEST / (4 * Packed<X>::size);   // at most
inline constexpr int SUMMED = 1 << 20;   // elements that a backward pass processes at a time: enough to fill a GPU

struct Shared {
    float parts[1024 / WARP];
};

/// Blocks of a backward pass, hence rows of partial sums: the same on every GPU, so results are bit-identical. A power of two, because
/// an H200 holds 1,320 blocks of C = 768 at a time (62 registers, 96 threads): of SUMMED / C = 1,365 blocks 45 would be a second wave.
inline int blocks_backward(int rows, int C) { return std::min(rows, int(std::bit_floor(unsigned(std::max(1, SUMMED / C))))); }

template <class X>
inline int threads_for(int C, int packs) {
    return int(blocks_for(C, size_t(packs) * Packed<X>::size * WARP)) * WARP;
}

/// Calls launch_with(PACKS) for rows of C channels. Exit::usage if C is not a multiple of 8 or exceeds WIDEST.
template <class X, class Launch>
void choose_packs(int C, Launch launch_with) {
    require_multiple_of_8("RMSNorm", "the number of channels", C);
    if (C > WIDEST) fail(Exit::usage, "RMSNorm on the GPU is for up to ", WIDEST, " channels, not ", C);
    if (threads_for<X>(C, 1) <= THREADS<X>) launch_with(std::integral_constant<int, 1>());
    else launch_with(std::integral_constant<int, 4>());
}
}   // namespace rmsnorm

/// One row per block.
template <class X, int PACKS>
__global__ void __launch_bounds__(rmsnorm::THREADS<X>)
    rmsnorm_forward_kernel(X* out, float* rstd, const X* inp, const X* weight, int C, float eps) {
    constexpr int N = Packed<X>::size;
    auto& shared = dynamic_shared<rmsnorm::Shared>();
    const size_t row = size_t(blockIdx.x) * C;
    Packed<X> x[PACKS], w[PACKS];
    for (int p = 0; p < PACKS; p++) {
        const int c = (p * blockDim.x + threadIdx.x) * N;
        x[p] = load_packed_if(c < C, inp + row + c);
        w[p] = load_packed_if(c < C, weight + c);
    }
    float squares = 0;
    for (int p = 0; p < PACKS; p++)
        for (int n = 0; n < N; n++) squares += x[p][n] * x[p][n];
    const float scale = 1 / sqrtf(block_sum(squares, shared.parts, blockDim.x / WARP) / C + eps);
    for (int p = 0; p < PACKS; p++) {
        const int c = (p * blockDim.x + threadIdx.x) * N;
        for (int n = 0; n < N; n++) x[p].set(n, w[p][n] * (x[p][n] * scale));
        if (c < C) store_packed(out + row + c, x[p]);
    }
    if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
}

template <class X>
void rmsnorm_forward(GPU device, X* out, Wide<X>* rstd, const X* inp, const X* weight, int rows, int C, double eps) {
    rmsnorm::choose_packs<X>(C, [&](auto packs) {
        launch(device, rmsnorm_forward_kernel<X, packs()>, rows, rmsnorm::threads_for<X>(C, packs), sizeof(rmsnorm::Shared), out,
               rstd, inp, weight, C, float(eps));
    });
}

/// A block processes rows blockIdx.x, blockIdx.x + gridDim.x, ... and writes their sum of dout xhat to partials (blocks, C).
template <class X, int PACKS>
__global__ void __launch_bounds__(rmsnorm::THREADS<X>)
    rmsnorm_backward_kernel(X* dinp, float* partials, const X* dout, const X* inp, const X* weight, const float* rstd, int rows,
                            int C, Write write_input) {
    constexpr int N = Packed<X>::size;
    auto& shared = dynamic_shared<rmsnorm::Shared>();
    Packed<X> w[PACKS];
    float dweight[PACKS][N] = {};
    for (int p = 0; p < PACKS; p++) {
        const int c = (p * blockDim.x + threadIdx.x) * N;
        w[p] = load_packed_if(c < C, weight + c);
    }
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        Packed<X> d[PACKS], x[PACKS], before[PACKS];
        const float scale = rstd[row];
        for (int p = 0; p < PACKS; p++) {
            const int c = (p * blockDim.x + threadIdx.x) * N;
            const size_t at = size_t(row) * C + c;
            d[p] = load_packed_if<Reuse::streaming>(c < C, dout + at);
            x[p] = load_packed_if<Reuse::streaming>(c < C, inp + at);
            before[p] = load_packed_if(c < C && write_input == Write::add, dinp + at);
        }
        float product = 0;
        for (int p = 0; p < PACKS; p++)
            for (int n = 0; n < N; n++) product += w[p][n] * d[p][n] * (x[p][n] * scale);
        const float mean = block_sum(product, shared.parts, blockDim.x / WARP) / C;
        for (int p = 0; p < PACKS; p++) {
            const int c = (p * blockDim.x + threadIdx.x) * N;
            for (int n = 0; n < N; n++) {
                const float xhat = x[p][n] * scale;
                dweight[p][n] += d[p][n] * xhat;
                before[p].set(n, before[p][n] + scale * (w[p][n] * d[p][n] - xhat * mean));
            }
            if (c < C) store_packed(dinp + size_t(row) * C + c, before[p]);
        }
    }
    for (int p = 0; p < PACKS; p++) {
        const int c = (p * blockDim.x + threadIdx.x) * N;
        if (c < C) write_numbers(partials + size_t(blockIdx.x) * C + c, dweight[p]);
    }
}

template <class X>
void rmsnorm_backward(GPU device, X* dinp, Wide<X>* dweight, const X* dout, const X* inp, const X* weight, const Wide<X>* rstd,
                      int rows, int C, Write write_input, Write write_weight) {
    const int blocks = rmsnorm::blocks_backward(rows, C);
    float* partials = take_workspace<float>(device, "the backward of RMSNorm", size_t(blocks) * C);
    rmsnorm::choose_packs<X>(C, [&](auto packs) {
        launch(device, rmsnorm_backward_kernel<X, packs()>, blocks, rmsnorm::threads_for<X>(C, packs), sizeof(rmsnorm::Shared),
               dinp, partials, dout, inp, weight, rstd, rows, C, write_input);
    });
    sum_partials(device, dweight, partials, blocks, C, write_weight);
}
#endif
