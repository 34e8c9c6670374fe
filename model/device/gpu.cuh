// The GPU as the operations see it: the device tag, launches that cannot fail unnoticed, and the few helpers that every kernel
// shares. Kernels are plain CUDA C++. nvcc compiles them for a GPU; with -DEMULATED_GPU and the headers of dev/emulator/include a
// C++ compiler makes them run on the CPU, thread by thread.
//
// What a kernel must keep to, so that both work:
//   - shared memory is one struct per kernel, taken with dynamic_shared<Struct>(); the launch is told sizeof(Struct)
//   - blocks of whole warps; every thread of a block reaches every __syncthreads(); warp operations with all 32 lanes
//   - PTX only inside the wrappers of attention/core/mma.cuh, and one tanh in math.h
//   - no float atomics: two runs give the same bits
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <type_traits>
#include <utility>

#include "model/base/error.h"

using bf16 = __nv_bfloat16;

/// Memory for partial sums inside one operation. Operations of one stream share it one after the other.
struct Workspace {
    std::byte* data = nullptr;
    size_t bytes = 0;
};

/// Kernels in the order of one stream.
struct GPU {
    static constexpr const char* name = "cuda";
    cudaStream_t stream = nullptr;
    Workspace workspace = {};
};

/// What a kernel says that waited in vain for another block, before it stops: in memory of the host, which outlives the GPU's.
struct Stuck {
    bool said;
    int block, who, seen, expected;
};
inline Stuck* stuck_report = nullptr;   // once something has asked for it

/// Throws when a call of the CUDA runtime failed: Exit::out_of_memory when memory is what was missing, else Exit::rank.
inline void check(cudaError_t result, std::source_location at = std::source_location::current()) {
    if (result == cudaSuccess) return;
    const Exit code = result == cudaErrorMemoryAllocation ? Exit::out_of_memory : Exit::rank;
    if (const Stuck* s = stuck_report; s && s->said)
        fail(code, at.file_name(), ":", at.line(), ": the GPU stopped, for block ", s->block, " waited in vain for its turn at tile ",
             s->who, ": the flag is ", s->seen, ", expected ", s->expected, "; please report this");
    fail(code, at.file_name(), ":", at.line(), ": the GPU reports: ", cudaGetErrorString(result));
}

/// The report that kernels get a pointer to.
inline Stuck* stuck() {
    if (!stuck_report) {
        check(cudaMallocHost(&stuck_report, sizeof(Stuck)));
        *stuck_report = {};
    }
    return stuck_report;
}

/// The size of a grid, and the line that launches it.
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

/// The block's shared memory as one T.
template <class T>
__device__ __forceinline__ T& dynamic_shared() {
#if defined(__CUDACC__)
    extern __shared__ __align__(128) unsigned char block_memory[];
    return *reinterpret_cast<T*>(block_memory);
#else
    return *static_cast<T*>(emulator::dynamic_shared());
#endif
}

inline constexpr unsigned ALL_LANES = 0xffffffffu;
inline constexpr int WARP = 32;

// ---- numbers: storage in X, arithmetic in float

__host__ __device__ __forceinline__ float to_float(float x) { return x; }
__host__ __device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
template <class X>
__host__ __device__ __forceinline__ X from_float(float x);
template <>
__host__ __device__ __forceinline__ float from_float<float>(float x) {
    return x;
}
template <>
__host__ __device__ __forceinline__ bf16 from_float<bf16>(float x) {
    return __float2bfloat16(x);
}

/// 16 bytes of X: what one thread reads or writes at a time. The address must be a multiple of 16.
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

/// x = from[0 .. N) for N numbers of 8 bytes, 16, or several times 16; the address must be a multiple of 16, or of 8 for 8 bytes.
template <int N, class X>
__device__ __forceinline__ void read_numbers(float (&x)[N], const X* from) {
    using Word = std::conditional_t<N * sizeof(X) == 8, int2, int4>;
    constexpr int per_word = sizeof(Word) / sizeof(X);
    for (int n = 0; n < N; n += per_word) {
        alignas(16) X data[per_word];
        *reinterpret_cast<Word*>(data) = *reinterpret_cast<const Word*>(from + n);
        for (int k = 0; k < per_word; k++) x[n + k] = to_float(data[k]);
    }
}
template <int N, class X>
__device__ __forceinline__ void write_numbers(X* to, const float (&x)[N]) {
    using Word = std::conditional_t<N * sizeof(X) == 8, int2, int4>;
    constexpr int per_word = sizeof(Word) / sizeof(X);
    for (int n = 0; n < N; n += per_word) {
        alignas(16) X data[per_word];
        for (int k = 0; k < per_word; k++) data[k] = from_float<X>(x[n + k]);
        *reinterpret_cast<Word*>(to + n) = *reinterpret_cast<const Word*>(data);
    }
}

/// The same for what no kernel reads again before the caches have forgotten it: it makes room for others first.
template <int N, class X>
__device__ __forceinline__ void read_streaming(float (&x)[N], const X* from) {
    static_assert(N % Packed<X>::size == 0);
    for (int n = 0; n < N; n += Packed<X>::size) {
        Packed<X> p;
        *reinterpret_cast<int4*>(&p) = __ldcs(reinterpret_cast<const int4*>(from + n));
        for (int k = 0; k < p.size; k++) x[n + k] = p[k];
    }
}
template <int N, class X>
__device__ __forceinline__ void write_streaming(X* to, const float (&x)[N]) {
    static_assert(N % Packed<X>::size == 0);
    for (int n = 0; n < N; n += Packed<X>::size) {
        Packed<X> p;
        for (int k = 0; k < p.size; k++) p.set(k, x[n + k]);
        __stcs(reinterpret_cast<int4*>(to + n), *reinterpret_cast<const int4*>(&p));
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

/// Sum over a block of `warps` warps, the same on every thread. `parts` (warps) is shared memory for this alone.
template <class N>
__device__ __forceinline__ N block_sum(N x, N* parts, int warps) {
    x = warp_sum(x);
    __syncthreads();   // the readers of an earlier call are done
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

inline size_t blocks_for(size_t work, size_t per_block) { return (work + per_block - 1) / per_block; }

/// Refuses sizes that reading 16 bytes at a time cannot handle.
inline void require_multiple_of_8(const char* operation, const char* name, int size) {
    if (size % 8) fail(Exit::usage, operation, " on the GPU needs ", name, " to be a multiple of 8, not ", size);
}

/// The workspace as `count` numbers of type Y.
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

/// x (n) = value; the address must be a multiple of 16.
template <class X>
void fill(GPU device, X* x, size_t n, X value) {
    const int threads = 256;
    if (n > 0) launch(device, fill_kernel<X>, blocks_for(n, size_t(threads) * Packed<X>::size), threads, 0, x, n, value);
}
