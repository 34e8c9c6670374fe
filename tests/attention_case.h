// Shared by the tests of attention: random values, a gradient check, and one attention layer set up as in
// model/gpt.cu, so that any variant can be run forward and backward on its own.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "attention/masks/pattern.h"
#include "model/operations/qk_rope.cuh"
#include "tests/check.h"
#include "tests/errors.h"
#include "tests/variants.h"

/// Normal variates, drawn in double: a float case is the rounded double case of the same seed.
template <class X = double>
std::vector<X> normal_numbers(size_t n, uint64_t seed, double deviation = 1) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<double> normal(0, deviation);
    std::vector<X> numbers(n);
    for (X& number : numbers) number = X(normal(generator));
    return numbers;
}

template <class X>
bool all_finite(const std::vector<X>& numbers) {
    return std::all_of(numbers.begin(), numbers.end(), [](X number) { return std::isfinite(number); });
}

/// A log-sum-exp of -infinity, that of a row that sees nothing, has no difference to itself.
inline std::vector<double> no_infinity(std::vector<double> numbers) {
    std::replace(numbers.begin(), numbers.end(), double(-INFINITY), -10.0);
    return numbers;
}

/// Error of `gradient` against a central difference along a random direction, which moves values[n] where moves(n), so that an error
/// in any of them shows. Steps of 1e-4 take several variants across a decision (top-k, thresholds) within two hundred tokens, where
/// the loss jumps, and even 1e-5 did; this one is smaller. What remains is rounding: a loss of some hundreds is known to about 1e-14,
/// its slope to some 1e-8. So errors are relative to the gradient's norm, or to 0.1 if that is larger. The correct gradients of all
/// variants are within 1.4e-7.
template <class Moves, class Loss>
double slope_error(std::vector<double>& values, const std::vector<double>& gradient, Moves moves, Loss loss, double h = 2e-6) {
    std::vector<size_t> moved;
    for (size_t n = 0; n < values.size(); n++)
        if (moves(n)) moved.push_back(n);
    const std::vector<double> direction = normal_numbers(moved.size(), 977), start = values;
    auto at = [&](double step) {
        for (size_t m = 0; m < moved.size(); m++) values[moved[m]] = start[moved[m]] + step * direction[m];
        return loss();
    };
    const double slope = (at(h) - at(-h)) / (2 * h);
    values = start;
    double product = 0, squares = 0;
    for (size_t m = 0; m < moved.size(); m++) {
        const double g = gradient[moved[m]];
        product += g * direction[m], squares += g * g;
    }
    return std::fabs(slope - product) / std::max(std::sqrt(squares), 0.1);
}

inline double sum_of(const std::vector<double>& numbers) { return std::accumulate(numbers.begin(), numbers.end(), 0.0); }

struct LayerSizes {
    int B, T, NH, NKV, HS;
    std::map<std::string, double> settings = {};
    int C = 24;
};

inline std::string text_of(const LayerSizes& s) {
    std::ostringstream text;
    text << "B " << s.B << ", T " << s.T << ", NH " << s.NH << ", NKV " << s.NKV << ", HS " << s.HS;
    for (const auto& [key, value] : s.settings) text << ", " << key << " " << value;
    return text.str();
}

/// One attention layer of a variant with random inputs and random tensors of its own. forward() and backward() call what
/// attention_half_backward() in model/gpt.cu calls, in its order.
template <class X>
class AttentionCase {
public:
    Config config;
    int B, T, heads;
    TensorList tensors;
    std::unique_ptr<AttentionLayer> attention;
    LayerFacts facts;

    // Inputs, which tests may change.
    std::vector<X> weights;   // the variant's tensors
    std::vector<X> x;         // (B, T, C)
    std::vector<X> qkv;       // (B, T, NH + 2 NKV, HS), the fused projection of the model; q and k enter without a norm
    Documents documents = {};

    // Results of forward() and backward().
    std::vector<X> out, gated_out, lse;
    std::vector<X> auxiliary;   // (B, NH), empty if the policy has no auxiliary loss
    std::vector<X> dweights, dx, dqkv;
    std::vector<X> dqk;   // of q and k after RoPE

    double auxiliary_weight = 1;   // of the policy's auxiliary loss in loss()
    Statistics<X> statistics = {};   // of forward(), where requested

    AttentionCase(const Variant& variant, const LayerSizes& sizes, uint64_t seed = 1)
        : config(config_of(variant, sizes)), B(sizes.B), T(sizes.T), heads(sizes.NH + sizes.NKV),
          attention(variant.make_layer(config, 0)), facts(attention->facts), variant_(variant) {
        attention->declare(tensors, "model.layers.0.self_attn.");
        const size_t BT = size_t(B) * T, HS = sizes.HS;
        weights.assign(tensors.size(), X(0));
        for (const Tensor& tensor : tensors) draw(tensor, seed++);
        x = normal_numbers<X>(BT * config.C, seed + 100);
        qkv = normal_numbers<X>(BT * (heads + config.NKV) * HS, seed + 101);
        take_memory();
    }

    /// Whether the variant accepts this combination: one setting may limit another, and the number of heads may limit both.
    static bool accepts(const Variant& variant, const LayerSizes& sizes) {
        const Error error = error_of([&] { variant.make_layer(config_of(variant, sizes), 0); });
        if (error.code != Exit::done && error.code != Exit::usage) throw error;
        return error.code == Exit::done;
    }

    /// Initialises what the kernel must overwrite with NaN, and what it may leave stale (padding of features) with finite values.
    void forward() {
        qk_norm_rope_forward(CPU{}, qk.data(), qk_pre.data(), static_cast<X*>(nullptr), qkv.data(), shape(), 0);
        fill_all(memory, X(3));
        for (auto* result : {&out, &gated_out, &lse, &auxiliary}) result->assign(result->size(), std::numeric_limits<X>::quiet_NaN());
        passes().forward(CPU{}, inputs(), weights.data(), state, workspace.data(), statistics);
    }

    /// Needs forward(). `dout` (B, T, NH, HS) is the gradient of gated_out. dweights and dx are added to.
    void backward(const std::vector<X>& dout) {
        const X nan = std::numeric_limits<X>::quiet_NaN();
        const size_t HS = config.HS, k_at = config.NH * HS, v_at = heads * HS, v_row = v_at + config.NKV * HS;
        fill_all(dmemory, nan);
        for (auto* result : {&dqk, &dqk_pre, &dqkv}) result->assign(result->size(), nan);
        const LayerInputs<X> in = inputs();
        const Heads<X> dq{dqk.data(), v_at}, dk{dqk.data() + k_at, v_at}, dv{dqkv.data() + v_at, v_row};
        X* dpre = facts.reads_qk_pre ? dqk_pre.data() : nullptr;
        ScoreInputGradients<X> gradients{dscore_inputs, dpre, dpre ? dpre + k_at : nullptr, facts.reads_x ? dx.data() : nullptr,
                                    dweights.data(), X(auxiliary_weight)};
        passes().backward(CPU{}, in, weights.data(), state, dout.data(), {dq, dk, dv}, gradients, workspace.data());
        X* const no_weight = nullptr;
        qk_norm_rope_backward(CPU{}, dqkv.data(), no_weight, no_weight, dqk.data(), dpre, qkv.data(), no_weight, shape(),
                              Write::overwrite);
    }

    /// <dout, gated_out> plus the policy's weighted auxiliary loss: the scalar whose gradients backward(dout) computes.
    double loss(const std::vector<X>& dout) {
        forward();
        double total = 0;
        for (X part : auxiliary) total += auxiliary_weight * double(part);
        for (size_t n = 0; n < dout.size(); n++) total += double(dout[n]) * double(result()[n]);
        return total;
    }

    /// Whether nothing was written beyond the memory that the layer asked for.
    bool kept_within_memory() const {
        auto untouched = [](const std::vector<std::byte>& memory) {
            return std::all_of(memory.end() - BEHIND, memory.end(), [](std::byte b) { return b == UNTOUCHED; });
        };
        return untouched(kept) && untouched(workspace);
    }

    /// (B, T, NH, HS) what the output projection reads.
    const std::vector<X>& result() const { return facts.gated ? gated_out : out; }

    LayerInputs<X> inputs() const {
        const size_t HS = config.HS, k_at = config.NH * HS, v_at = heads * HS;
        return {{B, T, config.C, config.NH, config.NKV, config.HS}, x.data(), qk_pre.data(), qk_pre.data() + k_at, qk.data(),
                qk.data() + k_at, qkv.data() + v_at, v_at, v_at + config.NKV * HS, cosine.data(), sine.data(), documents};
    }

    const CpuPasses<X>& passes() const { return cpu_passes_of<X>(*attention); }

    /// What the layer's naive() prints for the inputs.
    std::vector<X> naive() const {
        std::vector<X> printed(out.size());
        passes().naive(inputs(), weights.data(), printed.data());
        return printed;
    }

    /// What the last forward() has kept.
    const LayerState<X>& kept_state() const { return state; }

private:
    const Variant& variant_;

    QkShape<X> shape() const {
        return {B, T, config.NH, config.NKV, config.HS, nullptr, nullptr, {cosine.data(), sine.data()},
                documents.restart_positions ? documents.start : nullptr};
    }

    std::vector<X> qk, qk_pre, dqk_pre, cosine, sine;
    Arena<CPU> memory, dmemory;   // of score inputs and their gradients
    LayerState<X> state;
    ScoreInputs<X> dscore_inputs;
    std::vector<std::byte> kept, workspace;   // with guard bytes after them
    static constexpr size_t BEHIND = 4096;
    static constexpr std::byte UNTOUCHED{0xa5};

    static Config config_of(const Variant& variant, const LayerSizes& sizes) {
        Config config;
        config.C = sizes.C, config.L = 1, config.NH = sizes.NH, config.NKV = sizes.NKV, config.HS = sizes.HS, config.rope_theta = 1e4;
        config.variant = variant.name;
        config.settings = sizes.settings;
        complete_settings(config, variant.settings());
        return config;
    }

    /// Matrices scaled so that products with unit vectors are of size 1, the rest around its initial value: far from the small
    /// weights of a new model, at which wrong terms could hide.
    void draw(const Tensor& tensor, uint64_t seed) {
        const bool matrix = tensor.shape.size() > 1;
        const double deviation = matrix ? 1 / std::sqrt(double(tensor.shape.back())) : 0.5;
        const auto numbers = normal_numbers<X>(tensor.slot.size, seed, deviation);
        for (size_t n = 0; n < numbers.size(); n++) weights[tensor.slot.offset + n] = X(tensor.init.start(n)) + numbers[n];
    }

    void take_memory() {
        const size_t BT = size_t(B) * T, HS = config.HS;
        for (auto* buffer : {&qk, &qk_pre, &dqk, &dqk_pre}) buffer->resize(BT * heads * HS);
        cosine.resize(size_t(T) * HS / 2), sine.resize(cosine.size());
        rope_table(CPU{}, cosine.data(), sine.data(), T, config.rope(), facts.rotates);
        out.resize(BT * config.NH * HS), gated_out.resize(out.size()), lse.resize(BT * config.NH);
        dweights.resize(weights.size()), dx.resize(x.size()), dqkv.resize(qkv.size());
        for (int pass = 0; pass < 2; pass++) {   // the first learns the size
            state.score_inputs = take_score_inputs<X>(memory, facts.features, facts.gated, B, T, config.NH, 1);
            dscore_inputs = take_score_inputs<X>(dmemory, facts.features, facts.gated, B, T, config.NH, B);
            if (pass == 0) memory.allocate(), dmemory.allocate();
        }
        if (facts.has_auxiliary_loss) auxiliary.resize(size_t(B) * config.NH), state.score_inputs.auxiliary = auxiliary.data();
        const LayerShape s{B, T, config.C, config.NH, config.NKV, config.HS};
        kept.assign(passes().kept_bytes(s) + BEHIND, UNTOUCHED);
        workspace.assign(passes().workspace_bytes(CPU{}, s) + BEHIND, UNTOUCHED);
        state.out = out.data(), state.lse = lse.data(), state.kept = kept.data();
        state.gated_out = facts.gated ? gated_out.data() : out.data();
    }

    static void fill_all(Arena<CPU>& memory, X value) {
        memory.rewind(0);
        std::fill_n(memory.take<X>(0), memory.bytes() / sizeof(X), value);
    }
};

/// A layer whose concrete policy is accessible to the test.
template <class X, class A>
struct PolicyCase : AttentionCase<X> {
    const A& policy;
    explicit PolicyCase(const LayerSizes& sizes, const Variant& variant = named(A::name))
        : AttentionCase<X>(variant, sizes), policy(policy_of<A>(*this->attention)) {}
};

inline void check_against_naive(const Variant& variant, const LayerSizes& sizes) {
    INFO(text_of(sizes));
    AttentionCase<double> layer(variant, sizes);
    layer.forward();
    CHECK(difference(layer.result(), layer.naive(), {1e-12}) == "");
}
