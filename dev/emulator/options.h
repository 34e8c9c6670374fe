// Options of the emulator, from the environment; tests change the same values between launches.
#pragma once
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace emulator {

struct Options {
    uint64_t seed = 0;         // EMULATOR_SEED: order of threads, contents of unwritten memory, time of streams' work
    int threads = 0;           // EMULATOR_THREADS: number of blocks that run at once; 0: OpenMP's threads
    int devices = 1;           // EMULATED_GPU_COUNT
    int capability = 90;       // EMULATED_GPU_CAPABILITY: 75 is 7.5
    int driver = 13000;        // EMULATED_GPU_DRIVER: the newest CUDA that it supports; programs here are built for 13.0
    size_t device_bytes = 0;   // EMULATED_GPU_BYTES: memory of each device; default: this machine's
    uint64_t failing_launch = 0;   // EMULATED_GPU_FAILS_AT: this launch of the process, counted from 1, is refused
    uint64_t breaking_work = 0;    // EMULATED_GPU_BREAKS_AT: this work of a stream, counted from 1, breaks the GPU
    int breaks_with = 719;         // EMULATED_GPU_BREAKS_WITH: result of all calls from then on; 719: a kernel trapped
    size_t taken_bytes = 0;        // EMULATED_GPU_TAKEN: memory of each device held by other programs
    const char* name = "emulated GPU";   // EMULATED_GPU_NAME
};

inline uint64_t number_from_environment(const char* name, uint64_t otherwise) {
    const char* text = std::getenv(name);
    return text && *text ? std::strtoull(text, nullptr, 0) : otherwise;
}

inline Options& options() {
    static Options chosen{
        number_from_environment("EMULATOR_SEED", 0),
        int(number_from_environment("EMULATOR_THREADS", 0)),
        int(number_from_environment("EMULATED_GPU_COUNT", 1)),
        int(number_from_environment("EMULATED_GPU_CAPABILITY", 90)),
        int(number_from_environment("EMULATED_GPU_DRIVER", 13000)),
        size_t(number_from_environment("EMULATED_GPU_BYTES", uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE)))),
        number_from_environment("EMULATED_GPU_FAILS_AT", 0),
        number_from_environment("EMULATED_GPU_BREAKS_AT", 0),
        int(number_from_environment("EMULATED_GPU_BREAKS_WITH", 719)),
        size_t(number_from_environment("EMULATED_GPU_TAKEN", 0)),
        std::getenv("EMULATED_GPU_NAME") ? std::getenv("EMULATED_GPU_NAME") : "emulated GPU",
    };
    return chosen;
}

/// The contents of uninitialised memory. As floats: NaN, huge, very negative. One value would not do: fmaxf(NaN, x) is x.
inline unsigned char poison() {
    constexpr unsigned char bytes[] = {0xff, 0x7f, 0xfe};
    return bytes[options().seed % 3];
}

/// xorshift64: repeatable for a seed, and a few instructions.
class Random {
public:
    explicit Random(uint64_t seed = 0, uint64_t stream = 0)
        : state_((seed * 0x9e3779b97f4a7c15ull ^ (stream + 1) * 0xbf58476d1ce4e5b9ull) | 1) {}
    uint64_t operator()() {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        return state_ ^= state_ << 17;
    }

private:
    uint64_t state_;
};

}   // namespace emulator
