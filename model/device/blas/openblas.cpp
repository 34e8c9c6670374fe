// Matrix products by OpenBLAS, and the choice of its kernels and threads.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <cblas.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "model/base/error.h"
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

// OpenBLAS maps a buffer for each of its threads, and one for each thread that calls a product; where it cannot, it tries again
// without end. So under a limit on address space all are mapped before anything else takes the room. (They stay mapped when freed.)
extern "C" void* blas_memory_alloc(int position);
extern "C" void blas_memory_free(void* buffer);

static constexpr size_t BUFFER_BYTES = (size_t(128) << 20) + (64 << 10);
static constexpr int MOST_BUFFERS = 128;

static bool address_space_is_limited() {
    rlimit limit;
    return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

/// Up to `wanted` buffers that could be mapped now. Called before the C++ library is ready, too.
static int buffers_with_room(int wanted) {
    void* maps[MOST_BUFFERS];
    int count = 0;
    for (; count < std::min(wanted, MOST_BUFFERS); count++) {
        maps[count] = mmap(nullptr, BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (maps[count] == MAP_FAILED) break;
    }
    for (int n = 0; n < count; n++) munmap(maps[n], BUFFER_BYTES);
    return count;
}

/// Runs before the library is initialised, which maps buffers for all processors: one must do, and there must be room for a second.
static void make_room_for_library(int, char** argv, char**) {
    if (!address_space_is_limited()) return;
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    if (buffers_with_room(2) == 2) return;
    const char* const parts[] = {
        argv[0], ": error: no room for OpenBLAS under the limit on address space (ulimit -v); raise it to 1 GiB\n"};
    for (const char* part : parts)
        if (write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
    _exit(int(Exit::out_of_memory));
}
__attribute__((section(".preinit_array"), used)) static void (*before_libraries)(int, char**, char**) = make_room_for_library;

int use_blas_threads(int threads) {
    static int mapped = openblas_get_num_threads();
    if (!address_space_is_limited()) {
        openblas_set_num_threads(threads);
        return threads;
    }
    threads = std::min({threads, MOST_BUFFERS / 2, (mapped + buffers_with_room(std::max(0, 2 * threads - mapped))) / 2});
    mapped = std::max(mapped, 2 * threads);
    if (threads == 0) return 0;
    openblas_set_num_threads(threads);
    std::vector<void*> of_callers(static_cast<size_t>(threads));
    for (void*& buffer : of_callers) buffer = blas_memory_alloc(0);
    for (void* buffer : of_callers) blas_memory_free(buffer);
    return threads;
}

std::string describe_blas() { return std::string("OpenBLAS ") + openblas_get_corename(); }

void warn_about_blas() {
    if (openblas_get_parallel() == OPENBLAS_THREAD)
        std::fputs(
            "warning: this OpenBLAS has its own threads besides OpenMP's and will be slow: apt install libopenblas-openmp-dev, "
            "and build again\n",
            stderr);
}
