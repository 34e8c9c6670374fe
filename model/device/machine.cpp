#include "model/device/machine.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <latch>
#include <limits>
#include <vector>

#include <malloc.h>
#include <omp.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "model/base/error.h"
#include "model/device/blas.h"

void disable_malloc_trim() {
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

size_t address_space_left() {
    rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::numeric_limits<size_t>::max();
    return limit.rlim_cur - std::min<size_t>(limit.rlim_cur, kilobytes_field("/proc/self/status", "VmSize:"));
}

size_t peak_memory() { return kilobytes_field("/proc/self/status", "VmHWM:"); }
size_t resident_memory() { return kilobytes_field("/proc/self/status", "VmRSS:"); }

int processors() { return int(sysconf(_SC_NPROCESSORS_ONLN)); }

/// How many threads OpenMP gives a parallel region that requests `wanted`.
static int team_size(int wanted) {
    int size = 1;
#pragma omp parallel num_threads(wanted)
#pragma omp single
    size = omp_get_num_threads();
    return size;
}

/// The stack of OpenMP's threads as libgomp reads it from the environment, where K is the unit of a plain number; 0: the default.
static size_t openmp_stack() {
    const char* words = std::getenv("OMP_STACKSIZE");
    if (!words) words = std::getenv("GOMP_STACKSIZE");
    if (!words) return 0;
    char* unit;
    const unsigned long long number = std::strtoull(words, &unit, 10);
    while (*unit == ' ') unit++;
    const std::string units = "bkmg";
    const size_t power = *unit ? units.find(char(std::tolower(*unit))) : 1;
    return power == std::string::npos ? 0 : size_t(number) << (10 * power);
}

static void* wait_for(void* latch) {
    static_cast<std::latch*>(latch)->wait();
    return nullptr;
}

/// Up to `wanted` threads with OpenMP's stack that the system lets this process start now, where OpenMP would end it.
static int startable_threads(int wanted) {
    std::latch counted(1);
    std::vector<pthread_t> threads;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (const size_t stack = openmp_stack()) pthread_attr_setstacksize(&attributes, stack);   // refused where libgomp's is, too
    pthread_t thread;
    while (int(threads.size()) < wanted && pthread_create(&thread, &attributes, wait_for, &counted) == 0) threads.push_back(thread);
    pthread_attr_destroy(&attributes);
    counted.count_down();
    for (pthread_t started : threads) pthread_join(started, nullptr);
    return int(threads.size());
}

/// Processors on which OpenMP may run this process's threads. (sched_getaffinity() would give one: OMP_PROC_BIND pins each thread.)
static int usable_processors() {
    int in_places = 0;
    for (int place = 0; place < omp_get_num_places(); place++) in_places += omp_get_place_num_procs(place);
    return in_places > 0 ? std::min(in_places, omp_get_num_procs()) : omp_get_num_procs();
}

int use_threads(int wanted, int local_ranks) {
    const int here = usable_processors();
    const int share =
        here < processors() ? here : std::max(1, here / local_ranks);   // a launcher that pins ranks has already divided them
    const int requested = wanted > 0 ? wanted : share;
    omp_set_dynamic(0);
    omp_set_max_active_levels(std::min(1, omp_get_max_active_levels()));   // no region starts threads inside another
    const int others = 2;   // that a run may start later: the loader, and rank 0's signs of life
    const int threads = team_size(std::clamp(startable_threads(requested - 1 + others) + 1 - others, 1, requested));
    if (threads < requested)
        std::fprintf(stderr, "note: OpenMP gives %d of %d threads (OMP_THREAD_LIMIT, OMP_MAX_ACTIVE_LEVELS, OMP_STACKSIZE, "
                             "or the limit on processes)\n", threads, requested);
    const int with_room = use_blas_threads(threads);
    if (with_room == 0)
        fail(Exit::out_of_memory, "the limit on address space (ulimit -v) has no room for matrix products; raise it by 1 GiB");
    if (with_room < threads)
        std::fprintf(stderr, "note: address space is left for %d of %d threads (ulimit -v)\n", with_room, threads);
    omp_set_num_threads(with_room);
    return with_room;
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
