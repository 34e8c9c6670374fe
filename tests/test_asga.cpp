// ASGA's scale at the start: what it is by default, what --asga-scale makes of it, and ablations whose logits match the baseline's.
#include "attention/asga.cuh"
#include "attention/asga_fixed.cuh"
#include "attention/asga_neither.cuh"
#include "attention/asga_no_geometry.cuh"
#include "tests/whole_model.h"

namespace {

Config config_with(std::map<std::string, double> settings) {
    Config config = config_of({});
    config.settings.insert(settings.begin(), settings.end());
    return config;
}

/// What gamma of the first layer starts as.
double gamma_at_start(const char* variant, const std::map<std::string, double>& settings) {
    return Qwen(named(variant), config_with(settings)).tensors.find("model.layers.0.self_attn.asga.gamma")->init.value;
}

/// The loss with the weights of `baseline` and, of asga, c as it starts and gates of 1/2 exactly.
template <class A>
double loss_at_start(const Trial<double>& baseline, const std::map<std::string, double>& settings) {
    Trial<double> trial(named(A::name), config_with(settings), baseline.B, baseline.T, baseline.B, baseline.T);
    for (const Tensor& t : trial.gpt.net.tensors) {
        const Tensor* same = baseline.gpt.net.tensors.find(t.name);
        double* const to = trial.gpt.weights + t.slot.offset;
        if (same) std::copy_n(baseline.gpt.weights + same->slot.offset, t.slot.size, to);
        else if (t.name.ends_with("w2") || t.name.ends_with("b2")) std::fill_n(to, t.slot.size, 0.0);
        else if (t.name.ends_with("gamma")) std::fill_n(to, t.slot.size, t.init.value);
    }
    return trial.loss();
}

}   // namespace

TEST_CASE("ASGA: by default c starts at 2 where a gate halves it, else at 1", "[asga]") {
    CHECK(gamma_at_start("asga", {}) == 1.854586542131141);          // ln(e^2 - 1)
    CHECK(gamma_at_start("asga_fixed", {}) == 0.541324854612918);    // ln(e - 1)
    CHECK(Qwen(named("asga_no_geometry"), config_of({})).config.setting("asga_scale") == 1);
    CHECK(asga_neither::settings().empty());
}

TEST_CASE("ASGA: --asga-scale is where c starts", "[asga]") {
    for (const char* variant : {"asga", "asga_fixed"})
        for (double scale : {0.1, 0.5, 3.0, 100.0}) {
            INFO(variant << " " << scale);
            CHECK(std::abs(std::log1p(std::exp(gamma_at_start(variant, {{"asga_scale", scale}}))) - scale) <= 1e-12 * scale);
        }
    CHECK_THROWS_AS(gamma_at_start("asga", {{"asga_scale", 0}}), Error);   // softplus is never 0
}

TEST_CASE("ASGA: with gates of 1/2, asga and its ablation with --asga-scale 2 start as causal attention does", "[asga]") {
    const Threads one(1);
    Trial<double> baseline(named("causal"), ModelShape{});
    const double expected = baseline.loss();
    CHECK(std::abs(loss_at_start<asga>(baseline, {}) - expected) <= 1e-12);
    CHECK(std::abs(loss_at_start<asga_no_geometry>(baseline, {{"asga_scale", 2}}) - expected) <= 1e-12);
    CHECK(std::abs(loss_at_start<asga_no_geometry>(baseline, {}) - expected) > 1e-3);   // half of the logits
    CHECK(std::abs(loss_at_start<asga>(baseline, {{"asga_scale", 1}}) - loss_at_start<asga_no_geometry>(baseline, {})) <= 1e-12);
}
