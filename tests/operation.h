// All checks of an operation from one description of it (finite_differences.h), which additionally has
//     std::vector<double> formula(const Arrays<double>& in) const   the outputs by the formula, in plain loops
//     int length() const                                            terms of the longest sum, for tolerances
//     bool any_threads                                              whether all numbers of threads give the same bits
// Outputs are checked against the formula in double and float, gradients against finite differences in double and the float
// ones against those; two runs must agree to the last bit. The forward() and backward() of operations that run on every device take
// the device as a last argument, which tests/gpu gives them.
#pragma once
#include "catch.h"

#include "model/device/device.h"
#include "tests/finite_differences.h"
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
std::vector<X> buffer(size_t n, Write write) {
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

/// Whether an operation has a backward pass; gradient checks below are skipped otherwise.
template <class Op>
concept Differentiable = requires(const Op& op, Arrays<double> inputs, std::vector<double> dout) {
    op.template backward<double>(inputs, dout);
};

/// All gradients of one run, and the outputs.
template <class X, class Op>
Arrays<X> run_forward_and_backward(const Op& op) {
    const Arrays<X> inputs = random_inputs<X>(op);
    const std::vector<X> out = op.template forward<X>(inputs);
    Arrays<X> all;
    if constexpr (Differentiable<Op>) all = op.template backward<X>(inputs, random_numbers<X>(out.size(), 5));
    all.push_back(out);
    return all;
}

/// Two runs on two threads give the same bits; one thread gives the same too, or the same up to rounding.
template <class X, class Op>
void check_repeatable(const Op& op) {
    const Threads two(2);
    const Arrays<X> once = run_forward_and_backward<X>(op), again = run_forward_and_backward<X>(op);
    const Threads one(1);
    const Arrays<X> alone = run_forward_and_backward<X>(op);
    for (size_t k = 0; k < once.size(); k++) {
        CHECK(bit_difference(again[k], once[k]) == "");
        if (op.any_threads) CHECK(bit_difference(alone[k], once[k]) == "");
        else CHECK(difference(alone[k], once[k], rounding<X>(op.length())) == "");
    }
}

template <class Op>
void check_against_formula(const Op& op) {
    const Threads one(1);
    const std::vector<double> expected = op.formula(random_inputs<double>(op));
    const Arrays<double> in_double = run_forward_and_backward<double>(op);
    const Arrays<float> in_float = run_forward_and_backward<float>(op);
    CHECK(difference(in_double.back(), expected, rounding<double>(op.length())) == "");
    CHECK(difference(in_float.back(), expected, rounding<float>(op.length())) == "");
    if constexpr (Differentiable<Op>) CHECK(gradient_difference(op) == "");
    double absolute = 1e-6;
    if constexpr (requires { Op::gradient_error; }) absolute = Op::gradient_error;
    for (size_t k = 0; k + 1 < in_double.size(); k++) {
        INFO("float against double, gradient of " << op.inputs()[k].name);
        CHECK(difference(in_float[k], in_double[k], Tolerance{rounding<float>(op.length()).relative, absolute}) == "");
    }
}

template <class Op>
void check_operation(const Op& op) {
    check_against_formula(op);
    check_repeatable<float>(op);
    check_repeatable<double>(op);
}
