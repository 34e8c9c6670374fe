// Which layer of a hybrid has which attention (attention/layers.h).
#include "attention/layers.h"
#include "tests/errors.h"

namespace {

const Variant OWN = {"own", "", [] { return std::vector<Setting>{{"--window", "attention_window", 9, 0, 100, WHOLE, ""},
                                                                 {"--scale", "own_scale", 1, 0, 2, REAL, ""}}; }, nullptr};
const Variant PLAIN = {"causal", "", [] { return std::vector<Setting>(); }, nullptr};
const Variants BOTH(OWN, {&PLAIN});

/// The pattern of a model of L layers with these, as complete_layers() leaves it.
std::string completed(const std::vector<LayerAttention>& layers) {
    Config config;
    config.L = int(layers.size()), config.layers = layers;
    complete_layers(config, BOTH);
    return pattern_of(config, BOTH);
}
std::string pattern(const std::string& given, int L) { return completed(layers_of_pattern(given, L, BOTH)); }

void refuses(const std::string& given, const std::string& word) {
    INFO(given);
    CHECK(says(error_of([&] { pattern(given, 4); }), Exit::usage, {word}));
}

}   // namespace

TEST_CASE("layers: a pattern begins again after its last layer, and is cut off at L", "[layers]") {
    CHECK(pattern("own,causal", 4) == "own,causal,own,causal");
    CHECK(pattern("causal:2,own", 4) == "causal:2,own,causal");
    CHECK(pattern("own", 4) == "own");
    CHECK(pattern("own:3:window=4:scale=0.5,causal", 5) == "own:3,causal,own");   // what own layers share is the model's
    CHECK(pattern("own:window=4,own:window=8", 3) == "own:window=4,own:window=8,own:window=4");
    CHECK(pattern("own:window=9,own:2:window=8", 3) == "own,own:2:window=8");   // 9 is the model's
}

TEST_CASE("layers: what the layers of a mechanism share is a setting of the model, and the other's have none of it", "[layers]") {
    Config config;
    config.L = 3, config.layers = layers_of_pattern("own:window=4,causal", 3, BOTH);
    complete_layers(config, BOTH);
    CHECK((config.setting("attention_window") == 4 && config.of_layer(0).setting("attention_window") == 4));
    CHECK(config.of_layer(1).settings.count("attention_window") == 0);
    CHECK(config.of_layer(1).settings.count("sigma_reparam") == 1);
    config.layers = layers_of_pattern("own:window=7", 3, BOTH);
    complete_layers(config, BOTH);
    CHECK((config.layers.empty() && config.setting("attention_window") == 7));
    config.layers.assign(3, {"own"}), config.layers[1].settings["own_scale"] = 3;
    CHECK(says(error_of([&] { complete_layers(config, BOTH); }), Exit::usage, {"layer 1: --scale"}));
    config.layers[1] = {"mamba"};
    CHECK(says(error_of([&] { complete_layers(config, BOTH); }), Exit::checkpoint,
               {"layer 1: unknown attention variant 'mamba'; this program has: own, causal"}));
}

TEST_CASE("layers: dense ones beside the mechanism's", "[layers]") {
    CHECK(completed(layers_beside_dense("0,3", 4, BOTH)) == "causal,own:2,causal");
    for (const char* list : {"4", "-1", "x", "", "0,", "1,1", "0,1,2,3", "1.5"}) {
        INFO(list);
        CHECK(says(error_of([&] { layers_beside_dense(list, 4, BOTH); }), Exit::usage, {"--dense-layers " + std::string(list)}));
    }
}

TEST_CASE("layers: patterns that fit no model are refused with what there is", "[layers]") {
    refuses("nosuch", "this program has: own, causal");
    refuses("", "this program has: own, causal");
    refuses("own,,causal", "this program has: own, causal");
    for (const char* count : {"own:0", "own:-1", "own:x", "own:1.5", "own:5", "own:2:2", "own:window=1:2", "own:"}) refuses(count, "1 to 4");
    refuses("own:3,causal:2", "has 5 layers, but the model has 4");
    refuses("own:sinks=3", "its options are: window scale");
    refuses("causal:window=3,own", "its options are: none");
    refuses("own:window=x", "must give a number");
    refuses("own:window=inf", "must give a number");
    refuses("own:window=1:window=2", "twice");
    refuses("own:window=101", "from 0 to 100");
    refuses("causal", "leaves no layer to own; train such a model with ./train_causal");
}
