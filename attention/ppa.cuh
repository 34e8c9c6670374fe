// Probabilistic Positional Attention (aardXiv 2510_HUqQ1gn.00002). Only its abstract was available: "probabilistic
// positional priors" with "learnable positional decay and scale parameters". Read here as posterior = likelihood x prior,
// with one decay and one scale per head:
//     prior_h(j | i) ~ exp(-lambda_h (i - j))
//     z_ij = sigma_h a_ij - lambda_h (i - j),   a_ij = q_i.k_j / sqrt(HS),   j <= i
//     sigma_h = softplus(scale_h),   lambda_h = softplus(rho_h)
// The prior's normaliser is the same for all keys of a row and cancels in the softmax, so this is ALiBi with learned slopes and a
// learned temperature.
// The abstract leaves open, and this file assumes: RoPE is kept; sigma starts at 1 and lambda as ALiBi's slopes, 2^(-8 (h + 1) / NH).
#pragma once
#include <cmath>

#include "attention/kernel/layer.h"
#include "attention/scores/head_scalars.cuh"

struct ppa : HeadScalars<ppa> {
    static constexpr const char* name = "ppa";
    Slot rho, scale;   // (NH)
    int NH;

    ppa(const Config& config, int layer) : HeadScalars(config, layer), NH(config.NH) {}

    void declare(TensorList& list, const std::string& prefix) {
        std::vector<double> slopes;
        for (int h = 0; h < NH; h++) slopes.push_back(std::log(std::expm1(std::exp2(-8.0 * (h + 1) / NH))));
        const double one = 0.541324854612918;   // ln(e - 1)
        rho = list.add(prefix + "ppa.rho", {NH}, listed(slopes), Decay::no);
        scale = list.add(prefix + "ppa.scale", {NH}, constant(one), Decay::no);
    }

    // ---- score: scalars per head [sigma, lambda]

    constexpr Features features() const { return {2, 0, 0}; }

    template <class N>
    constexpr N score(N a, const Pair<N>& pair) const {
        return pair.head(0) * a - pair.head(1) * (pair.i - pair.j);
    }

    /// dsigma = sum a dz;  dlambda = -sum (i - j) dz. Rows of dz sum to 0, so the latter equals sum j dz, which column sums would
    /// give more cheaply; but j is large where i - j is small, and the gradient would be lost to cancellation in float32.
    template <class N, class Loss>
    constexpr N score_backward(N a, const Pair<N>& pair, PairGradients<N>& to, Loss dz_of) const {
        const N dz = dz_of(score(a, pair));
        to.head(0, a * dz);
        to.head(1, (pair.j - pair.i) * dz);
        return pair.head(0) * dz;
    }

    constexpr size_t head_weight(int h, int n) const { return (n == 0 ? scale : rho).offset + h; }
    template <class N>
    static constexpr N head_scalar(N weight, int) {
        return softplus(weight);
    }
    template <class N>
    static constexpr N head_scalar_slope(N weight, int) {
        return sigmoid(weight);
    }

    // ---- the formula without the hooks

    template <class X>
    void naive(const LayerInputs<X>& in, const X* weights, X* out) const {
        auto modify = [&](int, int h, int i, int j, X a) {
            const X sigma = std::log(1 + std::exp(weights[scale.offset + h]));
            const X lambda = std::log(1 + std::exp(weights[rho.offset + h]));
            return sigma * a - lambda * X(i - j);
        };
        dense_softmax(in, out, modify, [](int, int i, int j) { return j <= i; });
    }
};
