// Conformance of the products of a warpgroup: tiles as they read them, and each form of attention/kernel/wgmma.cuh.
#include "attention/kernel/wgmma.cuh"

#include "tests/gpu/conformance.h"

namespace {

constexpr int THREADS = 128, A_ROWS = 128, B_ROWS = 128, WIDTH = 128;

struct TilesOfGroup {
    SwizzledTile<bf16, A_ROWS, WIDTH> a;
    SwizzledTile<bf16, A_ROWS, GROUP_ROWS> narrow;   // the first columns of a
    SwizzledTile<bf16, B_ROWS, WIDTH> b;
    SwizzledTile<bf16, B_ROWS, 64> narrow_b;
};

enum class Form { rows_times_rows, registers_times_rows, columns_times_columns };

/// d (64, 8 N) = the product of the chosen form, plus 1 for sums.
template <Form FORM, int N>
__global__ void product_kernel(float* d, const bf16* a, const bf16* b, int row, int column) {
    auto& shared = dynamic_shared<TilesOfGroup>();
    copy_rows<THREADS>(shared.a, a, WIDTH, 0, A_ROWS), copy_rows<THREADS>(shared.b, b, WIDTH, 0, B_ROWS);
    copy_rows<THREADS>(shared.narrow, a, WIDTH, 0, A_ROWS), copy_rows<THREADS>(shared.narrow_b, b, WIDTH, 0, B_ROWS);
    wait_for_copies();
    shared.a.publish();
    __syncthreads();
    using Sums = Accumulator<1, N>;
    Sums sums(typename Sums::Unset{});
    FragmentA<bf16> left[1];
    if constexpr (FORM == Form::rows_times_rows) start_rows_times_rows(sums, shared.a, row, shared.b, column);
    if constexpr (FORM == Form::columns_times_columns) start_columns_times_columns(sums, shared.narrow, 0, shared.b, column);
    if constexpr (FORM == Form::registers_times_rows) {
        for (int part = 0; part < 4; part++) {
            const bf16* at = shared.a.at(warp_row() + lane_row() + part % 2 * 8, row + lane_column() + part / 2 * 8);
            make_two(left[0].part[part], to_float(at[0]), to_float(at[1]));
        }
        sums.for_each([](float& x, int, int) { x = 1; });
        if constexpr (N == 8) start_registers_times_rows(sums, left, shared.narrow_b, column);
        else start_registers_times_rows(sums, left, shared.b, column);
    }
    shared.a.finish_products(sums);
    sums.for_each([&](float& x, int r, int c) { d[(warp_row() + r) * 8 * N + c] = x; });
}

template <Form FORM, int N>
void check_product(int row, int column) {
    INFO("form " << int(FORM) << ", " << 8 * N << " columns, row " << row << ", column " << column);
    const auto a = integers(A_ROWS * WIDTH, 1), b = integers(B_ROWS * WIDTH, 2);
    const DeviceArray<bf16> on_a(a), on_b(b);
    std::vector<double> expected(64 * 8 * N);
    auto of_a = [&](int r, int c) { return a[size_t(r * WIDTH + c)]; };
    auto of_b = [&](int r, int c) { return b[size_t(r * WIDTH + c)]; };
    for (int m = 0; m < 64; m++)
        for (int n = 0; n < 8 * N; n++) {
            double& sum = expected[size_t(m * 8 * N + n)];
            if (FORM == Form::rows_times_rows)
                for (int k = 0; k < WIDTH; k++) sum += of_a(row + m, k) * of_b(column + n, k);
            if (FORM == Form::columns_times_columns)
                for (int k = 0; k < A_ROWS; k++) sum += of_a(k, m) * of_b(k, column + n);
            if (FORM != Form::registers_times_rows) continue;
            sum = 1;
            for (int k = 0; k < 16; k++) sum += of_a(m, row + k) * of_b(column + k, n);
        }
    const size_t shared = sizeof(TilesOfGroup);
    CHECK(made_by(product_kernel<FORM, N>, expected.size(), THREADS, shared, on_a.data(), on_b.data(), row, column) == expected);
}

TEST_CASE("conformance: products of a warpgroup", "[gpu][conformance][wgmma]") {
    if (!has_wgmma()) {
        WARN("no wgmma in this program or GPU: not tested");
        return;
    }
    for (const int order : {0, 1, 2, 3}) {
        const Order chosen(order);
        check_product<Form::rows_times_rows, 4>(0, 8);   // B's rows begin at any eight
        check_product<Form::rows_times_rows, 8>(64, 64);
        check_product<Form::rows_times_rows, 16>(0, 0);
        check_product<Form::registers_times_rows, 8>(16, 48);
        check_product<Form::registers_times_rows, 16>(112, 112);
        for (const int column : {0, 32, 64, 96}) check_product<Form::columns_times_columns, 4>(0, column);
        for (const int column : {0, 64}) check_product<Form::columns_times_columns, 8>(0, column);
        check_product<Form::columns_times_columns, 16>(0, 0);
    }
}

/// out (A_ROWS, WIDTH): what is stored in pairs and read one by one.
__global__ void tile_kernel(float* out, const bf16* a) {
    auto& shared = dynamic_shared<TilesOfGroup>();
    for (int n = 2 * threadIdx.x; n < A_ROWS * WIDTH; n += 2 * THREADS) {
        Two<bf16> two;
        make_two(two, to_float(a[n]), to_float(a[n + 1]));
        shared.a.store(n / WIDTH, n % WIDTH, two);
    }
    __syncthreads();
    for (int n = threadIdx.x; n < A_ROWS * WIDTH; n += THREADS) out[n] = to_float(*shared.a.at(n / WIDTH, n % WIDTH));
}

TEST_CASE("conformance: a swizzled tile holds what is stored in it", "[gpu][conformance][wgmma]") {
    const auto a = integers(A_ROWS * WIDTH, 3);
    const DeviceArray<bf16> on_a(a);
    CHECK(made_by(tile_kernel, a.size(), THREADS, sizeof(TilesOfGroup), on_a.data()) == a);
}

}   // namespace
