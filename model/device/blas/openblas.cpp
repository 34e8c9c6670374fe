// Matrix products by OpenBLAS, and the choice of its kernels and threads.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <cblas.h>
#include <unistd.h>

#include "model/base/process.h"
#include "model/device/blas.h"
#include "model/device/machine.h"

static CBLAS_TRANSPOSE of(Transpose t) { return t == Transpose::yes ? CblasTrans : CblasNoTrans; }

void gemm(Transpose ta, Transpose tb, int M, int N, int K, float alpha, const float* a, size_t lda, const float* b, size_t ldb,
          float beta, float* c, size_t ldc) {
    cblas_sgemm(CblasRowMajor, of(ta), of(tb), M, N, K, alpha, a, int(lda), b, int(ldb), beta, c, int(ldc));
}
void gemm(Transpose ta, Transpose tb, int M, int N, int K, double alpha, const double* a, size_t lda, const double* b, size_t ldb,
          double beta, double* c, size_t ldc) {
    cblas_dgemm(CblasRowMajor, of(ta), of(tb), M, N, K, alpha, a, int(lda), b, int(ldb), beta, c, int(ldc));
}

/// The fastest kernel family that this processor supports; null: let OpenBLAS choose.
static const char* best_core() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512cd");
    if (avx512) return "SKYLAKEX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "HASWELL";
#endif
    return nullptr;
}

/// Kernel families by speed: 2 uses AVX-512, 1 uses AVX2, 0 neither.
static int rank_of(const std::string& core) {
    for (const char* name : {"SkylakeX", "SKYLAKEX", "Cooperlake", "Sapphirerapids", "SapphireRapids"})
        if (core == name) return 2;
    for (const char* name : {"Haswell", "HASWELL", "Zen"})
        if (core == name) return 1;
    return 0;
}

void choose_blas_kernels(char** argv) {
    const char* best = best_core();
    if (!best || std::getenv("KEEP_OPENBLAS_CORETYPE") || rank_of(openblas_get_corename()) >= rank_of(best)) return;
    setenv("OPENBLAS_CORETYPE", best, 1);
    setenv("KEEP_OPENBLAS_CORETYPE", "1", 1);   // no endless loop if the library lacks those kernels
    execv(program_path().c_str(), argv);        // returns only on failure; then the slow kernels must do
}

void use_blas_threads(int threads) { openblas_set_num_threads(threads); }

std::string describe_blas() { return std::string("OpenBLAS ") + openblas_get_corename(); }

void warn_about_blas() {
    if (openblas_get_parallel() == OPENBLAS_THREAD)
        std::fputs(
            "warning: this OpenBLAS has its own threads besides OpenMP's and will be slow: apt install libopenblas-openmp-dev, "
            "make configure, and build again\n",
            stderr);
}
