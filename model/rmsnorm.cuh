// RMSNorm (Zhang and Sennrich 2019): out = inp / rms(inp) * weight, rms = sqrt(mean(inp^2) + eps), over the last dimension.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include <omp.h>

#include "model/device.h"

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
