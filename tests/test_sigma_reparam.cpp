// Linear layers by their spectral norm: formula, gradients, what a checkpoint has to hold.
#include "tests/errors.h"
#include "tests/sigma_policy.h"
#include "tests/whole_model.h"

namespace {

using Double = TrialOf<double, FreezesMlp>;
using Float = TrialOf<float, FreezesMlp>;

Config config_with(std::map<std::string, double> settings) {
    Config config = config_of({});
    config.settings = std::move(settings);
    config.settings.emplace("sigma_reparam", 1);
    return config;
}

}   // namespace

TEST_CASE("sigma: gradients of every tensor, u converged, in both forms", "[sigma]") {
    for (bool qwen2 : {false, true}) {
        Double trial(reparametrised(config_of({.qwen2 = qwen2, .tied = !qwen2})), 2, 9, 2, 9);
        CHECK(model_gradient_difference(trial) == "");
    }
}

TEST_CASE("sigma: a new model is the model without; switched off there is nothing of it", "[sigma]") {
    Trial<double> plain(named("causal"), config_of({}), 2, 13, 2, 13);
    Double with(config_with({}), 2, 13, 2, 13), off(config_with({{"sigma_reparam", 0}}), 2, 13, 2, 13);
    for (const Tensor& t : plain.gpt.net.tensors)
        for (auto* trial : {&with, &off})
            std::copy_n(plain.gpt.weights + t.slot.offset, t.slot.size,
                        trial->gpt.weights + trial->gpt.net.tensors.find(t.name)->slot.offset);
    for (const Tensor& t : with.gpt.net.tensors)
        if (!t.has_gradient()) initialise(t, 1, with.gpt.weights);
    start_sigma(with.gpt.net.sigma, with.gpt.net.sigma_names, with.gpt.weights, [](const std::string&) { return true; });
    with.weights_set(), off.weights_set();
    CHECK(std::abs(with.loss() - plain.loss()) < 1e-12);
    CHECK(off.loss() == plain.loss());
    CHECK(off.gpt.net.tensors.count() == plain.gpt.net.tensors.count());
    CHECK(off.gpt.master == off.gpt.weights);
}

TEST_CASE("sigma: a run that stops and goes on from its tensors and moments gives the same bits", "[sigma]") {
    const Threads one(1);
    const Config config = config_with({});
    Float whole(config, 2, 13, 2, 13), before(config, 2, 13, 2, 13), after(config, 2, 13, 2, 13);
    const std::vector<float> start = whole.all(whole.raw());
    for (int step = 1; step <= 6; step++) whole.loss_and_gradients(), whole.update({}, step);
    for (int step = 1; step <= 3; step++) before.loss_and_gradients(), before.update({}, step);
    const size_t n = before.gpt.net.tensors.size();
    std::copy_n(before.gpt.master, n, after.gpt.weights);   // as a checkpoint holds them
    std::copy_n(before.gpt.m, n, after.gpt.m), std::copy_n(before.gpt.v, n, after.gpt.v);
    after.weights_set();
    for (int step = 4; step <= 6; step++) after.loss_and_gradients(), after.update({}, step);
    CHECK(bit_difference(after.all(after.raw()), whole.all(whole.raw())) == "");
    for (const Tensor& t : whole.gpt.net.tensors) {
        INFO(t.name);
        if (t.role != Role::state) CHECK(bit_difference(after.of(after.gpt.weights, t), whole.of(whole.gpt.weights, t)) == "");
        CHECK(bit_difference(whole.of(whole.raw(), t), whole.of(start.data(), t)) != "");   // u as well
        if (t.role == Role::state) CHECK(whole.of(whole.gpt.m, t) == std::vector<float>(t.slot.size));
    }
}

TEST_CASE("sigma: a step that is not taken, and frozen layers, keep their u", "[sigma]") {
    Float trial(config_with({{"frozen_mlp", 1}}), 1, 9, 1, 9);
    const std::vector<float> before = trial.all(trial.raw()), read = trial.all(trial.gpt.weights);
    trial.loss_and_gradients();
    trial.gpt.norm(CPU{});
    trial.gpt.totals->loss = NAN;
    trial.gpt.update(CPU{}, {}, 1);
    CHECK(bit_difference(trial.all(trial.raw()), before) == "");
    CHECK(bit_difference(trial.all(trial.gpt.weights), read) == "");
    trial.loss_and_gradients();
    trial.update({}, 1);
    for (const Tensor& t : trial.gpt.net.tensors) {
        INFO(t.name);
        const bool mlp = t.name.find(".mlp.") != std::string::npos;
        CHECK(mlp == (t.role == Role::frozen));
        if (mlp || t.role != Role::state)   // a converged u may stay for a step
            CHECK((bit_difference(trial.of(trial.raw(), t), trial.of(before.data(), t)) == "") == mlp);
        if (mlp) CHECK(bit_difference(trial.of(trial.gpt.weights, t), trial.of(read.data(), t)) == "");
    }
}

TEST_CASE("sigma: a model for inference reads the same from what a checkpoint holds", "[sigma]") {
    const Config config = config_with({});
    Float training(config, 1, 9, 1, 9), inference(config, 1, 9, 1, 9, Recompute::nothing, 0, 1, Mode::inference);
    training.loss_and_gradients(), training.update({}, 1);
    std::copy_n(training.gpt.master, training.gpt.net.tensors.size(), inference.gpt.weights);
    inference.gpt.weights_loaded(CPU{});
    CHECK(inference.loss() == training.loss());
}

TEST_CASE("sigma: shards of the optimiser, and matrices that are kept as bf16, are refused", "[sigma]") {
    const Variant variant = variant_of<CpuLayer, FreezesMlp>;
    const auto of_shards = [&] { GPT<CPU, float> gpt(variant, config_with({}), 1, 9, Mode::training, Recompute::nothing, 0, 2); };
    const auto of_bf16 = [&] { GPT<CPU, float> gpt(variant, config_with({}), 1, 9, Stored::as_bf16); };
    CHECK(refusal(Exit::usage, of_shards).find("--zero-stage 0") != std::string::npos);
    CHECK(refusal(Exit::usage, of_bf16).find("--weights fp32") != std::string::npos);
}
