// config.json of Gemma 3: as transformers 4 and 5 write it, as it is written here, and what is refused.
#include "catch.h"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "model/base/error.h"
#include "model/checkpoint/checkpoint.h"
#include "model/gemma.h"
#include "model/layer_types.h"

using nlohmann::json;

namespace {

/// The text of google/gemma-3-1b-pt, as transformers 4.50 wrote it.
json published() {
    return json::parse(R"({"architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "attn_logit_softcapping": null, "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
        "final_logit_softcapping": null, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152,
        "initializer_range": 0.02, "intermediate_size": 6912, "max_position_embeddings": 32768, "model_type": "gemma3_text",
        "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512,
        "sliding_window_pattern": 6, "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "use_cache": true,
        "vocab_size": 262144})");
}

Config read(const json& object) { return config_from_json(object.dump(), "here/config.json"); }

void refused(json object, const std::string& key, const json& value, const std::string& expected = "") {
    object[key] = value;
    std::string sentence = "accepted";
    try {
        read(object);
    } catch (const Error& error) {
        CHECK(error.code == Exit::checkpoint);
        sentence = error.what();
    }
    INFO(sentence);
    CHECK(sentence.find("here/config.json") != std::string::npos);
    CHECK(sentence.find(expected.empty() ? key : expected) != std::string::npos);
}

json rope_parameters(const json& full, const json& sliding) { return {{"full_attention", full}, {"sliding_attention", sliding}}; }

}   // namespace

TEST_CASE("Gemma's config.json as transformers 4 writes it", "[gemma][config]") {
    const Config c = read(published());
    REQUIRE(c.gemma);
    CHECK((c.qk_norm && !c.qkv_bias && c.tied));   // tied by default, where Qwen is not
    CHECK((c.V == 262144 && c.HS == 256 && c.NKV == 1 && c.end_of_text == 1 && c.begin_of_text() == 2));
    CHECK((c.gemma->query_scalar == 256 && c.gemma->local_theta == 1e4 && c.gemma->rope_factor == 1 && c.rope_theta == 1e6));
    CHECK(c.variant == "sliding_window");
    CHECK(c.setting("attention_window") == 511);
    CHECK(c.settings.size() == 1);
    for (int l = 0; l < c.L; l++) {
        CHECK(c.of_layer(l).variant == (l % 6 == 5 ? "causal" : "sliding_window"));
        CHECK(c.rope(l) == (l % 6 == 5 ? Rope{1e6} : Rope{1e4}));
    }
    CHECK(c.embedding_scale() == double(std::sqrt(1152.0f)));
    CHECK(Config{}.embedding_scale() == 1);
}

TEST_CASE("Gemma's config.json as transformers 5 writes it", "[gemma][config]") {
    json object = published();
    for (const char* key : {"rope_theta", "rope_local_base_freq", "rope_scaling", "sliding_window_pattern"}) object.erase(key);
    object["query_pre_attn_scalar"] = 168;
    object["rope_parameters"] = rope_parameters({{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 2e6}},
                                                {{"rope_type", "default"}, {"rope_theta", 3e4}});
    Config c = read(object);
    const double scaling = std::pow(256 / 168.0, 0.25);
    CHECK(c.rope(5) == Rope{2e6, true, 8, scaling});
    CHECK(c.rope(0) == Rope{3e4, true, 1, scaling});
    object["rope_parameters"] = rope_parameters({{"rope_type", "default"}}, nullptr);   // defaults of transformers
    c = read(object);
    CHECK((c.rope_theta == 1e6 && c.gemma->local_theta == 1e4));
    object["layer_types"] = json::array();
    for (int l = 0; l < c.L; l++) object["layer_types"].push_back(l < 20 ? "full_attention" : "sliding_attention");
    c = read(object);
    CHECK((c.of_layer(5).variant == "causal" && c.of_layer(20).variant == "sliding_window"));
}

TEST_CASE("Gemma's config.json without what has a default", "[gemma][config]") {
    json object = published();
    for (const char* key : {"rope_theta", "rope_local_base_freq", "query_pre_attn_scalar", "sliding_window", "sliding_window_pattern",
                            "hidden_activation", "architectures", "head_dim", "max_position_embeddings"})
        object.erase(key);
    Config c = read(object);
    CHECK((c.setting("attention_window") == 4095 && c.of_layer(5).variant == "causal" && c.of_layer(11).variant == "causal"));
    CHECK((c.gemma->query_scalar == 256 && c.rope_theta == 1e6 && c.gemma->local_theta == 1e4));
    CHECK((c.HS == 256 && c.max_positions == 131072));
    object["_sliding_window_pattern"] = 2;
    c = read(object);
    CHECK((c.of_layer(0).variant == "sliding_window" && c.of_layer(1).variant == "causal"));
    object["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
    CHECK(read(object).gemma->rope_factor == 8);
    object["_sliding_window_pattern"] = 1;   // no layer slides
    CHECK((read(object).variant == "causal" && read(object).layers.empty()));
}

TEST_CASE("Gemma's ids of what begins and ends a text come back: missing, null, one and several", "[gemma][config]") {
    const auto again = [](const json& object) { return json::parse(config_to_json(read(object))); };
    json object = published();
    for (const char* key : {"bos_token_id", "eos_token_id"}) object.erase(key);
    json written = again(object);   // what transformers takes
    CHECK((written["bos_token_id"] == 2 && written["eos_token_id"] == 1));
    object["vocab_size"] = 2;   // too few for that
    CHECK((again(object)["bos_token_id"].is_null() && again(object)["eos_token_id"] == 1));
    object = published();
    object["bos_token_id"] = object["eos_token_id"] = nullptr;
    written = again(object);
    CHECK((written["bos_token_id"].is_null() && written["eos_token_id"].is_null()));
    object["eos_token_id"] = 256;
    CHECK((again(object)["bos_token_id"].is_null() && again(object)["eos_token_id"] == 256));

    object["eos_token_id"] = {1, 106};
    Config c = read(object);
    CHECK((c.end_of_text == -1 && c.ends_of_text() == std::vector<int>{1, 106}));
    CHECK(again(object)["eos_token_id"] == json{1, 106});
    CHECK(again(again(object)) == again(object));
    c.end_of_text = 106;   // as the tokenizer of the data says
    CHECK(json::parse(config_to_json(c))["eos_token_id"] == json{1, 106});
    c.end_of_text = 7;
    CHECK(json::parse(config_to_json(c))["eos_token_id"] == 7);
    object["eos_token_id"] = {106, 1 << 20};   // beyond the vocabulary
    CHECK((read(object).end_of_text == 106 && again(object)["eos_token_id"] == 106));
}

TEST_CASE("Gemma's config.json says of every folder which trainer it is for", "[gemma][config]") {
    json object = published();
    object["layer_types"] = std::vector<std::string>(26, "full_attention");
    CHECK((read(object).names_variant && read(object).variant == "causal" && transformers_computes(read(object))));
    object["layer_types"] = std::vector<std::string>(26, "sliding_attention");
    CHECK((read(object).names_variant && read(object).variant == "sliding_window"));
    object.erase("layer_types");
    CHECK((read(object).names_variant && read(object).variant == "sliding_window"));
    refused(object, "attention_variant", "causal", "\"attention_variant\" is \"causal\", but without \"layer_types\"");
    object["attention_variant"] = "sliding_window";
    CHECK(read(object).of_layer(5).variant == "causal");
}

TEST_CASE("Gemma's numbers are in the words for people", "[gemma][config]") {
    json object = published();
    CHECK(form_in_words(read(object)) ==
          "Gemma 3, QK-norm, logits q.k / sqrt(256), RoPE's base 10000 in layers that slide and 1e+06 in the others");
    object["query_pre_attn_scalar"] = 168, object["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
    CHECK(form_in_words(read(object)).ends_with("sqrt(168), RoPE's base 10000 in layers that slide and 1e+06 and positions / 8 in the others"));
    CHECK((form_in_words(preset("qwen-tiny")) == "QK-norm" && form_in_words(preset("qwen2.5-0.5b")) == "no QK-norm, QKV bias"));
}

TEST_CASE("more layers than any model has are refused before there is anything for each of them", "[gemma][config]") {
    json gemma = published(), qwen = json::parse(config_to_json(preset("qwen-tiny")));   // with something amiss in what layers have
    gemma["sliding_window_pattern"] = 0;
    qwen.erase("attention_variant"), qwen["use_sliding_window"] = true, qwen["sliding_window"] = 8, qwen["max_window_layers"] = -1;
    for (const json& object : {gemma, qwen}) {
        refused(object, "num_hidden_layers", 4096, object == qwen ? "max_window_layers" : "sliding_window_pattern");
        for (int layers : {4097, 2147483647})
            refused(object, "num_hidden_layers", layers, "num_hidden_layers is " + std::to_string(layers) + ", expected 1 to 4096");
    }
}

TEST_CASE("Gemma's config.json is written as both versions of transformers read it", "[gemma][config]") {
    json object = published();
    object["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
    object["query_pre_attn_scalar"] = 168;
    const std::string text = config_to_json(read(object));
    const json written = json::parse(text);
    for (const char* key : {"architectures", "model_type", "hidden_activation", "query_pre_attn_scalar", "rope_theta", "rope_local_base_freq",
                            "rope_scaling", "sliding_window", "sliding_window_pattern", "attn_logit_softcapping", "final_logit_softcapping",
                            "attention_bias", "vocab_size", "head_dim", "bos_token_id", "eos_token_id"}) {
        INFO(key);
        CHECK(written[key] == object[key]);
    }
    CHECK(written["rope_parameters"] == rope_parameters({{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}},
                                                        {{"rope_type", "default"}, {"rope_theta", 1e4}}));
    CHECK((written["layer_types"].size() == 26 && written["layer_types"][5] == "full_attention" && written["layer_types"][6] == "sliding_attention"));
    CHECK(written["tie_word_embeddings"] == true);
    for (const char* key : {"hidden_act", "use_sliding_window", "max_window_layers", "auto_map"}) CHECK_FALSE(written.contains(key));
    CHECK(config_to_json(read(written)) == text);
}

TEST_CASE("Gemma's config.json of layers that are all alike, or have no pattern", "[gemma][config]") {
    json object = published();
    object["sliding_window_pattern"] = 1;
    json written = json::parse(config_to_json(read(object)));
    CHECK((written["sliding_window_pattern"] == 1 && written["sliding_window"] == 32768 && written["layer_types"][0] == "full_attention"));
    object["sliding_window_pattern"] = 27;
    written = json::parse(config_to_json(read(object)));
    CHECK((written["sliding_window_pattern"] == 27 && written["layer_types"] == json(std::vector<std::string>(26, "sliding_attention"))));
    CHECK(read(written).layers.empty());
    CHECK(pattern_of_layers({true, false, true, true}) == 0);
    CHECK(pattern_of_layers({true, false, true}) == 2);
    CHECK(pattern_of_layers({false, true}) == 0);
}

TEST_CASE("what Gemma's config.json must not say is refused by name", "[gemma][config]") {
    const json object = published();
    refused(object, "hidden_activation", "silu");
    refused(object, "attn_logit_softcapping", 50.0);
    refused(object, "final_logit_softcapping", 30.0);
    refused(object, "use_bidirectional_attention", true);
    refused(object, "attention_bias", true);
    refused(object, "attention_dropout", 0.1);
    refused(object, "query_pre_attn_scalar", 0);
    refused(object, "rope_local_base_freq", 0.5);
    refused(object, "rope_scaling", {{"rope_type", "yarn"}, {"factor", 8.0}}, "yarn");
    refused(object, "rope_scaling", {{"rope_type", "linear"}}, "factor");
    refused(object, "rope_scaling", "linear");
    refused(object, "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}});
    refused(object, "rope_parameters", json::array());
    refused(object, "partial_rotary_factor", 0.5, "only 1 is supported, every channel of a head rotates");
    refused(object, "rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}, {"partial_rotary_factor", 0.5}}, "every channel");
    for (const bool slides : {false, true})
        refused(object, "rope_parameters", rope_parameters(slides ? json() : json{{"partial_rotary_factor", 0.5}},
                                                           slides ? json{{"partial_rotary_factor", 0.5}} : json()), "every channel");
    refused(object, "rope_parameters", rope_parameters({{"rope_theta", 2e6}}, nullptr), "make them agree");
    refused(object, "rope_parameters", rope_parameters(nullptr, {{"rope_type", "linear"}, {"factor", 8.0}}), "sliding_attention");
    refused(object, "bos_token_id", 262144);
    refused(object, "sliding_window", nullptr);
    refused(object, "sliding_window_pattern", 0);
    refused(object, "architectures", {"Gemma2ForCausalLM"}, "third generation");
    refused(object, "architectures", {"Gemma3ForConditionalGeneration"}, "third generation");
    Config config = read(object);
    config.qk_norm = false;
    CHECK_THROWS_AS(config_to_json(config), Error);
    refused(object, "architectures", {"Gemma3ForCausalLM", "Qwen3ForCausalLM"},
            "\"architectures\" is [\"Gemma3ForCausalLM\",\"Qwen3ForCausalLM\"], expected a list of one name: Qwen3ForCausalLM, Qwen2ForCausalLM, "
            "LlamaForCausalLM or Gemma3ForCausalLM");
}
