// The GPU: its device tag, checked launches, and helpers shared by all kernels. Kernels are plain CUDA C++. nvcc compiles them for
// a GPU; with -DEMULATED_GPU and the headers of dev/emulator/include, a C++ compiler makes them run on the CPU, thread by thread.
//
// Rules for kernels, so that both work:
//   - shared memory is one struct per kernel, accessed by dynamic_shared<Struct>(); the launch passes sizeof(Struct)
//   - blocks of whole warps; every thread of a block reaches every __syncthreads(); warp operations with all 32 lanes
//   - PTX only inside the wrappers of attention/kernel/mma.cuh and wgmma.cuh, except one tanh in math.h; elsewhere copies of CUDA's
//     cuda_pipeline.h
//   - no float atomics: runs are bit-identical
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <source_location>
#include <type_traits>
#include <utility>

#include "model/base/error.h"

using bf16 = __nv_bfloat16;

/// Memory for partial sums within one operation. The operations of a stream share it in turn.
struct Workspace {
    std::byte* data = nullptr;
    size_t bytes = 0;
};

/// Kernels run in stream order.
struct GPU {
    static constexpr const char* name = "cuda";
    cudaStream_t stream = nullptr;
    Workspace workspace = {};
};

/// Report of a block that timed out waiting for another, written before the kernel traps. In host memory, which survives the trap.
struct Stuck {
    bool written;
    int block, tile, seen, expected;   // `tile` is the index of the awaited tile
};
inline Stuck* stuck_report = nullptr;   // allocated by the first stuck()

/// If a CUDA call failed: Exit::out_of_memory on a failed allocation, else Exit::rank.
inline void check(cudaError_t result, std::source_location at = std::source_location::current()) {
    if (result == cudaSuccess) return;
    const Exit code = result == cudaErrorMemoryAllocation ? Exit::out_of_memory : Exit::rank;
    if (const Stuck* s = stuck_report; s && s->written)
        fail(code, at.file_name(), ":", at.line(), ": the GPU stopped: block ", s->block, " timed out waiting for tile ",
             s->tile, ": the flag is ", s->seen, ", expected ", s->expected, "; please report this");
    fail(code, at.file_name(), ":", at.line(), ": the GPU reports: ", cudaGetErrorString(result));
}

/// The report, for kernels to write to.
inline Stuck* stuck() {
    if (!stuck_report) {
        check(cudaMallocHost(&stuck_report, sizeof(Stuck)));
        *stuck_report = {};
    }
    return stuck_report;
}

/// The size of a grid, and the source line that launches it.
struct Grid {
    dim3 blocks;
    std::source_location at;
    Grid(size_t x, size_t y = 1, size_t z = 1, std::source_location at_ = std::source_location::current())
        : blocks(unsigned(x), unsigned(y), unsigned(z)), at(at_) {}
};

/// Runs kernel(args...) on `grid` blocks of `threads` threads (a multiple of 32) with `shared` bytes of shared memory.
template <class... Parameters, class... Arguments>
void launch(const GPU& device, void (*kernel)(Parameters...), const Grid& grid, int threads, size_t shared, Arguments&&... arguments) {
#if defined(__CUDACC__)
    if (shared > 48 * 1024) check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)), grid.at);
    kernel<<<grid.blocks, threads, shared, device.stream>>>(std::forward<Arguments>(arguments)...);
#else
    emulator::launch(device.stream, kernel, grid.blocks, threads, shared, grid.at, Parameters(std::forward<Arguments>(arguments))...);
#endif
    check(cudaGetLastError(), grid.at);
}

/// Bytes that this process has allocated on the GPU: now, and at most.
struct GpuBytes {
    size_t now = 0, most = 0;
};
inline GpuBytes gpu_bytes;

/// cudaMalloc() and cudaFree() of a block, counted.
template <class Y>
cudaError_t gpu_malloc(Y*& block, size_t bytes) {
    const cudaError_t result = cudaMalloc(&block, bytes);
    if (result == cudaSuccess) gpu_bytes.now += bytes, gpu_bytes.most = std::max(gpu_bytes.most, gpu_bytes.now);
    return result;
}
inline void gpu_free(void* block, size_t bytes) {
    if (block && cudaFree(block) == cudaSuccess) gpu_bytes.now -= bytes;
}

/// Properties of the current GPU.
inline cudaDeviceProp gpu_properties() {
    int number = 0;
    cudaDeviceProp properties{};
    check(cudaGetDevice(&number));
    check(cudaGetDeviceProperties(&properties, number));
    return properties;
}

/// Maximum shared memory per block on this GPU, in bytes: 227 KB for compute capability 9.0, 163 for 8.0, 99 for 8.6 and 8.9.
inline size_t max_shared_memory() {
    int device = 0, most = 0;
    check(cudaGetDevice(&device));
    check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    return size_t(most);
}

/// How many blocks of a kernel run on this GPU at a time.
template <class... Parameters>
size_t resident_blocks(void (*kernel)(Parameters...), int threads, size_t shared) {
    int device = 0, multiprocessors = 0, of_each = 0;
    check(cudaGetDevice(&device));
    check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)));
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_each, kernel, threads, shared));
    return size_t(multiprocessors) * of_each;
}

/// The block's shared memory as one T.
template <class T>
__device__ __forceinline__ T& dynamic_shared() {
#if defined(__CUDACC__)
    extern __shared__ __align__(1024) unsigned char block_memory[];
    return *reinterpret_cast<T*>(block_memory);
#else
    return *static_cast<T*>(emulator::dynamic_shared());
#endif
}

inline constexpr unsigned ALL_LANES = 0xffffffffu;
inline constexpr int WARP = 32;

// ---- conversion: storage in X, arithmetic in float

__host__ __device__ __forceinline__ float to_float(float x) { return x; }
__host__ __device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
template <class X>
__host__ __device__ __forceinline__ X from_float(float x) {
    if constexpr (std::is_same_v<X, float>) return x;
    else return __float2bfloat16(x);
}

/// 16 bytes of X, one thread's load or store. Precondition: addresses are multiples of 16.
template <class X>
struct alignas(16) Packed {
    static constexpr int size = 16 / sizeof(X);
    X data[size];
    __device__ __forceinline__ float operator[](int n) const { return to_float(data[n]); }
    __device__ __forceinline__ void set(int n, float x) { data[n] = from_float<X>(x); }
};
template <class X>
__device__ __forceinline__ Packed<X> load_packed(const X* from) {
    Packed<X> p;
    *reinterpret_cast<int4*>(&p) = *reinterpret_cast<const int4*>(from);
    return p;
}
template <class X>
__device__ __forceinline__ void store_packed(X* to, const Packed<X>& p) {
    *reinterpret_cast<int4*>(to) = *reinterpret_cast<const int4*>(&p);
}

/// Data that a kernel reads again soon, or none does: the caches evict what is streaming first.
enum class Reuse : bool { soon, streaming };

/// A word of 8 or 16 bytes.
template <Reuse REUSE, class Word>
__device__ __forceinline__ Word load_word(const Word* from) {
    if constexpr (REUSE == Reuse::streaming) return __ldcs(from);
    else return *from;
}
template <Reuse REUSE, class Word>
__device__ __forceinline__ void store_word(Word* to, const Word& word) {
    if constexpr (REUSE == Reuse::streaming) __stcs(to, word);
    else *to = word;
}

/// Loads if `there`, else returns zeros; branch-free, so that several loads are in flight together.
template <Reuse REUSE = Reuse::soon, class X>
__device__ __forceinline__ Packed<X> load_packed_if(bool there, const X* from) {
    int4 word{0, 0, 0, 0};
    if (there) word = load_word<REUSE>(reinterpret_cast<const int4*>(from));
    Packed<X> p;
    *reinterpret_cast<int4*>(&p) = word;
    return p;
}

/// Precondition: N elements make 8 bytes or a multiple of 16; the address is a multiple of 8 or 16 accordingly. x = from[0 .. N).
template <Reuse REUSE = Reuse::soon, int N, class X>
__device__ __forceinline__ void read_numbers(float (&x)[N], const X* from) {
    using Word = std::conditional_t<N * sizeof(X) == 8, int2, int4>;
    constexpr int per_word = sizeof(Word) / sizeof(X);
    for (int n = 0; n < N; n += per_word) {
        alignas(16) X data[per_word];
        *reinterpret_cast<Word*>(data) = load_word<REUSE>(reinterpret_cast<const Word*>(from + n));
        for (int k = 0; k < per_word; k++) x[n + k] = to_float(data[k]);
    }
}
template <Reuse REUSE = Reuse::soon, int N, class X>
__device__ __forceinline__ void write_numbers(X* to, const float (&x)[N]) {
    using Word = std::conditional_t<N * sizeof(X) == 8, int2, int4>;
    constexpr int per_word = sizeof(Word) / sizeof(X);
    for (int n = 0; n < N; n += per_word) {
        alignas(16) X data[per_word];
        for (int k = 0; k < per_word; k++) data[k] = from_float<X>(x[n + k]);
        store_word<REUSE>(reinterpret_cast<Word*>(to + n), *reinterpret_cast<const Word*>(data));
    }
}

// ---- sums and maxima in a fixed order

template <class N>
__device__ __forceinline__ N warp_sum(N x) {
    for (int distance = WARP / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(ALL_LANES, x, distance);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
    for (int distance = WARP / 2; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, distance));
    return x;
}

/// Sum over a block of `warps` warps, returned on every thread. `parts` (warps) is shared memory used for nothing else.
template <class N>
__device__ __forceinline__ N block_sum(N x, N* parts, int warps) {
    x = warp_sum(x);
    __syncthreads();   // earlier calls have finished reading
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = x;
    __syncthreads();
    N total = 0;
    for (int w = 0; w < warps; w++) total += parts[w];
    return total;
}
template <int WARPS, class N>
__device__ __forceinline__ N block_sum(N x, N* parts) {
    return block_sum(x, parts, WARPS);
}
__device__ __forceinline__ float block_max(float x, float* parts, int warps) {
    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int w = 0; w < warps; w++) x = fmaxf(x, parts[w]);
    return x;
}

// ---- teams

/// A GPU's team of threads (each_team() in device.h says what its members do): WARPS warps, a block or, of one warp, a part of it.
template <int WARPS>
struct BlockTeam {
    __device__ static int first() { return int(threadIdx.x) % step(); }
    static constexpr int step() { return WARPS * WARP; }
    __device__ static void sync() {
        if constexpr (WARPS == 1) __syncwarp();
        else __syncthreads();
    }
    template <class N>
    __device__ static N sum(N x) {
        if constexpr (WARPS == 1) return warp_sum(x);
        else return block_sum(x, &dynamic_shared<N>(), WARPS);
    }
    __device__ static float max(float x) {
        if constexpr (WARPS == 1) return warp_max(x);
        else return block_max(x, &dynamic_shared<float>(), WARPS);
    }
    __device__ static int place(bool yes, int& count) {
        static_assert(WARPS > 1);
        auto& counts = dynamic_shared<int[WARPS]>();
        const int warp = int(threadIdx.x) / WARP, lane = int(threadIdx.x) % WARP;
        const unsigned those = __ballot_sync(ALL_LANES, yes);
        if (lane == 0) counts[warp] = __popc(those);
        sync();
        int at = count + __popc(those & ((1u << lane) - 1));
        for (int w = 0; w < WARPS; w++) {
            if (w < warp) at += counts[w];
            count += counts[w];
        }
        sync();   // the counts have been read
        return at;
    }
    template <class X, class Y>
    __device__ static float product(const X* x, const Y* y, int n) {
        float sum = 0;
        for (int d = 0; d < n; d++) sum += to_float(x[d]) * to_float(y[d]);
        return sum;
    }
    template <class X, class Y>
    __device__ static float joint_product(const X* x, const Y* y, int n) {
        float part = 0;
        for (int d = first(); d < n; d += step()) part += to_float(x[d]) * to_float(y[d]);
        return sum(part);
    }
    /// Behind the memory of sum() and max().
    __device__ static float* scratch() { return &dynamic_shared<float>() + WARP; }
};

inline size_t blocks_for(size_t work, size_t per_block) { return (work + per_block - 1) / per_block; }

inline constexpr int SMALL_TEAMS = 4;   // of one warp in a block, where there are many: a GPU holds more warps than blocks

template <int WARPS, class Task>
__global__ void __launch_bounds__((WARPS == 1 ? SMALL_TEAMS : WARPS) * WARP)
    each_team_kernel(const __grid_constant__ Task task, unsigned teams) {
    const unsigned n = blockIdx.x * (blockDim.x / (WARPS * WARP)) + threadIdx.x / (WARPS * WARP);
    if (n < teams) task(BlockTeam<WARPS>(), n);
}
template <int WARPS, class Task>
void each_team(GPU device, size_t teams, const Task& task, size_t scratch = 0) {
    const int together = WARPS == 1 && scratch == 0 && teams >= 4096 ? SMALL_TEAMS : 1;
    const size_t shared = (WARP + scratch) * sizeof(float);
    if (teams == 0) return;
    launch(device, each_team_kernel<WARPS, Task>, blocks_for(teams, together), together * WARPS * WARP, shared, task, unsigned(teams));
}

/// Exit::usage for sizes that 16-byte loads cannot handle.
inline void require_multiple_of_8(const char* operation, const char* name, int size) {
    if (size % 8) fail(Exit::usage, operation, " on the GPU needs ", name, " to be a multiple of 8, not ", size);
}

/// The workspace as an array Y (count). Exit::out_of_memory if it is too small.
template <class Y>
Y* take_workspace(const GPU& device, const char* operation, size_t count) {
    if (device.workspace.bytes < count * sizeof(Y))
        fail(Exit::out_of_memory, operation, " needs ", count * sizeof(Y), " bytes of workspace and has ", device.workspace.bytes);
    return reinterpret_cast<Y*>(device.workspace.data);
}

// ---- fill

template <class X>
__global__ void fill_kernel(X* x, size_t n, X value) {
    constexpr int N = Packed<X>::size;
    const size_t i = (size_t(blockIdx.x) * blockDim.x + threadIdx.x) * N;
    Packed<X> p;
    for (int k = 0; k < N; k++) p.data[k] = value;
    if (i + N <= n) store_packed(x + i, p);
    else
        for (size_t k = i; k < n; k++) x[k] = value;
}

/// Precondition: the address is a multiple of 16. x (n) = value.
template <class X>
void fill(GPU device, X* x, size_t n, X value) {
    const int threads = 256;
    if (n > 0) launch(device, fill_kernel<X>, blocks_for(n, size_t(threads) * Packed<X>::size), threads, 0, x, n, value);
}
