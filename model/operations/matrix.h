// A weight matrix for linear layers and look-ups on the CPU, and its product with a few rows.
#pragma once
#include <cstddef>

#include "model/base/bf16.h"

/// A row-major matrix in the computing type X, or in bf16.
template <class X>
struct Matrix {
    const X* data;
    const StoredBf16* bf16 = nullptr;   // in place of `data`

    constexpr Matrix(const X* numbers) : data(numbers) {}
    explicit constexpr Matrix(const StoredBf16* rounded) : data(nullptr), bf16(rounded) {}
};

/// to (n) = from (n).
template <class X>
void widen(X* to, const StoredBf16* from, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = X(from[i]);
}

/// Maximum number of rows of multiply_few_rows(). With more, arithmetic costs more than reading the matrix, and a library is faster.
inline constexpr int FEW_ROWS = 16;

/// out (rows, OUT) = inp (rows, IN) weight (OUT, IN)^T on all threads, as in every linear layer during decode. The cost is reading the
/// matrix, once for all rows; a library would first pack it for reuse by many rows. A row's sums have the same order in every batch, so
/// that texts decoded together have the same bits as each alone.
void multiply_few_rows(float* out, const float* inp, const Matrix<float>& weight, int rows, int IN, int OUT);
