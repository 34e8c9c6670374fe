// GPU memory: arenas, copies and conversions, as memory.h has them for the CPU.
#pragma once
#include "model/device/memory.h"

#ifdef WITH_GPU

/// Uninitialised memory, or null.
inline std::byte* new_block(GPU, size_t bytes, size_t /*alignment*/) {
    std::byte* block = nullptr;
    if (gpu_malloc(block, bytes) != cudaSuccess) cudaGetLastError();   // clears the error
    return block;
}
inline void delete_block(GPU, std::byte* block, size_t bytes) { gpu_free(block, bytes); }

template <class Y>
void to_device(GPU device, Y* to, const Y* from, size_t n) {
    if (n == 0) return;   // the address may be null
    check(cudaMemcpyAsync(to, from, n * sizeof(Y), cudaMemcpyHostToDevice, device.stream));
    check(cudaStreamSynchronize(device.stream));
}
template <class Y>
void to_host(GPU device, Y* to, const Y* from, size_t n) {
    check(cudaMemcpyAsync(to, from, n * sizeof(Y), cudaMemcpyDeviceToHost, device.stream));
    check(cudaStreamSynchronize(device.stream));
}

template <class X, class W>
__global__ void convert_kernel(X* to, const W* from, size_t n) {
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
        to[i] = from_float<X>(to_float(from[i]));
}
template <class X, class W>
void convert(GPU device, X* to, const W* from, size_t n) {
    if (n > 0) launch(device, convert_kernel<X, W>, std::min<size_t>(blocks_for(n, 256), 4096), 256, 0, to, from, n);
}

#endif
