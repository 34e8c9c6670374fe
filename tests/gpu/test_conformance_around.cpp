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

/// Six results for numbers n and n + 1 of x, y and z: a + b, a b, a b + c, -a, tanh(a), and a itself as a half.
constexpr int HALF_RESULTS = 6;
__global__ void halves_kernel(float* results, const float* x, const float* y, const float* z, int n) {
    for (int at = 2 * threadIdx.x; at < n; at += 2 * blockDim.x) {
        const Halves a = make_halves(x[at], x[at + 1]), b = make_halves(y[at], y[at + 1]);
        const Halves c = make_halves(z[at], z[at + 1]);
        const Halves of_all[HALF_RESULTS] = {a + b, a * b, fma_of(a, b, c), -a, tanh_of(a), a};
        for (int what = 0; what < HALF_RESULTS; what++) {
            const float2 both = floats_of(of_all[what]);
            results[what * n + at] = both.x, results[what * n + at + 1] = both.y;
        }
    }
}

/// tanh of x, of each number alone and of two as halves.
__global__ void tanh_kernel(float* of_floats, float* of_halves, const float* x, int n) {
    for (int at = 2 * threadIdx.x; at < n; at += 2 * blockDim.x) {
        const float low = x[at], high = x[at + 1];
        const float2 both = floats_of(tanh_of(make_halves(low, high)));
        of_halves[at] = both.x, of_halves[at + 1] = both.y;
        of_floats[at] = tanh_of(low), of_floats[at + 1] = tanh_of(high);
    }
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

/// PTX ISA: arithmetic on f16x2 is rounded to the nearest, tanh.approx.f16x2 is off by 2^-10.987.
TEST_CASE("conformance: pairs of half-precision numbers", "[gpu][conformance]") {
    constexpr double HALF = 1.0 / 2048;   // half of a unit in the last place
    const int n = 512;
    std::vector<double> x, y, z;
    for (int at = 0; at < n; at++) {
        x.push_back((at - 200) / 32.0), y.push_back((at * 37 % 101 - 50) / 16.0), z.push_back((at * 53 % 89) / 64.0);
    }
    x[0] = INFINITY, x[1] = -INFINITY, x[2] = 1e6, x[3] = 1 + 3 * HALF, x[4] = 1 + HALF;
    const DeviceArray<float> on_x(x), on_y(y), on_z(z);
    const std::vector<double> is = made_by(halves_kernel, HALF_RESULTS * n, 128, 0, on_x.data(), on_y.data(), on_z.data(), n);
    CHECK((is[5 * n] == INFINITY && is[5 * n + 2] == INFINITY));
    CHECK((is[5 * n + 3] == 1 + 4 * HALF && is[5 * n + 4] == 1));
    CHECK((is[4 * n] == 1 && is[4 * n + 1] == -1 && is[3 * n] == -INFINITY));
    for (int at = 5; at < n; at++) {
        const double a = x[at], b = y[at], c = z[at], should[] = {a + b, a * b, a * b + c, -a, std::tanh(a), a};
        const double most[] = {HALF, HALF, HALF, 0, std::exp2(-10.987), 0};
        for (int what = 0; what < HALF_RESULTS; what++) {
            INFO("result " << what << " of " << a << ", " << b << ", " << c);
            const double scale = what < 3 ? std::max(std::abs(should[what]), 1e-4) : 1;
            CHECK(std::abs(is[what * n + at] - should[what]) <= most[what] * scale);
        }
    }
}

/// tanh of a half x >= 0 as dev/emulator/halves.h describes an H200's: x itself where it is small, 1 from 8 on, else rounded towards zero.
/// `unit` becomes what its last place counts.
static double tanh_towards_zero(double x, double& unit) {
    const double exact = x < 0x1.02p-8 ? x : x >= 8 ? 1 : std::tanh(x);
    unit = std::ldexp(1, std::max(std::ilogb(std::max(exact, 0x1p-14)), -14) - 10);
    return std::floor(exact / unit) * unit;
}

/// Slopes of ASGA's gate have a tolerance that this rounding asks for (test_asga_gpu), and the emulator rounds so. They multiply what is
/// left of 1 - |tanh| by the cube of a feature (unit_gate.cuh; gelu_and_slope() of a ReducedPrecision): from 9.5 on, where a float's own
/// tanh is 1, nothing may be left.
TEST_CASE("conformance: tanh of every half is rounded as the emulator does, and is 1 or -1 where it has saturated",
          "[gpu][conformance]") {
    std::vector<double> x{1e5, 1e38, double(INFINITY)};
    for (uint32_t bits = 0; bits < 0x7c00; bits++)   // 0 to 65504
        x.push_back(bits < 1024 ? std::ldexp(bits, -24) : std::ldexp(1024 + int(bits % 1024), int(bits / 1024) - 25));
    for (size_t n = 0, count = x.size(); n < count; n++) x.push_back(-x[n]);
    const DeviceArray<float> on_x(x);
    const DeviceArray<float> of_floats(x.size(), NAN), of_halves(x.size(), NAN);
    launch(test_gpu(), tanh_kernel, Grid(1), 128, 0, of_floats.data(), of_halves.data(), on_x.data(),
           int(x.size()));
    const std::vector<double> found = of_halves.numbers(), alone = of_floats.numbers();
    int off = 0, far_off = 0, unsaturated = 0;
    for (size_t n = 0; n < x.size(); n++) {
        double unit;
        const double should = std::copysign(tanh_towards_zero(std::fabs(x[n]), unit), x[n]);
        off += found[n] != should;
        far_off += !(std::fabs(found[n] - should) <= unit);
        unsaturated += std::fabs(x[n]) >= 9.5 && (found[n] != should || alone[n] != should);
    }
    CHECK(far_off == 0);
    CHECK(off <= 96);   // 48 of an H200, both signs together; none here
    CHECK(unsaturated == 0);
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
