// All checks of an operation from one description of it (finite_differences.h), which additionally has
//     std::vector<double> formula(const Arrays<double>& in) const   the outputs by the formula, in plain loops
//     int length() const                                            terms of the longest sum, for tolerances
//     bool any_threads                                              whether all numbers of threads give the same bits
// Outputs in double are checked against the formula, gradients against finite differences; other number types and devices against double
// on the CPU, and again, to the last bit.
#pragma once
#include "catch.h"

#include "model/device/device.h"
#include "tests/finite_differences.h"
#include "tests/numbers.h"
#include "tests/threads.h"

/// An array of X in device memory, copied from and to the host.
template <class Device, class X>
class On;

template <class X>
class On<CPU, X> {
public:
    explicit On(std::vector<X> numbers) : numbers_(std::move(numbers)) {}
    X* data() { return numbers_.data(); }
    const std::vector<X>& numbers() const { return numbers_; }

private:
    std::vector<X> numbers_;
};

/// A buffer for an operation to write: NaN if it must overwrite, finite values if it must add.
template <class X>
std::vector<X> buffer(size_t n, Write write = Write::overwrite) {
    return std::vector<X>(n, write == Write::overwrite ? X(NAN) : X(0.25));
}

/// What the operation contributed to a buffer().
template <class X>
std::vector<X> contribution(std::vector<X> written, Write write) {
    if (write == Write::add)
        for (X& number : written) number -= X(0.25);
    return written;
}

template <class X>
std::vector<X> joined(std::vector<X> first, const std::vector<X>& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
}

/// Compares numbers that an operation has stored as X: half a unit in the last place of each number (2^-8 of it for bf16), what
/// arithmetic on sums of `length` terms explains (a share of the largest), and `absolute` besides.
template <class X, class W>
std::string stored_difference(const std::vector<W>& actual, const std::vector<double>& expected, int length, double absolute) {
    const Tolerance arithmetic{rounding<W>(length).relative, absolute};
    if (std::is_same_v<X, W> || actual.size() != expected.size()) return difference(actual, expected, arithmetic);
    double largest = 0;
    for (double e : expected) largest = std::max(largest, std::abs(e));
    std::vector<double> in_tolerances, zeros(expected.size());
    for (size_t n = 0; n < expected.size(); n++) {
        const double tolerance = std::abs(expected[n]) * 0x1p-8 + arithmetic.relative * largest + absolute;
        in_tolerances.push_back((actual[n] - expected[n]) / tolerance);
    }
    return difference(in_tolerances, zeros, Tolerance{0, 1 + 1e-6});
}

/// Outputs and gradients in X on a device against double on the CPU, where both start from numbers that X holds. The absolute errors
/// are for operations that round to X more than once, and for gradients, which are differences of numbers near 1.
template <class X, class Op, class Device>
void check_on(Device device, const Op& op, double of_gradients = 1e-6, double of_outputs = 0) {
    using W = Wide<X>;
    Arrays<W> inputs = random_inputs<W>(op);
    Arrays<double> exact_inputs;
    for (std::vector<W>& array : inputs) {
        array = rounded<X>(array);
        exact_inputs.push_back(converted<double>(array));
    }
    const std::vector<W> dout = rounded<X>(output_gradient<W>(op));
    const Arrays<W> results = op.template run<X>(device, inputs, dout), again = op.template run<X>(device, inputs, dout);
    const Arrays<double> expected = op.template run<double>(CPU{}, exact_inputs, converted<double>(dout));
    REQUIRE(results.size() == expected.size());
    for (size_t k = 0; k < results.size(); k++) {
        INFO(sizeof(X) << " bytes a number, " << (k ? "gradient of " + op.inputs()[k - 1].name : "outputs"));
        const double allowed = k ? of_gradients : of_outputs;
        if (k && op.inputs()[k - 1].weight) CHECK(stored_difference<W>(results[k], expected[k], op.length(), allowed) == "");
        else CHECK(stored_difference<X>(results[k], expected[k], op.length(), allowed) == "");
        CHECK(bit_difference(again[k], results[k]) == "");
    }
}

/// One thread gives the same bits as two, or the same up to rounding.
template <class X, class Op>
void check_threads(const Op& op) {
    const Arrays<X> inputs = random_inputs<X>(op);
    const Threads two(2);
    const std::vector<X> dout = output_gradient<X>(op);
    const Arrays<X> together = op.template run<X>(CPU{}, inputs, dout);
    const Threads one(1);
    const Arrays<X> alone = op.template run<X>(CPU{}, inputs, dout);
    for (size_t k = 0; k < alone.size(); k++) {
        if (op.any_threads) CHECK(bit_difference(alone[k], together[k]) == "");
        else CHECK(difference(alone[k], together[k], rounding<X>(op.length())) == "");
    }
}

/// Everything on the CPU.
template <class Op>
void check_operation(const Op& op, double of_gradients = 1e-6) {
    const Arrays<double> inputs = random_inputs<double>(op);
    CHECK(difference(op.template run<double>(CPU{}, inputs)[0], op.formula(inputs), rounding<double>(op.length())) == "");
    CHECK(gradient_difference(op) == "");
    check_threads<float>(op), check_threads<double>(op);
    const Threads two(2);
    check_on<float>(CPU{}, op, of_gradients), check_on<double>(CPU{}, op, of_gradients);
}
