// The GPU's half of machine.cuh: finding a GPU, opening it, its memory and its measured ceiling.
#pragma once
#include <cmath>
#include <iostream>
#include <string>

#include "model/operations/linear.cuh"
#include "model/device/memory.cuh"
#include "model/ranks/ranks.h"

/// Shared by all operations of the stream for partial sums; see Workspace.
inline constexpr size_t WORKSPACE_BYTES = size_t(32) << 20;

/// How many GPUs this process can use, and if there are none, why.
struct GpuCount {
    int count = 0;
    std::string why_none;
};
inline GpuCount count_gpus() {
    GpuCount found;
    const cudaError_t result = cudaGetDeviceCount(&found.count);
    if (result == cudaSuccess && found.count > 0) return found;
    cudaGetLastError();   // it has been dealt with
    found.count = 0;
    int driver = 0, built_for = 0;
    cudaDriverGetVersion(&driver), cudaRuntimeGetVersion(&built_for);
    auto version = [](int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); };
    found.why_none = result == cudaErrorInsufficientDriver && driver > 0
                         ? "the driver is for CUDA " + version(driver) + " and this program for " + version(built_for) +
                               ": update the driver, or build with an older toolkit"
                         : std::string("there is no GPU (") + cudaGetErrorString(result) + ")";
    return found;
}

/// Whether all ranks take a GPU for --device `wanted`. "auto" takes the CPU, and says so, where any rank finds none; "cuda" then
/// fails. A dry run for "cuda" needs no GPU.
inline bool takes_gpu(const std::string& wanted, bool dry_run, Ranks& ranks) {
    if (wanted == "cpu") return false;
    const GpuCount found = count_gpus();
    if (!ranks.any(found.count == 0)) return true;
    const std::string why = found.count == 0 ? found.why_none : "another rank has no GPU";
    if (wanted == "auto") {
        if (ranks.first()) std::cerr << "note: using the CPU: " << why << "\n";
        return false;
    }
    if (!dry_run) fail(Exit::usage, "--device cuda: ", why, "; use --device cpu");
    return true;
}

/// This process's GPU: chosen by the rank's number on its machine, with a stream and a workspace. Without one (a dry run) an empty
/// tag.
class OpenGpu {
public:
    OpenGpu(int local_rank, bool may_be_missing) {
        const int count = count_gpus().count;
        if (count == 0 && may_be_missing) return;
        check(cudaSetDevice(local_rank % count));
        cudaDeviceProp properties;
        check(cudaGetDeviceProperties(&properties, local_rank % count));
        if (properties.major < 8)
            fail(Exit::usage, properties.name, " has compute capability ", properties.major, ".", properties.minor,
                 "; 8.0 or later is needed. Use --device cpu");
        check(cudaStreamCreateWithFlags(&device_.stream, cudaStreamNonBlocking));
        device_.workspace.bytes = WORKSPACE_BYTES;
        check(cudaMalloc(reinterpret_cast<void**>(&device_.workspace.data), WORKSPACE_BYTES));
        matmul_setup();
    }
    ~OpenGpu() {
        if (!device_.stream) return;
        cudaStreamSynchronize(device_.stream);
        cudaFree(device_.workspace.data);
        cudaStreamDestroy(device_.stream);
    }
    OpenGpu(const OpenGpu&) = delete;
    GPU device() const { return device_; }

private:
    GPU device_;
};

/// Bytes of the whole card, and of those in use.
struct CardMemory {
    size_t total = 0, used = 0;
};
inline CardMemory card_memory(GPU device) {
    if (!device.stream) return {};
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total));
    return {total, total - free};
}
inline size_t available_memory(GPU device) { return card_memory(device).total; }
inline size_t peak_memory(GPU device) { return card_memory(device).used; }

/// Ranks of this machine that share the fullest GPU.
inline int ranks_per_device(GPU, int local_ranks) {
    const int count = std::max(1, count_gpus().count);
    return (local_ranks + count - 1) / count;
}

/// What the card holds before the first tensor: the CUDA context, code, the workspaces, other programs. Measured once, before
/// anything else is allocated.
inline void add_overheads(GPU device, std::vector<MemoryUse>& plan, size_t /*gathered: in the host's memory*/, bool /*launched*/) {
    static const size_t before = card_memory(device).used;
    if (device.stream) plan.push_back({"CUDA context, workspaces and other programs", before});
    else plan.push_back({"workspaces (the CUDA context comes on top)", WORKSPACE_BYTES + MATMUL_WORKSPACE});
}

inline std::string describe(GPU device, int) {
    if (!device.stream) return "cuda: none here, a plan only";
    int number = 0;
    cudaDeviceProp properties;
    check(cudaGetDevice(&number));
    check(cudaGetDeviceProperties(&properties, number));
    return std::string("cuda: ") + properties.name + ", compute capability " + std::to_string(properties.major) + "." +
           std::to_string(properties.minor) + ", " + human_bytes(double(properties.totalGlobalMem));
}
inline void warn(GPU) {}

/// Refuses, before anything is allocated, a model that the kernels would refuse in the first step.
inline void require_sizes(GPU, const Config& c) {
    if (c.HS != 32 && c.HS != 64 && c.HS != 128)
        fail(Exit::usage, "the GPU's attention has head sizes 32, 64 and 128; this model has ", c.HS, ". Use --device cpu");
    for (const auto& [name, size] : {std::pair("vocabulary", c.V), std::pair("channels", c.C), std::pair("feed-forward width", c.F)})
        if (size % 8) fail(Exit::usage, "the GPU needs ", name, " in multiples of 8; this model has ", size, ". Use --device cpu");
}

/// FLOP/s of bf16 matrix products on random data: side length by the size of the GPU, 3072 on one with 132 multiprocessors.
inline double measure_matmul(GPU device) {
    int number = 0, multiprocessors = 0;
    check(cudaGetDevice(&number));
    check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, number));
    const int side = 256 * int(std::ceil(std::sqrt(double(multiprocessors)))), repeats = 10;
    const size_t n = size_t(side) * side;
    Arena<GPU> memory;
    bf16 *a = nullptr, *b = nullptr, *c = nullptr;
    for (int pass = 0; pass < 2; pass++) {   // the first learns the size
        a = memory.take<bf16>(n), b = memory.take<bf16>(n), c = memory.take<bf16>(n);
        if (pass == 0) memory.allocate();
    }
    std::vector<bf16> random(n);
    uint32_t state = 1;
    for (bf16& x : random) state = state * 1664525u + 1013904223u, x = from_float<bf16>(float(state >> 8) * 0x1p-23f - 1);
    to_device(device, a, random.data(), n);
    to_device(device, b, random.data(), n);
    cudaEvent_t start, stop;
    check(cudaEventCreate(&start)), check(cudaEventCreate(&stop));
    auto multiply = [&] { linear_forward(device, c, a, b, static_cast<const bf16*>(nullptr), side, side, side); };
    multiply();
    check(cudaEventRecord(start, device.stream));
    for (int n = 0; n < repeats; n++) multiply();
    check(cudaEventRecord(stop, device.stream));
    check(cudaEventSynchronize(stop));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start, stop));
    check(cudaEventDestroy(start)), check(cudaEventDestroy(stop));
    return 2.0 * double(n) * side * repeats / (double(ms) * 1e-3);
}
