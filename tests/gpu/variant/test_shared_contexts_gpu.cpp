// Multiple choice with each context computed once on the GPU, against passes of the CPU, in double, over every answer with its context.
// On a machine without a GPU it runs on the emulator.
#include "tests/gpu/gpu_trial.h"
#include "tests/items.h"

namespace {

/// Of those that are rounded as well: one that reads nothing but keys, one that reads queries and keys before their rotation, and two that
/// read the block's input, of which one has passes of its own. What others choose of rounded scores may be another choice.
bool is_rounded_here(const Variant& variant) {
    const auto names = {"causal", "asga", "dsa", "nsa"};
    return std::any_of(names.begin(), names.end(), [&](const char* name) { return name == std::string(variant.name); });
}

template <class X>
void check_scores(const Variant& variant, bool qwen2, Tolerance tolerance) {
    const Threads one(1);
    const Config config = small_config(qwen2);
    Trial<double> exact(Variants(named(variant.name)), config, 2, 67, 2, 67);
    const std::vector<float> weights = round_weights<X>(exact);
    GpuTrial<X> trial(Variants(variant), config, 2, 67);
    trial.set_weights(weights);
    SharedContexts<GPU, X> shared(trial.device, trial.gpt, trial.feed);
    shared.allocate();
    const std::vector<EvaluationItem> items = random_items({{13, {1, 3}}, {40, {2, 1, 9}}, {1, {1, 1}}}, config.V);
    CHECK(difference(shared.log_likelihoods(items), one_by_one(exact, items), tolerance) == "");
}

}   // namespace

GPU_VARIANT_CASE(" evaluation on the GPU: contexts that are computed once give the CPU's scores", "[gpu][evaluation][variant]") {
    check_scores<float>(variant, false, {1e-4});
    if (is_rounded_here(variant)) check_scores<bf16>(variant, true, {5e-2});
}
