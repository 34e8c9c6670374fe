// Keys of config.json and generation_config.json: defaults of transformers, what is refused, what comes back.
#include "catch.h"

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "model/config.h"
#include "model/config_keys.h"
#include "model/generation_config.h"
#include "tests/config_text.h"

TEST_CASE("keys that config.json lacks have the defaults of transformers for the model type", "[config]") {
    std::ifstream file(std::filesystem::path(__FILE__).parent_path().parent_path() / "scripts/config_defaults.json");
    const json tables = json::parse(file);
    for (const char* type : {"qwen3", "qwen2", "llama"}) {
        INFO(type);
        const json& table = tables[type];
        const json minimal = {{"model_type", type}};
        const Config least = config_from_json(minimal.dump(), "text");
        const json ours = json::parse(config_to_json(least));
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
        json full = table["defaults"];
        full["architectures"] = ours["architectures"];
        CHECK(json::parse(config_to_json(config_from_json(full.dump(), "text"))) == ours);

        json small = minimal;
        small["hidden_size"] = 512, small["num_attention_heads"] = 8;
        if (type == std::string("llama")) {
            const Config config = config_from_json(small.dump(), "text");
            CHECK((config.NKV == table["small"]["num_key_value_heads"] && config.HS == 64));
        } else {
            CHECK(table["small"]["num_key_value_heads"] == 32);
            CHECK(refusal(small.dump()).find("num_key_value_heads (32)") != std::string::npos);
            small["num_key_value_heads"] = nullptr;   // as many as query heads
            const Config config = config_from_json(small.dump(), "text");
            CHECK((config.NKV == 8 && config.HS == (least.qk_norm ? 128 : 64)));
            json sliding = minimal;
            sliding["use_sliding_window"] = true;
            const Config slides = config_from_json(sliding.dump(), "text");
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
    refused(object, "pruned_heads", {{"0", {1}}});
    refused(object, "per_layer_config", {{"0", {{"intermediate_size", 8}}}});
    refused(object, "add_cross_attention", true);
    refused(object, "is_encoder_decoder", true);
    refused(object, "model_type", "llama", "make them agree");
    refused(object, "hidden_act", "silu_and_mul");
    refused(object, "rope_parameters", {{"rope_theta", 1e6}, {"rope_type", "default"}, {"factor", 2.0}}, "\"factor\"");
    refused(object, "eos_token_id", "</s>");
    refused(object, "eos_token_id", json{1, nullptr});
    const json own = auto_map();
    json renamed = own;
    renamed["AutoModelForCausalLM"] = "modeling.Model";
    for (const json& value : {json{{"AutoModel", "modeling.Model"}}, renamed, json("modeling.Model")})
        refused(object, "auto_map", value);
    object["auto_map"] = own;
    CHECK(refusal(object.dump()) == "");
    object["attention_variant"] = nullptr;
    refused(object, "auto_map", own);
    object.erase("auto_map");
    object.erase("attention_variant");
    refused(object, "auto_map", {{"AutoModel", "modeling.Model"}});
    json sliding = object;
    sliding["use_sliding_window"] = true, sliding["max_window_layers"] = 0;
    sliding["sliding_window"] = 8, sliding["attention_window"] = 7;
    sliding.erase("layer_types");
    CHECK(refusal(sliding.dump()) == "");
    refused(sliding, "logit_scale", 0.5, "\"logit_scale\", which is 0.5, is not known");
    json llama = object;
    llama["architectures"] = {"LlamaForCausalLM"}, llama["model_type"] = "llama";
    refused(llama, "use_sliding_window", true, "no sliding windows");
    object["hidden_act"] = "swish", object["is_decoder"] = true, object["temperature"] = 0.7;
    CHECK(refusal(object.dump()) == "");
    object["some_scale"] = 2.5;   // perhaps a setting: the variant knows
    CHECK(config_from_json(object.dump(), "text").settings == std::map<std::string, double>{{"some_scale", 2.5}});
}

TEST_CASE("ids of what begins and ends a text come back: missing, null, one and several", "[config]") {
    const auto read = [](const json& object) { return config_from_json(object.dump(), "text"); };
    const auto again = [&](const json& object) { return json::parse(config_to_json(read(object))); };
    json object = as_json();
    object["engine_tokenizer"] = "", object["eos_token_id"] = object["bos_token_id"] = nullptr;
    CHECK((again(object)["bos_token_id"].is_null() && again(object)["eos_token_id"].is_null()));
    object["eos_token_id"] = 256;
    CHECK((again(object)["bos_token_id"].is_null() && again(object)["eos_token_id"] == 256));
    object["bos_token_id"] = 3, object["eos_token_id"] = {1, 106};
    Config c = read(object);
    CHECK((c.end_of_text == -1 && c.ends_of_text() == std::vector<int>{1, 106}));
    CHECK((again(object)["eos_token_id"] == json{1, 106} && again(object)["bos_token_id"] == 3));
    c.end_of_text = 106;   // as the tokenizer of the data says
    CHECK(json::parse(config_to_json(c))["eos_token_id"] == json{1, 106});
    c.end_of_text = 7;
    CHECK(json::parse(config_to_json(c))["eos_token_id"] == 7);
    object["eos_token_id"] = {106, 1 << 20};   // beyond the vocabulary
    CHECK((read(object).end_of_text == 106 && again(object)["eos_token_id"] == 106));
}

TEST_CASE("more layers than any model has are refused before there is anything for each of them", "[config]") {
    json object = as_json();   // with something amiss in what layers have
    object.erase("attention_variant"), object["use_sliding_window"] = true, object["sliding_window"] = 8, object["max_window_layers"] = -1;
    refused(object, "num_hidden_layers", 4096, "max_window_layers");
    for (int layers : {4097, 2147483647})
        refused(object, "num_hidden_layers", layers, "num_hidden_layers is " + std::to_string(layers) + ", expected 1 to 4096");
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
