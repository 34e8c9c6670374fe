// Kernels that do one thing over and over, for dev/bench_constants.cu: what they take is what the kernels of attention are made of,
// by the same wrappers. tests/kernel_report.sh looks into their machine code: as many of the instructions as they say.
#pragma once
#include "attention/kernel/mma.cuh"
#include "model/device/math.h"

inline constexpr int RATE_THREADS = 512;   // four warps for each scheduler
inline constexpr int ROUNDS_AT_ONCE = 16;
using RateTile = SharedTile<bf16, 64, 64>;

// An operation has AT_ONCE chains that do not wait for each other, of which round() does one link each; number() depends on all, so
// that no compiler may leave one out. INSTRUCTIONS: of a link, as the prediction counts them.

struct ProductRate {
    static constexpr int AT_ONCE = 8, INSTRUCTIONS = 1;
    FragmentA<bf16> a;
    FragmentB<bf16> b[2];
    float d[AT_ONCE][4] = {};
    __device__ explicit ProductRate(const RateTile& tile) { load_a(a, tile, 0, 0), load_b(b, tile, 16, 16); }
    __device__ __forceinline__ void round() {
        for (auto& result : d) multiply_add(result, a, b[0]);
    }
    __device__ float number() const {
        float sum = 0;
        for (auto& result : d)
            for (float x : result) sum += x;
        return sum;
    }
};

struct FragmentRate {
    static constexpr int AT_ONCE = 8, INSTRUCTIONS = 1;
    const RateTile& tile;
    uint32_t nothing;   // 0, which the compiler does not know: it would leave out all loads but the first of an address
    FragmentA<bf16> a[AT_ONCE] = {};
    __device__ explicit FragmentRate(const RateTile& from) : tile(from), nothing(uint32_t(to_float(from.x[0][0])) >> 8) {}
    __device__ __forceinline__ void round() {
        for (int n = 0; n < AT_ONCE; n++) load_a(a[n], tile, n / 4 * 16 + int(a[n].part[0].bits & nothing), n % 4 * 16);
    }
    __device__ float number() const {
        uint32_t bits = 0;
        for (auto& fragment : a)
            for (auto& part : fragment.part) bits ^= part.bits;
        return __uint_as_float(bits);
    }
};

/// Link is a function of one number.
template <class Link>
struct FunctionRate {
    static constexpr int AT_ONCE = 8, INSTRUCTIONS = Link::INSTRUCTIONS;
    float x[AT_ONCE], scale;
    __device__ explicit FunctionRate(const RateTile& tile) : scale(0.5f * to_float(tile.x[1][0])) {
        for (int n = 0; n < AT_ONCE; n++) x[n] = to_float(tile.x[0][n]) * float(threadIdx.x + 1);
    }
    __device__ __forceinline__ void round() {
        for (float& number : x) number = Link::of(number, scale);
    }
    __device__ float number() const {
        float sum = 0;
        for (float number : x) sum += number;
        return sum;
    }
};
struct Exp2Link {
    static constexpr int INSTRUCTIONS = 1;
    __device__ static __forceinline__ float of(float x, float) { return exp2_of(-x); }
};
struct TanhLink {   // two products and a sum make its argument
    static constexpr int INSTRUCTIONS = 4;
    __device__ static __forceinline__ float of(float x, float) { return gelu_tanh(ReducedPrecision(x)); }
};
struct SumLink {
    static constexpr int INSTRUCTIONS = 1;
    __device__ static __forceinline__ float of(float x, float scale) { return fmaf(x, scale, scale); }
};

/// cycles (grid): what each block took for `rounds` rounds of each of its threads. One block for each multiprocessor.
template <class Operation>
__global__ void __launch_bounds__(RATE_THREADS) rate_kernel(long long* cycles, float* numbers, int rounds) {
    auto& tile = dynamic_shared<RateTile>();
    for (int n = threadIdx.x; n < 64 * 64; n += RATE_THREADS) tile.x[n / 64][n % 64] = from_float<bf16>(float(n % 7 + 1) * 0.125f);
    __syncthreads();
    Operation operation(tile);
    __syncthreads();
    const long long start = clock64();
#pragma unroll ROUNDS_AT_ONCE
    for (int r = 0; r < rounds; r++) operation.round();
    numbers[blockIdx.x * RATE_THREADS + threadIdx.x] = operation.number();   // before the clock is read: the barrier sees to it
    __syncthreads();
    if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - start;
}

/// cycles: of `hops` loads, each from the address that the one before it gave, past the first-level cache. One thread does it.
using Address = unsigned long long;
static __global__ void chase_kernel(long long* cycles, Address* end, Address first, int hops) {
    if (threadIdx.x > 0) return;
    Address at = first;
    const long long start = clock64();
    for (int n = 0; n < hops; n++) at = __ldcg(reinterpret_cast<const Address*>(at));
    *end = at;
    *cycles = clock64() - start;
}

/// A baton from each block to the next, in the order of their tickets, by flags (gridDim) that are raised to `lap`.
static __global__ void relay_kernel(int* flags, int* ticket, Stuck* stuck, int lap) {
    if (threadIdx.x > 0) return;
    const int mine = atomicAdd(ticket, 1) % int(gridDim.x);
    if (mine > 0) wait_for_flag(flags + mine - 1, lap, stuck, mine);
    raise_flag(flags + mine, lap);
}

static __global__ void empty_kernel() {}
