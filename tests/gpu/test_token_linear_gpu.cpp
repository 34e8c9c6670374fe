// Numbers per token that are linear in the token (attention/gates/token_linear.cuh) on the GPU, against the CPU in double.
#include "attention/gates/token_linear.cuh"

#include "tests/attention_case.h"
#include "tests/gpu/device_array.h"

namespace {

constexpr double BEFORE = 0.25;   // what the gradients are added to

template <class X>
void check_token_linear(int rows, int C, int N) {
    INFO(rows << " tokens of " << C << " channels, " << N << " numbers each, " << sizeof(X) << " bytes");
    using Numbers = std::vector<double>;
    const Numbers x = rounded<X>(normal_numbers(size_t(rows) * C, 1)), weight = rounded<X>(normal_numbers(size_t(N) * C, 2)),
                  bias = rounded<X>(normal_numbers(N, 3)), du = rounded<float>(normal_numbers(size_t(rows) * N, 4));
    Numbers u(du.size(), NAN), dx(x.size(), BEFORE), dweight(weight.size(), BEFORE), dbias(N, BEFORE);
    const TokenLinear<double> exact{x.data(), weight.data(), bias.data(), rows, C, N};
    token_linear_forward(CPU{}, u.data(), exact);
    token_linear_backward(CPU{}, dx.data(), dweight.data(), dbias.data(), du.data(), exact);

    const DeviceArray<X> d_x(x), d_weight(weight), d_bias(bias), d_dx(x.size(), BEFORE);
    const DeviceArray<float> d_u(u.size(), NAN), d_du(du), d_dweight(weight.size(), BEFORE), d_dbias(N, BEFORE);
    const TokenLinear<X> p{d_x.data(), d_weight.data(), d_bias.data(), rows, C, N};
    const GPU device = test_gpu();
    token_linear_forward(device, d_u.data(), p);
    token_linear_backward(device, d_dx.data(), d_dweight.data(), d_dbias.data(), d_du.data(), p);
    CHECK(difference(d_u.numbers(), u, rounding<float>(C)) == "");
    CHECK(difference(d_dx.numbers(), dx, std::is_same_v<X, float> ? rounding<float>(N) : Tolerance{0x1p-8}) == "");   // one rounding
    CHECK(difference(d_dweight.numbers(), dweight, rounding<float>(rows)) == "");
    CHECK(difference(d_dbias.numbers(), dbias, rounding<float>(rows)) == "");
}

}   // namespace

TEMPLATE_TEST_CASE("GPU token gate: linear and back, any number of tokens, channels and numbers", "[gpu][attention]", float, bf16) {
    check_token_linear<TestType>(1, 8, 1);
    check_token_linear<TestType>(67, 264, 5);      // more than a warp reads at a time; no whole groups of tokens or numbers
    check_token_linear<TestType>(33, 1040, 36);    // more channels than a block's threads have
    check_token_linear<TestType>(1500, 16, 3);     // several chunks of tokens, the last one shorter
}
