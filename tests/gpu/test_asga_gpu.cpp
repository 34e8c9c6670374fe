// ASGA's gate by products of separable functions (attention/kernel/unit_gate.cuh) against GELU in double: the functions, and whole
// passes with features that reach so far, not as far and farther. Features and gradients of a layer:
// variant/test_attention_variant_gpu.cpp.
#include <cmath>

#include "attention/asga.cuh"
#include "tests/gpu/attention_on_gpu.h"

namespace {

/// GELU(a + b) and its slopes by a and by b.
__global__ void separable_kernel(float* results, const float* a, const float* b, float reach, int n) {
    const SeparableGelu gelu = SeparableGelu::for_reach(reach);
    for (int at = threadIdx.x; at < n; at += blockDim.x) {
        float value = gelu.chi(b[at]), slope_a = 0, slope_b = gelu.psi(b[at], 3).x;
        for (int pair = 0; pair < SeparableGelu::PAIRS; pair++) {
            const float2 phi = gelu.phi(a[at], pair), psi = gelu.psi(b[at], pair);
            value += phi.x * psi.x + phi.y * psi.y;
            slope_a += gelu.phi_slope(phi, pair, psi), slope_b += gelu.psi_slope(psi, pair, phi);
        }
        results[at] = value, results[n + at] = slope_a, results[2 * n + at] = slope_b;
    }
}

/// A problem whose features are `spread` times normal numbers, and the policy.
Problem gated_problem(int T, int HS, double spread) {
    Problem p(2, T, T, 4, 2, HS, {.head = 18, .row = 16, .column = 16, .reach = true});
    for (Numbers* features : {&p.row, &p.column})
        for (double& x : *features) x *= spread;
    return p;
}
asga policy_of(const Problem& p) {
    Config c;
    c.NH = p.NH, c.NKV = p.NKV, c.HS = p.HS;
    c.settings = {{"asga_hidden", 16.0}, {"asga_scale", 2.0}};
    return asga(c, 0);
}

/// The largest |A + B|, |A| / 2 or |B| / 2 of a head in a sequence.
double reach_of(const Problem& p, int b, int h) {
    double most = 0;
    for (int f = 0; f < 16; f++)
        for (int i = 0; i < p.T; i++)
            for (int j = 0; j < p.S; j++) {
                const double row = p.row_feature(b, h, i, f), column = p.column_feature(b, h, j, f);
                most = std::max({most, std::abs(row) / 2, std::abs(column) / 2, std::abs(row + column)});
            }
    return most;
}

/// score() computes the heads beyond the table and no others.
void check_kernels(AttentionOn<GPU, bf16, asga>& gpu, const Problem& p, const Numbers& lse) {
    AttentionForward<bf16> by_score = gpu.arguments();
    by_score.reach = nullptr;
    attention_forward(test_gpu(), policy_of(p), by_score);
    const Numbers others = gpu.results().lse;
    for (int bh = 0; bh < p.B * p.NH && p.T > 1; bh++) {
        const bool same = std::equal(&lse[bh * p.T], &lse[bh * p.T] + p.T, &others[bh * p.T]);
        CHECK(same == (gpu.reach()[bh] > MOST_REACH));
    }
    gpu.forward(false);
}

/// Both passes in bf16 against double. Gradients of the gate come from products in half precision.
void check_gate(const Problem& original, Tolerance of_features) {
    const Problem p = rounded_problem<bf16>(original);
    const asga policy = policy_of(p);
    AttentionOn<GPU, bf16, asga> gpu(test_gpu(), p, policy);
    const Results is = gpu.forward(false), with_statistics = gpu.forward(true);
    for (int b = 0; b < p.B; b++)
        for (int h = 0; h < p.NH; h++) CHECK(std::abs(gpu.reach()[b * p.NH + h] - reach_of(p, b, h)) <= 1e-5 * reach_of(p, b, h));
    AttentionOn<CPU, double, asga> on_cpu({}, p, policy);
    const Results should = on_cpu.forward();
    const Tolerance tolerance = of_attention<bf16>(p);
    CHECK(difference(is.out, should.out, tolerance) == "");
    CHECK(difference(is.lse, should.lse, of_features) == "");
    CHECK(bit_difference(with_statistics.out, is.out) == "");
    CHECK(bit_difference(with_statistics.lse, is.lse) == "");
    check_kernels(gpu, p, is.lse);
    CHECK(difference(with_statistics.pair_gate, should.pair_gate, of_features) == "");
    check_gradients_of(gpu.backward(), on_cpu.backward(), {std::max(tolerance.relative, of_features.relative), tolerance.absolute});
}

}   // namespace

TEST_CASE("ASGA's gate: GELU of a sum as products, as exact as its table says", "[gpu][asga]") {
    const double table[][3] = {{3, 1.8e-6, 6.0e-6}, {4, 3.3e-5, 1.5e-4}, {5, 2.7e-4, 1.0e-3},
                               {6, 1.1e-3, 3.8e-3}, {7, 3.1e-3, 1.0e-2}, {8, 6.5e-3, 2.2e-2}};
    for (const auto& [reach, most, most_of_slope] : table) {
        std::vector<double> a, b;
        for (int n = -100; n <= 100; n++)
            for (double share : {0.0, 0.3, 0.5, 1.4}) a.push_back(reach * n / 100 * share), b.push_back(reach * n / 100 * (1 - share));
        const int n = int(a.size());
        const DeviceArray<float> on_a(a), on_b(b), results(3 * a.size(), NAN);
        launch(test_gpu(), separable_kernel, Grid(1), 128, 0, results.data(), static_cast<const float*>(on_a.data()),
               static_cast<const float*>(on_b.data()), float(reach), n);
        const std::vector<double> is = results.numbers();
        double worst = 0, worst_slope = 0;
        for (int at = 0; at < n; at++) {
            const auto should = gelu_and_slope(a[at] + b[at]);
            worst = std::max(worst, std::abs(is[at] - should.value));
            for (int side : {1, 2}) worst_slope = std::max(worst_slope, std::abs(is[side * n + at] - should.slope));
        }
        INFO("reach " << reach);
        CHECK(worst <= 1.06 * most + 4e-6);
        CHECK(worst_slope <= 1.06 * most_of_slope + 4e-6);
    }
}

TEST_CASE("ASGA's gate in bf16: both passes, from features near zero to features beyond the table", "[gpu][asga]") {
    for (double spread : {0.1, 0.5}) check_gate(gated_problem(130, 64, spread), {2e-3, 2e-3});   // reaches below 1 and 4
    check_gate(gated_problem(130, 64, 1.1), {2e-2, 2e-2});   // 6 to 8
    check_gate(gated_problem(130, 64, 3), {2e-3, 2e-3});     // 17 and more: by score()
    for (int HS : {32, 128}) check_gate(gated_problem(70, HS, 0.5), {2e-3, 2e-3});
}

TEST_CASE("ASGA's gate in bf16: one head beyond the table among others, and no keys or queries but one", "[gpu][asga]") {
    Problem p = gated_problem(200, 32, 0.4);
    for (int i = 0; i < p.T; i++) p.row[p.head_row(1, 2, i) * 16 + 3] *= 40;
    check_gate(p, {2e-3, 2e-3});
    check_gate(gated_problem(1, 64, 0.5), {2e-3, 2e-3});
    p = gated_problem(130, 32, 0.4);   // features far from zero, whose sums are not
    for (double& x : p.row) x += 6;
    for (double& x : p.column) x -= 6;
    check_gate(p, {5e-3, 5e-3});
    check_same_bits_on_gpu<bf16>(p, policy_of(p));
}

TEST_CASE("ASGA's gate in bf16: gradients of any size, which half precision alone could not hold", "[gpu][asga]") {
    const Problem p = gated_problem(70, 32, 0.5);
    const auto gradients_of = [&](double size) {
        Problem scaled = p;
        for (double& x : scaled.dout) x *= size;
        AttentionOn<GPU, bf16, asga> gpu(test_gpu(), scaled, policy_of(p));
        gpu.forward(false);
        return gpu.backward();
    };
    const Gradients once = gradients_of(1), tiny = gradients_of(0x1p-80);   // whose squares are 0
    for (const Numbers* part : {&tiny.row, &tiny.column, &tiny.head}) CHECK(all_finite(*part));
    for (double size : {0x1p-40, 0x1p30}) {
        const Gradients others = gradients_of(size);
        for (Numbers Gradients::*part : {&Gradients::row, &Gradients::column, &Gradients::head}) {
            Numbers scaled = once.*part;
            for (double& x : scaled) x *= size;
            CHECK(bit_difference(others.*part, scaled) == "");
        }
    }
}
