// Measures what predictions of speed stand on, beside what that of attention assumes (dev/kernel_report/constants.h):
//   make build/dev/bench_constants && build/dev/bench_constants [--quick]
// A rate is in cycles of a scheduler for an instruction of a warp, with four warps for each scheduler and no memory involved but
// what is said. --quick runs everything once, to see that it runs; the times then mean nothing.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "attention/kernel/mma.cuh"
#include "dev/kernel_report/constants.h"
#include "dev/timing.cuh"
#include "model/base/options.h"
#include "model/base/text.h"
#include "model/device/machine.h"
#include "model/device/math.h"
#include "tests/gpu/device_array.h"

namespace {

// ---- kernels that do one thing over and over, by the wrappers that the kernels of attention are made of

constexpr int RATE_THREADS = 512;   // four warps for each scheduler
constexpr int ROUNDS_AT_ONCE = 16;
using RateTile = SharedTile<bf16, 64, 64>;

// An operation has AT_ONCE chains that do not wait for each other, of which round() does one link each; number() depends on all, so
// that no compiler may leave one out.

struct ProductRate {
    static constexpr int AT_ONCE = 8;
    FragmentA<bf16> a;
    FragmentB<bf16> b[2];
    float d[AT_ONCE][4] = {};
    __device__ explicit ProductRate(const RateTile& tile) { load_a(a, tile, 0, 0), load_b(b, tile, 16, 16); }
    __device__ __forceinline__ void round() {
        for (auto& result : d) multiply_add(result, a, b[0]);
    }
    __device__ float number() const {
        float sum = 0;
        for (auto& result : d)
            for (float x : result) sum += x;
        return sum;
    }
};

struct FragmentRate {
    static constexpr int AT_ONCE = 8;
    const RateTile& tile;
    uint32_t nothing;   // 0 at run time: with a constant the compiler would drop all loads but the first of an address
    FragmentA<bf16> a[AT_ONCE] = {};
    __device__ explicit FragmentRate(const RateTile& from) : tile(from), nothing(uint32_t(to_float(from.x[0][0])) >> 8) {}
    __device__ __forceinline__ void round() {
        for (int n = 0; n < AT_ONCE; n++) load_a(a[n], tile, n / 4 * 16 + int(a[n].part[0].bits & nothing), n % 4 * 16);
    }
    __device__ float number() const {
        uint32_t bits = 0;
        for (auto& fragment : a)
            for (auto& part : fragment.part) bits ^= part.bits;
        return __uint_as_float(bits);
    }
};

/// `link` makes the next number of a chain from one number and a scale.
template <float (*link)(float, float)>
struct FunctionRate {
    static constexpr int AT_ONCE = 8;
    float x[AT_ONCE], scale;
    __device__ explicit FunctionRate(const RateTile& tile) : scale(0.5f * to_float(tile.x[1][0])) {
        for (int n = 0; n < AT_ONCE; n++) x[n] = to_float(tile.x[0][n]) * float(threadIdx.x + 1);
    }
    __device__ __forceinline__ void round() {
        for (float& number : x) number = link(number, scale);
    }
    __device__ float number() const {
        float sum = 0;
        for (float number : x) sum += number;
        return sum;
    }
};
__device__ __forceinline__ float exp2_link(float x, float) { return exp2_of(-x); }
__device__ __forceinline__ float tanh_link(float x, float) { return gelu_tanh(ReducedPrecision(x)); }   // its argument: two products, a sum
__device__ __forceinline__ float sum_link(float x, float scale) { return fmaf(x, scale, scale); }

/// cycles (grid): what each block took for `rounds` rounds of each of its threads. One block for each multiprocessor.
template <class Operation>
__global__ void __launch_bounds__(RATE_THREADS) rate_kernel(long long* cycles, float* numbers, int rounds) {
    auto& tile = dynamic_shared<RateTile>();
    for (int n = threadIdx.x; n < 64 * 64; n += RATE_THREADS) tile.x[n / 64][n % 64] = from_float<bf16>(float(n % 7 + 1) * 0.125f);
    __syncthreads();
    Operation operation(tile);
    __syncthreads();
    const long long start = clock64();
#pragma unroll ROUNDS_AT_ONCE
    for (int r = 0; r < rounds; r++) operation.round();
    numbers[blockIdx.x * RATE_THREADS + threadIdx.x] = operation.number();   // before the clock is read: the barrier sees to it
    __syncthreads();
    if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - start;
}

/// cycles: of `hops` loads, each from the address that the one before it gave, past the first-level cache. One thread does it.
using Address = unsigned long long;
__global__ void chase_kernel(long long* cycles, Address* end, Address first, int hops) {
    if (threadIdx.x > 0) return;
    Address at = first;
    const long long start = clock64();
    for (int n = 0; n < hops; n++) at = __ldcg(reinterpret_cast<const Address*>(at));
    *end = at;
    *cycles = clock64() - start;
}

/// A baton from each block to the next, in the order of their tickets, by flags (gridDim) that are raised to `lap`.
__global__ void relay_kernel(int* flags, int* ticket, Stuck* stuck, int lap) {
    if (threadIdx.x > 0) return;
    const int mine = atomicAdd(ticket, 1) % int(gridDim.x);
    if (mine > 0) wait_for_flag(flags + mine - 1, lap, stuck, mine);
    raise_flag(flags + mine, lap);
}

// ---- their times, and the table

class Constants {
public:
    Constants(Bench& bench, bool quick) : bench_(bench), device_(bench.device()), rounds_(quick ? 16 : 1 << 14), hops_(rounds_) {}

    void print() {
        std::printf("| | unit | the model assumes | measured |\n|---|---|---|---|\n");
        const char* cycles = "cycles of a scheduler";
        double clock = 0;
        row("product of 16 x 8 x 16 (mma, bf16)", cycles, HMMA_CYCLES, rate<ProductRate>(&clock));
        row("four 8 x 8 matrices from shared memory (ldmatrix.x4)", cycles, SCHEDULERS * 512 / 128, rate<FragmentRate>());
        row("fused multiply-add, float32", cycles, ISSUE_CYCLES, rate<FunctionRate<sum_link>>());
        row("exp2", cycles, ISSUE_CYCLES, rate<FunctionRate<exp2_link>>());
        row("tanh of GELU's argument", cycles, 4 * ISSUE_CYCLES, rate<FunctionRate<tanh_link>>());
        row("clock during products; the model's constant has what overlaps in it", "GHz", CONSTANT_GHZ, clock);
        const double hop = chase();
        row("load that waits for one before it, second-level cache", "cycles", 0, hop);
        row("the same at that clock", "us", 0, hop / clock * 1e-3);
        row("a flag from one multiprocessor to another (raise_flag, wait_for_flag)", "us", 0, relay());
    }

private:
    static void row(const char* what, const char* unit, double assumed, double measured) {
        const std::string model = assumed > 0 ? text("%.4g", assumed) : "nothing";
        std::printf("| %-72s | %-21s | %-7s | %8.3f |\n", what, unit, model.c_str(), measured);
    }

    /// Cycles of a scheduler for each link; `clock`, where it is asked for, in GHz. The middle block counts.
    template <class Operation>
    double rate(double* clock = nullptr) {
        const auto blocks = static_cast<size_t>(multiprocessors_);
        const DeviceMemory<long long> cycles{std::vector<long long>(blocks)};
        const DeviceMemory<float> numbers{std::vector<float>(blocks * RATE_THREADS)};
        auto work = [&] {
            launch(device_, rate_kernel<Operation>, blocks, RATE_THREADS, sizeof(RateTile), cycles.data(), numbers.data(), rounds_);
        };
        const double seconds = bench_.time(work, Caches::as_they_are).seconds;
        std::vector<long long> of_blocks = cycles.host();
        std::sort(of_blocks.begin(), of_blocks.end());
        const double taken = double(of_blocks[of_blocks.size() / 2]), links = double(rounds_) * Operation::AT_ONCE;
        if (clock) *clock = taken / seconds * 1e-9;
        return taken / (links * RATE_THREADS / WARP / SCHEDULERS);
    }

    /// Cycles of a hop through 8 MiB, a line at a time in a random order, which the first-level cache cannot hold.
    double chase() {
        const size_t lines = 1 << 16, stride = 128 / sizeof(Address);
        std::vector<size_t> order(lines);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), std::mt19937(1));
        std::vector<Address> next(lines * stride);
        const DeviceMemory<Address> on_device(next), end({0});
        const DeviceMemory<long long> cycles({0});
        auto address = [&](size_t n) { return reinterpret_cast<Address>(on_device.data() + order[n % lines] * stride); };
        for (size_t n = 0; n < lines; n++) next[order[n] * stride] = address(n + 1);
        to_device(device_, on_device.data(), next.data(), next.size());
        auto work = [&] { launch(device_, chase_kernel, 1, WARP, 0, cycles.data(), end.data(), address(0), hops_); };
        bench_.time(work, Caches::as_they_are);   // the warm-ups bring the lines into the cache
        return double(cycles.host()[0]) / hops_;
    }

    /// Microseconds from block to block, each on a multiprocessor of its own; a short relay tells what launch and end take.
    double relay() {
        const int few = 2, many = std::max(multiprocessors_, few + 1);
        const DeviceMemory<int> flags{std::vector<int>(many)}, ticket({0});
        int lap = 0;
        auto seconds = [&](int blocks) {
            check(cudaMemsetAsync(ticket.data(), 0, sizeof(int), device_.stream));
            return bench_.time([&] { launch(device_, relay_kernel, blocks, WARP, 0, flags.data(), ticket.data(), stuck(), ++lap); },
                               Caches::as_they_are).seconds;
        };
        const double short_one = seconds(few);
        return 1e6 * (seconds(many) - short_one) / (many - few);
    }

    Bench& bench_;
    GPU device_;
    int rounds_, hops_, multiprocessors_ = gpu_properties().multiProcessorCount;
};

void run(bool quick) {
    const OpenGpu gpu(0, false);
    Bench bench(gpu.device(), Effort{.quick = quick});
    std::printf("%s; medians of %d runs\n\n", describe(gpu.device(), 0).c_str(), bench.effort().repeats);
    Constants(bench, quick).print();
}

}   // namespace

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    return run_program("bench_constants", [&] {
        const bool quick = argc == 2 && std::strcmp(argv[1], "--quick") == 0;
        if (argc > 1 && !quick) fail(Exit::usage, "unknown option ", argv[1], "; there is --quick, and nothing else");
        run(quick);
    });
}
