// Conformance of the tensor cores: the four ways to read a fragment, products, results that are the next product's factor.
#include "tests/gpu/conformance.h"

namespace {

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

/// The four ways to read a tile. B's are two, side by side, and have the registers of one A.
enum class Reading { a, a_transposed, b, b_transposed };
template <class X>
union EightNumbers {
    FragmentA<X> a;
    FragmentB<X> b[2];
    Two<X> part[4];
};

template <class X>
__device__ void load(EightNumbers<X>& to, Reading reading, const SharedTile<X, ROWS, COLUMNS>& tile, int row, int column) {
    switch (reading) {
        case Reading::a: return load_a(to.a, tile, row, column);
        case Reading::a_transposed: return load_a_transposed(to.a, tile, row, column);
        case Reading::b: return load_b(to.b, tile, row, column);
        case Reading::b_transposed: return load_b_transposed(to.b, tile, row, column);
    }
}

/// out: the eight numbers of each lane, part by part.
template <class X>
__global__ void fragment_kernel(X* out, const X* a, Reading reading) {
    auto& shared = dynamic_shared<TwoTiles<X>>();
    fill_tiles(shared, a, a);
    EightNumbers<X> held;
    load(held, reading, shared.a, A_ROW, A_COLUMN);
    for (int n = 0; n < 4; n++) store_two(out + 8 * threadIdx.x + 2 * n, held.part[n]);
}

/// Which number of the tile a lane holds, as the PTX manual numbers them (mma.m16n8k16): n of its eight.
int number_held(Reading reading, int lane, int n) {
    const int g = lane / 4, c = lane % 4 * 2, part = n / 2, first = part % 2 * 8, second = part / 2 * 8;
    const bool is_a = reading == Reading::a || reading == Reading::a_transposed;
    const int m_or_n = g + (is_a ? first : second), k = c + n % 2 + (is_a ? second : first);
    const bool across = reading == Reading::a_transposed || reading == Reading::b_transposed;   // k runs over the rows of the tile
    return (A_ROW + (across ? k : m_or_n)) * COLUMNS + A_COLUMN + (across ? m_or_n : k);
}

TEMPLATE_TEST_CASE("conformance: each lane holds of a tile what the manual says", "[gpu][conformance]", bf16, float) {
    using X = TestType;
    const auto numbers = integers(ROWS * COLUMNS, 1);
    const DeviceArray<X> tile(numbers);
    for (Reading reading : {Reading::a, Reading::a_transposed, Reading::b, Reading::b_transposed}) {
        INFO("reading " << int(reading) << ", " << sizeof(X) << " bytes a number");
        std::vector<double> expected(8 * WARP);
        for (int n = 0; n < 8 * WARP; n++) expected[n] = numbers[number_held(reading, n / 8, n % 8)];
        CHECK(made_by(fragment_kernel<X>, 8 * WARP, WARP, sizeof(TwoTiles<X>), tile.data(), reading) == expected);
    }
}

/// d (16 x 16, row by row) from what the lanes hold of two results side by side.
__device__ void write_result(float* d, const float (&left)[4], const float (&right)[4]) {
    for (int e = 0; e < 4; e++) {
        const int row = lane_row() + e / 2 * 8, column = lane_column() + e % 2;
        d[16 * row + column] = left[e];
        d[16 * row + column + 8] = right[e];
    }
}

/// d = A B + 100 in the left half and + 200 in the right, as products are added to what is there.
template <class X>
__global__ void product_kernel(float* d, const X* a, const X* b) {
    auto& shared = dynamic_shared<TwoTiles<X>>();
    fill_tiles(shared, a, b);
    EightNumbers<X> left, right;
    load(left, Reading::a, shared.a, A_ROW, A_COLUMN);
    load(right, Reading::b_transposed, shared.b, B_ROW, B_COLUMN);
    float results[2][4];
    for (int e = 0; e < 4; e++) results[0][e] = 100, results[1][e] = 200;
    multiply_add(results[0], left.a, right.b[0]);
    multiply_add(results[1], left.a, right.b[1]);
    write_result(d, results[0], results[1]);
}

TEMPLATE_TEST_CASE("conformance: products of the tensor cores", "[gpu][conformance]", bf16, float) {
    using X = TestType;
    const auto a = integers(ROWS * COLUMNS, 1), b = integers(ROWS * COLUMNS, 2);
    const DeviceArray<X> on_a(a), on_b(b);
    std::vector<double> expected(256);
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++) {
            expected[16 * m + n] = n < 8 ? 100 : 200;
            for (int k = 0; k < 16; k++)
                expected[16 * m + n] += a[(A_ROW + m) * COLUMNS + A_COLUMN + k] * b[(B_ROW + k) * COLUMNS + B_COLUMN + n];
        }
    CHECK(made_by(product_kernel<X>, 256, WARP, sizeof(TwoTiles<X>), on_a.data(), on_b.data()) == expected);
}

/// out (16 x 16) = what store_a() writes of A B^T; d = (A B^T) C with A B^T passed on in registers.
template <class X>
__global__ void chain_kernel(float* out, float* d, const X* a, const X* b) {
    auto& shared = dynamic_shared<TwoTiles<X>>();
    fill_tiles(shared, a, b);
    Accumulator<1, 2> first, second;
    rows_times_rows(first, shared.a, A_ROW, shared.b, B_ROW);   // over all COLUMNS
    first.for_each([](float& x, int, int) { x = float(int(x) % 8); });   // exact in X
    const FragmentA<X> left[] = {first.template as_a<X>(0, 0)};
    registers_times_rows(second, left, shared.b, B_ROW, B_COLUMN);
    write_result(d, second.d[0][0], second.d[0][1]);
    __syncthreads();
    store_a(shared.a, A_ROW, A_COLUMN, left[0]);
    __syncthreads();
    for (int n = threadIdx.x; n < 256; n += WARP) out[n] = to_float(shared.a.x[A_ROW + n / 16][A_COLUMN + n % 16]);
}

TEMPLATE_TEST_CASE("conformance: a result is the next product's factor, and is stored as one", "[gpu][conformance]", bf16, float) {
    using X = TestType;
    const auto a = integers(ROWS * COLUMNS, 3), b = integers(ROWS * COLUMNS, 4);
    const DeviceArray<X> on_a(a), on_b(b);
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
    const DeviceArray<float> out(256, NAN), d(256, NAN);
    launch(test_gpu(), chain_kernel<X>, Grid(1), WARP, sizeof(TwoTiles<X>), out.data(), d.data(), on_a.data(), on_b.data());
    CHECK(out.numbers() == first);
    CHECK(d.numbers() == second);
}

/// d (16 x 16) = A B^T of numbers that are rounded to half precision, and d itself so rounded.
__global__ void halves_kernel(float* d, const float* a, const float* b) {
    auto& shared = dynamic_shared<TwoTiles<fp16>>();
    for (int n = 2 * threadIdx.x; n < ROWS * COLUMNS; n += 2 * WARP) {
        Two<fp16> pair;
        make_two(pair, a[n], a[n + 1]);
        store_two(&shared.a.x[n / COLUMNS][n % COLUMNS], pair);
        make_two(pair, b[n], b[n + 1]);
        store_two(&shared.b.x[n / COLUMNS][n % COLUMNS], pair);
    }
    __syncthreads();
    Accumulator<1, 2> sums;
    rows_times_rows(sums, shared.a, A_ROW, shared.b, B_ROW);
    write_result(d, sums.d[0][0], sums.d[0][1]);
    __syncthreads();
    store_a(shared.a, A_ROW, A_COLUMN, sums.as_a<fp16>(0, 0));
    __syncthreads();
    for (int n = 2 * threadIdx.x; n < 256; n += 2 * WARP) {
        const float2 pair = load_two(&shared.a.x[A_ROW + n / 16][A_COLUMN + n % 16]);
        d[256 + n] = pair.x, d[256 + n + 1] = pair.y;
    }
}

TEST_CASE("conformance: products in half precision, and numbers rounded to it", "[gpu][conformance]") {
    auto a = integers(ROWS * COLUMNS, 5), b = integers(ROWS * COLUMNS, 6);
    for (double& x : a) x += 8.5;   // so that sums are above 2048, where halves are even numbers
    for (double& x : b) x += 8;
    const DeviceArray<float> on_a(a), on_b(b);
    std::vector<double> expected(512);
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++) {
            double& sum = expected[16 * m + n];
            for (int k = 0; k < COLUMNS; k++) sum += a[(A_ROW + m) * COLUMNS + k] * b[(B_ROW + n) * COLUMNS + k];
            const double unit = std::ldexp(1, std::ilogb(sum) - 10);
            expected[256 + 16 * m + n] = std::nearbyint(sum / unit) * unit;
        }
    CHECK(made_by(halves_kernel, 512, WARP, sizeof(TwoTiles<fp16>), on_a.data(), on_b.data()) == expected);
}

}   // namespace
