// Products of linear layers on the GPU (model/operations/linear.cuh, matmul.cuh, column_sum.cuh) against loops in double.
#include "model/operations/linear.cuh"

#include "tests/attention_case.h"
#include "tests/errors.h"
#include "tests/gpu/device_array.h"

namespace {

constexpr double BEFORE = 0.25;   // what a buffer holds that is added to

/// A (rows, columns) matrix, row-major, read in either orientation.
struct Matrix {
    const std::vector<double>& numbers;
    int columns;
    bool transposed = false;
    double at(int row, int column) const {
        return transposed ? numbers[size_t(column) * columns + row] : numbers[size_t(row) * columns + column];
    }
};

std::vector<double> product(const Matrix& a, const Matrix& b, int M, int N, int K, double before = 0) {
    std::vector<double> c(size_t(M) * N, before);
    for (int m = 0; m < M; m++)
        for (int k = 0; k < K; k++)
            for (int n = 0; n < N; n++) c[size_t(m) * N + n] += a.at(m, k) * b.at(k, n);
    return c;
}

/// One layer with random numbers, rounded to what X holds, on the host and on the device.
template <class X>
struct LinearCase {
    int rows, IN, OUT;
    std::vector<double> inp, weight, bias, dout;
    DeviceArray<X> d_inp, d_weight, d_bias, d_dout;
    DeviceArray<float> workspace;

    LinearCase(int rows_, int IN_, int OUT_)
        : rows(rows_), IN(IN_), OUT(OUT_),
          inp(rounded<X>(normal_numbers(size_t(rows) * IN, 1))),
          weight(rounded<X>(normal_numbers(size_t(OUT) * IN, 2))),
          bias(rounded<X>(normal_numbers(OUT, 3))),
          dout(rounded<X>(normal_numbers(size_t(rows) * OUT, 4))),
          d_inp(inp), d_weight(weight), d_bias(bias), d_dout(dout),
          workspace(column_sum_workspace(rows, OUT) / sizeof(float), NAN) {}

    GPU device() {
        return {nullptr, {reinterpret_cast<std::byte*>(workspace.data()), workspace.size() * sizeof(float)}};
    }

    void check_forward(bool with_bias) {
        DeviceArray<X> out(size_t(rows) * OUT, NAN);
        linear_forward(device(), out.data(), d_inp.data(), d_weight.data(), with_bias ? d_bias.data() : nullptr, rows, IN, OUT);
        std::vector<double> expected = product({inp, IN}, {weight, IN, true}, rows, OUT, IN);
        for (size_t n = 0; with_bias && n < expected.size(); n++) expected[n] += bias[n % OUT];
        CHECK(difference(out.numbers(), expected, device_rounding<X>(IN)) == "");
    }

    void check_backward_input(Write write) {
        const bool add = write == Write::add;
        DeviceArray<X> dinp(size_t(rows) * IN, add ? BEFORE : NAN);
        linear_backward_input(device(), dinp.data(), d_dout.data(), d_weight.data(), rows, IN, OUT, write);
        const auto expected = product({dout, OUT}, {weight, IN}, rows, IN, OUT, add ? BEFORE : 0);
        CHECK(difference(dinp.numbers(), expected, device_rounding<X>(OUT)) == "");
    }

    void check_backward_weight(Write write, bool with_bias) {
        const double before = write == Write::add ? BEFORE : 0;
        DeviceArray<float> dweight(size_t(OUT) * IN, before ? before : NAN), dbias(OUT, before ? before : NAN);
        linear_backward_weight(device(), dweight.data(), with_bias ? dbias.data() : nullptr, d_dout.data(), d_inp.data(), rows, IN,
                               OUT, write);
        const auto expected = product({dout, OUT, true}, {inp, IN}, OUT, IN, rows, before);
        CHECK(difference(dweight.numbers(), expected, rounding<float>(rows)) == "");
        if (!with_bias) return;
        const std::vector<double> ones(rows, 1);
        CHECK(difference(dbias.numbers(), product({ones, rows}, {dout, OUT}, 1, OUT, rows, before), rounding<float>(rows)) == "");
    }
};

template <class X>
void check_all_products(int rows, int IN, int OUT) {
    INFO(rows << " rows, " << IN << " in, " << OUT << " out, " << sizeof(X) << " bytes a number");
    LinearCase<X> layer(rows, IN, OUT);
    for (bool bias : {false, true}) layer.check_forward(bias);
    for (Write write : {Write::overwrite, Write::add}) {
        layer.check_backward_input(write);
        for (bool bias : {false, true}) layer.check_backward_weight(write, bias);
    }
}

/// rows: one, fewer than a chunk of the column sums, two chunks and a part; columns: one block of them, a block and a part.
template <class X>
void check_all_sizes() {
    check_all_products<X>(1, 8, 16);
    check_all_products<X>(24, 56, 40);
    check_all_products<X>(136, 16, 264);
    check_all_products<X>(521, 40, 24);
}

}   // namespace

TEST_CASE("linear layers on the GPU, bf16, against double", "[gpu][linear]") { check_all_sizes<bf16>(); }
TEST_CASE("linear layers on the GPU, float32, against double", "[gpu][linear]") { check_all_sizes<float>(); }

TEST_CASE("linear layers on the GPU plan each kind of product once and give the same bits again", "[gpu][linear]") {
    LinearCase<bf16> layer(72, 32, 48);
    DeviceArray<float> dweight(layer.weight.size(), NAN), dbias(48, NAN);
    auto backward = [&] {
        linear_backward_weight(layer.device(), dweight.data(), dbias.data(), layer.d_dout.data(), layer.d_inp.data(), 72, 32, 48,
                               Write::overwrite);
        return std::pair(dweight.numbers(), dbias.numbers());
    };
    const size_t before = Matmuls::of_process().plans_made();
    const auto first = backward();
    CHECK(Matmuls::of_process().plans_made() == before + 1);
    const auto second = backward();
    CHECK(Matmuls::of_process().plans_made() == before + 1);
    CHECK(bit_difference(second.first, first.first) == "");
    CHECK(bit_difference(second.second, first.second) == "");
}

TEST_CASE("linear layers on the GPU: two products that differ in the bias's address share a plan", "[gpu][linear]") {
    LinearCase<float> layer(16, 8, 24);
    const std::vector<double> other = normal_numbers<double>(24, 9);
    DeviceArray<float> out(size_t(16) * 24, NAN), d_other(other);
    layer.check_forward(true);
    const size_t plans = Matmuls::of_process().plans_made();
    linear_forward(layer.device(), out.data(), layer.d_inp.data(), layer.d_weight.data(), d_other.data(), 16, 8, 24);
    CHECK(Matmuls::of_process().plans_made() == plans);
    std::vector<double> expected = product({layer.inp, 8}, {layer.weight, 8, true}, 16, 24, 8);
    for (size_t n = 0; n < expected.size(); n++) expected[n] += other[n % 24];
    CHECK(difference(out.numbers(), expected, rounding<float>(8)) == "");
}

TEST_CASE("linear layers on the GPU: a product is added to another matrix, which stays as it is", "[gpu][linear]") {
    LinearCase<bf16> layer(24, 16, 32);
    const bf16* const no_bias = nullptr;
    const std::vector<double> before = rounded<bf16>(normal_numbers(size_t(24) * 32, 5));
    const DeviceArray<bf16> added(before), out(before.size(), NAN);
    matmul(layer.device(), out.data(), Transpose::no, layer.d_inp.data(), Transpose::yes, layer.d_weight.data(), no_bias,
           static_cast<const bf16*>(added.data()), 24, 32, 16);
    std::vector<double> expected = product({layer.inp, 16}, {layer.weight, 16, true}, 24, 32, 16);
    for (size_t n = 0; n < expected.size(); n++) expected[n] += before[n];
    CHECK(difference(out.numbers(), expected, device_rounding<bf16>(16)) == "");
    CHECK(bit_difference(added.numbers(), before) == "");
}

TEST_CASE("linear layers on the GPU take addresses that are multiples of 16 bytes and of no more", "[gpu][linear]") {
    const int rows = 24, IN = 16, OUT = 32, shift = 8;   // numbers, of 2 bytes
    auto shifted = [](std::vector<double> numbers) {
        numbers.insert(numbers.begin(), shift, NAN);
        return numbers;
    };
    const LinearCase<bf16> layer(rows, IN, OUT);
    const DeviceArray<bf16> inp(shifted(layer.inp)), weight(shifted(layer.weight)), bias(shifted(layer.bias));
    const DeviceArray<bf16> out(size_t(rows) * OUT + shift, NAN);
    linear_forward(GPU{}, out.data() + shift, static_cast<const bf16*>(inp.data() + shift),
                   static_cast<const bf16*>(weight.data() + shift), static_cast<const bf16*>(bias.data() + shift), rows, IN, OUT);
    std::vector<double> expected = product({layer.inp, IN}, {layer.weight, IN, true}, rows, OUT, IN), actual = out.numbers();
    for (size_t n = 0; n < expected.size(); n++) expected[n] += layer.bias[n % OUT];
    actual.erase(actual.begin(), actual.begin() + shift);
    CHECK(difference(actual, expected, device_rounding<bf16>(IN)) == "");
}

TEST_CASE("linear layers on the GPU say which product failed and why", "[gpu][linear]") {
    LinearCase<bf16> layer(16, 8, 24);
    DeviceArray<bf16> out(size_t(16) * 24 + 8, NAN);
    auto complains = [](Exit code, const std::string& words, auto work) {
        const Error error = error_of(work);
        INFO(error.what());
        CHECK(says(error, {words}));
        CHECK(error.code == code);
    };
    const bf16* no_bias = nullptr;
    complains(Exit::rank, "the product (16, 8) x (24, 8)^T, bf16 to bf16 got the address", [&] {
        linear_forward(layer.device(), out.data() + 1, layer.d_inp.data(), layer.d_weight.data(), no_bias, 16, 8, 24);
    });

    // float32 matrices into a bf16 one: a combination that the library does not have.
    const DeviceArray<float> a(128, 1.0), b(192, 1.0);
    complains(Exit::rank, "no algorithm on this GPU for the product (16, 8) x (24, 8)^T, float32 to bf16", [&] {
        matmul(layer.device(), out.data(), Transpose::no, a.data(), Transpose::yes, b.data(), no_bias, no_bias, 16, 24, 8);
    });

    const GPU without_workspace{};
    DeviceArray<float> dweight(layer.weight.size(), NAN), dbias(24, NAN);
    complains(Exit::out_of_memory, "bytes of workspace", [&] {
        linear_backward_weight(without_workspace, dweight.data(), dbias.data(), layer.d_dout.data(), layer.d_inp.data(), 16, 8, 24,
                               Write::overwrite);
    });
}
