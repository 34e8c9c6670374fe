#include "model/device/machine.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <vector>

#include <malloc.h>
#include <omp.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/device/blas.h"

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

/// The value of `key` in a file of "Key:   123 kB" lines, in bytes; 0 if there is none.
static size_t kilobytes_field(const char* path, const std::string& key) {
    std::ifstream file(path);
    std::string word;
    size_t number;
    while (file >> word)
        if (word == key && file >> number) return number * 1024;
    return 0;
}

/// The value in a cgroup file; `otherwise` if it is "max" or the file is missing.
static size_t cgroup_value(const char* path, size_t otherwise) {
    size_t number;
    return std::ifstream(path) >> number ? number : otherwise;
}

size_t available_memory() {
    const size_t none = std::numeric_limits<size_t>::max();
    const size_t machine = kilobytes_field("/proc/meminfo", "MemAvailable:");
    const size_t limit = cgroup_value("/sys/fs/cgroup/memory.max", none);
    const size_t used = cgroup_value("/sys/fs/cgroup/memory.current", 0);
    const size_t group = limit == none ? none : limit - std::min(limit, used);
    return std::min(machine ? machine : none, group);
}

size_t peak_memory() { return kilobytes_field("/proc/self/status", "VmHWM:"); }
size_t resident_memory() { return kilobytes_field("/proc/self/status", "VmRSS:"); }

int processors() { return int(sysconf(_SC_NPROCESSORS_ONLN)); }

int use_threads(int wanted, int local_ranks) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof allowed, &allowed);
    const int here = std::max(1, CPU_COUNT(&allowed));
    const int share =
        here < processors() ? here : std::max(1, here / local_ranks);   // a launcher that pins ranks has already divided them
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
