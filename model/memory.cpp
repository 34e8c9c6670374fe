#include "model/memory.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>

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
