// Bayesian Attention Mechanism (Bianchessi et al. 2025, arXiv 2505.22842): positions as a prior over keys, a generalized Gaussian of the
// distance, instead of RoPE.
//     P_ij ~ exp(a_ij) p(j | i)     p(j | i) ~ exp(-lambda_h (i - j + eps)^beta_h)     a_ij = q_i.k_j / sqrt(HS),   j <= i
//     z_ij = a_ij - lambda_h (i - j + eps)^beta_h,   lambda_h = exp(scale_h),   beta_h = shape_h,   eps = 1e-5
// The normaliser of the prior is the same for all keys of a row and cancels in the softmax. With beta = 1 this is ALiBi; with beta or
// lambda near 0 no key is preferred. A negative beta, which training may reach, prefers distant keys.
// Open in the paper, and taken from the released code (ArthurSBianchessi/BAM, models/bam.py): beta starts at 1, lambda at ALiBi's slopes,
// 2^(-8 (h + 1) / NH); the prior's location stays 0; every layer and head has its own prior. The code's options of one prior for all
// layers (global_positional_encoding) and of SSMax, a softmax scale that grows with the number of keys, are left out.
#pragma once
#include <cmath>

#include "attention/kernel/layer.h"
#include "attention/scores/head_scalars.cuh"

struct bam : HeadScalars<bam> {
    static constexpr const char* name = "bam";
    Slot shape, scale;   // (NH)
    int NH;

    bam(const Config& config, int layer) : HeadScalars(config, layer), NH(config.NH) {}

    Form form() const { return {.rotates = false}; }

    void declare(TensorList& list, const std::string& prefix) {
        std::vector<double> slopes;   // logarithms
        for (int h = 0; h < NH; h++) slopes.push_back(std::log(2.0) * -8.0 * (h + 1) / NH);
        shape = list.add(prefix + "bam.shape", {NH}, constant(1), Decay::no);
        scale = list.add(prefix + "bam.scale", {NH}, listed(slopes), Decay::no);
    }

    // ---- score: scalars per head [lambda, beta]

    constexpr Features features() const { return {2, 0, 0}; }

    /// log(|i - j| + eps): hidden pairs have i < j.
    template <class N>
    static constexpr N log_distance(const Pair<N>& pair) {
        const N d = pair.i - pair.j;
        return log_of((d < N{} ? -d : d) + Element<N>(1e-5));
    }
    /// exp(beta log), capped at e^60: an infinite power would turn a gradient of 0 into NaN.
    template <class N>
    static constexpr N power(N log, const Pair<N>& pair) {
        const N exponent = pair.head(1) * log, most = N{} + Element<N>(60);
        return exp_of(exponent > most ? most : exponent);
    }
    template <class N>
    constexpr N score(N a, const Pair<N>& pair) const {
        return a - pair.head(0) * power(log_distance(pair), pair);
    }

    /// With p = (i - j + eps)^beta:   dlambda = -sum p dz,   dbeta = -lambda sum p log(i - j + eps) dz.
    template <class N, class Loss>
    constexpr N score_backward(N a, const Pair<N>& pair, PairGradients<N>& to, Loss dz_of) const {
        const N log = log_distance(pair), p = power(log, pair);
        const N dz = dz_of(a - pair.head(0) * p), dp = p * dz;
        to.head(0, -dp);
        to.head(1, -(pair.head(0) * (dp * log)));
        return dz;
    }

    constexpr size_t head_weight(int h, int n) const { return (n == 0 ? scale : shape).offset + h; }
    template <class N>
    static constexpr N head_scalar(N weight, int n) {
        return n == 0 ? exp_of(weight) : weight;
    }
    template <class N>
    static constexpr N head_scalar_slope(N weight, int n) {
        return n == 0 ? exp_of(weight) : N(1);
    }

    // ---- the formula without the hooks

    template <class X>
    void naive(const LayerInputs<X>& in, const X* weights, X* out) const {
        auto modify = [&](int, int h, int i, int j, X a) {
            return a - std::exp(weights[scale.offset + h]) * std::pow(X(i - j) + X(1e-5), weights[shape.offset + h]);
        };
        dense_softmax(in, out, modify, [](int, int i, int j) { return j <= i; });
    }
};
