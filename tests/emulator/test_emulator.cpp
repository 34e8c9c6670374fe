// The emulator runs correct kernels correctly in every order, and names what is wrong with others. Kernels here have numbers of
// threads and blocks at which every path of the scheduler is taken: one warp, several, more blocks than workers.
#include <numeric>

#include "tests/catch.h"
#include "tests/emulator/emulated.h"

namespace {

// ---- threads and blocks

__global__ void write_indices(int* out, int factor) {
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    out[block * blockDim.x + threadIdx.x] += factor * int(block * blockDim.x + threadIdx.x);
    factor = -1;   // arguments are each thread's own
}

TEST_CASE("emulator: every thread of a three-dimensional grid runs once", "[emulator]") {
    for (const uint64_t seed : SEEDS)
        for (const int workers : {1, 3}) {
            WithOptions options(seed, workers);
            const int size = 5 * 3 * 2 * 96;
            Numbers<int> out(std::vector<int>(size, 0));
            launch(GPU{}, write_indices, Grid(5, 3, 2), 96, 0, out.data(), 7);
            std::vector<int> expected(size);
            for (int i = 0; i < size; i++) expected[size_t(i)] = 7 * i;
            CHECK(out.host() == expected);
        }
}

__global__ void sum_rows(double* out, const double* in, int columns) {
    double* parts = &dynamic_shared<double>();   // (warps)
    double x = 0;
    for (int c = int(threadIdx.x); c < columns; c += int(blockDim.x)) x += in[blockIdx.x * unsigned(columns) + unsigned(c)];
    x = block_sum(x, parts, int(blockDim.x) / WARP);
    if (threadIdx.x == 0) out[blockIdx.x] = x;
}

TEST_CASE("emulator: a sum over the block is the same in every order, for one warp and for 1024 threads", "[emulator]") {
    for (const uint64_t seed : SEEDS)
        for (const int threads : {32, 64, 1024}) {
            WithOptions options(seed);
            Numbers<double> in(std::vector<double>(9 * 1000, 0.5)), out(9);
            launch(GPU{}, sum_rows, Grid(9), threads, 32 * sizeof(double), out.data(), in.data(), 1000);
            CHECK(out.host() == std::vector<double>(9, 500.0));
        }
}

TEST_CASE("emulator: a launch that a GPU would refuse is an error", "[emulator]") {
    Numbers<int> out(64);
    auto refused = [&](Grid grid, int threads, size_t shared) {
        return complaint([&] { launch(GPU{}, write_indices, grid, threads, shared, out.data(), 1); });
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
bool rotates(uint64_t seed) {
    WithOptions options(seed);
    Numbers<int> out(128);
    launch(GPU{}, rotate_twice<FIRST, SECOND>, Grid(1), 128, 128 * sizeof(int), out.data());
    std::vector<int> expected(128);
    for (int i = 0; i < 128; i++) expected[size_t(i)] = (i + 64) % 128;
    return out.host() == expected;
}

TEST_CASE("emulator: a missing barrier changes the result", "[emulator]") {
    for (const uint64_t seed : SEEDS) {
        CHECK(rotates<true, true>(seed));
        if (emulator::FINDS_RACES) continue;   // ThreadSanitizer reports the others: tests/sanitizers.sh
        CHECK_FALSE(rotates<false, true>(seed));                   // read before it is written
        if (seed > 0) CHECK_FALSE(rotates<true, false>(seed));     // written before it is read; in order it happens to work
    }
}

// ---- threads that wait for each other for ever

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
__global__ void foreign_mask() { __syncwarp(0xffff0000); }
__global__ void lane_outside(int* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffff, 1, 20);
}
__global__ void barrier_for_too_few() { emulator::bar_sync(1, threadIdx.x < 32 ? 64 : 96); }

TEST_CASE("emulator: threads that cannot meet are named with their lines", "[emulator]") {
    Numbers<int> out(32);
    for (const uint64_t seed : SEEDS) {
        WithOptions options(seed);
        const std::string early = complaint([] { launch(GPU{}, leave_early, Grid(2), 128, 0); });
        CHECK(contains(early, "wait for each other for ever"));
        CHECK(contains(early, "100 threads, first 0: at barrier 0, tests/emulator/test_emulator.cpp:"));
        CHECK(contains(early, "28 threads, first 100: ended"));
        CHECK(contains(complaint([] { launch(GPU{}, two_barriers, Grid(1), 64, 0); }), "__syncthreads() diverges"));
        CHECK(contains(complaint([] { launch(GPU{}, half_a_warp, Grid(1), 32, 0); }), "16 threads, first 0: at __syncwarp"));
        const std::string mixed = complaint([&] { launch(GPU{}, different_operations, Grid(1), 32, 0, out.data()); });
        CHECK(contains(mixed, "16 threads, first 0: at __shfl_sync with lanes ffffffff"));
        CHECK(contains(mixed, "16 threads, first 16: at barrier 0"));
        CHECK(contains(complaint([] { launch(GPU{}, foreign_mask, Grid(1), 32, 0); }), "does not contain the lane that calls it"));
        CHECK(contains(complaint([&] { launch(GPU{}, lane_outside, Grid(1), 32, 0, out.data()); }), "reads lane 20"));
        CHECK(contains(complaint([] { launch(GPU{}, barrier_for_too_few, Grid(1), 96, 0); }), "barrier 1 for"));
        CHECK(rotates<true, true>(seed));   // and the next kernel finds everything in order
    }
}

__global__ void throws() {
    if (threadIdx.x == 40) throw std::runtime_error("what was thrown");
    __syncthreads();
}
__global__ void traps() {
    if (threadIdx.x == 3) __trap();
}

TEST_CASE("emulator: an exception in one thread ends the launch", "[emulator]") {
    CHECK(contains(complaint([] { launch(GPU{}, throws, Grid(4), 64, 0); }), "thread 40, threw: what was thrown"));
    CHECK(contains(complaint([] { launch(GPU{}, traps, Grid(4), 64, 0); }), "__trap()"));
}

// ---- named barriers

/// Warp 0 fills a buffer that warp 1 reads; warp 2 takes no part. Two barriers in turns: "full" and "empty".
__global__ void hand_over(int* out, int rounds) {
    int* buffer = &dynamic_shared<int>();   // (32)
    if (threadIdx.x >= 64) return;
    const unsigned lane = threadIdx.x % WARP;
    for (int round = 0; round < rounds; round++) {
        if (threadIdx.x < 32) buffer[lane] = 100 * round + int(lane);
        emulator::bar_sync(1, 64);
        if (threadIdx.x >= 32) out[round * WARP + int(lane)] = buffer[31 - lane];
        emulator::bar_sync(2, 64);
    }
}

TEST_CASE("emulator: named barriers hold some warps and not others", "[emulator]") {
    for (const uint64_t seed : SEEDS) {
        WithOptions options(seed);
        Numbers<int> out(5 * 32);
        launch(GPU{}, hand_over, Grid(1), 96, 32 * sizeof(int), out.data(), 5);
        std::vector<int> expected(5 * 32);
        for (int i = 0; i < 5 * 32; i++) expected[size_t(i)] = 100 * (i / 32) + 31 - i % 32;
        CHECK(out.host() == expected);
    }
}

// ---- uninitialised memory, and memory outside allocations

__global__ void read_shared(float* out) { out[threadIdx.x] = (&dynamic_shared<float>())[threadIdx.x]; }

TEST_CASE("emulator: uninitialised memory holds NaN, huge or very negative numbers", "[emulator]") {
    for (const uint64_t seed : SEEDS) {
        WithOptions options(seed);
        Numbers<float> out(32), unwritten(32);
        launch(GPU{}, read_shared, Grid(1), 32, 32 * sizeof(float), out.data());
        for (const std::vector<float>& numbers : {out.host(), unwritten.host()})
            for (const float x : numbers) CHECK_FALSE(std::abs(x) < 1e38f);
        if (seed == 0) CHECK(std::isnan(out.host()[0]));
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
    Numbers<char> bytes(1001);
    for (const uint64_t seed : SEEDS) {
        WithOptions options(seed);
        auto shared = [](int index) { return complaint([&] { launch(GPU{}, write_shared_at, Grid(1), 32, 1001, index); }); };
        auto global = [&](int index) {
            return complaint([&] { launch(GPU{}, write_global_at, Grid(1), 32, 0, bytes.data(), index); });
        };
        CHECK(shared(1000) == "");
        CHECK(contains(shared(1001), "byte 1001 of 1001 bytes of shared memory"));
        CHECK(contains(shared(-1), "1 bytes before the start of shared memory"));
        CHECK(global(1000) == "");
        CHECK(contains(global(1001), "a write to byte 1001 of the 1001 bytes that cudaMalloc gave out at "));
        CHECK(contains(global(1001), "tests/emulator/emulated.h:"));       // the allocation
        CHECK(contains(global(1020), "a write to byte 1020"));
        CHECK(contains(global(-3), "a write 3 bytes before the start of"));
        CHECK(contains(global(1001), "tests/emulator/test_emulator.cpp:"));   // the launch
    }
}

// ---- atomics, and blocks that wait for others

__global__ void count(int* total, unsigned* bits, float* sum, unsigned* turns, int* largest) {
    atomicAdd(total, 2);
    atomicOr(bits, 1u << (threadIdx.x % 32));
    atomicAdd(sum, 0.5f);
    atomicInc(turns, 9);
    atomicMax(largest, int(blockIdx.x));
}

TEST_CASE("emulator: atomics of many blocks lose nothing", "[emulator]") {
    for (const int workers : {1, 4}) {
        WithOptions options(2, workers);
        Numbers<int> total(std::vector<int>{0}), largest(std::vector<int>{-1});
        Numbers<unsigned> bits(std::vector<unsigned>{0}), turns(std::vector<unsigned>{0});
        Numbers<float> sum(std::vector<float>{0});
        launch(GPU{}, count, Grid(33), 64, 0, total.data(), bits.data(), sum.data(), turns.data(), largest.data());
        CHECK(total.host()[0] == 2 * 33 * 64);
        CHECK(bits.host()[0] == 0xffffffff);
        CHECK(sum.host()[0] == 33 * 32.0f);
        CHECK(turns.host()[0] == 33 * 64 % 10);
        CHECK(largest.host()[0] == 32);
    }
}

/// out[ticket] = out[ticket - 1] + 1: every block waits for the one that took the ticket before.
__global__ void in_order_of_tickets(unsigned* ticket, int* done, int* out) {
    unsigned& mine = dynamic_shared<unsigned>();
    if (threadIdx.x == 0) {
        mine = atomicAdd(ticket, 1);
        while (mine > 0 && __ldcg(&done[mine - 1]) == 0) __nanosleep(20);
        __threadfence();
    }
    __syncthreads();
    if (threadIdx.x == 40) out[mine] = mine ? out[mine - 1] + 1 : 1;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicExch(&done[mine], 1);
    }
}

TEST_CASE("emulator: blocks may wait for blocks that took a lower ticket", "[emulator]") {
    for (const uint64_t seed : SEEDS)
        for (const int workers : {1, 2, 5}) {
            WithOptions options(seed, workers);
            Numbers<unsigned> ticket(std::vector<unsigned>{0});
            Numbers<int> done(std::vector<int>(50, 0)), out(50);
            launch(GPU{}, in_order_of_tickets, Grid(50), 64, sizeof(unsigned), ticket.data(), done.data(), out.data());
            std::vector<int> expected(50);
            std::iota(expected.begin(), expected.end(), 1);
            CHECK(out.host() == expected);
        }
}

__global__ void wait_for_last(int* flags) {
    while (threadIdx.x == 0 && blockIdx.x + 1 < gridDim.x && __ldcg(&flags[blockIdx.x + 1]) == 0) __nanosleep(20);
    if (threadIdx.x == 0) atomicExch(&flags[blockIdx.x], 1);
}
__global__ void one_fails(int* flags) {
    if (blockIdx.x == 0) __trap();
    while (__ldcg(&flags[0]) == 0) __nanosleep(20);
}

TEST_CASE("emulator: blocks that wait for what cannot come are an error and do not hang", "[emulator]") {
    for (const int workers : {1, 3}) {
        WithOptions options(0, workers);
        Numbers<int> flags(std::vector<int>(20, 0)), never(std::vector<int>{0});
        CHECK(contains(complaint([&] { launch(GPU{}, wait_for_last, Grid(20), 32, 0, flags.data()); }), "sleeps for ever"));
        CHECK(contains(complaint([&] { launch(GPU{}, one_fails, Grid(20), 32, 0, never.data()); }), "__trap()"));
    }
}

}   // namespace
