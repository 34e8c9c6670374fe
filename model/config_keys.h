// The parts of config.json: its permitted keys, RoPE, and the attention of each layer. Errors are Exit::checkpoint and name `where` (the
// file's path) and the key.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "model/base/json.h"
#include "model/config.h"

/// Refuses a key that would make a model other than the one computed here, and an unknown key that is not null: false and empty values may
/// have a meaning, too. Unknown numbers are left to read_layers() and require_known_settings().
void require_known_keys(const nlohmann::json& object, const std::string& where);

/// The "auto_map" of a checkpoint that carries Python files (scripts/attention_torch).
nlohmann::json auto_map();

/// Whether the key is one of Hugging Face's or of this program's, and not a setting of an attention variant.
bool is_known_key(const std::string& key);

/// Reads rope_theta (1e4 if missing) and "rope_scaling" of transformers 4, "rope_parameters" of transformers 5. Refuses types other than
/// default, linear, yarn and llama3, a key that a type lacks or does not have, values out of range, and two objects that differ.
void read_rope(const nlohmann::json& object, Config& config, const std::string& where);

/// Writes all three keys.
void write_rope(const Config& config, nlohmann::ordered_json& object);

/// "RoPE scaled by 4 (yarn)", or "" without scaling.
std::string scaling_in_words(const RopeScaling& scaling);

/// Reads layer_types, use_sliding_window, sliding_window, max_window_layers and attention_layer_settings, as written by this program or by
/// transformers. Precondition: config has L, the settings of `object`, and its variant if `object` names one.
void read_layers(const nlohmann::json& object, Config& config, const std::string& where);

/// Writes them. Layers have Hugging Face's names if transformers_computes(), else ours, which transformers refuses.
void write_layers(const Config& config, nlohmann::ordered_json& object);

/// Variants are named after their files in attention/.
inline bool is_variant_name(const std::string& name) {
    const auto allowed = [](char x) { return (x >= 'a' && x <= 'z') || (x >= '0' && x <= '9') || x == '_'; };
    return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), allowed);
}

/// Integers without a decimal point, as Hugging Face writes them.
inline nlohmann::ordered_json number(double value) {
    const bool whole = value == std::floor(value) && std::fabs(value) < 9e15;   // below 2^53 a double holds every integer
    if (whole) return int64_t(value);
    return value;
}
