// The descriptions of operations (operation.h) on a GPU, real or emulated, against the same operation on the CPU in double, which
// the tests of the CPU have proven. Inputs are rounded to X first, so that both start from the same numbers.
#pragma once
#include "tests/gpu/device_array.h"
#include "tests/operation.h"

template <class X>
class On<GPU, X> {
public:
    explicit On(const std::vector<Wide<X>>& numbers) : memory_(stored(numbers)) {}
    X* data() const { return memory_.data(); }

    /// What is there once all work on the GPU is done.
    std::vector<Wide<X>> numbers() const {
        if constexpr (std::is_same_v<X, Wide<X>>) {
            return memory_.host();
        } else {
            std::vector<Wide<X>> wide;
            for (X x : memory_.host()) wide.push_back(float(widen(x)));
            return wide;
        }
    }

private:
    static std::vector<X> stored(const std::vector<Wide<X>>& numbers) {
        if constexpr (std::is_same_v<X, Wide<X>>) {
            return numbers;
        } else {
            std::vector<X> narrowed;
            for (Wide<X> x : numbers) narrowed.push_back(narrow<X>(x));
            return narrowed;
        }
    }
    DeviceMemory<X> memory_;
};

/// `numbers` as X holds them.
template <class X>
std::vector<float> rounded_to(std::vector<float> numbers) {
    for (float& x : numbers) x = float(widen(narrow<X>(x)));
    return numbers;
}

inline std::vector<double> in_double(const std::vector<float>& numbers) { return {numbers.begin(), numbers.end()}; }

/// Compares numbers that a kernel has stored as X: half a unit in the last place of each number (2^-8 of it for bf16), what float
/// arithmetic on sums of `length` terms explains (a share of the largest), and `absolute` besides.
template <class X>
std::string stored_difference(const std::vector<float>& actual, const std::vector<double>& expected, int length, double absolute) {
    const Tolerance arithmetic{rounding<float>(length).relative, absolute};
    if (std::is_same_v<X, float> || actual.size() != expected.size()) return difference(actual, expected, arithmetic);
    double largest = 0;
    for (double e : expected) largest = std::max(largest, std::abs(e));
    std::vector<double> in_tolerances, zeros(expected.size());
    for (size_t n = 0; n < expected.size(); n++) {
        const double tolerance = std::abs(expected[n]) * 0x1p-8 + arithmetic.relative * largest + absolute;
        in_tolerances.push_back((actual[n] - expected[n]) / tolerance);
    }
    return difference(in_tolerances, zeros, Tolerance{0, 1 + 1e-6});
}

/// Gradients of `op` on the GPU with X against the CPU with double, and again, to the last bit.
template <class X, class Op>
void check_gradients_on_gpu(const Op& op, const Arrays<float>& inputs, const Arrays<double>& exact_inputs, size_t outputs,
                            double absolute) {
    const GPU device = test_gpu();
    const std::vector<float> dout = rounded_to<X>(random_numbers<float>(outputs, 5));
    const Arrays<float> gradients = op.template backward<X>(inputs, dout, device);
    const Arrays<double> expected = op.template backward<double>(exact_inputs, in_double(dout));
    REQUIRE(gradients.size() == expected.size());
    for (size_t k = 0; k < gradients.size(); k++) {
        INFO("gradient of " << op.inputs()[k].name);
        const double cancelled = std::max(absolute, 1e-6);   // differences of numbers near 1
        if (op.inputs()[k].weight) CHECK(stored_difference<float>(gradients[k], expected[k], op.length(), cancelled) == "");
        else CHECK(stored_difference<X>(gradients[k], expected[k], op.length(), cancelled) == "");
    }
    const Arrays<float> again = op.template backward<X>(inputs, dout, device);
    for (size_t k = 0; k < gradients.size(); k++) CHECK(bit_difference(again[k], gradients[k]) == "");
}

/// Outputs of `op` on the GPU, and gradients where it has them. `absolute` is for operations that round to X more than once.
template <class X, class Op>
void check_on_gpu(const Op& op, double absolute = 0) {
    const GPU device = test_gpu();
    Arrays<float> inputs = random_inputs<float>(op);
    Arrays<double> exact_inputs;
    for (std::vector<float>& array : inputs) {
        array = rounded_to<X>(array);
        exact_inputs.push_back(in_double(array));
    }
    const std::vector<float> out = op.template forward<X>(inputs, device);
    const std::vector<double> expected_out = op.template forward<double>(exact_inputs);
    INFO(sizeof(X) << " bytes a number");
    CHECK(stored_difference<X>(out, expected_out, op.length(), absolute) == "");
    CHECK(bit_difference(op.template forward<X>(inputs, device), out) == "");
    if constexpr (Differentiable<Op>) check_gradients_on_gpu<X>(op, inputs, exact_inputs, out.size(), absolute);
}

/// Both number types; `absolute` as a share of bf16's half unit in the last place of 1.
template <class Op>
void check_on_gpu_in_both_types(const Op& op, double bf16_roundings = 0) {
    check_on_gpu<float>(op);
    check_on_gpu<bf16>(op, bf16_roundings * 0x1p-8);
}
