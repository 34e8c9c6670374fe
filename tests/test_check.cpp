// The test of the checker: a comparison that cannot fail tests nothing.
#include "catch.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/check.h"
#include "tests/finite_differences.h"

namespace {

constexpr int ROWS = 65, COLUMNS = 8;
const Tolerance TIGHT{1e-6, 0};

std::vector<double> matrix() { return random_numbers<double>(size_t(ROWS) * COLUMNS, 1); }

std::string after(void (*damage)(std::vector<double>&), Tolerance tolerance = TIGHT) {
    std::vector<double> damaged = matrix();
    damage(damaged);
    return difference(damaged, matrix(), tolerance);
}

/// Means over the visible past of row i: attention with equal weights, which sees keys from `first(i)` to i.
template <class First>
std::vector<double> means(First first) {
    const std::vector<double> values = matrix();
    std::vector<double> out(values.size());
    for (int i = 0; i < ROWS; i++)
        for (int j = first(i); j <= i; j++)
            for (int c = 0; c < COLUMNS; c++) out[i * COLUMNS + c] += values[j * COLUMNS + c] / (i - first(i) + 1);
    return out;
}

/// x^3, with a gradient that a test may spoil.
struct Cube {
    double factor = 3, addend = 0;
    std::vector<ArrayOf> inputs() const { return {{"x", 6}}; }
    template <class X>
    std::vector<X> forward(const Arrays<X>& in) const {
        std::vector<X> out;
        for (X x : in[0]) out.push_back(x * x * x);
        return out;
    }
    template <class X>
    Arrays<X> backward(const Arrays<X>& in, const std::vector<X>& dout) const {
        Arrays<X> gradient = in;
        for (size_t n = 0; n < dout.size(); n++) gradient[0][n] = X(factor) * in[0][n] * in[0][n] * dout[n];
        gradient[0].back() += X(addend);
        return gradient;
    }
};

}   // namespace

TEST_CASE("the checker accepts equal arrays and rounding", "[check]") {
    CHECK(difference(matrix(), matrix(), Tolerance{}) == "");
    CHECK(bit_difference(matrix(), matrix()) == "");
    std::vector<double> exact = matrix();
    for (double& number : exact) number /= 3;   // no float has these values
    const std::vector<float> rounded(exact.begin(), exact.end());
    CHECK(difference(rounded, exact, rounding<float>(1)) == "");
    CHECK(difference(rounded, exact, rounding<double>(1)) != "");
    CHECK(difference(std::vector<double>(4, 0.0), std::vector<double>(4, 0.0), TIGHT) == "");
}

TEST_CASE("the checker reports NaN and infinity wherever they stand", "[check]") {
    CHECK(after([](auto& x) { x[0] = NAN; }) != "");
    CHECK(after([](auto& x) { x.back() = NAN; }) != "");
    CHECK(after([](auto& x) { x[7] = INFINITY; }) != "");
    CHECK(after([](auto& x) { x[7] = -INFINITY; }) != "");
    CHECK(after([](auto& x) { x[7] = NAN; }, {1e30, 1e30}) != "");
    CHECK(after([](auto& x) { x[7] = INFINITY; }, {INFINITY, INFINITY}) != "");
    for (double bad : {double(NAN), double(INFINITY)}) {
        std::vector<double> expected = matrix();
        expected[100] = bad;
        CHECK(difference(matrix(), expected, TIGHT) != "");
        CHECK(difference(expected, expected, TIGHT) != "");
    }
    CHECK(difference(matrix(), matrix(), {NAN, 0}) != "");
}

TEST_CASE("the checker reports a swapped row, a wrong sign, one wrong number, a constant factor", "[check]") {
    CHECK(after([](auto& x) { std::swap_ranges(x.begin(), x.begin() + COLUMNS, x.begin() + COLUMNS); }) != "");
    CHECK(after([](auto& x) { std::swap_ranges(x.end() - 2 * COLUMNS, x.end() - COLUMNS, x.end() - COLUMNS); }) != "");
    CHECK(after([](auto& x) { x[33] = -x[33]; }) != "");
    CHECK(after([](auto& x) { for (double& value : x) value = -value; }) != "");
    CHECK(after([](auto& x) { x.back() += 1e-4; }) != "");
    CHECK(after([](auto& x) { for (double& value : x) value *= 1.00001; }) != "");
    CHECK(after([](auto& x) { for (double& value : x) value = 0; }) != "");
}

TEST_CASE("the checker reports a mask that is off by one", "[check]") {
    const auto causal = [](int) { return 0; };
    const auto window = [](int left) { return [left](int i) { return std::max(0, i - left); }; };
    CHECK(difference(means(window(ROWS)), means(causal), TIGHT) == "");
    CHECK(difference(means(window(ROWS - 2)), means(causal), TIGHT) != "");   // differs in the last row alone
    CHECK(difference(means(window(7)), means(window(8)), TIGHT) != "");
}

TEST_CASE("the checker reports wrong sizes and comparing nothing", "[check]") {
    CHECK(after([](auto& x) { x.pop_back(); }) != "");
    CHECK(after([](auto& x) { x.push_back(0); }) != "");
    CHECK(after([](auto& x) { x.clear(); }) != "");
    const std::vector<double> none;
    CHECK(difference(none, none, TIGHT) != "");
    CHECK(bit_difference(none, none) != "");
}

TEST_CASE("the checker names the first wrong number", "[check]") {
    const std::string text = after([](auto& x) { x[12] += 1, x[40] += 3; });
    INFO(text);
    CHECK(text.find("2 of 520") != std::string::npos);
    CHECK(text.find("first [12]") != std::string::npos);
    CHECK(text.find("at [40]") != std::string::npos);
}

TEST_CASE("the bitwise checker reports one unit in the last place and the sign of zero", "[check]") {
    std::vector<double> x = matrix();
    x[5] = std::nextafter(x[5], 10.0);
    CHECK(bit_difference(x, matrix()).find("[5]") != std::string::npos);
    CHECK(bit_difference(std::vector<double>{0.0}, std::vector<double>{-0.0}) != "");
    CHECK(bit_difference(std::vector<double>{NAN}, std::vector<double>{NAN}) == "");
}

TEST_CASE("finite differences accept the right gradient and report wrong ones", "[check]") {
    CHECK(gradient_difference(Cube{}) == "");
    CHECK(gradient_difference(Cube{3.0001, 0}) != "");
    CHECK(gradient_difference(Cube{-3, 0}) != "");
    CHECK(gradient_difference(Cube{3, 1e-4}) != "");
    CHECK(gradient_difference(Cube{3, NAN}).find("gradient of x") != std::string::npos);
}
