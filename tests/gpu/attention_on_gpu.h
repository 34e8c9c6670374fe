// A Problem (tests/attention_problem.h) through the GPU's attention kernels in float or bf16 against the CPU's kernel in double on the
// same, rounded, inputs.
#pragma once
#include "tests/attention_problem.h"
#include "tests/gpu/by_kernels.h"
#include "tests/gpu/device_array.h"

/// What the kernels in X may differ by from double. Rounding to bf16 (2^-9 each) happens to the weights P, to their gradients and
/// to the results; errors of single numbers add up like a random walk. The absolute part is for gradients that are zero as the
/// difference of two products of HS numbers (one key: dP = D).
template <class X>
Tolerance of_attention(const Problem& p) {
    const double cancellation = std::sqrt(double(p.HS));
    if (std::is_same_v<X, float>) return {rounding<float>(p.HS + p.S).relative, 1e-6 * cancellation};
    return {0.01, 2e-4 * cancellation};
}

/// The same problem with inputs that X and float can hold.
template <class X>
Problem rounded_problem(Problem p) {
    for (Numbers* numbers : {&p.q, &p.k, &p.v, &p.dout}) *numbers = rounded<X>(*numbers);
    for (Numbers* numbers : {&p.head, &p.row, &p.column, &p.gate, &p.dlse}) *numbers = rounded<float>(*numbers);
    return p;
}

inline void check_gradients_of(const Gradients& is, const Gradients& should, Tolerance tolerance) {
    const std::pair<const Numbers*, const Numbers*> pairs[] = {{&is.q, &should.q}, {&is.k, &should.k}, {&is.v, &should.v},
        {&is.head, &should.head}, {&is.row, &should.row}, {&is.column, &should.column}, {&is.gate, &should.gate}};
    int number = 0;
    for (const auto& [a, b] : pairs) {
        INFO("gradient " << number++ << " of q, k, v, head, row, column, gate");
        if (!b->empty()) CHECK(difference(*a, *b, tolerance) == "");
    }
    // dz of a row sums to zero but for the rounding of D: what is left of TILE rows in a tile is the sum of their errors.
    const Tolerance of_tiles{8 * tolerance.relative, 3 * std::sqrt(double(TILE)) * tolerance.absolute};
    INFO("gradient of the tiles' numbers");
    if (!should.tile.empty()) CHECK(difference(is.tile, should.tile, of_tiles) == "");
}

template <class X, class P>
void check_attention_in(const Problem& original, const P& policy) {
    by_all_kernels(MAY_USE_WARPGROUPS<X, 64, P> && original.HS >= 64, [&] {
        const Problem p = rounded_problem<X>(original);
        INFO((std::is_same_v<X, bf16> ? "bf16" : "float"));
        INFO("B " << p.B << ", T " << p.T << ", S " << p.S << ", NH " << p.NH << ", NKV " << p.NKV << ", HS " << p.HS);
        AttentionOn<GPU, X, P> gpu(test_gpu(), p, policy);
        const Results is = gpu.forward(false), with_statistics = gpu.forward(true);
        const Gradients gradients = gpu.backward();
        const Threads one(1);   // many short runs
        AttentionOn<CPU, double, P> on_cpu({}, p, policy);
        const Results should = on_cpu.forward();
        const Tolerance tolerance = of_attention<X>(p), of_lse = of_attention<float>(p);
        CHECK(difference(is.out, should.out, tolerance) == "");
        CHECK(difference(is.gated_out, should.gated_out, tolerance) == "");
        CHECK(difference(no_infinity(is.lse), no_infinity(should.lse), of_lse) == "");
        CHECK(bit_difference(with_statistics.out, is.out) == "");
        CHECK(bit_difference(with_statistics.gated_out, is.gated_out) == "");
        CHECK(bit_difference(with_statistics.lse, is.lse) == "");
        CHECK(difference(no_infinity(with_statistics.tile_max), no_infinity(should.tile_max), of_lse) == "");
        CHECK(difference(with_statistics.entropy, should.entropy, {of_lse.relative, 1e-4}) == "");
        CHECK(bit_difference(with_statistics.pairs, should.pairs) == "");
        CHECK(bit_difference(with_statistics.tiles, should.tiles) == "");
        CHECK(difference(no_nan(with_statistics.pair_gate), no_nan(should.pair_gate), of_lse) == "");

        check_gradients_of(gradients, on_cpu.backward(), tolerance);
    });
}

/// Everything that both passes compute, to the last bit, in several orders.
template <class X, class P>
void check_same_bits_on_gpu(const Problem& p, const P& policy) {
    by_all_kernels(MAY_USE_WARPGROUPS<X, 64, P> && p.HS >= 64, [&] {
        auto all_results = [&] {
            AttentionOn<GPU, X, P> gpu(test_gpu(), p, policy);
            const Results r = gpu.forward(false);
            const Gradients g = gpu.backward();
            Numbers all;
            for (const Numbers* part : {&r.out, &r.gated_out, &r.lse, &g.q, &g.k, &g.v, &g.head, &g.row, &g.column, &g.tile, &g.gate})
                all.insert(all.end(), part->begin(), part->end());
            return all;
        };
        const Numbers once = all_results();
        CHECK(all_finite(no_infinity(once)));
        for (int order = 1; order <= 4; order++) {
            const Order chosen(order);
            CHECK(bit_difference(all_results(), once) == "");
        }
    });
}

template <class P>
void check_attention_on_gpu(const Problem& p, const P& policy) {
    check_attention_in<bf16>(p, policy);
    check_attention_in<float>(p, policy);
}
