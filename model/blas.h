// Matrix products through CBLAS (OpenBLAS), one name for float and double.
#pragma once
#include <cblas.h>
#include <cstddef>

enum class Transpose : bool { no, yes };

/// c (M, N) = alpha * op(a) op(b) + beta * c, row-major. op(a) is (M, K), op(b) is (K, N); ld* are elements between stored rows.
/// Inside an OpenMP parallel region the product runs on the calling thread; outside it uses all of them.
inline void gemm(Transpose ta, Transpose tb, int M, int N, int K, float alpha, const float* a, size_t lda, const float* b,
                 size_t ldb, float beta, float* c, size_t ldc) {
    cblas_sgemm(CblasRowMajor, ta == Transpose::yes ? CblasTrans : CblasNoTrans, tb == Transpose::yes ? CblasTrans : CblasNoTrans,
                M, N, K, alpha, a, int(lda), b, int(ldb), beta, c, int(ldc));
}
inline void gemm(Transpose ta, Transpose tb, int M, int N, int K, double alpha, const double* a, size_t lda, const double* b,
                 size_t ldb, double beta, double* c, size_t ldc) {
    cblas_dgemm(CblasRowMajor, ta == Transpose::yes ? CblasTrans : CblasNoTrans, tb == Transpose::yes ? CblasTrans : CblasNoTrans,
                M, N, K, alpha, a, int(lda), b, int(ldb), beta, c, int(ldc));
}

/// c (N) = alpha * b a + beta * c with b (N, K) and a (K): gemm() of one row with b transposed. It reads b once, where gemm() would
/// copy it for the use of many rows.
inline void gemv(int N, int K, float alpha, const float* a, const float* b, size_t ldb, float beta, float* c) {
    cblas_sgemv(CblasRowMajor, CblasNoTrans, N, K, alpha, b, int(ldb), a, 1, beta, c, 1);
}
inline void gemv(int N, int K, double alpha, const double* a, const double* b, size_t ldb, double beta, double* c) {
    cblas_dgemv(CblasRowMajor, CblasNoTrans, N, K, alpha, b, int(ldb), a, 1, beta, c, 1);
}
