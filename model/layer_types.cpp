#include "model/config_keys.h"

#include <map>
#include <set>
#include <vector>

#include "model/base/error.h"

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr int64_t largest_window = 1 << 30;

constexpr const char *FULL = "full_attention", *SLIDING = "sliding_attention";   // Hugging Face's names

/// The variant of every layer from layer_types or, in folders of other programs without it, from max_window_layers; empty if the file has
/// neither. transformers writes a list of "full_attention" into every folder, whatever its variant.
std::vector<std::string> read_layer_types(const json& object, bool slides, const Config& config, const std::string& where) {
    std::vector<std::string> variants;
    if (!has_field(object, "layer_types")) {
        if (!slides || config.names_variant) return {};
        const int64_t first =
            has_field(object, "max_window_layers") ? integer_field(object, "max_window_layers", 0, 1 << 30, where) : 28;
        for (int l = 0; l < config.L; l++) variants.push_back(l >= first ? "sliding_window" : "causal");
        return variants;
    }
    const json& types = object["layer_types"];
    if (!types.is_array()) fail(Exit::checkpoint, where, ": \"layer_types\" is ", shown(types), ", expected a list");
    if (types.size() != size_t(config.L))
        fail(Exit::checkpoint, where, ": \"layer_types\" has ", types.size(), " layers, but num_hidden_layers is ", config.L,
             "; make them agree");
    for (const json& type : types) {
        const bool known = type == FULL || type == SLIDING;
        if (!known && !(config.names_variant && type.is_string() && is_variant_name(type.get<std::string>())))
            fail(Exit::checkpoint, where, ": \"layer_types\" holds ", shown(type), "; expected \"", FULL, "\", \"", SLIDING,
                 "\" or, beside attention_variant, the name of a variant");
        if (type == SLIDING && !slides)
            fail(Exit::checkpoint, where, ": \"layer_types\" holds \"", SLIDING, "\", but \"use_sliding_window\" is not true");
        variants.push_back(type == FULL ? "causal" : type == SLIDING ? "sliding_window" : type.get<std::string>());
    }
    return variants;
}

/// The window that layers of "sliding_attention" share; Hugging Face counts the query's own key: W = window + 1. Without
/// attention_variant a missing key has the default of transformers.
void read_window(const json& object, std::map<std::string, double>& settings, bool ours, const std::string& where) {
    if (ours && !has_field(object, "sliding_window")) {
        const auto held = settings.find("attention_window");
        const double window = held == settings.end() ? -1 : held->second;
        if (!(window >= 0 && window <= largest_window && window == std::floor(window)))
            fail(Exit::checkpoint, where, ": \"attention_window\" of sliding layers must be a whole number from 0 to ",
                 largest_window);
        return;
    }
    const int64_t keys =
        has_field(object, "sliding_window") ? integer_field(object, "sliding_window", 1, largest_window + 1, where) : 4096;
    const double window = double(keys) - 1;
    const auto [entry, is_new] = settings.emplace("attention_window", window);
    if (!is_new && entry->second != window)
        fail(Exit::checkpoint, where, ": \"sliding_window\" is ", window + 1, " but \"attention_window\" is ", entry->second,
             "; the former must be one more than the latter");
}

/// Exit::checkpoint for unknown numbers beside the windows of another program, which programs of other variants would drop.
void require_windows_alone(const Config& config, const std::string& where) {
    std::set<std::string> known = {"attention_window"};
    for (const Setting& s : model_settings()) known.insert(s.key);
    for (const auto& [key, value] : config.settings)
        if (!known.count(key))
            fail(Exit::checkpoint, where, ": the key \"", key, "\", which is ", value,
                 ", is not known; if it changes nothing that the model computes, remove it");
}

/// attention_layer_settings: what single layers have that the model has not, key by key.
void read_layer_settings(const json& object, Config& config, const std::string& where) {
    if (!has_field(object, "attention_layer_settings")) return;
    const json& list = object["attention_layer_settings"];
    if (!list.is_array() || list.size() != size_t(config.L))
        fail(Exit::checkpoint, where, ": \"attention_layer_settings\" must be a list of ", config.L, " objects, one for each layer");
    for (size_t l = 0; l < list.size(); l++) {
        if (!list[l].is_object())
            fail(Exit::checkpoint, where, ": \"attention_layer_settings\" holds ", shown(list[l]), "; expected an object");
        for (const auto& [key, value] : list[l].items())
            config.layers[l].settings[key] = number_field(list[l], key.c_str(), -1e300, 1e300, where);
    }
}

}   // namespace

/// A folder of another program with sliding windows is one of sliding_window, in all layers or beside
/// causal ones.
void read_layers(const json& object, Config& config, const std::string& where) {
    const bool off = object.contains("sliding_window") && object["sliding_window"].is_null();
    const bool slides = has_field(object, "use_sliding_window") && bool_field(object, "use_sliding_window", where) && !off;
    const bool ours = config.names_variant;
    const std::vector<std::string> variants = read_layer_types(object, slides, config, where);
    const auto all_are = [&](const char* name) {
        return std::all_of(variants.begin(), variants.end(), [&](const std::string& variant) { return variant == name; });
    };
    const bool says_nothing = all_are("causal");
    if (ours && !variants.empty() && says_nothing && config.variant == "sliding_window")
        fail(Exit::checkpoint, where, ": \"attention_variant\" is \"sliding_window\", but \"layer_types\" holds \"", FULL,
             "\" only; make them agree");
    if (!ours && !says_nothing) {
        require_windows_alone(config, where);
        config.names_variant = true, config.variant = all_are(variants.front().c_str()) ? variants.front() : "sliding_window";
    }
    if (!says_nothing && (!all_are(config.variant.c_str()) || has_field(object, "attention_layer_settings"))) {
        for (const std::string& variant : variants) config.layers.push_back({variant});
        read_layer_settings(object, config, where);
    }
    if (config.variant == "sliding_window") return read_window(object, config.settings, ours, where);
    for (LayerAttention& layer : config.layers)
        if (layer.variant == "sliding_window") read_window(object, layer.settings, ours, where);
    if (ours && slides && variants.empty())
        fail(Exit::checkpoint, where, ": \"use_sliding_window\" is true, but no layer of \"attention_variant\": \"", config.variant,
             "\" is a sliding layer; name the sliding layers in \"layer_types\"");
}

namespace {

/// The window that all layers of sliding_window have, -1 if there are none or if they differ; and the first of them.
struct SharedWindow {
    double window = -1;
    int first = 0;
};
SharedWindow shared_window(const Config& config) {
    SharedWindow shared;
    for (int l = 0; l < config.L; l++) {
        const Config layer = config.of_layer(l);
        if (layer.variant != "sliding_window") continue;
        const double window = layer.setting("attention_window");
        if (!(window >= 0 && window <= largest_window && window == std::floor(window)))
            fail(Exit::usage, "the attention window is ", window, ", expected a whole number from 0 to ", largest_window);
        if (shared.window >= 0 && shared.window != window) return {};
        if (shared.window < 0) shared = {window, l};
    }
    return shared;
}

}   // namespace

bool transformers_computes(const Config& config) {
    const auto sigma = config.settings.find("sigma_reparam");
    if (sigma != config.settings.end() && sigma->second != 0) return false;
    bool slides = false;
    for (int l = 0; l < config.L; l++) {
        const std::string variant = config.of_layer(l).variant;
        if (variant != "causal" && variant != "sliding_window") return false;
        slides = slides || variant == "sliding_window";
    }
    const bool llama = !config.qk_norm && !config.qkv_bias;
    return !slides || (!llama && shared_window(config).window >= 0);
}

void write_layers(const Config& config, ordered_json& object) {
    const auto [window, first] = shared_window(config);
    const bool slides = window >= 0;
    object["use_sliding_window"] = slides;
    object["sliding_window"] = slides ? ordered_json(int64_t(window) + 1) : nullptr;
    object["max_window_layers"] = slides ? first : config.L;   // the first layer with a sliding window
    const bool theirs = transformers_computes(config);
    if (theirs && !slides && config.layers.empty()) return;
    bool differ = false;   // in their settings
    ordered_json types, settings;
    for (int l = 0; l < config.L; l++) {
        const std::string variant = config.of_layer(l).variant;
        types.push_back(!theirs ? variant : variant == "causal" ? FULL : SLIDING);
        if (config.layers.empty()) continue;
        ordered_json own = ordered_json::object();
        for (const auto& [key, value] : config.layers[size_t(l)].settings) own[key] = number(value);
        differ = differ || !own.empty();
        settings.push_back(own);
    }
    object["layer_types"] = types;
    if (differ) object["attention_layer_settings"] = settings;
}
