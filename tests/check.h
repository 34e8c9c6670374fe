// Strict comparisons of arrays: NaN and infinity are errors anywhere, sizes must agree, and comparing nothing is an error. They
// return a sentence, empty if they agree, so that a failing test prints it:
//     CHECK(difference(actual, expected, rounding<float>(C)) == "");
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>

/// Tolerance per element, `relative` times the largest expected value plus `absolute`, and the same in the L2 norm.
struct Tolerance {
    double relative = 0, absolute = 0;
};

/// Tolerance for rounding if each result is a sum of `length` products in X. Errors add up like a random walk; elementary functions
/// and the few operations around a sum cost some more units in the last place.
template <class X>
Tolerance rounding(int length) {
    return {8 * std::sqrt(double(length)) * double(std::numeric_limits<X>::epsilon()), 0};
}

/// Compares two containers of numbers of any two types.
template <class Actual, class Expected>
std::string difference(const Actual& actual, const Expected& expected, Tolerance tolerance) {
    const size_t n = std::size(expected);
    std::ostringstream text;
    if (std::size(actual) != n || n == 0) {
        text << std::size(actual) << " numbers where " << n << " were expected" << (n ? "" : ", which compares nothing");
        return text.str();
    }
    double largest = 0, squares = 0, error_squares = 0;
    for (const auto& e : expected) {
        if (std::isfinite(double(e))) largest = std::max(largest, std::abs(double(e)));
        squares += double(e) * double(e);
    }

    const double allowed = tolerance.absolute + tolerance.relative * largest;
    size_t wrong = 0, first = 0, worst = 0;
    double worst_error = -1;
    for (size_t i = 0; i < n; i++) {
        const double error = std::abs(double(actual[i]) - double(expected[i]));
        error_squares += error * error;
        if (!(error <= worst_error)) worst = i, worst_error = std::isnan(error) ? INFINITY : error;
        if (error <= allowed && std::isfinite(error) && std::isfinite(allowed)) continue;   // false for NaN
        if (wrong++ == 0) first = i;
    }
    const double l2 = std::sqrt(error_squares), allowed_l2 = tolerance.absolute * std::sqrt(double(n)) + tolerance.relative * std::sqrt(squares);
    if (wrong == 0 && l2 <= allowed_l2) return "";
    if (wrong == 0) first = worst;
    text.precision(9);
    text << wrong << " of " << n << " numbers are off by more than " << allowed << "; first [" << first << "]: " << actual[first] << ", expected "
         << expected[first] << "; largest error " << worst_error << " at [" << worst << "]; L2 error " << l2 << " (allowed " << allowed_l2 << ")";
    return text.str();
}

/// Bitwise comparison: NaN equals the same NaN, 0 differs from -0.
template <class Container>
std::string bit_difference(const Container& actual, const Container& expected) {
    const size_t n = std::size(expected);
    std::ostringstream text;
    text.precision(17);
    if (std::size(actual) != n || n == 0) {
        text << std::size(actual) << " numbers where " << n << " were expected" << (n ? "" : ", which compares nothing");
        return text.str();
    }
    for (size_t i = 0; i < n; i++) {
        if (std::memcmp(&actual[i], &expected[i], sizeof actual[i]) == 0) continue;
        text << "bits differ first at [" << i << "]: " << actual[i] << ", expected " << expected[i];
        return text.str();
    }
    return "";
}
