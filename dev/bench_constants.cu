// Measures what predictions of speed stand on, beside what that of attention assumes (dev/kernel_report/constants.h):
//   make build/dev/bench_constants && build/dev/bench_constants [--quick]
// A rate is in cycles of a scheduler for an instruction of a warp, with four warps for each scheduler and no memory involved but
// what is said. --quick runs everything once, to see that it runs; the times then mean nothing.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "dev/kernel_report/constants.h"
#include "dev/rate_kernels.cuh"
#include "dev/timing.cuh"
#include "model/base/options.h"
#include "model/base/text.h"
#include "model/device/graphs.cuh"
#include "model/device/machine.h"

namespace {

template <class T>
struct OnDevice {
    T* data = nullptr;
    explicit OnDevice(size_t n) { check(cudaMalloc(&data, n * sizeof(T))), check(cudaMemset(data, 0, n * sizeof(T))); }
    OnDevice(const OnDevice&) = delete;
    ~OnDevice() { cudaFree(data); }
};

class Constants {
public:
    Constants(Bench& bench, bool quick) : bench_(bench), device_(bench.device()), rounds_(quick ? 16 : 1 << 14), hops_(rounds_) {
        int number = 0;
        check(cudaGetDevice(&number));
        check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, number));
    }

    void print() {
        std::printf("| | unit | the model assumes | measured |\n|---|---|---|---|\n");
        const char* cycles = "cycles of a scheduler";
        double clock = 0;
        row("product of 16 x 8 x 16 (mma, bf16)", cycles, HMMA_CYCLES, rate<ProductRate>(&clock));
        row("four 8 x 8 matrices from shared memory (ldmatrix.x4)", cycles, SCHEDULERS * 512 / 128, rate<FragmentRate>());
        row("fused multiply-add, float32", cycles, ISSUE_CYCLES, rate<FunctionRate<SumLink>>());
        row("exp2", cycles, ISSUE_CYCLES * Exp2Link::INSTRUCTIONS, rate<FunctionRate<Exp2Link>>());
        row("tanh of GELU's argument", cycles, ISSUE_CYCLES * TanhLink::INSTRUCTIONS, rate<FunctionRate<TanhLink>>());
        row("clock during products; the model's constant has what overlaps in it", "GHz", CONSTANT_GHZ, clock);
        const double hop = chase();
        row("load that waits for one before it, second-level cache", "cycles", 0, hop);
        row("the same at that clock", "us", 0, hop / clock * 1e-3);
        row("a flag from one multiprocessor to another (raise_flag, wait_for_flag)", "us", 0, relay());
        row("launch of a kernel behind another", "us", 0, launches(false));
        row("the same in a graph", "us", 0, launches(true));
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
        const OnDevice<long long> cycles(blocks);
        const OnDevice<float> numbers(blocks * RATE_THREADS);
        auto work = [&] {
            launch(device_, rate_kernel<Operation>, blocks, RATE_THREADS, sizeof(RateTile), cycles.data, numbers.data, rounds_);
        };
        const double seconds = bench_.time(work, Caches::as_they_are).seconds;
        std::vector<long long> of_blocks(blocks);
        to_host(device_, of_blocks.data(), static_cast<const long long*>(cycles.data), of_blocks.size());
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
        const OnDevice<Address> on_device(lines * stride), end(1);
        const OnDevice<long long> cycles(1);
        std::vector<Address> next(lines * stride);
        auto address = [&](size_t n) { return reinterpret_cast<Address>(on_device.data + order[n % lines] * stride); };
        for (size_t n = 0; n < lines; n++) next[order[n] * stride] = address(n + 1);
        to_device(device_, on_device.data, next.data(), next.size());
        auto work = [&] { launch(device_, chase_kernel, 1, WARP, 0, cycles.data, end.data, address(0), hops_); };
        bench_.time(work, Caches::as_they_are);   // the warm-ups bring the lines into the cache
        long long taken = 0;
        to_host(device_, &taken, static_cast<const long long*>(cycles.data), 1);
        return double(taken) / hops_;
    }

    /// Microseconds from block to block, each on a multiprocessor of its own; a short relay tells what launch and end take.
    double relay() {
        const int few = 2, many = std::max(multiprocessors_, few + 1);
        const OnDevice<int> flags(many), ticket(1);
        int lap = 0;
        auto seconds = [&](int blocks) {
            check(cudaMemsetAsync(ticket.data, 0, sizeof(int), device_.stream));
            return bench_.time([&] { launch(device_, relay_kernel, blocks, WARP, 0, flags.data, ticket.data, stuck(), ++lap); },
                               Caches::as_they_are).seconds;
        };
        const double short_one = seconds(few);
        return 1e6 * (seconds(many) - short_one) / (many - few);
    }

    double launches(bool in_a_graph) {
        const int count = 200;
        StepGraphs<GPU> graphs;
        auto work = [&] {
            for (int n = 0; n < count; n++) launch(device_, empty_kernel, 1, WARP, 0);
        };
        auto recorded = [&] { graphs.run(device_, &graphs, Write::overwrite, work); };
        if (in_a_graph) recorded(), recorded();
        const std::function<void()> timed = in_a_graph ? std::function<void()>(recorded) : work;
        return 1e6 * bench_.time(timed, Caches::as_they_are).seconds / count;
    }

    Bench& bench_;
    GPU device_;
    int rounds_, hops_, multiprocessors_ = 0;
};

void run(bool quick) {
    const OpenGpu gpu(0, false);
    Bench bench(gpu.device(), quick ? quick_effort() : Effort{});
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
