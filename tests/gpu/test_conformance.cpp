// Whatever is made of PTX, and what it is used for, against plain loops: on a GPU these few seconds tell whether attention/core/mma.cuh
// says what the hardware does; on the emulator whether the emulator agrees with that. Numbers are small integers, so that sums are
// exact and one wrong lane is a different number.
#include "tests/catch.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "attention/kernel/backward_memory.cuh"
#include "tests/gpu/device_array.h"

namespace {

std::vector<double> integers(size_t n, int seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    std::vector<double> numbers(n);
    for (double& x : numbers) x = int(random() % 17) - 8;
    return numbers;
}

// ---- fragments and products

constexpr int ROWS = 48, COLUMNS = 64;
// Where the fragments are taken from: rows of 16 bytes, as callers promise.
constexpr int A_ROW = 16, A_COLUMN = 32, B_ROW = 8, B_COLUMN = 24;

template <class X>
struct TwoTiles {
    SharedTile<X, ROWS, COLUMNS> a, b;
};

template <class Shared, class X>
__device__ void fill_tiles(Shared& shared, const X* a, const X* b) {
    for (int n = threadIdx.x; n < ROWS * COLUMNS; n += blockDim.x) {
        shared.a.x[n / COLUMNS][n % COLUMNS] = a[n];
        shared.b.x[n / COLUMNS][n % COLUMNS] = b[n];
    }
    __syncthreads();
}

/// d (16 x 16, row by row) from what the lanes hold of two results side by side.
__device__ void write_result(float* d, const float (&left)[4], const float (&right)[4]) {
    for (int e = 0; e < 4; e++) {
        const int row = lane_row() + e / 2 * 8, column = lane_column() + e % 2;
        d[16 * row + column] = left[e];
        d[16 * row + column + 8] = right[e];
    }
}

/// d = A B, with either factor as it lies in its tile or transposed.
template <class X, bool A_TRANSPOSED, bool B_TRANSPOSED>
__global__ void product_kernel(float* d, const X* a, const X* b) {
    auto& shared = dynamic_shared<TwoTiles<X>>();
    fill_tiles(shared, a, b);
    FragmentA<X> left;
    FragmentB<X> right[2];
    if constexpr (A_TRANSPOSED) load_a_transposed(left, shared.a, A_ROW, A_COLUMN);
    else load_a(left, shared.a, A_ROW, A_COLUMN);
    if constexpr (B_TRANSPOSED) load_b_transposed(right, shared.b, B_ROW, B_COLUMN);
    else load_b(right, shared.b, B_ROW, B_COLUMN);
    float results[2][4];
    for (int e = 0; e < 4; e++) results[0][e] = 100, results[1][e] = 200;   // products are added to what is there
    multiply_add(results[0], left, right[0]);
    multiply_add(results[1], left, right[1]);
    write_result(d, results[0], results[1]);
}

std::vector<double> product_by_definition(const std::vector<double>& a, const std::vector<double>& b, bool a_transposed, bool b_transposed) {
    std::vector<double> d(256);
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++) {
            double sum = n < 8 ? 100 : 200;
            for (int k = 0; k < 16; k++) {
                const double left = a_transposed ? a[(A_ROW + k) * COLUMNS + A_COLUMN + m] : a[(A_ROW + m) * COLUMNS + A_COLUMN + k];
                const double right = b_transposed ? b[(B_ROW + k) * COLUMNS + B_COLUMN + n] : b[(B_ROW + n) * COLUMNS + B_COLUMN + k];
                sum += left * right;
            }
            d[16 * m + n] = sum;
        }
    return d;
}

template <class X, bool A_TRANSPOSED, bool B_TRANSPOSED>
std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b) {
    const DeviceArray<X> on_a(a), on_b(b);
    const DeviceArray<float> d(256, NAN);
    launch(test_gpu(), product_kernel<X, A_TRANSPOSED, B_TRANSPOSED>, Grid(1), WARP, sizeof(TwoTiles<X>), d.data(),
           static_cast<const X*>(on_a.data()), static_cast<const X*>(on_b.data()));
    return d.numbers();
}

template <class X>
void check_products() {
    const auto a = integers(ROWS * COLUMNS, 1), b = integers(ROWS * COLUMNS, 2);
    const std::vector<double> results[4] = {product<X, false, false>(a, b), product<X, false, true>(a, b),
                                            product<X, true, false>(a, b), product<X, true, true>(a, b)};
    for (int which = 0; which < 4; which++)
        for (int expected = 0; expected < 4; expected++) {   // and no load gives what another one is for
            INFO("A " << (which / 2 ? "transposed" : "as it lies") << ", B " << (which % 2 ? "transposed" : "as it lies"));
            CHECK((results[which] == product_by_definition(a, b, expected / 2, expected % 2)) == (which == expected));
        }
}

/// out (16 x 16) = what store_a() writes of the fragment that load_a() reads; d = (A B^T) C with A B^T passed on in registers.
template <class X>
__global__ void chain_kernel(float* out, float* d, const X* a, const X* b) {
    auto& shared = dynamic_shared<TwoTiles<X>>();
    fill_tiles(shared, a, b);
    float first[1][2][4] = {};
    rows_times_rows(first, shared.a, A_ROW, shared.b, B_ROW);   // over all COLUMNS
    for (auto& half : first[0])
        for (float& x : half) x = float(int(x) % 8);   // exact in X
    FragmentA<X> left[1];
    results_as_a(left[0], first[0][0], first[0][1]);
    float second[1][2][4] = {};
    registers_times_rows(second, left, shared.b, B_ROW, B_COLUMN);
    write_result(d, second[0][0], second[0][1]);
    __syncthreads();
    store_a(shared.a, A_ROW, A_COLUMN, left[0]);
    __syncthreads();
    for (int n = threadIdx.x; n < 256; n += WARP) out[n] = to_float(shared.a.x[A_ROW + n / 16][A_COLUMN + n % 16]);
}

template <class X>
void check_chain() {
    const auto a = integers(ROWS * COLUMNS, 3), b = integers(ROWS * COLUMNS, 4);
    const DeviceArray<X> on_a(a), on_b(b);
    const DeviceArray<float> out(256, NAN), d(256, NAN);
    launch(test_gpu(), chain_kernel<X>, Grid(1), WARP, sizeof(TwoTiles<X>), out.data(), d.data(), static_cast<const X*>(on_a.data()),
           static_cast<const X*>(on_b.data()));
    std::vector<double> first(256), second(256);
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++) {
            int sum = 0;
            for (int k = 0; k < COLUMNS; k++) sum += int(a[(A_ROW + m) * COLUMNS + k] * b[(B_ROW + n) * COLUMNS + k]);
            first[16 * m + n] = sum % 8;
        }
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++)
            for (int k = 0; k < 16; k++) second[16 * m + n] += first[16 * m + k] * b[(B_ROW + k) * COLUMNS + B_COLUMN + n];
    CHECK(out.numbers() == first);
    CHECK(d.numbers() == second);
}

// ---- copies

constexpr int COPIED_ROWS = 32, COPIED_COLUMNS = 64, COPYING_THREADS = 64;

/// out = a tile into which rows `first`.. of `count` have been copied, over what was there.
template <class X>
__global__ void copy_rows_kernel(X* out, const X* from, size_t row, int first, int count) {
    auto& tile = dynamic_shared<SharedTile<X, COPIED_ROWS, COPIED_COLUMNS>>();
    for (int n = threadIdx.x; n < COPIED_ROWS * COPIED_COLUMNS; n += COPYING_THREADS)
        tile.x[n / COPIED_COLUMNS][n % COPIED_COLUMNS] = from_float<X>(77);
    __syncthreads();
    copy_rows<COPYING_THREADS>(tile, from, row, first, count);
    wait_for_copies();
    __syncthreads();
    for (int n = threadIdx.x; n < COPIED_ROWS * COPIED_COLUMNS; n += COPYING_THREADS) out[n] = tile.x[n / COPIED_COLUMNS][n % COPIED_COLUMNS];
}

template <class X>
void check_copied_rows(int first, int count) {
    INFO("rows " << first << ".. of " << count);
    const int row = COPIED_COLUMNS + 16;
    const auto from = integers(size_t(count) * row, 5);
    const DeviceArray<X> source(from), out(size_t(COPIED_ROWS) * COPIED_COLUMNS, NAN);
    launch(test_gpu(), copy_rows_kernel<X>, Grid(1), COPYING_THREADS, sizeof(SharedTile<X, COPIED_ROWS, COPIED_COLUMNS>), out.data(),
           static_cast<const X*>(source.data()), size_t(row), first, count);
    std::vector<double> expected(out.size());
    for (int r = 0; r < COPIED_ROWS && first + r < count; r++)
        for (int c = 0; c < COPIED_COLUMNS; c++) expected[r * COPIED_COLUMNS + c] = from[size_t(first + r) * row + c];
    CHECK(out.numbers() == expected);
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

__global__ void functions_kernel(float* exp2, float* tanh, const float* x, int n) {
    for (int at = threadIdx.x; at < n; at += blockDim.x) exp2[at] = exp2_of(x[at]), tanh[at] = gelu_tanh(Rough(x[at]));
}

__global__ void sums_kernel(float* sum, float* most, float* scattered, const float* x) {
    const int lane = threadIdx.x;
    sum[lane] = warp_sum(x[lane]);
    most[lane] = warp_max(x[lane]);
    float values[8];
    for (int n = 0; n < 8; n++) values[n] = x[8 * lane + n];
    scattered[lane] = scattered_sums(values);
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

TEST_CASE("conformance: fragments and products of the tensor cores", "[gpu][conformance]") {
    check_products<bf16>();
    check_products<float>();
}

TEST_CASE("conformance: a result is the next product's factor, and is stored as one", "[gpu][conformance]") {
    check_chain<bf16>();
    check_chain<float>();
}

TEST_CASE("conformance: copies into shared memory, and zeros in place of what does not exist", "[gpu][conformance]") {
    for (int count : {1, 31, 32, 40, 100}) {
        check_copied_rows<bf16>(0, count);
        check_copied_rows<float>(0, count);
        check_copied_rows<bf16>(count / 2, count);
    }
    const auto from = integers(4 * WARP, 6);
    const DeviceArray<float> source(from), four(4 * WARP, NAN), one(WARP, NAN);
    launch(test_gpu(), copy_kernel, Grid(1), WARP, sizeof(float4[2 * WARP]), four.data(), one.data(),
           static_cast<const float*>(source.data()));
    std::vector<double> expected(4 * WARP), expected_one(WARP);
    for (int lane = 0; lane < WARP; lane++) {
        for (int n = 0; n < lane % 5; n++) expected[4 * lane + n] = from[4 * lane + n];
        if (lane % 2) expected_one[lane] = from[3 * lane];
    }
    CHECK(four.numbers() == expected);
    CHECK(one.numbers() == expected_one);
}

/// PTX ISA: ex2.approx.ftz.f32 is off by 2 units in the last place, tanh.approx.f32 by 2^-11 of its value.
TEST_CASE("conformance: exp2 and tanh are as exact as the manual says", "[gpu][conformance]") {
    std::vector<double> x;
    for (int n = -1200; n <= 1200; n++) x.push_back(n / 100.0);
    const size_t functions = x.size();
    for (double special : {-double(INFINITY), -200.0, -126.0, 127.0}) x.push_back(special);
    x = rounded<float>(x);
    const DeviceArray<float> on_x(x), exp2(x.size(), NAN), tanh(x.size(), NAN);
    launch(test_gpu(), functions_kernel, Grid(1), 128, 0, exp2.data(), tanh.data(), static_cast<const float*>(on_x.data()),
           int(x.size()));
    const auto powers = exp2.numbers(), tangents = tanh.numbers();
    double worst_power = 0, worst_tangent = 0;
    for (size_t n = 0; n < x.size(); n++) {
        const double power = std::exp2(x[n]) < std::ldexp(1.0, -126) ? 0 : std::exp2(x[n]);
        const double tangent = std::tanh(GELU_1 / 2 * x[n] + GELU_3 / 2 * x[n] * x[n] * x[n]);
        worst_power = std::max(worst_power, std::abs(powers[n] - power) / std::max(power, 1e-300));
        if (n < functions && tangent != 0) worst_tangent = std::max(worst_tangent, std::abs(tangents[n] / tangent - 1));
    }
    CHECK(worst_power <= std::ldexp(1.0, -22));
    CHECK(worst_tangent <= 1.02 * std::ldexp(1.0, -11));   // its argument has been rounded, too
    CHECK(powers[functions] == 0);
    CHECK(tangents[functions / 2] == 0);
}

TEST_CASE("conformance: sums over a warp", "[gpu][conformance]") {
    const auto x = integers(8 * WARP, 7);
    const DeviceArray<float> on_x(x), sum(WARP, NAN), most(WARP, NAN), scattered(WARP, NAN);
    launch(test_gpu(), sums_kernel, Grid(1), WARP, 0, sum.data(), most.data(), scattered.data(), static_cast<const float*>(on_x.data()));
    std::vector<double> expected(WARP);
    for (int lane = 0; lane < WARP; lane++)   // number lane / 4, of the lanes with the same columns
        for (int other = lane % 4; other < WARP; other += 4) expected[lane] += x[8 * other + lane / 4];
    CHECK(sum.numbers() == std::vector<double>(WARP, std::accumulate(x.begin(), x.begin() + WARP, 0.0)));
    CHECK(most.numbers() == std::vector<double>(WARP, *std::max_element(x.begin(), x.begin() + WARP)));
    CHECK(scattered.numbers() == expected);
}

TEST_CASE("conformance: blocks take turns, and each sees what the one before it has written", "[gpu][conformance]") {
    constexpr int BLOCKS = 1000;   // several for each place where a block runs on the largest GPU
    for (int order : {0, 1, 2}) {
        const Order of_threads(order);
        const DeviceMemory<int> x(std::vector<int>(CHAIN_NUMBERS, 1)), ticket(std::vector<int>(1, 0)), flag(std::vector<int>(1, -1));
        launch(test_gpu(), turns_kernel, Grid(BLOCKS), CHAIN_NUMBERS, sizeof(int), x.data(), ticket.data(), flag.data(), stuck());
        int expected = 1;
        for (int n = 0; n < BLOCKS; n++) expected = (3 * expected + n) % CHAIN_MODULUS;
        CHECK(x.host() == std::vector<int>(CHAIN_NUMBERS, expected));
    }
}
