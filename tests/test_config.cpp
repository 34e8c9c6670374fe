// Presets, config.json and generation_config.json out and in, and every refusal with the file and the key in its message.
#include <cmath>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "model/config_keys.h"
#include "model/generation_config.h"
#include "tests/errors.h"

using nlohmann::json;

namespace {

/// The config.json that is written for a configuration, and the configuration that is read from one.
json again(const Config& config) { return json::parse(config_to_json(config)); }
Config read(const json& object) { return config_from_json(object.dump(), "text"); }

json as_json(const std::string& preset_name = "qwen-tiny") { return again(preset(preset_name)); }

/// The sentence with which a config.json is refused; "" where it is not.
std::string refusal(const std::string& text) {
    return refusal(Exit::checkpoint, [&] { config_from_json(text, "here/config.json"); });
}

void refused(json object, const std::string& key, const json& value, const std::string& expected = "") {
    object[key] = value;
    const std::string sentence = refusal(object.dump());
    INFO(sentence);
    CHECK(sentence.find("here/config.json") != std::string::npos);
    CHECK(sentence.find(expected.empty() ? key : expected) != std::string::npos);
}

/// Each of the values under its key alone.
void refused_each(const json& object, const std::vector<std::pair<std::string, json>>& values) {
    for (const auto& [key, value] : values) refused(object, key, value);
}

/// Every number of the model without a variant's tensors.
int64_t parameters(const Config& c) {
    const int64_t C = c.C, q = int64_t(c.NH) * c.HS, kv = int64_t(c.NKV) * c.HS;
    const int64_t attention = C * q + 2 * C * kv + q * C + (c.qkv_bias ? q + 2 * kv : 0) + (c.qk_norm ? 2 * c.HS : 0);
    const int64_t layer = attention + 3 * C * c.F + 2 * C;
    return int64_t(c.V) * C * (c.tied ? 1 : 2) + c.L * layer + C;
}

const json YARN = {{"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 32768}};
const json LLAMA3 = {{"rope_type", "llama3"}, {"factor", 8}, {"original_max_position_embeddings", 8192}, {"low_freq_factor", 1},
                     {"high_freq_factor", 4}};

json with(json object, const json& keys) {
    object.update(keys);
    return object;
}
json without(json object, const std::string& key) {
    object.erase(key);
    return object;
}

}   // namespace

TEST_CASE("presets have the published numbers of parameters", "[config]") {
    const std::map<std::string, int64_t> published = {
        {"qwen-7m", 7'017'088}, {"qwen-7m-8k", 7'015'808}, {"qwen-132m", 132'436'224}, {"qwen-134m", 134'205'696},
        {"qwen2.5-0.5b", 494'032'768}, {"qwen2.5-1.5b", 1'543'714'304}, {"qwen3-0.6b", 596'049'920}};
    for (const auto& [name, count] : published) CHECK(parameters(preset(name)) == count);
    for (const std::string& name : preset_names()) {
        CHECK(is_preset(name));
        CHECK_NOTHROW(check_config(preset(name), name, Exit::usage));
        CHECK(preset(name).tokenizer == (preset(name).V == 512 ? "bytes" : ""));
    }
}

TEST_CASE("config.json survives writing and reading", "[config]") {
    for (const std::string& name : preset_names()) {
        Config config = preset(name);
        config.variant = "asga";
        config.settings = {{"asga_hidden", 16}, {"attention_window", 256}, {"some_fraction", 0.1}};
        config.norm_eps = 1e-5;
        config.tied = name != "qwen-7m";
        const std::string text = config_to_json(config);
        const Config back = config_from_json(text, "text");
        CHECK(config_to_json(back) == text);
        CHECK(back.settings == config.settings);
        CHECK(back.variant == "asga");
        CHECK(back.tied == config.tied);
        CHECK(back.norm_eps == config.norm_eps);
        CHECK(parameters(back) == parameters(config));
        CHECK(back.tokenizer == config.tokenizer);
    }
}

TEST_CASE("config.json holds the keys that transformers reads", "[config]") {
    const json qwen3 = as_json("qwen-7m");
    CHECK(qwen3["architectures"] == json{"Qwen3ForCausalLM"});
    CHECK(qwen3["rope_parameters"] == json{{"rope_theta", 1e6}, {"rope_type", "default"}});
    CHECK(qwen3["torch_dtype"] == "float32");
    CHECK(qwen3["dtype"] == "float32");
    CHECK(qwen3["eos_token_id"] == 256);
    CHECK_FALSE(qwen3.contains("layer_types"));
    const json qwen2 = as_json("qwen2.5-0.5b");
    CHECK(qwen2["architectures"] == json{"Qwen2ForCausalLM"});
    CHECK(qwen2["eos_token_id"].is_null());
    CHECK_FALSE(qwen2.contains("attention_bias"));
}

TEST_CASE("a model without QK-norm and without biases is written and read as Llama's architecture", "[config]") {
    Config config = preset("qwen-7m");
    config.qk_norm = false;
    const json object = again(config);
    CHECK((object["architectures"] == json{"LlamaForCausalLM"} && object["model_type"] == "llama"));
    CHECK(object["attention_bias"] == false);
    const Config back = read(object);
    CHECK((!back.qk_norm && !back.qkv_bias && parameters(back) == parameters(config)));
    CHECK_FALSE(read(without(object, "architectures")).qkv_bias);
    refused(object, "attention_bias", true);   // there o_proj has one too
    refused(object, "mlp_bias", true);
    config.qk_norm = config.qkv_bias = true;
    CHECK_THROWS_AS(config_to_json(config), Error);
}

TEST_CASE("a sliding window counts the query's own key in Hugging Face's form", "[config]") {
    Config config = preset("qwen-tiny");
    config.variant = "sliding_window";
    config.settings["attention_window"] = 256;
    json object = again(config);
    CHECK(object["sliding_window"] == 257);
    CHECK(object["use_sliding_window"] == true);
    CHECK(object["layer_types"] == json{"sliding_attention", "sliding_attention"});
    CHECK(read(object).setting("attention_window") == 256);
    object.erase("attention_window");
    CHECK(read(object).setting("attention_window") == 256);
    refused(object, "attention_window", 257, "sliding_window");
    refused_each(without(object, "sliding_window"), {{"attention_window", 0.5}, {"attention_window", -1}});
    refused(without(object, "sliding_window"), "unrelated", 1, "attention_window");
    refused(object, "layer_types", {"full_attention", "full_attention"}, "layer_types");
    refused(object, "layer_types", {"sliding_attention"}, "has 1 layers, but num_hidden_layers is 2");
}

TEST_CASE("layers of Qwen folders with mixed windows are causal or slide as transformers has them", "[config]") {
    json object = with(without(as_json(), "attention_variant"), {{"use_sliding_window", true}, {"sliding_window", 17}});
    auto variants = [&] {
        const Config config = read(object);
        std::vector<std::string> of_layers;
        for (int l = 0; l < config.L; l++) {
            const Config layer = config.of_layer(l);
            of_layers.push_back(layer.variant);
            if (layer.variant == "sliding_window") CHECK(layer.setting("attention_window") == 16);
        }
        return of_layers;
    };
    const std::vector<std::string> mixed = {"causal", "sliding_window"}, none = {"causal", "causal"}, all = {"sliding_window", "sliding_window"};
    object["max_window_layers"] = 1;
    CHECK(variants() == mixed);
    CHECK(read(object).names_variant);   // which train_causal must not overlook
    object["max_window_layers"] = 0;
    CHECK(variants() == all);
    CHECK(read(object).layers.empty());
    object["max_window_layers"] = 2;
    CHECK(variants() == none);
    object.erase("max_window_layers");   // 28
    CHECK(variants() == none);
    object["layer_types"] = {"sliding_attention", "full_attention"};
    CHECK(variants() == std::vector<std::string>{"sliding_window", "causal"});
    refused(object, "layer_types", {"sliding_attention", 3}, "layer_types");
    refused(object, "layer_types", {"sliding_attention", "Mamba-2"}, "Mamba-2");
    refused(object, "use_sliding_window", false, "use_sliding_window");
    refused(object, "sliding_window", 0, "sliding_window");
    refused(object, "architectures", {"Gemma3ForCausalLM"}, "expected Qwen3ForCausalLM, Qwen2ForCausalLM or LlamaForCausalLM");
}

TEST_CASE("a hybrid comes back from config.json, and has transformers' names where its windows agree", "[config]") {
    Config config = preset("qwen-tiny");
    config.L = 3, config.variant = "sliding_window", config.settings = {{"attention_window", 8}};
    config.layers = {{"causal"}, {"sliding_window"}, {"sliding_window"}};
    json object = again(config);
    CHECK(object["layer_types"] == json{"full_attention", "sliding_attention", "sliding_attention"});
    CHECK((object["sliding_window"] == 9 && object["max_window_layers"] == 1 && !object.contains("attention_layer_settings")));
    CHECK(read(object).layers == config.layers);
    config.layers[2].settings["attention_window"] = 4;
    object = again(config);
    CHECK((object["layer_types"] == json{"causal", "sliding_window", "sliding_window"} && object.contains("auto_map")));
    CHECK((object["sliding_window"] == nullptr && object["use_sliding_window"] == false));
    const Config back = read(object);
    CHECK(back.layers == config.layers);
    CHECK((back.of_layer(1).setting("attention_window") == 8 && back.of_layer(2).setting("attention_window") == 4));
    refused(object, "attention_layer_settings", {1, 2}, "attention_layer_settings");
    refused(object, "attention_layer_settings", json::array({json::object(), json::object(), {{"attention_window", "x"}}}), "attention_window");
    config.layers.pop_back();
    CHECK_THROWS_AS(config_to_json(config), Error);
    config.layers.push_back({"asga", {{"asga_hidden", 3}}});
    CHECK(config_from_json(config_to_json(config), "text").layers == config.layers);
    CHECK(config.of_layer(2).settings == std::map<std::string, double>{{"asga_hidden", 3}});   // not the model's window
}

TEST_CASE("what transformers does not compute names its code, and has layers that transformers refuses", "[config]") {
    Config config = preset("qwen-tiny");
    config.settings = {{"attention_window", 8}, {"sigma_reparam", 0}};
    const auto written_as = [&](const std::string& variant, double sigma, bool llama) {
        config.variant = variant, config.settings["sigma_reparam"] = sigma, config.qk_norm = !llama;
        const std::string text = config_to_json(config);
        const Config back = config_from_json(text, "text");
        CHECK((back.variant == variant && back.layers.empty() && back.settings == config.settings && config_to_json(back) == text));
        const json object = json::parse(text);
        CHECK(object.contains("auto_map") == !transformers_computes(config));
        return object.contains("auto_map") ? object["layer_types"] : json(nullptr);
    };
    for (bool llama : {false, true}) CHECK(written_as("causal", 0, llama) == nullptr);
    CHECK(written_as("sliding_window", 0, false) == nullptr);
    CHECK(written_as("sliding_window", 0, true) == json{"sliding_window", "sliding_window"});   // Llama has no windows there
    CHECK(written_as("causal", 1, false) == json{"causal", "causal"});
    CHECK(written_as("sinks", 0, false) == json{"sinks", "sinks"});
    config.layers = {{"sinks"}, {"causal"}};
    const json object = again(config);
    CHECK((object["layer_types"] == json{"sinks", "causal"} && object["model_type"] == "qwen3"));
    CHECK(object["auto_map"]["AutoModelForCausalLM"] == "modeling_attention_variants.AttentionVariantsForCausalLM");
    CHECK(object["auto_map"]["AutoConfig"] == "modeling_attention_variants.AttentionVariantsConfig");
    config.variant = "sliding_window", config.layers = {{"sliding_window"}, {"causal"}};
    for (bool qk_norm : {true, false}) CHECK((config.qk_norm = qk_norm, transformers_computes(config) == qk_norm));
}

TEST_CASE("forms of config.json that other programs write are understood", "[config]") {
    json object = without(without(as_json("qwen2.5-0.5b"), "head_dim"), "architectures");
    CHECK(read(object).HS == 64);
    CHECK(read(object).qkv_bias);
    object.erase("rope_theta");
    CHECK(read(object).rope_theta == 1e6);
    object.erase("rope_parameters");
    CHECK(read(object).rope_theta == 10000);
    object["rope_theta"] = 20000;
    CHECK(read(object).rope_theta == 20000);
    object["rope_scaling"] = {{"type", "default"}};
    object["sliding_window"] = 32768;   // present but unused: Qwen2.5 has it so
    object["max_window_layers"] = 21;
    CHECK(read(object).settings.empty());
    object.erase("tie_word_embeddings");
    CHECK_FALSE(read(object).tied);
}

TEST_CASE("RoPE scaling: every type under its old and new keys comes back, defaults and all", "[config]") {
    using enum RopeScaling::Type;
    const double by_4 = 0.1 * std::log(4) + 1;
    const std::pair<json, RopeScaling> cases[] = {
        {{{"rope_type", "linear"}, {"factor", 4}}, {linear, 4}},
        {YARN, {yarn, 4, 32768, 32, 1, true, by_4}},
        {with(YARN, {{"beta_fast", 64}, {"beta_slow", nullptr}, {"truncate", false}}), {yarn, 4, 32768, 64, 1, false, by_4}},
        {with(YARN, {{"attention_factor", 1.5}}), {yarn, 4, 32768, 32, 1, true, 1.5}},
        {LLAMA3, {llama3, 8, 8192, 4, 1}},
    };
    for (const auto& [keys, scaling] : cases) {
        INFO(keys.dump());
        json old = as_json(), renamed = keys, newer = as_json();
        renamed.erase("rope_type"), renamed["type"] = keys["rope_type"];
        old.erase("rope_parameters"), old["rope_scaling"] = renamed;
        newer.erase("rope_theta"), newer.erase("rope_scaling"), newer["rope_parameters"] = with(keys, {{"rope_theta", 5e5}});
        for (const json& object : {old, newer}) {
            const Config config = read(object);
            CHECK((config.rope_scaling == scaling && config.rope_theta == (object.contains("rope_theta") ? 1e6 : 5e5)));
            const json back = again(config);
            CHECK(with(back["rope_scaling"], {{"rope_theta", back["rope_theta"]}}) == back["rope_parameters"]);
            CHECK(read(back).rope_scaling == scaling);
        }
    }
    const json object = with(as_json(), {{"rope_scaling", YARN}, {"rope_parameters", nullptr}});
    const json written = again(read(object));
    CHECK(form_in_words(read(object)) == "QK-norm, RoPE scaled by 4 (yarn)");
    CHECK(written["rope_scaling"] == with(YARN, {{"beta_fast", 32}, {"beta_slow", 1}}));   // what is the default is not written
}

TEST_CASE("RoPE scaling: other types, missing keys and values out of range are refused by name", "[config]") {
    const json object = without(as_json(), "rope_parameters");
    for (const char* type : {"dynamic", "longrope", "su", "mrope", "proportional", ""})
        for (const char* key : {"type", "rope_type"}) {
            refused(object, "rope_scaling", {{key, type}, {"factor", 4}}, std::string("\"") + key + "\" is \"" + type + "\"");
            refused(object, "rope_parameters", {{key, type}, {"factor", 4}}, "models of other types run in transformers");
        }
    refused(object, "rope_scaling", with(YARN, {{"type", "linear"}}), "\"rope_type\" is \"yarn\" but \"type\" is \"linear\"");
    refused(object, "rope_scaling", {{"rope_type", 7}}, "rope_type");
    for (const json& keys : {YARN, LLAMA3, json{{"rope_type", "linear"}, {"factor", 4}}})
        for (const auto& [key, value] : keys.items()) {
            if (key == "rope_type") continue;
            refused(object, "rope_scaling", without(keys, key), "needs \"" + key + "\"");
            refused(object, "rope_scaling", with(keys, {{key, nullptr}}), "needs \"" + key + "\"");
            for (const json& broken : {json("4"), json(0), json(-1), json(true), json(1e300)}) {
                INFO(broken.dump());
                refused(object, "rope_scaling", with(keys, {{key, broken}}), "\"rope_scaling\": \"" + key + "\" is " + broken.dump());
            }
        }
    refused(object, "rope_scaling", with(YARN, {{"factor", 0.5}}), "\"factor\" is 0.5");
    refused(object, "rope_scaling", with(YARN, {{"original_max_position_embeddings", 32768.5}}), "original_max_position_embeddings");
    for (const char* key : {"attention_factor", "beta_fast", "beta_slow"}) refused(object, "rope_scaling", with(YARN, {{key, 0}}), key);
    refused(object, "rope_scaling", with(YARN, {{"truncate", 1}}), "truncate");
    refused(object, "rope_scaling", with(YARN, {{"beta_fast", 2}, {"beta_slow", 2}}), "\"beta_fast\" is 2 and \"beta_slow\" 2");
    refused(object, "rope_scaling", with(LLAMA3, {{"low_freq_factor", 4}}), "\"high_freq_factor\" to be the larger one");
    refused(object, "rope_scaling", with(YARN, {{"short_factor", {1, 2}}}), "\"short_factor\"");
    refused(object, "rope_scaling", with(YARN, {{"mscale", 1}}), "\"mscale\"");
    refused(object, "rope_scaling", with(LLAMA3, {{"beta_fast", 32}}), "\"beta_fast\" is 32, but RoPE of the type \"llama3\"");
    refused(with(object, {{"rope_theta", 1}}), "rope_scaling", YARN, "\"rope_theta\" is 1");
    refused(as_json(), "rope_scaling", YARN, "\"rope_scaling\" and \"rope_parameters\" differ");
}

TEST_CASE("keys that would change the mathematics are refused by name", "[config]") {
    const json object = as_json();
    refused_each(object, {{"attention_dropout", 0.1}, {"attention_bias", true}, {"rope_scaling", "yarn"},
                          {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e4}}}, {"quantization_config", {{"bits", 4}}},
                          {"layer_types", {"full_attention", "sliding_attention"}}, {"use_mrope", true},
                          {"architectures", "Qwen3ForCausalLM"}});
    refused(object, "rope_parameters", {{"rope_theta", 1e6}, {"partial_rotary_factor", 0.5}}, "partial_rotary_factor");
    refused(with(object, {{"sliding_window", 9}}), "use_sliding_window", true);   // and no layer of the variant that is named does
}

TEST_CASE("broken values are refused by file and key", "[config]") {
    const json object = as_json();
    for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
                            "intermediate_size", "max_position_embeddings"})
        for (const json& value : {json(0), json(-1), json(1.5), json("12"), json(true), json(json::array()), json(4294967297),
                                  json(UINT64_MAX), json(2147483647), json(1e300)}) {
            INFO(key << " = " << value.dump());
            refused(object, key, value, key);
        }
    refused_each(object, {{"rms_norm_eps", -1}, {"rms_norm_eps", 0}, {"rope_theta", "1e6"}, {"rope_theta", 0}, {"initializer_range", -0.02},
                          {"tie_word_embeddings", "yes"}, {"attention_variant", "../../etc"}, {"attention_variant", 7}});
    refused(object, "num_key_value_heads", 3, "multiple");
    refused(object, "head_dim", 15, "even");
    refused(object, "vocab_size", 256, "vocab_size");
    refused(with(object, {{"hidden_size", 1 << 18}}), "intermediate_size", 1 << 22, "2^40");
}

TEST_CASE("text that is no JSON object is refused", "[config]") {
    const std::string text = config_to_json(preset("qwen-tiny"));
    for (const std::string& broken : {std::string(), std::string("{"), std::string("[]"), std::string("null"), std::string("\xff\xfe"),
                                      text.substr(0, text.size() / 2), text + "x"})
        CHECK(refusal(broken).find("here/config.json") != std::string::npos);
    // Depth must not exhaust the stack, neither in parsing nor in the message.
    json object = as_json();
    std::string deep = object.dump();
    deep.insert(1, "\"hidden_act\":" + std::string(200'000, '[') + std::string(200'000, ']') + ",");
    deep.replace(deep.rfind("\"hidden_act\""), 12, "\"other_name\"");
    CHECK(refusal(deep).find("here/config.json") != std::string::npos);
}

TEST_CASE("a setting that was given may not count more tokens than there are; a default may", "[config]") {
    const std::vector<Setting> settings = {{"--reach", "reach", 256, 0, 1e9, WHOLE, "", true},
                                           {"--block", "block", 64, 64, 4096, 64, "", true},
                                           {"--top-k", "top_k", 8, 0, 1e6, WHOLE, "", true, 1, "block"},
                                           {"--wide", "wide", 3, 1, 1e6, WHOLE, "", true, 1, nullptr, 2}};
    using Given = std::map<std::string, double>;
    const auto judge = [&](const Given& given, int T, const Given& trained_with = {}) {
        Config config;
        config.settings = trained_with;
        for (const auto& [key, value] : given) config.settings[key] = value;
        complete_settings(config, settings);
        require_within_sequence(settings, given, config, T);
    };
    const auto refusal_of = [&](const auto&... given) { return refusal(Exit::usage, [&] { judge(given...); }); };
    CHECK_NOTHROW(judge({}, 64));
    CHECK_NOTHROW(judge({{"reach", 64}}, 64));
    CHECK(refusal_of(Given{{"reach", 65}}, 64) == "--reach is 65, but with --seq-len 64 must be a whole number from 0 to 64");
    CHECK(refusal_of(Given{{"block", 128}}, 100) == "--block is 128, but with --seq-len 100 must be a multiple of 64 from 64 to 64");
    CHECK_NOTHROW(judge({{"wide", 3}}, 1 << 30));
    CHECK(refusal_of(Given{{"block", 64}}, 32) ==
          "--block must be at least 64, which is more than --seq-len 32 allows; raise --seq-len");
    CHECK_NOTHROW(judge({{"top_k", 3}}, 129));
    CHECK(refusal_of(Given{{"top_k", 3}}, 129, Given{{"block", 128}}) ==   // which the checkpoint has
          "--top-k is 3, but with --seq-len 129 (blocks of 128: 2) must be a whole number from 0 to 2");
    CHECK_NOTHROW(judge({}, 129, {{"top_k", 3}, {"block", 128}}));
}

TEST_CASE("completed settings are the variant's, each of them and no others; one that no variant declared is an error", "[config]") {
    Config config;
    config.settings = {{"reach", 5}, {"num_experts", 4}};
    complete_settings(config, {{"--reach", "reach", 256, 0, 1e9, WHOLE, ""}, {"--scale", "scale", 1, 0, 1e9, REAL, ""}});
    CHECK(config.settings == std::map<std::string, double>{{"reach", 5}, {"scale", 1}});
    CHECK(config.setting("reach") == 5);
    CHECK_THROWS_AS(config.setting("num_experts"), Error);
}

TEST_CASE("keys that config.json lacks have the defaults of transformers for the model type", "[config]") {
    std::ifstream file(std::filesystem::path(__FILE__).parent_path().parent_path() / "scripts/config_defaults.json");
    const json tables = json::parse(file);
    for (const char* type : {"qwen3", "qwen2", "llama"}) {
        INFO(type);
        const json& table = tables[type];
        const json minimal = {{"model_type", type}};
        const Config least = read(minimal);
        const json ours = again(least);
        int compared = 0;
        for (const auto& [key, value] : table["defaults"].items()) {
            INFO(key);
            CHECK(is_known_key(key));
            const bool has_effect = key != "architectures" && key != "dtype" && key != "max_window_layers";
            if (!has_effect || !ours.contains(key)) continue;
            CHECK(ours[key] == value);
            compared++;
        }
        CHECK(compared >= 16);
        CHECK(again(read(with(table["defaults"], {{"architectures", ours["architectures"]}}))) == ours);

        json small = with(minimal, {{"hidden_size", 512}, {"num_attention_heads", 8}});
        if (type == std::string("llama")) {
            const Config config = read(small);
            CHECK((config.NKV == table["small"]["num_key_value_heads"] && config.HS == 64));
        } else {
            CHECK(table["small"]["num_key_value_heads"] == 32);
            CHECK(refusal(small.dump()).find("num_key_value_heads (32)") != std::string::npos);
            small["num_key_value_heads"] = nullptr;   // as many as query heads
            const Config config = read(small);
            CHECK((config.NKV == 8 && config.HS == (least.qk_norm ? 128 : 64)));
            const Config slides = read(with(minimal, {{"use_sliding_window", true}}));
            CHECK(slides.of_layer(31).setting("attention_window") == table["sliding"]["sliding_window"].get<double>() - 1);
            for (int l = 0; l < slides.L; l++)
                CHECK((slides.of_layer(l).variant == "causal") == (table["sliding"]["layer_types"][size_t(l)] == "full_attention"));
        }
    }
    refused({{"model_type", "qwen3"}}, "head_dim", nullptr);
}

TEST_CASE("every key of config.json is computed, known to have no effect, or refused", "[config]") {
    json object = as_json();
    for (const json& value : {json(false), json(0), json("no")}) refused(object, "is_causal", value, "no token sees a later one");
    object["is_causal"] = true;
    object["other_key"] = nullptr;
    CHECK(refusal(object.dump()) == "");
    const json empty = json::array({false, "", json::array(), json::object()});
    for (const json& value : {empty[0], empty[1], empty[2], empty[3], json(true), json("yes"), json{1}, json{{"a", 1}}})
        refused(object, "other_key", value, "\"other_key\"");
    for (const json& value : {json(nullptr), json::object()}) {
        object["pruned_heads"] = object["per_layer_config"] = value;
        CHECK(refusal(object.dump()) == "");
    }
    refused_each(object, {{"pruned_heads", {{"0", {1}}}}, {"per_layer_config", {{"0", {{"intermediate_size", 8}}}}},
                          {"add_cross_attention", true}, {"is_encoder_decoder", true}, {"hidden_act", "silu_and_mul"},
                          {"eos_token_id", "</s>"}, {"eos_token_id", json{1, nullptr}}});
    refused(object, "model_type", "llama", "make them agree");
    refused(object, "rope_parameters", {{"rope_theta", 1e6}, {"rope_type", "default"}, {"factor", 2.0}}, "\"factor\"");
    const json own = auto_map(), renamed = with(own, {{"AutoModelForCausalLM", "modeling.Model"}});
    for (const json& value : {json{{"AutoModel", "modeling.Model"}}, renamed, json("modeling.Model")})
        refused(object, "auto_map", value);
    object["auto_map"] = own;
    CHECK(refusal(object.dump()) == "");
    object["attention_variant"] = nullptr;
    refused(object, "auto_map", own);
    object.erase("auto_map");
    object.erase("attention_variant");
    refused(object, "auto_map", {{"AutoModel", "modeling.Model"}});
    const json sliding = with(without(object, "layer_types"), {{"use_sliding_window", true}, {"max_window_layers", 0},
                                                               {"sliding_window", 8}, {"attention_window", 7}});
    CHECK(refusal(sliding.dump()) == "");
    refused(sliding, "logit_scale", 0.5, "\"logit_scale\", which is 0.5, is not known");
    const json llama = with(object, {{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}});
    refused(llama, "use_sliding_window", true, "no sliding windows");
    object["hidden_act"] = "swish", object["is_decoder"] = true, object["temperature"] = 0.7;
    CHECK(refusal(object.dump()) == "");
    object["some_scale"] = 2.5;   // perhaps a setting of the variant
    CHECK(read(object).settings == std::map<std::string, double>{{"some_scale", 2.5}});
}

TEST_CASE("ids of what begins and ends a text come back: missing, null, one and several", "[config]") {
    json object = as_json();
    object["engine_tokenizer"] = "", object["eos_token_id"] = object["bos_token_id"] = nullptr;
    CHECK((again(read(object))["bos_token_id"].is_null() && again(read(object))["eos_token_id"].is_null()));
    object["eos_token_id"] = 256;
    CHECK((again(read(object))["bos_token_id"].is_null() && again(read(object))["eos_token_id"] == 256));
    object["bos_token_id"] = 3, object["eos_token_id"] = {1, 106};
    Config c = read(object);
    CHECK((c.end_of_text == -1 && c.ends_of_text() == std::vector<int>{1, 106}));
    CHECK((again(read(object))["eos_token_id"] == json{1, 106} && again(read(object))["bos_token_id"] == 3));
    c.end_of_text = 106;   // the tokenizer's of the data
    CHECK(again(c)["eos_token_id"] == json{1, 106});
    c.end_of_text = 7;
    CHECK(again(c)["eos_token_id"] == 7);
    object["eos_token_id"] = {106, 1 << 20};   // beyond the vocabulary
    CHECK((read(object).end_of_text == 106 && again(read(object))["eos_token_id"] == 106));
}

TEST_CASE("more layers than any model has are refused before there is anything for each of them", "[config]") {
    json object = as_json();   // with something amiss in what layers have
    object.erase("attention_variant"), object["use_sliding_window"] = true, object["sliding_window"] = 8, object["max_window_layers"] = -1;
    refused(object, "num_hidden_layers", 4096, "max_window_layers");
    for (int layers : {4097, 2147483647})
        refused(object, "num_hidden_layers", layers, "is " + std::to_string(layers) + ", expected a whole number from 1 to 4096");
    CHECK((form_in_words(preset("qwen-tiny")) == "QK-norm" && form_in_words(preset("qwen2.5-0.5b")) == "no QK-norm, QKV bias"));
}

TEST_CASE("generation_config.json: ends, sampling, and what is not applied", "[config]") {
    const auto read = [](const json& object) { return generation_config_from_json(object.dump(), 300, "here/generation_config.json"); };
    CHECK(generation_config_from_json("", 300, "here").in_words() == "");
    CHECK(read({{"eos_token_id", 63}}).ends == std::vector<int>{63});
    CHECK(read({{"eos_token_id", {63, 23, 300}}}).ends == std::vector<int>{63, 23});
    CHECK((read({{"eos_token_id", nullptr}}).ends.empty() && read(json::object()).ends.empty()));
    GenerationConfig held = read({{"temperature", 0.7}, {"top_k", 20}, {"top_p", 0.8}, {"do_sample", true}});
    CHECK((held.temperature == 0.7 && held.top_k == 20 && held.top_p == 0.8));
    CHECK(held.in_words() == "temperature 0.7, top-k 20, top-p 0.8");
    CHECK(read({{"temperature", 0.7}, {"do_sample", false}}).temperature == 0);
    for (const json& greedy : {json{{"temperature", 0.6}}, json{{"top_k", 20}}, json{{"top_p", 0.9}}, json{{"do_sample", false}},
                               json{{"temperature", 0.6}, {"do_sample", nullptr}}})
        CHECK(read(greedy).temperature == 0);
    held = read({{"do_sample", true}});
    CHECK((held.temperature == 1 && held.top_k == 50 && held.top_p == 1));
    held = read({{"do_sample", true}, {"temperature", 0.6}, {"top_k", 0}});
    CHECK((held.temperature == 0.6 && held.top_k == 0 && held.top_p == 1));
    CHECK_FALSE(read({{"eos_token_id", 63}}).temperature);
    held = read({{"repetition_penalty", 1.0}, {"num_beams", 1}, {"min_p", nullptr}, {"max_new_tokens", 9}, {"pad_token_id", 0}});
    CHECK(held.in_words() == "");
    held = read({{"repetition_penalty", 1.05}, {"num_beams", 4}, {"stop_strings", {"x"}}});
    CHECK(held.in_words() == "not applied: num_beams 4, repetition_penalty 1.05, stop_strings an array");
    for (const json& broken : {json{{"eos_token_id", "</s>"}}, json{{"eos_token_id", {1.5}}}, json{{"temperature", -1}},
                               json{{"temperature", "0.7"}}, json{{"top_k", 1.5}}, json{{"top_p", 2}}, json{{"do_sample", 1}}, json{1, 2}}) {
        INFO(broken.dump());
        CHECK(refusal(Exit::checkpoint, [&] { read(broken); }).starts_with("here/generation_config.json"));
    }
}
