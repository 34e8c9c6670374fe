// The emulator names what is wrong with a kernel, or lets its result be wrong in some order of threads. That correct kernels compute
// what they should is tested in tests/gpu, which runs on it.
#include <bit>
#include <cmath>

#include "model/base/bf16.h"
#include "tests/emulator/emulated.h"

namespace {

__global__ void count_up(int* out) { out[threadIdx.x]++; }

TEST_CASE("emulator: a launch that a GPU would refuse is an error", "[emulator]") {
    DeviceMemory<int> out(std::vector<int>(64));
    auto refused = [&](Grid grid, int threads, size_t shared) {
        return complaint([&] { launch(GPU{}, count_up, grid, threads, shared, out.data()); });
    };
    CHECK(contains(refused(Grid(1), 48, 0), "48 threads per block are not a multiple of 32"));
    CHECK(contains(refused(Grid(1), 2048, 0), "2048 threads per block"));
    CHECK(contains(refused(Grid(0), 32, 0), "a grid of (0,1,1) blocks"));
    CHECK(contains(refused(Grid(1, 70000), 32, 0), "a grid of (1,70000,1) blocks"));
    CHECK(contains(refused(Grid(1), 32, 240 << 10), "245760 bytes of shared memory; a block may have 232448"));
    CHECK(contains(refused(Grid(1), 48, 0), "tests/emulator/test_emulator.cpp:"));
    CHECK(refused(Grid(1), 64, 227 << 10) == "");
}

// ---- barriers that are missing. These kernels give wrong results only in some orders: that is why there are seeds.

template <bool FIRST, bool SECOND>
__global__ void rotate_twice(int* out) {
    int* x = &dynamic_shared<int>();   // (threads)
    const unsigned me = threadIdx.x, neighbour = (threadIdx.x + WARP) % blockDim.x;
    x[me] = int(me);
    if (FIRST) __syncthreads();   // else the neighbour may not have written
    const int once = x[neighbour];
    if (SECOND) __syncthreads();   // else the neighbour may still have to read
    x[me] = once;
    __syncthreads();
    out[me] = x[neighbour];
}

template <bool FIRST, bool SECOND>
bool rotates(int seed) {
    Order order(seed);
    DeviceMemory<int> out(std::vector<int>(128));
    launch(GPU{}, rotate_twice<FIRST, SECOND>, Grid(1), 128, 128 * sizeof(int), out.data());
    std::vector<int> expected(128);
    for (int i = 0; i < 128; i++) expected[size_t(i)] = (i + 64) % 128;
    return out.host() == expected;
}

TEST_CASE("emulator: a missing barrier changes the result", "[emulator]") {
    for (const int seed : SEEDS) {
        CHECK(rotates<true, true>(seed));
        if (emulator::FINDS_RACES) continue;   // ThreadSanitizer reports the others: tests/sanitizers.sh
        CHECK_FALSE(rotates<false, true>(seed));                   // read before it is written
        if (seed > 0) CHECK_FALSE(rotates<true, false>(seed));     // written before it is read; in order it happens to work
    }
}

// ---- deadlocks

__global__ void leave_early() {
    if (threadIdx.x >= 100) return;
    __syncthreads();
}
__global__ void two_barriers() {
    if (threadIdx.x < 32) __syncthreads();
    else __syncthreads();
}
__global__ void half_a_warp() {
    if (threadIdx.x < 16) __syncwarp();
}
__global__ void different_operations(int* out) {
    if (threadIdx.x < 16) out[0] = __shfl_sync(ALL_LANES, 1, 0);
    else __syncthreads();
}
__global__ void half_a_mask(int* out) { out[threadIdx.x] = __shfl_sync(0xffff, 1, 20); }

TEST_CASE("emulator: threads that cannot meet are named with their lines", "[emulator]") {
    DeviceMemory<int> out(std::vector<int>(32));
    for (const int seed : SEEDS) {
        Order order(seed);
        const std::string early = complaint([] { launch(GPU{}, leave_early, Grid(2), 128, 0); });
        CHECK(contains(early, "deadlock, the threads wait for each other"));
        CHECK(contains(early, "100 threads, first 0: at __syncthreads, tests/emulator/test_emulator.cpp:"));
        CHECK(contains(early, "28 threads, first 100: ended"));
        CHECK(contains(complaint([] { launch(GPU{}, two_barriers, Grid(1), 64, 0); }), "__syncthreads diverges: others wait at __syncthreads, tests/"));
        CHECK(contains(complaint([] { launch(GPU{}, half_a_warp, Grid(1), 32, 0); }), "16 threads, first 0: at __syncwarp"));
        const std::string mixed = complaint([&] { launch(GPU{}, different_operations, Grid(1), 32, 0, out.data()); });
        CHECK(contains(mixed, "16 threads, first 0: at __shfl_sync, tests/"));
        CHECK(contains(mixed, "16 threads, first 16: at __syncthreads, tests/"));
        CHECK(contains(complaint([&] { launch(GPU{}, half_a_mask, Grid(1), 32, 0, out.data()); }), "not for those of the mask ffff"));
        CHECK(rotates<true, true>(seed));   // and the next kernel finds everything in order
    }
}

// ---- uninitialised memory, and memory outside allocations

__global__ void read_shared(float* out) { out[threadIdx.x] = (&dynamic_shared<float>())[threadIdx.x]; }

TEST_CASE("emulator: uninitialised memory holds NaN, huge or very negative numbers", "[emulator]") {
    for (const int seed : SEEDS) {
        Order order(seed);
        DeviceMemory<float> out(std::vector<float>(32));
        float *unwritten = nullptr, first = 0;
        check(cudaMalloc(&unwritten, sizeof(float)));
        check(cudaMemcpy(&first, unwritten, sizeof(float), cudaMemcpyDeviceToHost));
        check(cudaFree(unwritten));
        launch(GPU{}, read_shared, Grid(1), 32, 32 * sizeof(float), out.data());
        for (const float x : out.host()) CHECK_FALSE(std::abs(x) < 1e38f);
        CHECK_FALSE(std::abs(first) < 1e38f);
    }
}

__global__ void write_shared_at(int index) {
    char* bytes = &dynamic_shared<char>();
    if (threadIdx.x == 5) bytes[index] = 1;
}
__global__ void write_global_at(char* bytes, int index) {
    if (threadIdx.x == 5) bytes[index] = 1;
}

TEST_CASE("emulator: a write outside of shared or global memory is found", "[emulator]") {
    if (emulator::SANITIZED) return;   // there the program ends at the very line: tests/sanitizers.sh
    DeviceMemory<char> bytes(std::vector<char>(1001));
    for (const int seed : SEEDS) {
        Order order(seed);
        auto shared = [](int index) { return complaint([&] { launch(GPU{}, write_shared_at, Grid(1), 32, 1001, index); }); };
        auto global = [&](int index) {
            return complaint([&] { launch(GPU{}, write_global_at, Grid(1), 32, 0, bytes.data(), index); });
        };
        CHECK(shared(1000) == "");
        CHECK(contains(shared(1001), "byte 1001 of 1001 bytes of shared memory"));
        CHECK(contains(shared(-1), "1 bytes before the start of shared memory"));
        CHECK(global(1000) == "");
        CHECK(contains(global(1001), "a write to byte 1001 of the 1001 bytes that cudaMalloc returned at "));
        CHECK(contains(global(1001), "tests/gpu/device_array.h:"));           // the allocation
        CHECK(contains(global(1020), "a write to byte 1020"));
        CHECK(contains(global(-3), "a write 3 bytes before the start of"));
        CHECK(contains(global(1001), "tests/emulator/test_emulator.cpp:"));   // the launch
    }
}

// ---- blocks that wait for others

__global__ void wait_for_last(int* flags) {
    while (threadIdx.x == 0 && blockIdx.x + 1 < gridDim.x && __ldcg(&flags[blockIdx.x + 1]) == 0) __nanosleep(20);
    if (threadIdx.x == 0) atomicExch(&flags[blockIdx.x], 1);
}
__global__ void one_fails(int* flags) {
    if (blockIdx.x == 0) __trap();
    while (__ldcg(&flags[0]) == 0) __nanosleep(20);
}

TEST_CASE("emulator: blocks that wait for what cannot come are an error and do not hang", "[emulator]") {
    const Order order(0);
    const int before = emulator::options().threads;
    for (const int workers : {1, 3}) {
        emulator::options().threads = workers;
        DeviceMemory<int> flags(std::vector<int>(20)), never(std::vector<int>(1));
        CHECK(contains(complaint([&] { launch(GPU{}, wait_for_last, Grid(20), 32, 0, flags.data()); }), "sleeps forever"));
        CHECK(contains(complaint([&] { launch(GPU{}, one_fails, Grid(20), 32, 0, never.data()); }), "__trap()"));
    }
    emulator::options().threads = before;
}

// ---- tensor cores, asynchronous copies, bfloat16

__global__ void load_matrix_at(int offset, bool global, const char* elsewhere) {
    uint32_t a[1];
    emulator::ldmatrix<1, false>(a, global ? elsewhere : &dynamic_shared<char>() + offset);
}

TEST_CASE("emulator: ldmatrix wants shared memory and multiples of 16", "[emulator]") {
    DeviceMemory<char> elsewhere(std::vector<char>(1024));
    auto says = [&](int offset, bool global) {
        return complaint([&] {
            launch(GPU{}, load_matrix_at, Grid(1), WARP, 64, offset, global, static_cast<const char*>(elsewhere.data()));
        });
    };
    CHECK(says(48, false) == "");
    CHECK(contains(says(8, false), "not a multiple of 16"));
    CHECK(contains(says(64, false), "does not lie in the block's shared memory"));
    CHECK(contains(says(0, true), "does not lie in the block's shared memory"));
}

enum Fault { none, late_wait, no_wait, no_barrier, misplaced };

/// Two copies under way at the same time; lane i reads what lane 31 - i has copied.
__global__ void copy_kernel(float* out, const float* from, int fault) {
    float* buffers = &dynamic_shared<float>();   // (2, 32, 4)
    const unsigned lane = threadIdx.x;
    for (unsigned n = 0; n < 2; n++) {
        emulator::cp_async(buffers + (n * WARP + lane) * 4 + (fault == misplaced), from + (n * WARP + lane) * 4, 16, 16);
        emulator::cp_async_commit();
    }
    if (fault == no_wait) return;
    emulator::cp_async_wait(fault == late_wait ? 2 : 1);
    if (fault != no_barrier) __syncwarp();
    out[lane] = buffers[(31 - lane) * 4];
    emulator::cp_async_wait(0);
    __syncwarp();
    out[lane] += buffers[(WARP + 31 - lane) * 4];
}

TEST_CASE("emulator: asynchronous copies arrive when they are waited for, and not before", "[emulator]") {
    std::vector<float> numbers(2 * WARP * 4), expected(WARP);
    for (size_t n = 0; n < numbers.size(); n++) numbers[n] = float(n);
    for (size_t lane = 0; lane < WARP; lane++) expected[lane] = float(4 * (31 - lane) + 4 * (WARP + 31 - lane));
    for (const int seed : SEEDS) {
        Order order(seed);
        DeviceMemory<float> from(numbers);
        auto copied = [&](int fault) {
            DeviceMemory<float> out{std::vector<float>(WARP)};
            launch(GPU{}, copy_kernel, Grid(1), WARP, 2 * WARP * 16, out.data(), static_cast<const float*>(from.data()), fault);
            return out.host();
        };
        CHECK(copied(none) == expected);
        if (!emulator::SANITIZED) CHECK((copied(late_wait) != expected && copied(no_barrier) != expected));
        CHECK(contains(complaint([&] { copied(no_wait); }), "ends with cp.async copies that it never waited for"));
        CHECK(contains(complaint([&] { copied(misplaced); }), "the destination's address is not a multiple of 16"));
    }
}

TEST_CASE("emulator: floats are rounded to bfloat16 as the CPU's are, whose rounding has a test of its own", "[emulator]") {
    size_t wrong = 0;
    for (uint32_t high = 0; high < 65536; high++)
        for (const uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
            const float x = std::bit_cast<float>(high << 16 | low);
            const unsigned rounded = __bfloat16_as_ushort(__float2bfloat16_rn(x));
            wrong += rounded != (std::isnan(x) ? 0x7fffu : StoredBf16(x).bits);
        }
    CHECK(wrong == 0);
}

}   // namespace
