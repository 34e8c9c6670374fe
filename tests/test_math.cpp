// Elementary functions of model/device/math.h: accuracy over their whole range, one number and a SIMD vector alike.
#include <cmath>
#include <limits>

#include "model/device/math.h"
#include "tests/operation.h"

namespace {

/// Both forms of a function over `x`, whose length is a multiple of every vector's.
template <class X, class Function>
Arrays<X> one_by_one_and_in_packs(const std::vector<X>& x, Function function) {
    Arrays<X> out(2, std::vector<X>(x.size()));
    for (size_t n = 0; n < x.size(); n++) out[0][n] = function(x[n]);
    for (size_t n = 0; n < x.size(); n += LANES<X>) store(&out[1][n], function(load<Pack<X>>(&x[n])));
    return out;
}

template <class X>
std::vector<X> range(X from, X to, size_t count) {
    std::vector<X> x(count);
    for (size_t n = 0; n < count; n++) x[n] = from + (to - from) * X(n) / X(count - 1);
    return x;
}

/// Checks that both forms are within so many units in the last place.
template <class Function>
void check_units(int units, const std::vector<float>& x, double (*exact)(double), Function function) {
    for (const auto& out : one_by_one_and_in_packs(x, function)) {
        double largest = 0;
        for (size_t n = 0; n < x.size(); n++) {
            const double error = std::abs(double(out[n]) / exact(double(x[n])) - 1);
            if (!(error <= largest)) largest = std::isnan(error) ? INFINITY : error;
        }
        CHECK(largest <= units * std::numeric_limits<float>::epsilon());
    }
}

double exact_gelu(double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

struct Gelu {
    static constexpr bool any_threads = true;
    int length() const { return 4; }
    std::vector<ArrayOf> inputs() const { return {{"x", 64}, {"large x", 64, 4.0}, {"large negative x", 64, -4.0}}; }

    std::vector<double> formula(const Arrays<double>& in) const {
        std::vector<double> out;
        for (const auto& x : in)
            for (double number : x) out.push_back(exact_gelu(number));
        return out;
    }
    template <class X>
    Arrays<X> run(CPU, const Arrays<X>& in, const std::vector<X>& dout = {}) const {
        Arrays<X> all(1);
        for (const auto& x : in) all[0] = joined(all[0], one_by_one_and_in_packs(x, [](auto n) { return gelu(n); })[1]);
        if (dout.empty()) return all;
        size_t n = 0;
        for (const auto& x : in) {
            all.push_back(one_by_one_and_in_packs(x, [](auto number) { return gelu_and_slope(number).slope; })[1]);
            for (X& slope : all.back()) slope *= dout[n++];
        }
        return all;
    }
};

}   // namespace

TEST_CASE("log_of: float to 1e-7, absolute or relative, over many orders of magnitude and near 1", "[math]") {
    std::vector<float> x = range(0.5f, 2.0f, 1 << 18);
    for (float magnitude = 1e-30f; magnitude < 1e30f; magnitude *= 1.37f) x.push_back(magnitude);
    x.resize(x.size() / LANES<float> * LANES<float>);   // whole packs
    for (const auto& out : one_by_one_and_in_packs(x, [](auto n) { return log_of(n); }))
        for (size_t n = 0; n < x.size(); n++) {
            const double expected = std::log(double(x[n]));
            REQUIRE(std::abs(double(out[n]) - expected) <= 1e-7 * std::max(1.0, std::abs(expected)));
        }
}

TEST_CASE("exp_of: float to two units in the last place, to one near 0; clamped outside of its range; NaN stays NaN", "[math]") {
    check_units(2, range(-87.3f, 88.3f, 1 << 20), std::exp, [](auto n) { return exp_of(n); });
    check_units(1, range(-1e-3f, 1e-3f, 1 << 12), std::exp, [](auto n) { return exp_of(n); });
    CHECK(exp_of(0.0f) == 1);
    for (float below : {-88.0f, -1e30f, -INFINITY}) CHECK((exp_of(below) >= 0 && exp_of(below) < 1.3e-38f));
    for (float above : {89.0f, 1e30f, INFINITY}) CHECK((exp_of(above) > 2e38f && std::isfinite(exp_of(above))));
    CHECK((std::isnan(exp_of(NAN)) && std::isnan(exp_of(-NAN))));
    for (int lane = 0; lane < LANES<float>; lane++) {
        Pack<float> x{};
        x[lane] = NAN;
        const Pack<float> out = exp_of(x);
        for (int other = 0; other < LANES<float>; other++) CHECK(std::isnan(out[other]) == (other == lane));
    }
}

TEST_CASE("exp_of: double is the library's function, one number and a vector of numbers", "[math]") {
    const std::vector<double> x = range(-700.0, 700.0, 1 << 10);
    std::vector<double> expected;
    for (double number : x) expected.push_back(std::exp(number));
    for (const auto& out : one_by_one_and_in_packs(x, [](auto n) { return exp_of(n); })) CHECK(bit_difference(out, expected) == "");
}

TEST_CASE("sigmoid: accurate over its range, 0 and 1 far outside", "[math]") {
    check_units(4, range(-80.0f, 80.0f, 1 << 16), [](double n) { return 1 / (1 + std::exp(-n)); }, [](auto n) { return sigmoid(n); });
    CHECK(sigmoid(-1e30f) < 1e-37f);
    CHECK(sigmoid(1e30f) == 1);
    CHECK(std::isnan(sigmoid(NAN)));
}

TEST_CASE("gelu: value and slope, of small and large arguments", "[math]") {
    check_operation(Gelu{}, 4e-6);   // of 1 + tanh(y) near x = -5, rounded and then multiplied by 35
    const std::vector<float> x = range(-30.0f, 30.0f, 1 << 14);
    const auto values = one_by_one_and_in_packs(x, [](auto n) { return gelu(n); });
    const auto with_slope = one_by_one_and_in_packs(x, [](auto n) { return gelu_and_slope(n).value; });
    std::vector<double> expected;
    for (float number : x) expected.push_back(exact_gelu(number));
    for (const auto& out : {values[0], values[1], with_slope[0], with_slope[1]}) CHECK(difference(out, expected, rounding<float>(1)) == "");
    for (float large : {6.0f, 30.0f, 1e4f, 1e15f}) {   // in packs a ratio whose polynomials overflow at the largest
        const auto at = [](float x) { return gelu_and_slope(Pack<float>{} + x); };
        CHECK((at(large).value[0] == large && at(large).slope[0] == 1));
        CHECK((at(-large).value[0] == 0 && at(-large).slope[0] == 0));
    }
    CHECK(std::abs(gelu_and_slope(-1e4f).slope) < 1e-20f);
    CHECK(gelu_and_slope(1e4f).slope == 1);
    CHECK((std::isnan(gelu(Pack<float>{} + NAN)[0]) && std::isnan(gelu_and_slope(Pack<float>{} + NAN).slope[3])));
}

TEST_CASE("ReducedPrecision: what a GPU computes with for bf16 is a float's arithmetic and the same formulas", "[math]") {
    const ReducedPrecision three = 3, two = 2.0f;
    CHECK((float(three + two) == 5 && float(three - two) == 1 && float(three * two) == 6 && float(three / two) == 1.5f));
    CHECK((float(-three) == -3 && int(three) == 3 && two < three && LANES_OF<ReducedPrecision> == 1));
    for (float x : range(-30.0f, 30.0f, 1 << 12)) {
        const auto exact = gelu_and_slope(x);
        const auto rough = gelu_and_slope(ReducedPrecision(x));
        CHECK(std::abs(float(gelu(ReducedPrecision(x))) - gelu(x)) <= 1e-6f * std::max(1.0f, std::abs(x)));
        CHECK(std::abs(float(rough.value) - exact.value) <= 1e-6f * std::max(1.0f, std::abs(x)));
        CHECK(std::abs(float(rough.slope) - exact.slope) <= 1e-5f);
    }
    CHECK(float(sigmoid(ReducedPrecision(0.5f))) == sigmoid(0.5f));
}

TEST_CASE("softplus: follows its formula and does not overflow", "[math]") {
    for (double x : range(-30.0, 30.0, 121)) CHECK(std::abs(softplus(x) - std::log(1 + std::exp(x))) <= 1e-14 * std::max(1.0, x));
    CHECK(softplus(1e4f) == 1e4f);
    CHECK(softplus(-1e4f) == 0);
    CHECK(std::abs(softplus(1.854586542131141) - 2) < 1e-15);
}

TEST_CASE("the sum over a vector's lanes and iota", "[math]") {
    CHECK(sum<float>(iota(1.0f)) == 136);
    CHECK(sum<double>(iota(1.0)) == 36);
}
