// Options of the emulator, from the environment; tests change the same values between launches.
#pragma once
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace emulator {

inline uint64_t number_from_environment(const char* name, uint64_t otherwise) {
    const char* text = std::getenv(name);
    return text && *text ? std::strtoull(text, nullptr, 0) : otherwise;
}

struct Options {
    /// Order of threads, contents of unwritten memory, time of streams' work.
    uint64_t seed = number_from_environment("EMULATOR_SEED", 0);
    int threads = 0;   // number of blocks that run at once; 0: OpenMP's threads
    int devices = int(number_from_environment("EMULATED_GPU_COUNT", 1));
    int capability = int(number_from_environment("EMULATED_GPU_CAPABILITY", 90));   // 75 is 7.5
    /// The newest CUDA that the driver supports; programs here are built for 13.0.
    int driver = int(number_from_environment("EMULATED_GPU_DRIVER", 13000));
    /// Memory of each device; default: this machine's. And the part of it held by other programs.
    size_t device_bytes = number_from_environment("EMULATED_GPU_BYTES",
                                                  uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE)));
    size_t taken_bytes = number_from_environment("EMULATED_GPU_TAKEN", 0);
    /// This launch of the process, counted from 1, is refused.
    uint64_t failing_launch = number_from_environment("EMULATED_GPU_FAILS_AT", 0);
    /// This work of a stream, counted from 1, breaks the GPU, and the result of all calls from then on; 719: a kernel trapped.
    uint64_t breaking_work = number_from_environment("EMULATED_GPU_BREAKS_AT", 0);
    int breaks_with = int(number_from_environment("EMULATED_GPU_BREAKS_WITH", 719));
};

inline Options& options() {
    static Options chosen;
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
