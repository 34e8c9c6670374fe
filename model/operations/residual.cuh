// The end of each half of a layer: a projection is added to the residual, and the sum is normed for what reads it next. On a GPU
// the product's epilogue adds the residual; on the CPU the addition is fused with the norm, while the row is in cache. In Gemma 3's
// form the projection has a norm of its own before it is added, and then all that follows the product is one pass over its rows.
#pragma once
#include "model/operations/linear.cuh"
#include "model/operations/rmsnorm.cuh"

///     sum (rows, C) = residual (rows, C) + inp (rows, IN) weight (C, IN)^T;     out (rows, C) = rmsnorm(sum) with norm_weight (C)
/// and rstd (rows) for the backward pass. Precondition: `sum` does not alias `residual`. The norm is that of the sum as stored
/// (rounded), which is what the backward pass reads.
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

///     branch.projected = inp weight^T;     sum = residual + rmsnorm(branch.projected);     out = rmsnorm(sum)
/// of the same sizes as above.
template <class X>
void normed_residual_forward(CPU device, X* sum, X* out, Wide<X>* rstd, const NormedBranch<X>& branch, const X* residual, const X* inp,
                             std::type_identity_t<Matrix<X>> weight, const X* norm_weight, int rows, int IN, int C, double eps) {
    linear_forward(device, branch.projected, inp, weight, static_cast<const X*>(nullptr), rows, IN, C);
#pragma omp parallel for
    for (int row = 0; row < rows; row++) {
        const size_t at = size_t(row) * C;
        branch.rstd[row] = rmsnorm_row(sum + at, branch.projected + at, branch.norm_weight, C, eps);
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

/// One row per block, as in rmsnorm_forward_kernel(). The second norm is that of the sum as stored.
template <class X, int PACKS>
__global__ void __launch_bounds__(rmsnorm::THREADS<X>)
    normed_residual_kernel(X* sum, X* out, float* rstd, NormedBranch<X> branch, const X* residual, const X* norm_weight, int C, float eps) {
    constexpr int N = Packed<X>::size;
    auto& shared = dynamic_shared<rmsnorm::Shared>();
    const size_t row = size_t(blockIdx.x) * C;
    Packed<X> x[PACKS], before[PACKS], of_branch[PACKS], of_sum[PACKS];
    for (int p = 0; p < PACKS; p++) {
        const int c = (p * blockDim.x + threadIdx.x) * N;
        x[p] = load_packed_if(c < C, branch.projected + row + c);
        before[p] = load_packed_if(c < C, residual + row + c);
        of_branch[p] = load_packed_if(c < C, branch.norm_weight + c);
        of_sum[p] = load_packed_if(c < C, norm_weight + c);
    }
    const auto scale_of = [&] {   // 1 / rms of the row in x
        float squares = 0;
        for (int p = 0; p < PACKS; p++)
            for (int n = 0; n < N; n++) squares += x[p][n] * x[p][n];
        return 1 / sqrtf(block_sum(squares, shared.parts, blockDim.x / WARP) / C + eps);
    };
    const float branch_scale = scale_of();
    for (int p = 0; p < PACKS; p++) {
        const int c = (p * blockDim.x + threadIdx.x) * N;
        for (int n = 0; n < N; n++) x[p].set(n, before[p][n] + of_branch[p][n] * (x[p][n] * branch_scale));
        if (c < C) store_packed(sum + row + c, x[p]);
    }
    const float scale = scale_of();
    for (int p = 0; p < PACKS; p++) {
        const int c = (p * blockDim.x + threadIdx.x) * N;
        for (int n = 0; n < N; n++) x[p].set(n, of_sum[p][n] * (x[p][n] * scale));
        if (c < C) store_packed(out + row + c, x[p]);
    }
    if (threadIdx.x == 0) branch.rstd[blockIdx.x] = branch_scale, rstd[blockIdx.x] = scale;
}

template <class X>
void normed_residual_forward(GPU device, X* sum, X* out, Wide<X>* rstd, const NormedBranch<X>& branch, const X* residual, const X* inp,
                             const X* weight, const X* norm_weight, int rows, int IN, int C, double eps) {
    linear_forward(device, branch.projected, inp, weight, static_cast<const X*>(nullptr), rows, IN, C);
    rmsnorm::choose_packs<X>(C, [&](auto packs) {
        launch(device, normed_residual_kernel<X, packs()>, rows, rmsnorm::threads_for<X>(C, packs), sizeof(rmsnorm::Shared), sum, out,
               rstd, branch, residual, norm_weight, C, float(eps));
    });
}
#endif
