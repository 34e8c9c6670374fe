#include "model/generation_config.h"

#include <map>
#include <set>

#include "model/base/error.h"
#include "model/base/text.h"

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

/// Keys that are read, or that do not change which tokens are written: ids without a use here, lengths (--tokens), caches, outputs.
const std::set<std::string> WITHOUT_NOTE = {
    "_from_model_config", "assistant_confidence_threshold", "assistant_lookbehind", "bos_token_id", "cache_config", "cache_implementation",
    "chat_format", "compile_config", "decoder_start_token_id", "do_sample", "eos_token_id", "max_length", "max_matching_ngram_size",
    "max_new_tokens", "max_window_size", "num_assistant_tokens", "num_assistant_tokens_schedule", "output_attentions",
    "output_hidden_states", "output_logits", "output_scores", "pad_token_id", "prefill_chunk_size", "return_dict_in_generate",
    "target_lookbehind", "temperature", "top_k", "top_p", "transformers_version", "use_cache"};

/// Values with which keys that are not applied change nothing.
const std::map<std::string, double> NEUTRAL = {
    {"diversity_penalty", 0},    {"encoder_no_repeat_ngram_size", 0}, {"encoder_repetition_penalty", 1}, {"epsilon_cutoff", 0},
    {"eta_cutoff", 0},           {"guidance_scale", 1},               {"length_penalty", 1},             {"min_length", 0},
    {"min_new_tokens", 0},       {"min_p", 0},                        {"no_repeat_ngram_size", 0},       {"num_beam_groups", 1},
    {"num_beams", 1},            {"num_return_sequences", 1},         {"penalty_alpha", 0},              {"repetition_penalty", 1},
    {"typical_p", 1}};

bool is_neutral(const std::string& key, const json& value) {
    const auto entry = NEUTRAL.find(key);
    const bool is_usual = entry != NEUTRAL.end() && value == entry->second;
    return is_usual || value.is_null() || value == false || (value.is_structured() && value.empty());
}

}   // namespace

std::vector<int> eos_token_ids(const json& object, int V, const std::string& where) {
    std::vector<int> ids;
    if (!has_field(object, "eos_token_id")) return ids;
    const json& held = object["eos_token_id"];
    for (const json& id : held.is_array() ? held : json::array({held})) {
        if (!id.is_number_integer())
            fail(Exit::checkpoint, where, ": \"eos_token_id\" is ", shown(id), ", expected a token's id, a list of ids, or null");
        if (id >= 0 && id < V) ids.push_back(id.get<int>());
    }
    return ids;
}

std::string GenerationConfig::in_words() const {
    std::string all;
    const auto add = [&](const std::string& part) { all += (all.empty() ? "" : ", ") + part; };
    if (temperature) add(text("temperature %g", *temperature));
    if (top_k) add(text("top-k %d", *top_k));
    if (top_p) add(text("top-p %g", *top_p));
    if (!not_applied.empty()) add("not applied: " + not_applied);
    return all;
}

GenerationConfig generation_config_from_json(const std::string& text, int V, const std::string& where) {
    GenerationConfig config;
    if (text.empty()) return config;
    const json object = parse_json_object(text, where);
    config.ends = eos_token_ids(object, V, where);
    if (has_field(object, "temperature")) config.temperature = number_field(object, "temperature", 0, 1e6, where);
    if (has_field(object, "top_k")) config.top_k = int(integer_field(object, "top_k", 0, 1 << 30, where));
    if (has_field(object, "top_p")) config.top_p = number_field(object, "top_p", 0, 1, where);
    const bool given = has_field(object, "do_sample"), samples = given && bool_field(object, "do_sample", where);
    if (samples) {   // what transformers takes for keys that are not there
        config.temperature = config.temperature.value_or(1);
        config.top_k = config.top_k.value_or(50);
        config.top_p = config.top_p.value_or(1);
    } else if (given || config.temperature || config.top_k || config.top_p) {   // a file with ids only has no sampling
        config.temperature = 0;
    }
    for (const auto& [key, value] : object.items())
        if (!WITHOUT_NOTE.count(key) && !is_neutral(key, value))
            config.not_applied += (config.not_applied.empty() ? "" : ", ") + key + " " + shown(value);
    return config;
}

std::string default_generation_config(const json& model) {
    ordered_json object;
    object["_from_model_config"] = true;
    for (const char* key : {"eos_token_id", "bos_token_id"})
        if (has_field(model, key)) object[key] = model[key];
    object["transformers_version"] = "4.51.0";
    return written(object, 2) + "\n";
}
