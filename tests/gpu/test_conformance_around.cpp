// Conformance of what surrounds the products: copies into shared memory, pairs, functions, sums over a warp, flags between blocks.
#include "tests/gpu/conformance.h"

#include <algorithm>
#include <numeric>

#include "tests/errors.h"
#ifdef EMULATED_GPU
#include "tests/emulator/emulated.h"
#endif

namespace {

// ---- copies

constexpr int COPIED_ROWS = 32, COPIED_COLUMNS = 64, COPYING_THREADS = 64;

/// out = a tile into which rows `first`.. of `count` have been copied, over what was there.
template <class X>
__global__ void copy_rows_kernel(X* out, const X* from, size_t row, int first, int count) {
    auto& tile = dynamic_shared<SharedTile<X, COPIED_ROWS, COPIED_COLUMNS>>();
    for (int n = threadIdx.x; n < COPIED_ROWS * COPIED_COLUMNS; n += COPYING_THREADS)
        tile.x[n / COPIED_COLUMNS][n % COPIED_COLUMNS] = from_float<X>(77);
    __syncthreads();
    copy_rows<COPYING_THREADS>(tile, from, int(row), first, count - first);
    wait_for_copies();
    __syncthreads();
    for (int n = threadIdx.x; n < COPIED_ROWS * COPIED_COLUMNS; n += COPYING_THREADS)
        out[n] = tile.x[n / COPIED_COLUMNS][n % COPIED_COLUMNS];
}

template <class X>
void check_copied_rows(int first, int count) {
    INFO("rows " << first << ".. of " << count);
    const int row = COPIED_COLUMNS + 16;
    const auto from = integers(size_t(count) * row, 5);
    const DeviceArray<X> source(from);
    std::vector<double> expected(size_t(COPIED_ROWS) * COPIED_COLUMNS);
    for (int r = 0; r < COPIED_ROWS && first + r < count; r++)
        for (int c = 0; c < COPIED_COLUMNS; c++) expected[r * COPIED_COLUMNS + c] = from[size_t(first + r) * row + c];
    const size_t shared = sizeof(SharedTile<X, COPIED_ROWS, COPIED_COLUMNS>);
    CHECK(made_by(copy_rows_kernel<X>, expected.size(), COPYING_THREADS, shared, source.data(), size_t(row), first, count) == expected);
}

/// Lane n copies four numbers of which `n % 5` exist, and one of which `n % 2` exist.
__global__ void copy_kernel(float* four, float* one, const float* from) {
    auto& shared = dynamic_shared<float4[2 * WARP]>();
    const int lane = threadIdx.x;
    float* const single = reinterpret_cast<float*>(shared + WARP);
    copy_async<16>(shared + lane, from + 4 * lane, 4 * (lane % 5));
    copy_async<4>(single + lane, from + 3 * lane, 4 * (lane % 2));
    wait_for_copies();
    __syncthreads();
    for (int n = 0; n < 4; n++) four[4 * lane + n] = reinterpret_cast<const float*>(shared)[4 * lane + n];
    one[lane] = single[lane];
}

// ---- numbers

/// Two numbers of a lane, narrowed as results are, and stored as one word.
__global__ void pairs_kernel(bf16* out, const float* x) {
    Two<bf16> pair;
    make_two(pair, x[2 * threadIdx.x], x[2 * threadIdx.x + 1]);
    store_two(out + 2 * threadIdx.x, pair);
}

__global__ void functions_kernel(float* exp2, float* tanh, const float* x, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) exp2[i] = exp2_of(x[i]), tanh[i] = gelu_tanh(ReducedPrecision(x[i]));
}

/// Of exp2 and tanh at x, the largest relative errors. What exp2 flushes to zero is 0.
std::pair<double, double> worst_errors(const std::vector<double>& x) {
    const DeviceArray<float> on_x(x), exp2(x.size(), NAN), tanh(x.size(), NAN);
    launch(test_gpu(), functions_kernel, Grid(1), 128, 0, exp2.data(), tanh.data(), on_x.data(),
           int(x.size()));
    const auto powers = exp2.numbers(), tangents = tanh.numbers();
    double worst_power = 0, worst_tangent = 0;
    for (size_t n = 0; n < x.size(); n++) {
        const double power = std::exp2(x[n]) < std::ldexp(1.0, -126) ? 0 : std::exp2(x[n]);
        const double tangent = std::tanh(GELU_1 / 2 * x[n] + GELU_3 / 2 * x[n] * x[n] * x[n]);
        worst_power = std::max(worst_power, power == 0 ? std::abs(powers[n]) * 1e300 : std::abs(powers[n] / power - 1));
        worst_tangent = std::max(worst_tangent, tangent == 0 ? std::abs(tangents[n]) * 1e300 : std::abs(tangents[n] / tangent - 1));
    }
    return {worst_power, worst_tangent};
}

__global__ void tanh_kernel(float* tanh, const float* x, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) tanh[i] = tanh_of(x[i]);
}

/// out (3, WARP): sum, maximum, scattered sums.
__global__ void sums_kernel(float* out, const float* x) {
    const int lane = threadIdx.x;
    out[lane] = warp_sum(x[lane]);
    out[WARP + lane] = warp_max(x[lane]);
    float values[8];
    for (int n = 0; n < 8; n++) values[n] = x[8 * lane + n];
    out[2 * WARP + lane] = scattered_sums(values);
}

// ---- order between blocks

constexpr int CHAIN_NUMBERS = 128, CHAIN_MODULUS = 65521;

/// Each block waits for the one before it, in the order of tickets, and goes on from what that has left: x = 3 x + ticket.
__global__ void turns_kernel(int* x, int* ticket, int* flag, Stuck* stuck) {
    int& mine = dynamic_shared<int>();
    if (threadIdx.x == 0) {
        mine = atomicAdd(ticket, 1);
        wait_for_flag(flag, mine - 1, stuck, mine);
    }
    __syncthreads();
    int* const at = x + threadIdx.x;
    __stcg(at, (3 * __ldcg(at) + mine) % CHAIN_MODULUS);
    __syncthreads();
    if (threadIdx.x == 0) raise_flag(flag, mine);
}

}   // namespace

TEST_CASE("conformance: copies into shared memory, and zeros in place of what does not exist", "[gpu][conformance]") {
    for (int count : {1, 31, 32, 40, 100}) {
        check_copied_rows<bf16>(0, count);
        check_copied_rows<float>(0, count);
        check_copied_rows<bf16>(count / 2, count);
    }
    const auto from = integers(4 * WARP, 6);
    const DeviceArray<float> source(from);
    std::vector<double> expected(4 * WARP), expected_one(WARP);
    for (int lane = 0; lane < WARP; lane++) {
        for (int n = 0; n < lane % 5; n++) expected[4 * lane + n] = from[4 * lane + n];
        if (lane % 2) expected_one[lane] = from[3 * lane];
    }
    const DeviceArray<float> four(4 * WARP, NAN), one(WARP, NAN);
    launch(test_gpu(), copy_kernel, Grid(1), WARP, sizeof(float4[2 * WARP]), four.data(), one.data(),
           source.data());
    CHECK(four.numbers() == expected);
    CHECK(one.numbers() == expected_one);
}

TEST_CASE("conformance: pairs of results are rounded to the nearest, halves to even", "[gpu][conformance]") {
    std::vector<double> x;   // numbers of bf16, half-way between two, and just beside that
    for (int n = 0; n < 2 * WARP; n++) x.push_back((n % 2 ? -1 : 1) * (1 + n * 0x1p-9 + (n % 3 - 1) * 0x1p-20));
    const DeviceArray<float> on_x(x);
    CHECK(made_by(pairs_kernel, x.size(), WARP, 0, on_x.data()) == rounded<bf16>(x));
}

/// PTX ISA: ex2.approx.ftz.f32 is off by 2 units in the last place, tanh.approx.f32 by 2^-11 of its value; its argument has been
/// rounded, too.
TEST_CASE("conformance: exp2 and tanh are as exact as the manual says", "[gpu][conformance]") {
    std::vector<double> x;
    for (int n = -1200; n <= 1200; n++) x.push_back(n / 100.0);
    x = rounded<float>(x);
    const auto [of_exp2, of_tanh] = worst_errors(x);
    CHECK(of_exp2 <= std::ldexp(1.0, -22));
    CHECK(of_tanh <= 1.02 * std::ldexp(1.0, -11));
    const std::vector<double> special = {-double(INFINITY), -200, -126, 127};
    CHECK(worst_errors(special).first <= std::ldexp(1.0, -22));
}

/// Slopes of GELU multiply what is left of 1 - |tanh| by the cube of a feature (gelu_and_slope() of a ReducedPrecision): from 9.5 on nothing
/// may be left.
TEST_CASE("conformance: tanh is 1 or -1 where it has saturated", "[gpu][conformance]") {
    std::vector<double> x{1e5, 1e38, double(INFINITY)};
    for (double at = 9.5; at < 70000; at *= 1.01) x.push_back(at);
    for (size_t n = 0, count = x.size(); n < count; n++) x.push_back(-x[n]);
    const DeviceArray<float> on_x(x);
    const std::vector<double> found = made_by(tanh_kernel, x.size(), 128, 0, on_x.data(), int(x.size()));
    for (size_t n = 0; n < x.size(); n++) CHECK(found[n] == std::copysign(1, x[n]));
}

TEST_CASE("conformance: sums over a warp", "[gpu][conformance]") {
    auto x = integers(8 * WARP, 7);
    x[0] = 9;   // the largest: who leaves it out has another maximum and another sum
    const DeviceArray<float> on_x(x);
    std::vector<double> expected(WARP, std::accumulate(x.begin(), x.begin() + WARP, 0.0));
    expected.insert(expected.end(), WARP, 9);
    for (int lane = 0; lane < WARP; lane++) {   // number lane / 4, of the lanes with the same columns
        expected.push_back(0);
        for (int other = lane % 4; other < WARP; other += 4) expected.back() += x[8 * other + lane / 4];
    }
    CHECK(made_by(sums_kernel, 3 * WARP, WARP, 0, on_x.data()) == expected);
}

TEST_CASE("conformance: blocks take turns, and each sees what the one before it has written", "[gpu][conformance]") {
    constexpr int BLOCKS = 1000;   // several for each place where a block runs on the largest GPU
    int expected = 1;
    for (int n = 0; n < BLOCKS; n++) expected = (3 * expected + n) % CHAIN_MODULUS;
    for (int order : {0, 1, 2}) {
        const Order of_threads(order);
        const DeviceMemory<int> x(std::vector<int>(CHAIN_NUMBERS, 1)), ticket(std::vector<int>(1, 0));
        const DeviceMemory<int> flag(std::vector<int>(1, -1));
        launch(test_gpu(), turns_kernel, Grid(BLOCKS), CHAIN_NUMBERS, sizeof(int), x.data(), ticket.data(), flag.data(), stuck());
        CHECK(x.host() == std::vector<int>(CHAIN_NUMBERS, expected));
    }
}

#ifdef EMULATED_GPU   // a GPU takes nothing more from a program whose kernel has stopped
__global__ void vain_kernel(const int* flag, Stuck* stuck) { wait_for_flag(flag, 5, stuck, 7, 100); }

TEST_CASE("conformance: a block whose turn does not come says so and stops", "[gpu][conformance]") {
    const DeviceMemory<int> flag(std::vector<int>(1, 3));
    *stuck() = {};
    const std::string stop = complaint([&] {
        launch(test_gpu(), vain_kernel, Grid(1), WARP, 0, flag.data(), stuck());
    });
    const Error error = error_of([] { check(cudaErrorLaunchFailure); });
    *stuck() = {};
    CHECK(contains(stop, "__trap()"));
    CHECK(says(error, {"block 0 timed out waiting for tile 7: the flag is 3, expected 5"}));
}
#endif
