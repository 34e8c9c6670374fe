// The hidden units of ASGA's gate in half precision (attention/kernel/unit_gate.cuh) against GELU in double. Features and gradients:
// variant/test_attention_variant_gpu.cpp.
#include <cmath>

#include "attention/asga.cuh"
#include "tests/catch.h"
#include "tests/gpu/device_array.h"

namespace {

/// GELU and its derivative at the sums of two features, as the kernels for bf16 compute them.
__global__ void hidden_units_kernel(float* values, float* slopes, const float* a, const float* b, int n) {
    for (int at = 2 * threadIdx.x; at < n; at += 2 * blockDim.x) {
        const HiddenUnits units(make_halves(UnitGate::feature(a[at]), UnitGate::feature(a[at + 1])),
                                make_halves(UnitGate::feature(b[at]), UnitGate::feature(b[at + 1])));
        const float2 value = floats_of(units.value), slope = floats_of(units.slope());
        values[at] = value.x / (2 * UnitGate::R), values[at + 1] = value.y / (2 * UnitGate::R);
        slopes[at] = (1 + slope.x) / 2, slopes[at + 1] = (1 + slope.y) / 2;
    }
}

}   // namespace

TEST_CASE("ASGA's hidden units in half precision: GELU to three digits, and no NaN however large the features", "[gpu][asga]") {
    std::vector<double> a, b;
    for (int n = -60; n <= 60; n++)
        for (double more : {0.0, 0.3, -1.1, 2.0}) a.push_back(n / 10.0 - more), b.push_back(more);
    const size_t usual = a.size();
    for (double large : {20.0, 150.0, 212.0, 1e3, 1e5, 1e38})
        for (double sign : {-1.0, 1.0})
            for (double other : {-large, 0.0, 1.0, large}) a.push_back(sign * large), b.push_back(other);
    a.push_back(NAN), a.push_back(1), b.push_back(1), b.push_back(1);
    const int n = int(a.size());
    const DeviceArray<float> on_a(a), on_b(b), values(a.size(), NAN), slopes(a.size(), NAN);
    launch(test_gpu(), hidden_units_kernel, Grid(1), 128, 0, values.data(), slopes.data(), static_cast<const float*>(on_a.data()),
           static_cast<const float*>(on_b.data()), n);
    const std::vector<double> value = values.numbers(), slope = slopes.numbers();
    double worst = 0, worst_slope = 0;
    CHECK(std::isnan(value[n - 2]));
    for (int at = 0; at < n - 2; at++) {
        const auto bounded = [](double x) { return std::clamp(x, -70 / double(UnitGate::R), 70 / double(UnitGate::R)); };
        const auto should = gelu_and_slope(bounded(a[at]) + bounded(b[at]));
        const double off = std::abs(value[at] - should.value), off_slope = std::abs(slope[at] - should.slope);
        if (size_t(at) < usual) worst = std::max(worst, off), worst_slope = std::max(worst_slope, off_slope);
        else CHECK((off <= 2e-3 * (1 + std::abs(a[at]) + std::abs(b[at])) && off_slope <= 2e-3));
    }
    CHECK(worst <= 5e-3);
    CHECK(worst_slope <= 8e-3);   // where tanh is nearly 1, which it is rounded away from: 0.0073 on an H200
}
