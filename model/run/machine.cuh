// The device's resources, and the memory that running on it costs besides the tensors: overloads on the device.
#pragma once
#include <algorithm>
#include <cmath>
#include <iostream>
#include <string>
#include <vector>

#include "model/base/text.h"
#include "model/config.h"
#include "model/device/blas.h"
#include "model/device/machine.h"
#include "model/device/memory.cuh"
#include "model/operations/linear.cuh"
#include "model/ranks/ranks.h"

// ---- CPU

inline constexpr size_t BLAS_BYTES = size_t(10) << 20;   // buffers of OpenBLAS and stacks of threads, as measured while training
inline constexpr size_t MPI_BYTES = size_t(24) << 20;    // per rank, measured likewise

/// Adds the memory used besides the model's plan; rank 0 needs `gathered` bytes to save sharded moments.
inline void add_overheads(CPU, std::vector<MemoryUse>& plan, size_t gathered, bool launched) {
    if (gathered) plan.push_back({"moments gathered to be saved (rank 0)", gathered});
    if (launched) plan.push_back({"MPI", MPI_BYTES});
    static const size_t program = resident_memory();   // first called before anything is allocated
    plan.push_back({"program and libraries", program + BLAS_BYTES});
}
inline size_t available_memory(CPU) { return available_memory(); }
inline size_t peak_memory(CPU) { return peak_memory(); }
inline constexpr const char* name_of_peak(CPU) { return "peak memory"; }
inline int ranks_per_device(CPU, int local_ranks) { return local_ranks; }
inline std::string describe(CPU, int threads) { return "cpu: " + describe_cpu(threads); }
inline std::string describe_blas(CPU) { return describe_blas(); }
inline void require_sizes(CPU, const Config&) {}
inline void warn(CPU) { warn_about_blas(); }

/// Measured FLOP/s of a float32 linear layer, 512 x 512 with 1024 rows: the ceiling for MFU.
inline double measure_matmul(CPU) {
    const int rows = 1024, n = 512;   // small, as the process keeps freed memory (disable_malloc_trim())
    std::vector<float> a(size_t(rows) * n, 1.0f), b(size_t(n) * n, 1.0f), c(a);
    double best = 1e30;
    for (int round = 0; round < 5; round++) {
        const Stopwatch watch;
        linear_forward(CPU{}, c.data(), a.data(), b.data(), static_cast<const float*>(nullptr), rows, n, n);
        best = std::min(best, watch.seconds());
    }
    return 2.0 * rows * n * n / best;
}

// ---- GPU: finding and opening it, its memory and its measured ceiling

#ifdef WITH_GPU
#include "attention/kernel/wgmma.cuh"

/// Shared by all operations of the stream; see Workspace.
inline constexpr size_t WORKSPACE_BYTES = size_t(32) << 20;

/// The number of GPUs this process can use and, if there are none, the reason.
struct GpuCount {
    int count = 0;
    std::string why_none;
};
inline GpuCount count_gpus() {
    GpuCount found;
    const cudaError_t result = cudaGetDeviceCount(&found.count);
    if (result == cudaSuccess && found.count > 0) return found;
    cudaGetLastError();   // clears the error
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

/// Whether all ranks use GPUs for --device `wanted`. If any rank finds none, "auto" falls back to the CPU with a note, and "cuda"
/// is Exit::usage, except in a dry run.
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

/// This process's GPU, selected by its local rank, with a stream and a workspace; an empty tag if it is missing and may be (a dry
/// run). Exit::usage if it is missing or too old, Exit::out_of_memory if its memory is taken.
class OpenGpu {
public:
    OpenGpu(int local_rank, bool may_be_missing) {
        const GpuCount found = count_gpus();
        if (found.count == 0 && may_be_missing) return;
        if (found.count == 0) fail(Exit::usage, found.why_none);
        check(cudaSetDevice(local_rank % found.count));
        const cudaDeviceProp properties = gpu_properties();
        if (properties.major < 8)
            fail(Exit::usage, properties.name, " has compute capability ", properties.major, ".", properties.minor,
                 "; 8.0 or later is needed. Use --device cpu");
        require_room(properties.totalGlobalMem, WORKSPACE_BYTES + matmul_workspace(properties.multiProcessorCount));
        check(cudaStreamCreateWithFlags(&device_.stream, cudaStreamNonBlocking));
        device_.workspace.bytes = WORKSPACE_BYTES;
        check(gpu_malloc(device_.workspace.data, WORKSPACE_BYTES));
        Matmuls::of_process();   // its handle and workspace now rather than at the first product
    }
    ~OpenGpu() {
        if (!device_.stream) return;
        cudaStreamSynchronize(device_.stream);
        gpu_free(device_.workspace.data, WORKSPACE_BYTES);
        cudaStreamDestroy(device_.stream);
    }
    OpenGpu(const OpenGpu&) = delete;
    GPU device() const { return device_; }

private:
    /// Exit::out_of_memory without room for the workspaces and the context, which cudaMemGetInfo() creates.
    static void require_room(size_t whole, size_t workspaces) {
        size_t free = 0, total;
        const cudaError_t result = cudaMemGetInfo(&free, &total);
        if (result != cudaErrorMemoryAllocation) check(result);
        if (result == cudaSuccess && free >= workspaces) return;
        fail(Exit::out_of_memory, "the GPU has ", human_bytes(double(free)), " of its ", human_bytes(double(whole)),
             " left, too little to start: stop other programs on it, choose another GPU with CUDA_VISIBLE_DEVICES, or use "
             "--device cpu");
    }

    GPU device_;
};

/// The current GPU's name and compute capability, on which its rounding depends: ranks must have the same.
inline std::string gpu_kind() {
    const cudaDeviceProp properties = gpu_properties();
    return text("%s, compute capability %d.%d", properties.name, properties.major, properties.minor);
}

/// Those of --attention-kernels on the current GPU, or mma with a line that says why.
inline void choose_attention_kernels(const std::string& name, Ranks& ranks) {
    if (ranks.first() && name == "wgmma" && !has_wgmma())
        std::cerr << "note: attention multiplies by mma, not wgmma: "
                  << (COMPILES_WGMMA ? gpu_kind() + " has no wgmma" : "this program was not compiled for sm_90a") << '\n';
    attention_kernels() = name == "wgmma" && has_wgmma() ? AttentionKernels::wgmma : AttentionKernels::mma;
}

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
/// The engine's allocations. CUDA's context, NCCL and other programs come on top; the driver has only the sum over all programs.
inline size_t peak_memory(GPU) { return gpu_bytes.most; }
inline constexpr const char* name_of_peak(GPU) { return "peak of its allocations on the GPU"; }

inline int ranks_per_device(GPU, int local_ranks) {
    const int count = std::max(1, count_gpus().count);
    return (local_ranks + count - 1) / count;
}

/// GPU memory in use before the first tensor: the workspaces, the CUDA context with the program's code, other programs. Measured once,
/// before anything else is allocated.
inline void add_overheads(GPU device, std::vector<MemoryUse>& plan, size_t /*gathered: in the host's memory*/, bool /*launched*/) {
    static const size_t workspaces = device.stream ? gpu_bytes.now : WORKSPACE_BYTES + matmul_workspace(132);   // an H200's
    static const size_t before = card_memory(device).used;
    plan.push_back({device.stream ? "workspaces" : "workspaces (the CUDA context comes on top)", workspaces});
    if (device.stream) plan.push_back({"CUDA context and other programs", before - workspaces});
}

inline std::string describe(GPU device, int) {
    if (!device.stream) return "cuda: none here, a plan only";
    return "cuda: " + gpu_kind() + ", " + human_bytes(double(gpu_properties().totalGlobalMem)) +
           (attention_kernels() == AttentionKernels::wgmma ? ", attention by wgmma where it can" : "");
}
inline std::string describe_blas(GPU) { return "cuBLASLt " + std::to_string(cublasLtGetVersion()); }
inline void warn(GPU) {}

/// Exit::usage, before anything is allocated, for a model that the kernels would refuse in the first step.
inline void require_sizes(GPU, const Config& c) {
    if (c.HS != 32 && c.HS != 64 && c.HS != 128)
        fail(Exit::usage, "the GPU supports attention with head sizes 32, 64 and 128; this model has ", c.HS, ". Use --device cpu");
    for (const auto& [name, size] : {std::pair("vocabulary", c.V), std::pair("channels", c.C), std::pair("feed-forward width", c.F)})
        if (size % 8) fail(Exit::usage, "the GPU needs ", name, " in multiples of 8; this model has ", size, ". Use --device cpu");
}

/// Measured FLOP/s of square bf16 matrix products on random data. The side grows with the GPU: 3072 for 132 multiprocessors.
inline double measure_matmul(GPU device) {
    const int side = 256 * int(std::ceil(std::sqrt(double(gpu_properties().multiProcessorCount)))), repeats = 10;
    const size_t n = size_t(side) * side;
    Arena<GPU> memory;
    bf16 *a = nullptr, *b = nullptr, *c = nullptr;
    for (int pass = 0; pass < 2; pass++) {   // the first pass counts the bytes
        a = memory.take<bf16>(n), b = memory.take<bf16>(n), c = memory.take<bf16>(n);
        if (pass == 0) memory.allocate();
    }
    std::vector<bf16> random(n);
    uint32_t state = 1;
    for (bf16& x : random) state = state * 1664525u + 1013904223u, x = from_float<bf16>(float(state >> 8) * 0x1p-23f - 1);
    to_device(device, a, random.data(), n);
    to_device(device, b, random.data(), n);
    auto multiply = [&] { linear_forward(device, c, a, b, static_cast<const bf16*>(nullptr), side, side, side); };
    multiply();
    check(cudaStreamSynchronize(device.stream));
    const Stopwatch watch;
    for (int n = 0; n < repeats; n++) multiply();
    check(cudaStreamSynchronize(device.stream));
    return 2.0 * double(n) * side * repeats / watch.seconds();
}

#endif
