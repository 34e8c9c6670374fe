// Linear layers: y = x W^T + b with W (OUT, IN), and their gradients.
#pragma once
#include <algorithm>
#include <type_traits>
#include <vector>

#include <omp.h>

#include "model/device/blas.h"
#include "model/device/device.h"
#include "model/operations/matrix.h"
#ifdef WITH_GPU
#include "model/operations/column_sum.cuh"
#include "model/operations/matmul.cuh"
#endif

/// c (rows, N) = a (rows, K) op(b) + beta * c, all packed. Each thread multiplies its own share of the rows, without barriers. With too
/// few rows for that, the library divides the work.
template <class X>
void multiply_rows(Transpose tb, X* c, const X* a, const X* b, X beta, int rows, int K, int N) {
    const auto part = [=](int row, int count) {
        gemm(Transpose::no, tb, count, N, K, X(1), a + size_t(row) * K, K, b, tb == Transpose::yes ? K : N, beta,
             c + size_t(row) * N, N);
    };
    const int threads = omp_get_max_threads(), share = (rows + threads - 1) / threads;
    if (share < 256) return part(0, rows);
#pragma omp parallel for
    for (int row = 0; row < rows; row += share) part(row, std::min(share, rows - row));
}

/// out (rows, OUT) = inp (rows, IN) weight (OUT, IN)^T. Each thread widens a tile of the matrix at a time, for all rows.
template <class X>
void multiply_widened(X* out, const X* inp, const StoredBf16* weight, int rows, int IN, int OUT) {
    constexpr int TALLEST = 128;
    const int share = (OUT + omp_get_max_threads() - 1) / omp_get_max_threads(), height = std::min(share, TALLEST);
#pragma omp parallel
    {
        std::vector<X> tile(size_t(height) * IN);
#pragma omp for
        for (int o = 0; o < OUT; o += height) {
            const int here = std::min(height, OUT - o);
            widen(tile.data(), weight + size_t(o) * IN, size_t(here) * IN);
            gemm(Transpose::no, Transpose::yes, rows, here, IN, X(1), inp, IN, tile.data(), IN, X(0), out + o, OUT);
        }
    }
}

/// out (rows, OUT) = inp (rows, IN) weight^T + bias; bias (OUT) may be null. In float, each of up to FEW_ROWS rows has the same bits as
/// alone.
template <class X>
void linear_forward(CPU, X* out, const X* inp, std::type_identity_t<Matrix<X>> weight, const X* bias, int rows, int IN, int OUT) {
    const bool few = std::is_same_v<X, float> && rows <= FEW_ROWS;
    if constexpr (std::is_same_v<X, float>)
        if (few) multiply_few_rows(out, inp, weight, rows, IN, OUT);
    if (!few && weight.bf16) multiply_widened(out, inp, weight.bf16, rows, IN, OUT);
    else if (!few) multiply_rows(Transpose::yes, out, inp, weight.data, X(0), rows, IN, OUT);
    if (!bias) return;
#pragma omp parallel for
    for (int row = 0; row < rows; row++)
        for (int o = 0; o < OUT; o++) out[size_t(row) * OUT + o] += bias[o];
}

/// Writes or adds dout (rows, OUT) weight (OUT, IN) to dinp (rows, IN).
template <class X>
void linear_backward_input(CPU, X* dinp, const X* dout, const X* weight, int rows, int IN, int OUT, Write write) {
    multiply_rows(Transpose::no, dinp, dout, weight, X(write == Write::add), rows, OUT, IN);
}

/// Writes or adds dout (rows, OUT)^T inp (rows, IN) to dweight (OUT, IN), and the column sums of dout to dbias (OUT), which may be null.
template <class X>
void linear_backward_weight(CPU, Wide<X>* dweight, Wide<X>* dbias, const X* dout, const X* inp, int rows, int IN, int OUT,
                            Write write) {
    gemm(Transpose::yes, Transpose::no, OUT, IN, rows, X(1), dout, OUT, inp, IN, X(write == Write::add), dweight, IN);
    if (!dbias) return;
    const int width = 32;   // channels per thread, for all rows: the order of summation is fixed
#pragma omp parallel for
    for (int o0 = 0; o0 < OUT; o0 += width) {
        const int end = std::min(OUT, o0 + width);
        if (write == Write::overwrite) std::fill(dbias + o0, dbias + end, X(0));
        for (int row = 0; row < rows; row++)
            for (int o = o0; o < end; o++) dbias[o] += dout[size_t(row) * OUT + o];
    }
}

#ifdef WITH_GPU

/// The bias is added in the product's epilogue.
template <class X>
void linear_forward(GPU device, X* out, const X* inp, const X* weight, const X* bias, int rows, int IN, int OUT) {
    const X* const nothing = nullptr;
    matmul(device, out, Transpose::no, inp, Transpose::yes, weight, bias, nothing, rows, OUT, IN);
}

template <class X>
void linear_backward_input(GPU device, X* dinp, const X* dout, const X* weight, int rows, int IN, int OUT, Write write) {
    const X *const nothing = nullptr, *const added = write == Write::add ? dinp : nothing;
    matmul(device, dinp, Transpose::no, dout, Transpose::no, weight, nothing, added, rows, IN, OUT);
}

/// The column sums are a separate pass that rereads dout: cuBLASLt's bias-gradient epilogue can only overwrite and does not
/// guarantee the order of summation.
template <class X>
void linear_backward_weight(GPU device, Wide<X>* dweight, Wide<X>* dbias, const X* dout, const X* inp, int rows, int IN, int OUT,
                            Write write) {
    const Wide<X> *const nothing = nullptr, *const added = write == Write::add ? dweight : nothing;
    matmul(device, dweight, Transpose::yes, dout, Transpose::no, inp, nothing, added, OUT, IN, rows);
    if (dbias) column_sum(device, dbias, dout, rows, OUT, write);
}

#endif
