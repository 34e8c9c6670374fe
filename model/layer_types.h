// The part of config.json that says which layer has which attention.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "model/base/json.h"
#include "model/config.h"

/// Variants are named after their files in attention/.
inline bool is_variant_name(const std::string& name) {
    const auto allowed = [](char x) { return (x >= 'a' && x <= 'z') || (x >= '0' && x <= '9') || x == '_'; };
    return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), allowed);
}

/// Precondition: config has L, the settings of `object`, and its variant if that is named. layer_types, use_sliding_window,
/// sliding_window, max_window_layers and attention_layer_settings, as this program or transformers writes them.
void read_layers(const nlohmann::json& object, Config& config, const std::string& where);

/// Layers have Hugging Face's names where transformers_computes(), else ours, which it refuses.
void write_layers(const Config& config, nlohmann::ordered_json& object);

/// Whether transformers' own code computes the model: causal layers and equal sliding windows, unless the form is Llama's, which has no
/// windows there, and without sigma_reparam. Other models name the code that does in "auto_map" (scripts/attention_torch), and their
/// layer_types has our names, so that nobody computes plain attention instead.
bool transformers_computes(const Config& config);

/// Integers without a decimal point, as Hugging Face writes them.
inline nlohmann::ordered_json number(double value) {
    const bool whole = value == std::floor(value) && std::fabs(value) < 9e15;   // below 2^53 a double holds every integer
    if (whole) return int64_t(value);
    return value;
}
