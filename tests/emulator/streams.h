// What the tests of the emulated runtime work with: streams, events, pinned memory, kernels of one line.
#pragma once
#include "tests/emulator/emulated.h"

namespace {

constexpr int SIZE = 256;

__global__ void set_kernel(int* x, int value) { x[blockIdx.x * blockDim.x + threadIdx.x] = value; }
__global__ void add_kernel(int* x, int value) { x[blockIdx.x * blockDim.x + threadIdx.x] += value; }
__global__ void copy_kernel(int* to, const int* from) { to[threadIdx.x] = from[threadIdx.x]; }

void set(cudaStream_t stream, int* x, int value) { launch(GPU{stream}, set_kernel, Grid(1), SIZE, 0, x, value); }
void add(cudaStream_t stream, int* x, int value) { launch(GPU{stream}, add_kernel, Grid(1), SIZE, 0, x, value); }
void copy(cudaStream_t stream, int* to, const int* from) { launch(GPU{stream}, copy_kernel, Grid(1), SIZE, 0, to, from); }

struct Stream {
    cudaStream_t stream = nullptr;
    explicit Stream(unsigned flags = cudaStreamNonBlocking) { check(cudaStreamCreateWithFlags(&stream, flags)); }
    ~Stream() { cudaStreamDestroy(stream); }
    Stream(const Stream&) = delete;
    operator cudaStream_t() const { return stream; }
};
struct Event {
    cudaEvent_t event = nullptr;
    Event() { check(cudaEventCreate(&event)); }
    ~Event() { cudaEventDestroy(event); }
    Event(const Event&) = delete;
    operator cudaEvent_t() const { return event; }
};
struct Pinned {
    int* data = nullptr;
    Pinned() { check(cudaMallocHost(&data, SIZE * sizeof(int))); }
    ~Pinned() { cudaFreeHost(data); }
    Pinned(const Pinned&) = delete;
};

bool holds(const Numbers<int>& x, int value) { return x.host() == std::vector<int>(SIZE, value); }

/// Under how many of the seeds `right` is true.
template <class Action>
size_t seeds_where(Action right) {
    size_t count = 0;
    for (const uint64_t seed : SEEDS) {
        WithOptions options(seed);
        count += right();
        cudaDeviceSynchronize();
    }
    return count;
}
const size_t ALL = SEEDS.size();

}   // namespace
