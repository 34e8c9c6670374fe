// Memory of the device that computes: arenas, copies and conversions, as memory.h has them for the CPU.
#pragma once
#include "model/device/memory.h"

#ifdef WITH_GPU

template <>
class Arena<GPU> {
public:
    ~Arena() { cudaFree(block_); }
    Arena() = default;
    Arena(const Arena&) = delete;

    /// `count` numbers on a boundary of 256 bytes, as cudaMalloc gives them; an address from nowhere until allocate() was called.
    template <class X>
    X* take(size_t count) {
        const size_t at = used_;
        used_ += (count * sizeof(X) + 255) / 256 * 256;
        most_ = used_ > most_ ? used_ : most_;
        return reinterpret_cast<X*>(block_ + at);
    }
    size_t used() const { return used_; }
    size_t bytes() const { return most_; }

    /// Takes after rewind(used()) share memory: for pieces that are never alive together.
    void rewind(size_t used) { used_ = used; }

    /// Gets the memory that the takes so far have asked for and starts cutting anew. What is in it is undefined.
    void allocate() {
        if (most_ && cudaMalloc(reinterpret_cast<void**>(&block_), most_) != cudaSuccess) {
            cudaGetLastError();   // it has been dealt with
            fail(Exit::out_of_memory, "the GPU has no ", human_bytes(double(most_)),
                 " left in one piece: lower --batch-size or --seq-len, or set --recompute 2");
        }
        used_ = 0;
    }

private:
    std::byte* block_ = nullptr;
    size_t used_ = 0, most_ = 0;
};

template <class Y>
void to_device(GPU device, Y* to, const Y* from, size_t n) {
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
