// Kernels for tests/sanitizers.sh, which compiles this file with ThreadSanitizer, with AddressSanitizer and with neither:
// `races NAME` runs one. The sanitizer must leave clean_chain alone, and name the line marked <- NAME in the others.
#include <cstdio>
#include <cstring>
#include <exception>

#include "model/device/gpu.cuh"

namespace {

constexpr int THREADS = 128;

// ---- for ThreadSanitizer

/// Every block adds to what the block with the ticket before has left.
template <bool FENCES>
__global__ void chain(float* out, unsigned* tickets) {
    unsigned& mine = dynamic_shared<unsigned>();
    if (threadIdx.x == 0) {
        mine = atomicAdd(&tickets[0], 1);
        while (__ldcg(&tickets[1]) < mine) __nanosleep(20);
        if (FENCES) __threadfence();
    }
    __syncthreads();
    out[threadIdx.x] += 1;   // <- missing_fence
    if (FENCES) __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&tickets[1], 1);
}

__global__ void missing_barrier_before_read(float* out) {
    float* x = &dynamic_shared<float>();
    x[threadIdx.x] = 1;
    out[threadIdx.x] = x[(threadIdx.x + 32) % THREADS];   // <- missing_barrier_before_read
}

__global__ void missing_barrier_in_warp(float* out) {
    float* x = &dynamic_shared<float>();
    x[threadIdx.x] = 1;
    out[threadIdx.x] = x[threadIdx.x ^ 1];   // <- missing_barrier_in_warp
}

__global__ void missing_atomic(float* out) {
    if (threadIdx.x == 0) out[0] += 1;   // <- missing_atomic
}

__global__ void missing_barrier_after_copy(float* out, const float* in) {
    float* x = &dynamic_shared<float>();
    emulator::cp_async(&x[threadIdx.x], &in[threadIdx.x], 4, 4);
    emulator::cp_async_commit();
    emulator::cp_async_wait(0);
    out[threadIdx.x] = x[(threadIdx.x + 32) % THREADS];   // <- missing_barrier_after_copy
}

// ---- for AddressSanitizer

__global__ void shared_read_past_end(float* out) {
    float* x = &dynamic_shared<float>();   // (THREADS)
    x[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = x[threadIdx.x + 1];   // <- shared_read_past_end
}

__global__ void global_write_past_end(float* out) {
    out[8 * THREADS - 127 + threadIdx.x] = 1;   // <- global_write_past_end
}

__global__ void copy_not_waited_for(float* out, const float* in) {
    float4* x = &dynamic_shared<float4>();
    emulator::cp_async(&x[threadIdx.x], &in[4 * threadIdx.x], 16, 16);
    emulator::cp_async_commit();
    emulator::cp_async_wait(1);
    out[threadIdx.x] = x[threadIdx.x].x;   // <- copy_not_waited_for
    emulator::cp_async_wait(0);
}

__global__ void copy_from_past_end(float* out, const float* in) {
    float4* x = &dynamic_shared<float4>();
    const unsigned last = 2 * THREADS - 100;
    emulator::cp_async(&x[threadIdx.x], &in[4 * (last + threadIdx.x)], 16, 16);
    emulator::cp_async_commit();
    emulator::cp_async_wait(0);   // <- copy_from_past_end
    out[threadIdx.x] = x[threadIdx.x].x;
}

int run(const char* name) {
    float *out = nullptr, *in = nullptr;
    unsigned* tickets = nullptr;
    check(cudaMalloc(&out, 8 * THREADS * sizeof(float)));
    check(cudaMalloc(&in, 8 * THREADS * sizeof(float)));
    check(cudaMalloc(&tickets, 2 * sizeof(unsigned)));
    for (float* x : {out, in}) check(cudaMemset(x, 0, 8 * THREADS * sizeof(float)));
    check(cudaMemset(tickets, 0, 2 * sizeof(unsigned)));

    const GPU gpu;
    const Grid grid(4);
    const size_t floats = THREADS * sizeof(float);
    auto is = [name](const char* kernel) { return std::strcmp(name, kernel) == 0; };
    if (is("clean_chain")) launch(gpu, chain<true>, grid, THREADS, sizeof(unsigned), out, tickets);
    else if (is("missing_fence")) launch(gpu, chain<false>, grid, THREADS, sizeof(unsigned), out, tickets);
    else if (is("missing_barrier_before_read")) launch(gpu, missing_barrier_before_read, Grid(1), THREADS, floats, out);
    else if (is("missing_barrier_in_warp")) launch(gpu, missing_barrier_in_warp, Grid(1), THREADS, floats, out);
    else if (is("missing_atomic")) launch(gpu, missing_atomic, grid, THREADS, 0, out);
    else if (is("missing_barrier_after_copy")) launch(gpu, missing_barrier_after_copy, Grid(1), THREADS, floats, out, in);
    else if (is("shared_read_past_end")) launch(gpu, shared_read_past_end, grid, THREADS, floats, out);
    else if (is("global_write_past_end")) launch(gpu, global_write_past_end, grid, THREADS, 0, out);
    else if (is("copy_not_waited_for")) launch(gpu, copy_not_waited_for, grid, THREADS, 4 * floats, out, in);
    else if (is("copy_from_past_end")) launch(gpu, copy_from_past_end, grid, THREADS, 4 * floats, out, in);
    else if (is("host_reads_device")) launch(gpu, missing_atomic, grid, THREADS, 0, out);
    else return std::printf("races: there is no kernel %s\n", name), 2;

    check(cudaDeviceSynchronize());
    if (is("host_reads_device")) std::printf("%g\n", double(out[0]));
    cudaFree(out), cudaFree(in), cudaFree(tickets);
    return 0;
}

}   // namespace

int main(int arguments, char** words) {
    if (arguments != 2) return std::printf("usage: races NAME\n"), 2;
    try {
        return run(words[1]);
    } catch (const std::exception& error) {
        std::printf("%s\n", error.what());
        return 1;
    }
}
