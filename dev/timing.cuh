// Times work on the GPU by events, on cold caches, with the clock and the power it ran at, and measures the ceilings that times are
// compared with.
#pragma once
#include <dlfcn.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "model/base/splitmix64.h"
#include "model/base/text.h"
#include "model/run/machine.cuh"

/// How much time goes into a measurement. Quick: enough to see that everything runs; the times mean nothing.
struct Effort {
    int repeats = 30;
    bool quick = false;
    int warm_ups() const { return quick ? 1 : 3; }
    int matmul_side() const { return quick ? 256 : 8192; }   // of the square matrices whose product is a ceiling
};

/// The clock of the multiprocessors, and the power, on Hopper an average over a second. 0: not known.
struct CardState {
    unsigned mhz = 0, milliwatts = 0;
};

/// The current GPU's clock and power by NVML, which comes with the driver.
class CardReader {
public:
    CardReader() {
        void* const nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
        if (!nvml) return;
        const auto find = [nvml](auto& function, const char* name) {
            return (function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(nvml, name))) != nullptr;
        };
        int (*start)() = nullptr;
        int (*card_at)(const char*, void**) = nullptr;
        const cudaDeviceProp p = gpu_properties();
        const std::string bus = text("%08x:%02x:%02x.0", p.pciDomainID, p.pciBusID, p.pciDeviceID);
        if (!find(start, "nvmlInit_v2") || !find(card_at, "nvmlDeviceGetHandleByPciBusId_v2") || start()) return;
        if (card_at(bus.c_str(), &card_)) card_ = nullptr;
        if (!find(clock_, "nvmlDeviceGetClockInfo") || !find(power_, "nvmlDeviceGetPowerUsage")) card_ = nullptr;
    }
    CardState read() const {
        CardState state;
        if (card_ && clock_(card_, 1, &state.mhz)) state.mhz = 0;   // 1: that of the multiprocessors
        if (card_ && power_(card_, &state.milliwatts)) state.milliwatts = 0;
        return state;
    }

private:
    void* card_ = nullptr;
    int (*clock_)(void*, int, unsigned*) = nullptr;
    int (*power_)(void*, unsigned*) = nullptr;
};

/// One run of some work: the median of the repeats, half the distance between their quartiles, and the card during the last.
struct Timing {
    double seconds = 0, spread = 0;
    CardState card = {};
};

inline Timing timing_of(std::vector<double> seconds) {
    std::sort(seconds.begin(), seconds.end());
    const size_t n = seconds.size();
    return {(seconds[(n - 1) / 2] + seconds[n / 2]) / 2, (seconds[3 * (n - 1) / 4] - seconds[(n - 1) / 4]) / 2};
}

/// x (n) = numbers of mean 0 and variance 1, evenly spread: random bits of the index. Zeros would not do: their products
/// take less power, and so less time.
template <class X>
__global__ void random_kernel(X* x, size_t n, uint64_t seed) {
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) {
        const uint64_t bits = splitmix64::element(seed * 0xd1342543de82ef95ull, i);
        x[i] = from_float<X>((float(uint32_t(bits >> 40)) * 0x1p-23f - 1) * 1.7320508f);
    }
}
template <class X>
void fill_random(GPU device, X* x, size_t n, uint64_t seed) {
    launch(device, random_kernel<X>, std::min<size_t>(blocks_for(n, 256), 4096), 256, 0, x, n, seed);
}

/// An array in the device's memory, filled with random numbers.
template <class X>
class RandomArray {
public:
    RandomArray(GPU device, size_t n, uint64_t seed) {
        check(cudaMalloc(&data_, n * sizeof(X)));
        fill_random(device, data_, n, seed);
    }
    RandomArray(const RandomArray&) = delete;
    ~RandomArray() { cudaFree(data_); }
    operator X*() const { return data_; }

private:
    X* data_ = nullptr;
};

/// Reads everything and keeps nothing: the cache then holds clean lines of x, which cost the next kernel no time to evict.
template <class Word>
__global__ void read_kernel(const Word* x, size_t n, int* never) {
    int sum = 0;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) {
        const Word word = x[i];
        sum += word.x + word.y + word.z + word.w;
    }
    if (sum == 1) *never = sum;   // x is zero; the compiler does not know
}

/// What a copy reaches in bytes read plus bytes written per second, and a bf16 product of random matrices in FLOP/s.
struct Ceilings {
    double bytes_per_second, flops;
};

enum class Caches { cold, as_they_are };

class Bench {
public:
    Bench(GPU device, const Effort& effort) : device_(device), effort_{effort.quick ? 1 : effort.repeats, effort.quick} {
        cache_bytes_ = effort.quick ? size_t(1) << 20 : size_t(gpu_properties().l2CacheSize);
        words_ = 4 * cache_bytes_ / sizeof(int4);
        check(cudaMalloc(&other_data_, (words_ + 1) * sizeof(int4)));
        check(cudaMemsetAsync(other_data_, 0, (words_ + 1) * sizeof(int4), device.stream));
        for (auto* events : {&starts_, &stops_}) {
            events->resize(effort_.repeats);
            for (cudaEvent_t& event : *events) check(cudaEventCreate(&event));
        }
    }
    ~Bench() {
        cudaFree(other_data_);
        for (auto* events : {&starts_, &stops_})
            for (cudaEvent_t event : *events) cudaEventDestroy(event);
    }
    Bench(const Bench&) = delete;

    /// Nothing waits for the device between the repeats, so that launching is not part of the time. On cold caches, as a training
    /// step leaves them: hundreds of megabytes pass between two uses of a tensor.
    Timing time(const std::function<void()>& work, Caches caches = Caches::cold) {
        for (int n = 0; n < effort_.warm_ups(); n++) work();
        for (int n = 0; n < effort_.repeats; n++) {
            if (caches == Caches::cold) empty_caches();
            check(cudaEventRecord(starts_[n], device_.stream));
            work();
            check(cudaEventRecord(stops_[n], device_.stream));
        }
        check(cudaEventSynchronize(starts_.back()));
        const CardState card = card_.read();
        check(cudaStreamSynchronize(device_.stream));
        std::vector<double> seconds;
        for (int n = 0; n < effort_.repeats; n++) {
            float ms = 0;
            check(cudaEventElapsedTime(&ms, starts_[n], stops_[n]));
            seconds.push_back(double(ms) * 1e-3);
        }
        Timing timing = timing_of(seconds);
        timing.card = card;
        return timing;
    }

    /// From one buffer to another, each sixteen times as large as the cache.
    double copy_rate() {
        const size_t n = 16 * cache_bytes_ / sizeof(float), bytes = n * sizeof(float);
        const RandomArray<float> from(device_, n, 1), to(device_, n, 2);
        check(cudaMemsetAsync(from, 1, bytes, device_.stream));
        const Timing t = time([&] { check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, device_.stream)); });
        return 2.0 * double(bytes) / t.seconds;
    }

    double matmul_rate() {
        const int side = effort_.matmul_side();
        const size_t n = size_t(side) * side;
        const RandomArray<bf16> a(device_, n, 1), b(device_, n, 2), c(device_, n, 3);
        const bf16* const no_bias = nullptr;
        bf16 *left = a, *right = b, *product = c;
        auto multiply = [&] { linear_forward(device_, product, left, right, no_bias, side, side, side); };
        return 2.0 * double(n) * side / time(multiply, Caches::as_they_are).seconds;
    }

    Ceilings ceilings() { return {copy_rate(), matmul_rate()}; }
    GPU device() const { return device_; }
    const Effort& effort() const { return effort_; }

private:
    void empty_caches() {
        int* const after = reinterpret_cast<int*>(other_data_ + words_);
        launch(device_, read_kernel<int4>, std::min<size_t>(blocks_for(words_, 256), 1024), 256, 0, other_data_, words_, after);
    }

    GPU device_;
    Effort effort_;
    CardReader card_;
    size_t cache_bytes_, words_;
    int4* other_data_ = nullptr;
    std::vector<cudaEvent_t> starts_, stops_;
};

/// "MHz | W |", with a - for what is not known.
inline std::string card_columns(const CardState& card) {
    const auto known = [](unsigned number) { return number ? std::to_string(number) : "-"; };
    return text("%4s | %3s |", known(card.mhz).c_str(), known(card.milliwatts / 1000).c_str());
}

/// "| rate | share of its ceiling |", empty where nothing is counted.
inline std::string rate_columns(double amount, double seconds, double ceiling, double unit, const char* format) {
    if (amount <= 0) return "        |      |";
    return text(format, amount / seconds / unit) + text(" | %3.0f%% |", 100 * amount / seconds / ceiling);
}
inline std::string bytes_columns(double bytes, double seconds, const Ceilings& top) {
    return rate_columns(bytes, seconds, top.bytes_per_second, 1e9, "%7.0f");
}
inline std::string flops_columns(double flops, double seconds, const Ceilings& top) {
    return rate_columns(flops, seconds, top.flops, 1e12, "%7.1f");
}
