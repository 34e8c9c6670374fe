// All checks of an operation derive from one description of it, a struct with
//     std::vector<ArrayOf> inputs() const                              names and sizes of its differentiable inputs
//     Arrays<Wide<X>> run<X>(device, const Arrays<Wide<X>>& in, const std::vector<Wide<X>>& dout = {}) const
// which returns its outputs as one array and, given their gradient dout, the hand-written gradients in inputs()' order. X is double for
// finite differences, float or bf16 as in training.
#pragma once
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "model/device/device.h"
#include "tests/check.h"
#include "tests/threads.h"

template <class X>
using Arrays = std::vector<std::vector<X>>;

struct ArrayOf {
    std::string name;
    size_t size;
    double center = 0;     // tests use random values in center +- 1
    bool weight = false;   // its gradient is kept in Wide<X>
};

/// n values spread over (-1, 1), the same on every machine and for every X (up to rounding).
template <class X>
std::vector<X> random_numbers(size_t n, uint64_t seed) {
    std::vector<X> numbers(n);
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (X& number : numbers) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        number = X(float(state >> 40) * 0x1p-23f - 1);   // 24 bits: exact in float too
    }
    return numbers;
}

template <class X, class Op>
Arrays<X> random_inputs(const Op& op) {
    Arrays<X> inputs;
    for (const ArrayOf& array : op.inputs()) {
        inputs.push_back(random_numbers<X>(array.size, 17 + inputs.size()));
        for (X& number : inputs.back()) number = X(float(number) + float(array.center));
    }
    return inputs;
}

/// The loss that checks differentiate: the inner product of the outputs with fixed values, which are then the outputs' gradient.
inline double weighted_sum(const std::vector<double>& outputs, const std::vector<double>& weights) {
    return std::inner_product(outputs.begin(), outputs.end(), weights.begin(), 0.0);
}

/// Random gradients of an operation's outputs.
template <class X, class Op>
std::vector<X> output_gradient(const Op& op) {
    return random_numbers<X>(op.template run<double>(CPU{}, random_inputs<double>(op))[0].size(), 5);
}

/// Every gradient against central differences in double. A step of 1e-5 leaves an error of about 1e-10 (its square from the third
/// derivative, and rounding divided by it), so a tolerance of 1e-7 of the largest gradient is ample, yet detects any wrong term.
template <class Op>
std::string gradient_difference(const Op& op, Tolerance tolerance = {1e-7, 1e-9}) {
    const double step = 1e-5;
    const Threads one(1);   // hundreds of calls too small for several threads
    Arrays<double> inputs = random_inputs<double>(op);
    const std::vector<double> dout = output_gradient<double>(op);
    const Arrays<double> results = op.template run<double>(CPU{}, inputs, dout);
    if (results.size() != inputs.size() + 1) return "an input has no gradient";
    for (size_t k = 0; k < inputs.size(); k++) {
        std::vector<double> differences;
        for (double& number : inputs[k]) {
            const double here = number;
            number = here + step;
            const double above = weighted_sum(op.template run<double>(CPU{}, inputs)[0], dout);
            number = here - step;
            const double below = weighted_sum(op.template run<double>(CPU{}, inputs)[0], dout);
            number = here;
            differences.push_back((above - below) / (2 * step));
        }
        const std::string text = difference(results[k + 1], differences, tolerance);
        if (!text.empty()) return "gradient of " + op.inputs()[k].name + ": " + text;
    }
    return "";
}
