// Hybrids: models in which layers of each attention variant lie between causal ones.
#include "attention/layers.h"
#include "model/checkpoint/checkpoint.h"
#include "model/run/summary.h"
#include "tests/temporary_folder.h"
#include "tests/whole_text.h"

namespace {

Variants with_causal(const Variant& variant) { return {variant, {&on_cpu::causal}}; }

Config three_layers() {
    Config config = config_of({});
    config.L = 3;
    return config;
}

/// The first is causal, the others are of the variant; of causal all are.
Config hybrid_of(const Variant& variant) {
    Config config = three_layers();
    config.layers = layers_beside_dense("0", 3, with_causal(variant));
    return config;
}

template <class X>
Trial<X> hybrid(const Variant& variant, int T = 21, Recompute recompute = Recompute::nothing) {
    return Trial<X>(with_causal(variant), hybrid_of(variant), 2, T, 2, T, recompute);
}

}   // namespace

VARIANT_CASE(" hybrid: each layer is of its variant, and only those of a mechanism have its tensors", "[hybrid][variant]") {
    const Qwen net(with_causal(variant), hybrid_of(variant)), uniform(variant, three_layers());
    const Qwen causal(on_cpu::causal, three_layers());
    CHECK(net.layers[0].variant->name == std::string("causal"));
    CHECK(net.layers[0].own.size == 0);
    for (int l : {1, 2}) {
        CHECK(net.layers[l].variant->name == std::string(variant.name));
        CHECK(net.layers[l].own.size == uniform.layers[l].own.size);
        CHECK(net.layers[l].attention->expected_pairs(4, 40).pairs == uniform.layers[l].attention->expected_pairs(4, 40).pairs);
    }
    if (variant.name == std::string("causal")) CHECK(net.config.layers.empty());

    const int T = 40;   // FLOPs are those of the layers' mechanisms, and of the parameters
    auto pairs_of = [&](const Qwen& of, int l) {
        const AttentionLayer& layer = *of.layers[l].attention;
        return 12 * layer.expected_pairs(4, T).pairs + 4 * layer.further_pairs(4, T);
    };
    const double pairs = pairs_of(causal, 0) + pairs_of(uniform, 1) + pairs_of(uniform, 2);
    CHECK(std::abs(count_flops(net, T).per_token - (6 * net.matmul_parameters() + pairs * net.config.HS / T)) < 1e-6);
}

VARIANT_CASE(" hybrid: gradients of the attention of each layer are those by differences, and float follows double", "[hybrid][variant]") {
    const Threads one(1);
    Trial<double> exact = hybrid<double>(variant);
    for (const char* layer : {"layers.0.self_attn.k_proj", "layers.2.self_attn"}) CHECK(model_gradient_difference(exact, layer) == "");
    Trial<float> rounded = hybrid<float>(variant), recomputed = hybrid<float>(variant, 21, Recompute::layers);
    const double expected = exact.loss_and_gradients(), loss = rounded.loss_and_gradients();
    CHECK(std::abs(loss - expected) <= rounding<float>(64).relative * expected);
    CHECK(recomputed.loss_and_gradients() == loss);
    CHECK(gradient_difference(rounded.gradients(), exact, {rounding<float>(134).relative, 1e-6}) == "");
    CHECK(gradient_bit_difference(recomputed, rounded) == "");
}

VARIANT_CASE(" hybrid: memory is as planned, steps move every layer, and a checkpoint goes on to the bit", "[hybrid][variant]") {
    const Threads one(1);
    Trial<float> whole = hybrid<float>(variant), first = hybrid<float>(variant);
    size_t kept = 0;
    for (size_t bytes : whole.gpt.attention_bytes) kept += bytes;
    CHECK((kept > 0 && kept < whole.gpt.activation_memory.bytes()));
    const std::vector<float> before = whole.all(whole.raw());
    for (int step = 1; step <= 3; step++) whole.loss_and_gradients(), whole.update({}, step);
    for (const Tensor& t : whole.gpt.net.tensors)
        if (t.name.find("q_proj.weight") != std::string::npos && t.role == Role::decays)
            CHECK(bit_difference(whole.of(whole.raw(), t), whole.of(before.data(), t)) != "");

    for (int step = 1; step <= 2; step++) first.loss_and_gradients(), first.update({}, step);
    const TemporaryFolder folder;
    const TensorList& tensors = first.gpt.net.tensors;
    TrainerState state{};
    state.step = 2;
    const auto saved = save_checkpoint(folder.path(), first.gpt.net.config, tensors, first.gpt.weights, first.gpt.m, first.gpt.v, state, nullptr);
    Config config = load_config(saved);
    CHECK(config_to_json(config) == config_to_json(first.gpt.net.config));
    Trial<float> resumed(with_causal(variant), config, 2, 21, 2, 21);
    CHECK(resumed.gpt.net.config.layers == first.gpt.net.config.layers);
    load_weights(saved, tensors, 1, resumed.gpt.weights);
    load_state(saved, tensors, resumed.gpt.m, resumed.gpt.v);
    resumed.weights_set();
    resumed.loss_and_gradients(), resumed.update({}, 3);
    CHECK(bit_difference(resumed.all(resumed.gpt.weights), whole.all(whole.gpt.weights)) == "");
}

VARIANT_CASE(" hybrid: text is the same with a cache and without", "[hybrid][variant]") {
    const Qwen net(with_causal(variant), hybrid_of(variant));
    CHECK(net.all(&LayerFacts::decodes) == net.layers[1].attention->facts.decodes);
    check_whole_text<double>(with_causal(variant), hybrid_of(variant), 33, 40, 5e-12);
}
