// Matrix products for float and double. scripts/probe.sh selects the implementation: model/device/blas/openblas.cpp, or
// model/device/blas/loops.cpp if there is no BLAS.
#pragma once
#include <cstddef>
#include <string>

enum class Transpose : bool { no, yes };

/// c (M, N) = alpha * op(a) op(b) + beta * c, row-major. op(a) is (M, K), op(b) is (K, N); ld* are elements between stored rows.
/// Inside an OpenMP parallel region it runs on the calling thread, elsewhere on all threads.
void gemm(Transpose ta, Transpose tb, int M, int N, int K, float alpha, const float* a, size_t lda, const float* b, size_t ldb,
          float beta, float* c, size_t ldc);
void gemm(Transpose ta, Transpose tb, int M, int N, int K, double alpha, const double* a, size_t lda, const double* b, size_t ldb,
          double beta, double* c, size_t ldc);

/// Sets and returns the number of threads of a product outside of parallel regions, and makes room for as many products at a time
/// within them: fewer than `threads`, perhaps 0, where the limit on address space (ulimit -v) leaves none.
int use_blas_threads(int threads);

/// The library and its kernels: "OpenBLAS SkylakeX".
std::string describe_blas();
