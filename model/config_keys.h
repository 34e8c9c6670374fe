// Which keys config.json may have: those that are computed, those without effect, and those that have to have one value.
#pragma once
#include <string>

#include "model/base/json.h"

/// Exit::checkpoint, naming the key and its value, for a key that would make another model than the one computed here, and for one that
/// is not known, unless it is null: false and empty values may mean something, too. Numbers that are not known are left to
/// read_layers() and require_known_settings().
void require_known_keys(const nlohmann::json& object, const std::string& where);

/// The "auto_map" of a checkpoint that carries Python files (scripts/attention_torch).
nlohmann::json auto_map();

/// Whether the key is one of Hugging Face's or of this program, and not a setting of an attention variant.
bool is_known_key(const std::string& key);
