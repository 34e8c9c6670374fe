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

#include "model/blas.h"
#include "model/linear.cuh"

std::string program_path() {
    std::error_code unknown;
    return std::filesystem::read_symlink("/proc/self/exe", unknown).string();
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
    use_blas_threads(threads);
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
    return name + ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads") + ", " + describe_blas();
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
    const std::filesystem::path path = program_path();
    return path.empty() ? "." : path.parent_path().string();
}
