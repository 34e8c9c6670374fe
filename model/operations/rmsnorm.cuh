// RMSNorm (Zhang and Sennrich 2019): out = inp / rms(inp) * weight, rms = sqrt(mean(inp^2) + eps), over the last dimension.
#pragma once
#include <algorithm>
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

/// Sums of n numbers per thread, added up in the order of the threads: the same bits whenever the number of threads is the same.
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

/// out (rows, C), rstd (rows) from inp (rows, C), weight (C).
template <class X>
void rmsnorm_forward(CPU, X* out, Wide<X>* rstd, const X* inp, const X* weight, int rows, int C, double eps) {
#pragma omp parallel for
    for (int row = 0; row < rows; row++) rstd[row] = rmsnorm_row(out + size_t(row) * C, inp + size_t(row) * C, weight, C, eps);
}

/// The residual addition in front of a norm, in the same pass: sum (rows, C) = residual + branch; out = rmsnorm(sum).
template <class X>
void residual_rmsnorm_forward(CPU, X* sum, X* out, Wide<X>* rstd, const X* residual, const X* branch, const X* weight, int rows,
                              int C, double eps) {
#pragma omp parallel for
    for (int row = 0; row < rows; row++) {
        const size_t at = size_t(row) * C;
        for (int c = 0; c < C; c++) sum[at + c] = residual[at + c] + branch[at + c];
        rstd[row] = rmsnorm_row(out + at, sum + at, weight, C, eps);
    }
}

/// dinp (rows, C) = or += (the residual stream's gradient adds), dweight (C) = or +=.
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

// A block takes one row. Each thread has `PACKS` times 16 bytes of it and keeps them in registers between the sum over the row and
// its use, so that global memory is read once.
namespace rmsnorm {
inline constexpr int WIDEST = 8192;   // channels of the widest row
template <class X>
inline constexpr int THREADS = WIDEST / (4 * Packed<X>::size);   // at most
inline constexpr int SUMMED = 1 << 20;   // numbers of the rows that a backward has in hand at a time: enough to fill a GPU

struct Shared {
    float parts[1024 / WARP];
};

template <class X>
inline int threads_for(int C, int packs) {
    return int(blocks_for(C, size_t(packs) * Packed<X>::size * WARP)) * WARP;
}

/// Calls launch_with<PACKS>() for rows of C channels.
template <class X, class Launch>
void choose_packs(int C, Launch launch_with) {
    require_multiple_of_8("RMSNorm", "the number of channels", C);
    if (C > WIDEST) fail(Exit::usage, "RMSNorm on the GPU is for up to ", WIDEST, " channels, not ", C);
    if (threads_for<X>(C, 1) <= THREADS<X>) launch_with(std::integral_constant<int, 1>());
    else launch_with(std::integral_constant<int, 4>());
}
}   // namespace rmsnorm

/// One row per block; with `ADDS` its input is residual + branch, which goes to `sum` and is normalised as rounded there: the
/// backward reads it from there.
template <class X, int PACKS, bool ADDS>
__global__ void __launch_bounds__(rmsnorm::THREADS<X>)
    rmsnorm_forward_kernel(X* sum, X* out, float* rstd, const X* inp, const X* branch, const X* weight, int C, float eps) {
    constexpr int N = Packed<X>::size;
    auto& shared = dynamic_shared<rmsnorm::Shared>();
    const size_t row = size_t(blockIdx.x) * C;
    float x[PACKS][N] = {}, squares = 0;
    for (int p = 0; p < PACKS; p++) {
        const int c = (p * blockDim.x + threadIdx.x) * N;
        if (c < C) read_numbers(x[p], inp + row + c);
        if (!ADDS || c >= C) continue;
        float b[N];
        read_streaming(b, branch + row + c);
        for (int n = 0; n < N; n++) x[p][n] = to_float(from_float<X>(x[p][n] + b[n]));
    }
    for (int p = 0; p < PACKS; p++)
        for (int n = 0; n < N; n++) squares += x[p][n] * x[p][n];
    const float scale = 1 / sqrtf(block_sum(squares, shared.parts, blockDim.x / WARP) / C + eps);
    for (int p = 0; p < PACKS; p++) {
        const int c = (p * blockDim.x + threadIdx.x) * N;
        if (c >= C) continue;
        if (ADDS) write_numbers(sum + row + c, x[p]);
        float w[N];
        read_numbers(w, weight + c);
        for (int n = 0; n < N; n++) w[n] *= x[p][n] * scale;
        write_numbers(out + row + c, w);
    }
    if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
}

template <class X>
void rmsnorm_forward(GPU device, X* out, Wide<X>* rstd, const X* inp, const X* weight, int rows, int C, double eps) {
    rmsnorm::choose_packs<X>(C, [&](auto packs) {
        launch(device, rmsnorm_forward_kernel<X, packs(), false>, rows, rmsnorm::threads_for<X>(C, packs), sizeof(rmsnorm::Shared),
               nullptr, out, rstd, inp, nullptr, weight, C, float(eps));
    });
}

template <class X>
void residual_rmsnorm_forward(GPU device, X* sum, X* out, Wide<X>* rstd, const X* residual, const X* branch, const X* weight,
                              int rows, int C, double eps) {
    rmsnorm::choose_packs<X>(C, [&](auto packs) {
        launch(device, rmsnorm_forward_kernel<X, packs(), true>, rows, rmsnorm::threads_for<X>(C, packs), sizeof(rmsnorm::Shared),
               sum, out, rstd, residual, branch, weight, C, float(eps));
    });
}

/// A block takes rows blockIdx.x, + gridDim.x, ... one after the other and leaves their sum of dout xhat in partials (blocks, C).
template <class X, int PACKS>
__global__ void __launch_bounds__(rmsnorm::THREADS<X>)
    rmsnorm_backward_kernel(X* dinp, float* partials, const X* dout, const X* inp, const X* weight, const float* rstd, int rows,
                            int C, Write write_input) {
    constexpr int N = Packed<X>::size;
    auto& shared = dynamic_shared<rmsnorm::Shared>();
    float w[PACKS][N] = {}, dweight[PACKS][N] = {};
    for (int p = 0; p < PACKS; p++) {
        const int c = (p * blockDim.x + threadIdx.x) * N;
        if (c < C) read_numbers(w[p], weight + c);
    }
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        float d[PACKS][N] = {}, xhat[PACKS][N] = {}, before[PACKS][N] = {}, product = 0;
        const float scale = rstd[row];
        for (int p = 0; p < PACKS; p++) {
            const int c = (p * blockDim.x + threadIdx.x) * N;
            const size_t at = size_t(row) * C + c;
            if (c >= C) continue;
            read_streaming(d[p], dout + at);
            read_streaming(xhat[p], inp + at);
            if (write_input == Write::add) read_numbers(before[p], dinp + at);
        }
        for (int p = 0; p < PACKS; p++)
            for (int n = 0; n < N; n++) {
                xhat[p][n] *= scale;
                product += w[p][n] * d[p][n] * xhat[p][n];
            }
        const float mean = block_sum(product, shared.parts, blockDim.x / WARP) / C;
        for (int p = 0; p < PACKS; p++) {
            const int c = (p * blockDim.x + threadIdx.x) * N;
            for (int n = 0; n < N; n++) {
                dweight[p][n] += d[p][n] * xhat[p][n];
                before[p][n] += scale * (w[p][n] * d[p][n] - xhat[p][n] * mean);
            }
            if (c < C) write_numbers(dinp + size_t(row) * C + c, before[p]);
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
    const int blocks = std::min(rows, std::max(1, rmsnorm::SUMMED / C));   // the same on every GPU, and so are the bits
    float* partials = take_workspace<float>(device, "the backward of RMSNorm", size_t(blocks) * C);
    rmsnorm::choose_packs<X>(C, [&](auto packs) {
        launch(device, rmsnorm_backward_kernel<X, packs()>, blocks, rmsnorm::threads_for<X>(C, packs), sizeof(rmsnorm::Shared),
               dinp, partials, dout, inp, weight, rstd, rows, C, write_input);
    });
    sum_partials(device, dweight, partials, blocks, C, write_weight);
}
#endif
