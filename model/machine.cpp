#include "model/machine.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include <malloc.h>
#include <omp.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/linear.cuh"

/// The best OpenBLAS kernel family for what this processor can do; null: let OpenBLAS choose.
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

/// The file of the running program; empty where /proc does not tell.
static std::filesystem::path program_path() {
    std::error_code unknown;
    return std::filesystem::read_symlink("/proc/self/exe", unknown);
}

void choose_blas_kernels(char** argv) {
    const char* best = best_core();
    if (!best || std::getenv("KEEP_OPENBLAS_CORETYPE") || rank_of(openblas_get_corename()) >= rank_of(best)) return;
    setenv("OPENBLAS_CORETYPE", best, 1);
    setenv("KEEP_OPENBLAS_CORETYPE", "1", 1);   // a library without those kernels must not send us round again
    execv(program_path().c_str(), argv);        // returns only when it fails; then the slow kernels do
}

void keep_freed_memory() {
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 64 << 20);
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
#endif
}

void prefer_large_pages(void* start, size_t bytes) {
    const size_t page = size_t(sysconf(_SC_PAGESIZE));
    const size_t first = (reinterpret_cast<size_t>(start) + page - 1) / page * page;
    const size_t end = (reinterpret_cast<size_t>(start) + bytes) / page * page;
    if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
}

int processors() { return int(sysconf(_SC_NPROCESSORS_ONLN)); }

int use_threads(int wanted, int local_ranks) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof allowed, &allowed);
    const int here = std::max(1, CPU_COUNT(&allowed));
    const int share =
        here < processors() ? here : std::max(1, here / local_ranks);   // a launcher that binds ranks has divided already
    const int threads = wanted > 0 ? wanted : share;
    omp_set_num_threads(threads);
    openblas_set_num_threads(threads);
    return threads;
}

std::string describe_cpu(int threads) {
    std::ifstream file("/proc/cpuinfo");
    std::string line, name = "CPU";
    while (std::getline(file, line))
        if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos) {
            name = line.substr(line.find(": ") + 2);
            break;
        }
    return name + ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads") + ", OpenBLAS " +
           openblas_get_corename();
}

void warn_about_blas() {
    if (openblas_get_parallel() == OPENBLAS_THREAD)
        std::fputs(
            "warning: this OpenBLAS keeps threads of its own beside OpenMP's and will be slow: apt install libopenblas-openmp-dev, "
            "make clean, and build again\n",
            stderr);
}

double measure_sgemm() {
    const int rows = 1024, n = 512;   // not more: what is freed stays with the program (keep_freed_memory())
    std::vector<float> a(size_t(rows) * n, 1.0f), b(size_t(n) * n, 1.0f), c(a);
    double best = 1e30;
    for (int round = 0; round < 5; round++) {
        const auto start = std::chrono::steady_clock::now();
        linear_forward(CPU{}, c.data(), a.data(), b.data(), static_cast<const float*>(nullptr), rows, n, n);
        best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return 2.0 * rows * n * n / best;
}

static volatile std::sig_atomic_t signals_seen = 0;

static void on_signal(int number) {
    if (number == SIGINT && signals_seen) _exit(128 + SIGINT);
    signals_seen = 1;
}

void outlive_readers() { std::signal(SIGPIPE, SIG_IGN); }

void catch_stop_signals() {
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    for (int number : {SIGINT, SIGTERM, SIGUSR1}) sigaction(number, &action, nullptr);
}

bool stop_requested() { return signals_seen != 0; }

std::string program_folder() {
    const auto path = program_path();
    return path.empty() ? "." : path.parent_path().string();
}
