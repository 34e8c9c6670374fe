// The end of each half of a layer: residual addition and norm. On a GPU the product's epilogue adds the residual; on the CPU the addition
// is fused with the norm, while the row is in the cache.
#pragma once
#include "model/operations/linear.cuh"
#include "model/operations/rmsnorm.cuh"

///     sum (rows, C) = residual (rows, C) + inp (rows, IN) weight (C, IN)^T;     out (rows, C) = rmsnorm(sum) with norm_weight (C)
/// and rstd (rows) for the backward pass. Precondition: `sum` does not alias `residual`. The norm is computed from the stored (rounded)
/// sum, which the backward pass reads too.
template <class X>
void residual_forward(CPU device, X* sum, X* out, Wide<X>* rstd, const X* residual, const X* inp, std::type_identity_t<Matrix<X>> weight,
                      const X* norm_weight, int rows, int IN, int C, double eps) {
    linear_forward(device, sum, inp, weight, static_cast<const X*>(nullptr), rows, IN, C);
#pragma omp parallel for
    for (int row = 0; row < rows; row++) {
        const size_t at = size_t(row) * C;
        for (int c = 0; c < C; c++) sum[at + c] += residual[at + c];
        rstd[row] = rmsnorm_row(out + at, sum + at, norm_weight, C, eps);
    }
}

#ifdef WITH_GPU

template <class X>
void residual_forward(GPU device, X* sum, X* out, Wide<X>* rstd, const X* residual, const X* inp, const X* weight,
                      const X* norm_weight, int rows, int IN, int C, double eps) {
    const X* const no_bias = nullptr;
    matmul(device, sum, Transpose::no, inp, Transpose::yes, weight, no_bias, residual, rows, C, IN);
    rmsnorm_forward(device, out, rstd, static_cast<const X*>(sum), norm_weight, rows, C, eps);
}
#endif
