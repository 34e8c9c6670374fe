// GPU memory: arenas, copies and conversions, as memory.h has them for the CPU.
#pragma once
#include "model/base/text.h"
#include "model/device/memory.h"

#ifdef WITH_GPU

template <>
class Arena<GPU> : public BumpAllocator {
public:
    Arena() : BumpAllocator(nullptr) {}
    ~Arena() { cudaFree(block_); }
    Arena(const Arena&) = delete;

    /// Allocates the memory counted so far, uninitialised, and restarts at its beginning. Exit::out_of_memory if there is not
    /// enough.
    void allocate() {
        if (peak_ && cudaMalloc(reinterpret_cast<void**>(&block_), peak_) != cudaSuccess) {
            cudaGetLastError();   // clears the error
            fail(Exit::out_of_memory, "the GPU cannot allocate ", human_bytes(double(peak_)),
                 ": to train, lower --batch-size or --seq-len, or set --recompute 2; to generate, lower --tokens or --batch");
        }
        used_ = 0;
    }
};

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

template <class Y>
__global__ void set_value_kernel(Y* to, Y value) {
    if (threadIdx.x == 0) *to = value;
}
/// Ordered by the stream, without a wait.
template <class Y>
void set_value(GPU device, Y* to, Y value) {
    launch(device, set_value_kernel<Y>, 1, WARP, 0, to, value);
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

template <>
class HostView<GPU> {
public:
    HostView(GPU device, float* x, size_t n) : device_(device), x_(x), copy_(n) {}
    float* data() { return copy_.data(); }
    void pull() { to_host(device_, copy_.data(), x_, copy_.size()); }
    void push() { to_device(device_, x_, copy_.data(), copy_.size()); }

private:
    GPU device_;
    float* x_;
    std::vector<float> copy_;
};

#endif
