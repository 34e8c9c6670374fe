// Reading fields of a JSON object with errors that name the file, the key, the value found and what would be right. For .cpp
// files only: nlohmann's header is slow to compile. Every failure is Exit::checkpoint, for only model folders hold JSON.
#pragma once
#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

/// Parses `text`, which must be one JSON object; `where` (the file's path) is named in errors.
nlohmann::json parse_json_object(const std::string& text, const std::string& where);

/// A value as it is shown in an error: numbers and words in full, structures by their kind (they may be of any size and depth).
std::string shown(const nlohmann::json& value);

/// The field `key` of `object`, or fails because it is missing.
const nlohmann::json& required_field(const nlohmann::json& object, const char* key, const std::string& where);

/// A whole number in [lowest, highest]; a JSON number with a decimal point is not one.
int64_t integer_field(const nlohmann::json& object, const char* key, int64_t lowest, int64_t highest, const std::string& where);

/// A finite number in [lowest, highest].
double number_field(const nlohmann::json& object, const char* key, double lowest, double highest, const std::string& where);

bool bool_field(const nlohmann::json& object, const char* key, const std::string& where);
std::string string_field(const nlohmann::json& object, const char* key, const std::string& where);

/// True when the key is there and holds something other than null.
bool has_field(const nlohmann::json& object, const char* key);
