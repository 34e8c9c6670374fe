#include "model/device/machine.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <vector>

#include <malloc.h>
#include <omp.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/device/blas.h"
#include "model/operations/linear.cuh"

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

/// The number behind `key` in a file of "Key:   123 kB" lines, in bytes; 0 when there is none.
static size_t kilobytes_field(const char* path, const std::string& key) {
    std::ifstream file(path);
    std::string word;
    size_t number;
    while (file >> word)
        if (word == key && file >> number) return number * 1024;
    return 0;
}

/// The number in a control group's file; "max" and a missing file are no limit.
static size_t group_number(const char* path, size_t otherwise) {
    size_t number;
    return std::ifstream(path) >> number ? number : otherwise;
}

size_t available_memory() {
    const size_t none = std::numeric_limits<size_t>::max();
    const size_t machine = kilobytes_field("/proc/meminfo", "MemAvailable:");
    const size_t limit = group_number("/sys/fs/cgroup/memory.max", none);
    const size_t used = group_number("/sys/fs/cgroup/memory.current", 0);
    const size_t group = limit == none ? none : limit - std::min(limit, used);
    return std::min(machine ? machine : none, group);
}

size_t peak_memory() { return kilobytes_field("/proc/self/status", "VmHWM:"); }
size_t resident_memory() { return kilobytes_field("/proc/self/status", "VmRSS:"); }

std::string human_bytes(double bytes) {
    const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    while (bytes >= 1024 && unit < 4) bytes /= 1024, unit++;
    char text[32];
    std::snprintf(text, sizeof text, unit ? "%.2f %s" : "%.0f %s", bytes, units[unit]);
    return text;
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
