// Products of linear layers on the GPU (model/operations/linear.cuh, matmul.cuh, column_sum.cuh).
#include "tests/errors.h"
#include "tests/gpu/on_gpu.h"
#include "tests/ops.h"

namespace {

/// One layer with random numbers, rounded to what X holds, on the host and on the device, and no more workspace than it needs.
template <class X>
struct LinearCase {
    int rows, IN, OUT;
    std::vector<double> inp, weight, bias, dout;
    DeviceArray<X> d_inp, d_weight, d_bias, d_dout;
    DeviceArray<float> workspace;

    LinearCase(int rows_, int IN_, int OUT_)
        : rows(rows_), IN(IN_), OUT(OUT_),
          inp(rounded<X>(random_numbers<double>(size_t(rows) * IN, 1))),
          weight(rounded<X>(random_numbers<double>(size_t(OUT) * IN, 2))),
          bias(rounded<X>(random_numbers<double>(OUT, 3))),
          dout(rounded<X>(random_numbers<double>(size_t(rows) * OUT, 4))),
          d_inp(inp), d_weight(weight), d_bias(bias), d_dout(dout),
          workspace(column_sum_workspace(rows, OUT) / sizeof(float), NAN) {}

    GPU device() {
        return {nullptr, {reinterpret_cast<std::byte*>(workspace.data()), workspace.size() * sizeof(float)}};
    }
    std::vector<double> expected(const std::vector<double>& added) const {
        return Linear{rows, IN, OUT, true, Write::overwrite}.formula({inp, weight, added});
    }
};

/// rows: one, fewer than a chunk of the column sums, two chunks and a part; columns: one block of them, a block and a part.
template <class X>
void check_all_sizes() {
    for (auto [rows, IN, OUT] : {std::array{1, 8, 16}, {24, 56, 40}, {136, 16, 264}, {521, 40, 24}})
        for (bool bias : {false, true})
            for (Write write : {Write::overwrite, Write::add}) {
                INFO(rows << " rows, " << IN << " in, " << OUT << " out, bias " << bias << ", adds " << (write == Write::add));
                const double rounded_with_it = write == Write::add ? 0.25 : 0;   // what the input's gradient is added to
                check_on_gpu<X>(Linear{rows, IN, OUT, bias, write}, std::is_same_v<X, bf16> ? rounded_with_it * 0x1p-8 : 0);
            }
}

}   // namespace

TEST_CASE("linear layers on the GPU, bf16, against the CPU in double", "[gpu][linear]") { check_all_sizes<bf16>(); }
TEST_CASE("linear layers on the GPU, float32, against the CPU in double", "[gpu][linear]") { check_all_sizes<float>(); }

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
    const std::vector<double> other = random_numbers<double>(24, 9);
    DeviceArray<float> out(size_t(16) * 24, NAN), d_other(other);
    linear_forward(layer.device(), out.data(), layer.d_inp.data(), layer.d_weight.data(), layer.d_bias.data(), 16, 8, 24);
    CHECK(difference(out.numbers(), layer.expected(layer.bias), rounding<float>(8)) == "");
    const size_t plans = Matmuls::of_process().plans_made();
    linear_forward(layer.device(), out.data(), layer.d_inp.data(), layer.d_weight.data(), d_other.data(), 16, 8, 24);
    CHECK(Matmuls::of_process().plans_made() == plans);
    CHECK(difference(out.numbers(), layer.expected(other), rounding<float>(8)) == "");
}

TEST_CASE("linear layers on the GPU: a product is added to another matrix, which stays as it is", "[gpu][linear]") {
    LinearCase<bf16> layer(24, 16, 32);
    const bf16* const no_bias = nullptr;
    const std::vector<double> before = rounded<bf16>(random_numbers<double>(size_t(24) * 32, 5));
    const DeviceArray<bf16> added(before), out(before.size(), NAN);
    matmul(layer.device(), out.data(), Transpose::no, layer.d_inp.data(), Transpose::yes, layer.d_weight.data(), no_bias,
           static_cast<const bf16*>(added.data()), 24, 32, 16);
    std::vector<double> expected = layer.expected(std::vector<double>(32));
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
    std::vector<double> actual = out.numbers();
    actual.erase(actual.begin(), actual.begin() + shift);
    CHECK(difference(actual, layer.expected(layer.bias), device_rounding<bf16>(IN)) == "");
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
