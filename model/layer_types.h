// The keys of config.json for the attention of each layer.
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

/// Reads layer_types, use_sliding_window, sliding_window, max_window_layers and attention_layer_settings, as written by this program or by
/// transformers. Precondition: config has L, the settings of `object`, and its variant if `object` names one.
void read_layers(const nlohmann::json& object, Config& config, const std::string& where);

/// Writes them. Layers have Hugging Face's names if transformers_computes(), else ours, which transformers refuses.
void write_layers(const Config& config, nlohmann::ordered_json& object);

/// Whether transformers' own code computes the model: causal layers and equal sliding windows, without sigma_reparam; Llama's form has no
/// windows there. Other models name their code in "auto_map" (scripts/attention_torch), and their layer_types has our names, so that they
/// are not loaded as plain attention.
bool transformers_computes(const Config& config);

/// Integers without a decimal point, as Hugging Face writes them.
inline nlohmann::ordered_json number(double value) {
    const bool whole = value == std::floor(value) && std::fabs(value) < 9e15;   // below 2^53 a double holds every integer
    if (whole) return int64_t(value);
    return value;
}
