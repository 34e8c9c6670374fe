// The permitted keys of config.json: keys that are computed, keys without effect, and keys that must have one value.
#pragma once
#include <string>

#include "model/base/json.h"

/// Exit::checkpoint, naming the key and its value, for a key that would make a model other than the one computed here, and for an unknown
/// key that is not null: false and empty values may have a meaning, too. Unknown numbers are left to read_layers() and
/// require_known_settings().
void require_known_keys(const nlohmann::json& object, const std::string& where);

/// The "auto_map" of a checkpoint that carries Python files (scripts/attention_torch).
nlohmann::json auto_map();

/// Whether the key is one of Hugging Face's or of this program's, and not a setting of an attention variant.
bool is_known_key(const std::string& key);
