// The keys of config.json for RoPE: "rope_theta" and "rope_scaling" of transformers 4, "rope_parameters" of transformers 5.
#pragma once
#include <string>

#include "model/base/json.h"
#include "model/config.h"

/// Reads rope_theta (1e4 if missing) and rope_scaling. Exit::checkpoint, naming the key, for types other than default, linear, yarn and
/// llama3, for a key that a type lacks or does not have, for values out of range, and for "rope_scaling" and "rope_parameters" that differ.
void read_rope(const nlohmann::json& object, Config& config, const std::string& where);

/// "RoPE scaled by 4 (yarn)", or "" without scaling.
std::string scaling_in_words(const RopeScaling& scaling);

/// Writes all three keys.
void write_rope(const Config& config, nlohmann::ordered_json& object);
