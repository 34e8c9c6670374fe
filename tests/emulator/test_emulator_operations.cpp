// What kernels are made of: warp operations, matrix products, asynchronous copies, bfloat16.
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "tests/catch.h"
#include "tests/emulator/emulated.h"

namespace {

/// Runs a kernel of one warp that leaves one number per lane.
template <class X, class... Parameters, class... Arguments>
std::vector<X> one_warp(void (*kernel)(X*, Parameters...), size_t shared, Arguments... arguments) {
    Numbers<X> out(WARP);
    launch(GPU{}, kernel, Grid(1), WARP, shared, out.data(), arguments...);
    return out.host();
}

// ---- warp operations

enum Shuffle { index_, xor_, down_, up_ };

__global__ void shuffle_kernel(int* out, int which, int argument, int width) {
    const int mine = 10 * int(threadIdx.x);
    int& result = out[threadIdx.x];
    if (which == index_) result = __shfl_sync(ALL_LANES, mine, argument, width);
    if (which == xor_) result = __shfl_xor_sync(ALL_LANES, mine, argument, width);
    if (which == down_) result = __shfl_down_sync(ALL_LANES, mine, argument, width);
    if (which == up_) result = __shfl_up_sync(ALL_LANES, mine, argument, width);
}

/// The pseudo code of the PTX manual (shfl.sync) with CUDA's clamp value and segment mask.
int shuffle_source(int which, int lane, int argument, int width) {
    const int segment = 32 - width, clamp = which == up_ ? 0 : 31;
    const int last = (lane & segment) | (clamp & ~segment), first = lane & segment;
    int source = 0;
    bool in_range = true;
    if (which == up_) source = lane - argument, in_range = source >= last;
    if (which == down_) source = lane + argument, in_range = source <= last;
    if (which == xor_) source = lane ^ argument, in_range = source <= last;
    if (which == index_) source = first | (argument & ~segment & 31), in_range = source <= last;
    return in_range ? source : lane;
}

TEST_CASE("emulator: shuffles take the lanes that the PTX manual says", "[emulator]") {
    WithOptions options(2);
    for (const int which : {index_, xor_, down_, up_})
        for (const int width : {2, 8, 16, 32})
            for (int argument = 0; argument < width; argument++) {
                std::vector<int> expected(WARP);
                for (int lane = 0; lane < WARP; lane++) expected[size_t(lane)] = 10 * shuffle_source(which, lane, argument, width);
                CHECK(one_warp(shuffle_kernel, 0, which, argument, width) == expected);
            }
}

__global__ void votes(unsigned* out) {
    const unsigned lane = threadIdx.x;
    if (lane >= 16) {   // a mask of half the warp, while the other half goes its own way
        out[lane] = __ballot_sync(0xffff0000, lane % 3 == 0) + unsigned(__reduce_max_sync(0xffff0000, int(lane % 20)));
        return;
    }
    const unsigned half = 0xffff;
    out[lane] = 8 * __reduce_add_sync(half, lane) + unsigned(__all_sync(half, lane < 16));
    out[lane] += 2 * unsigned(__any_sync(half, lane == 7)) + 4 * unsigned(__any_sync(half, false));
}

TEST_CASE("emulator: votes and reductions, each half of a warp for itself", "[emulator]") {
    for (const uint64_t seed : SEEDS) {
        WithOptions options(seed);
        std::vector<unsigned> expected(WARP, 1 + 2 + 8 * 120);
        unsigned ballot = 0;
        for (int lane = 16; lane < 32; lane++) ballot |= unsigned(lane % 3 == 0) << lane;
        for (size_t lane = 16; lane < 32; lane++) expected[lane] = ballot + 19;
        CHECK(one_warp(votes, 0) == expected);
    }
}

// ---- tensor cores

/// D (16, 8) = A (16, 16) B (16, 8), with A and the transpose of B (8, 16) or B itself in shared memory.
template <bool TRANSPOSED>
__global__ void multiply(float* D, const bf16* A, const bf16* B) {
    struct Tiles {
        alignas(16) bf16 a[16][16 + 8], b[16][16 + 8];
    };
    Tiles& tiles = dynamic_shared<Tiles>();
    const unsigned lane = threadIdx.x;
    for (unsigned n = lane; n < 16 * 16; n += WARP) tiles.a[n / 16][n % 16] = A[n];
    for (unsigned n = lane; n < 16 * 8; n += WARP) (TRANSPOSED ? tiles.b[n / 8][n % 8] : tiles.b[n % 8][n / 8]) = B[n];
    __syncwarp();
    uint32_t a[4], b[2];
    emulator::ldmatrix<4, false>(a, &tiles.a[lane % 16][lane / 16 * 8]);
    if (TRANSPOSED) emulator::ldmatrix<2, true>(b, &tiles.b[lane % 16][0]);
    else emulator::ldmatrix<2, false>(b, &tiles.b[lane % 8][lane / 8 % 2 * 8]);
    float d[4] = {};
    emulator::mma_m16n8k16(d, a, b);
    emulator::mma_m16n8k16(d, a, b);
    for (unsigned n = 0; n < 4; n++) D[(lane / 4 + n / 2 * 8) * 8 + lane % 4 * 2 + n % 2] = d[n];
}

TEST_CASE("emulator: ldmatrix and mma multiply matrices", "[emulator]") {
    std::mt19937 random(1);
    std::vector<bf16> A(16 * 16), B(16 * 8);
    for (auto* matrix : {&A, &B})
        for (bf16& x : *matrix) x = __float2bfloat16(float(int(random() % 17)) - 8);   // products and sums are exact
    std::vector<float> expected(16 * 8, 0);
    for (size_t i = 0; i < 16; i++)
        for (size_t j = 0; j < 8; j++)
            for (size_t k = 0; k < 16; k++) expected[i * 8 + j] += 2 * float(A[i * 16 + k]) * float(B[k * 8 + j]);
    for (const uint64_t seed : SEEDS) {
        WithOptions options(seed);
        Numbers<bf16> a(A), b(B);
        Numbers<float> d(16 * 8), e(16 * 8);
        launch(GPU{}, multiply<false>, Grid(1), WARP, 2 * 16 * 24 * sizeof(bf16), d.data(), a.data(), b.data());
        launch(GPU{}, multiply<true>, Grid(1), WARP, 2 * 16 * 24 * sizeof(bf16), e.data(), a.data(), b.data());
        CHECK(d.host() == expected);
        CHECK(e.host() == expected);
    }
}

__global__ void load_matrix_at(int* /*out*/, int offset, bool global, const char* elsewhere) {
    uint32_t a[1];
    emulator::ldmatrix<1, false>(a, global ? elsewhere : &dynamic_shared<char>() + offset);
}

TEST_CASE("emulator: ldmatrix wants shared memory and multiples of 16", "[emulator]") {
    Numbers<char> elsewhere(1024);
    auto says = [&](int offset, bool global) {
        return complaint([&] { one_warp(load_matrix_at, 64, offset, global, static_cast<const char*>(elsewhere.data())); });
    };
    CHECK(says(48, false) == "");
    CHECK(contains(says(8, false), "not a multiple of 16"));
    CHECK(contains(says(64, false), "does not lie in the block's shared memory"));
    CHECK(contains(says(0, true), "does not lie in the block's shared memory"));
}

// ---- asynchronous copies

enum Fault { none, late_wait, no_wait, no_barrier, misplaced };

/// Two copies under way at the same time; lane i reads what lane 31 - i has copied. `take` of 16 bytes exist.
__global__ void copy_kernel(float* out, const float* from, int take, int fault) {
    float* buffers = &dynamic_shared<float>();   // (2, 32, 4)
    const unsigned lane = threadIdx.x;
    for (unsigned n = 0; n < 2; n++) {
        emulator::cp_async(buffers + (n * WARP + lane) * 4 + (fault == misplaced), from + (n * WARP + lane) * 4, 16, take);
        emulator::cp_async_commit();
    }
    if (fault == no_wait) return;
    emulator::cp_async_wait(fault == late_wait ? 2 : 1);
    if (fault != no_barrier) __syncwarp();
    float sum = 0;
    for (unsigned k = 0; k < 4; k++) sum += buffers[(31 - lane) * 4 + k];
    emulator::cp_async_wait(0);
    __syncwarp();
    for (unsigned k = 0; k < 4; k++) sum += buffers[(WARP + 31 - lane) * 4 + k];
    out[lane] = sum;
}

TEST_CASE("emulator: asynchronous copies arrive when they are waited for, and not before", "[emulator]") {
    std::vector<float> numbers(2 * WARP * 4);
    for (size_t n = 0; n < numbers.size(); n++) numbers[n] = float(n);
    for (const uint64_t seed : SEEDS) {
        WithOptions options(seed);
        Numbers<float> from(numbers);
        auto copied = [&](int take, int fault) {
            return one_warp(copy_kernel, 2 * WARP * 16, static_cast<const float*>(from.data()), take, fault);
        };
        for (const int take : {16, 12, 4, 0}) {
            std::vector<float> expected(WARP, 0);
            for (size_t n = 0; n < WARP * 4; n++)
                if (n % 4 < size_t(take) / 4) expected[31 - n / 4] += numbers[n] + numbers[WARP * 4 + n];
            CHECK(copied(take, none) == expected);
            if (emulator::SANITIZED) continue;
            CHECK(copied(take, late_wait) != expected);
            CHECK(copied(take, no_barrier) != expected);
        }
        CHECK(contains(complaint([&] { copied(16, no_wait); }), "ends with cp.async copies that it never waited for"));
        CHECK(contains(complaint([&] { copied(16, misplaced); }), "the destination's address is not a multiple of 16"));
    }
}

// ---- bfloat16

/// The nearest bfloat16 by arithmetic: the candidates are the truncated number and its neighbour away from zero.
float nearest_bf16(float x) {
    const float below = std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0xffff0000);
    const uint32_t above_bits = (std::bit_cast<uint32_t>(x) & 0xffff0000) + 0x10000;
    const bool overflows = (above_bits & 0x7fffffff) == 0x7f800000;   // to infinity, as if the next number were 2^128
    const double above = overflows ? std::copysign(std::ldexp(1.0, 128), x) : double(std::bit_cast<float>(above_bits));
    const double down = std::abs(double(x) - double(below)), up = std::abs(above - double(x));
    if (down < up) return below;
    if (up < down) return std::bit_cast<float>(above_bits);
    return std::bit_cast<uint32_t>(below) & 0x10000 ? std::bit_cast<float>(above_bits) : below;   // halfway: to the even one
}

TEST_CASE("emulator: every bfloat16 survives the way through float", "[emulator]") {
    size_t wrong = 0;
    for (unsigned bits = 0; bits < 65536; bits++) {
        const bf16 x = __ushort_as_bfloat16(static_cast<unsigned short>(bits));
        const float wide = __bfloat162float(x);
        const unsigned back = __bfloat16_as_ushort(__float2bfloat16(wide));
        wrong += std::bit_cast<uint32_t>(wide) != bits << 16;
        wrong += back != (std::isnan(wide) ? 0x7fffu : bits);
    }
    CHECK(wrong == 0);
}

TEST_CASE("emulator: floats are rounded to the nearest bfloat16, halfway to even", "[emulator]") {
    // Every exponent and sign; mantissas at and beside halfway cases, and at the carry into the next exponent.
    size_t wrong = 0;
    for (uint32_t sign_and_exponent = 0; sign_and_exponent < 512; sign_and_exponent++)
        for (const uint32_t high : {0x000000u, 0x010000u, 0x020000u, 0x030000u, 0x7e0000u, 0x7f0000u})
            for (const uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
                const float x = std::bit_cast<float>(sign_and_exponent << 23 | high | low);
                const uint32_t rounded = std::bit_cast<uint32_t>(float(__float2bfloat16_rn(x)));
                if (std::isnan(x)) wrong += rounded != 0x7fff0000;
                else if (std::isinf(x)) wrong += rounded != std::bit_cast<uint32_t>(x);
                else wrong += rounded != std::bit_cast<uint32_t>(nearest_bf16(x));
            }
    CHECK(wrong == 0);
    CHECK(float(__float2bfloat16(1 + 1.0f / 256)) == 1);                     // halfway, down to even
    CHECK(float(__float2bfloat16(1 + 3.0f / 256)) == 1 + 4.0f / 256);        // halfway, up to even
    CHECK(float(__float2bfloat16(std::numeric_limits<float>::max())) == INFINITY);
    CHECK(float(__float2bfloat16_rz(1.999f)) == 1.9921875f);
    CHECK(std::signbit(float(__float2bfloat16(-0.0f))));
    static_assert(float(__float2bfloat16(0.5f)) == 0.5f);
}

}   // namespace
