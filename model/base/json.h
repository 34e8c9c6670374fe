// JSON: reading it, writing it, and fields of an object with errors that name the file, the key, the value found and what would be
// right. For .cpp files only, since nlohmann's header is slow to compile. Its parser and writer are slower still: nobody else calls
// its parse() and dump(), so that they are compiled once.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

/// As nlohmann::json::parse(): what is no JSON is an exception of the library's, or, unless it `throws`, a discarded value.
nlohmann::json parse_json(std::string_view text, const nlohmann::json::parser_callback_t& on_value = nullptr, bool throws = true);

using NotUtf8 = nlohmann::json::error_handler_t;

/// As nlohmann's dump(): one line or, with an `indent` of 0 or more, several; an ordered_json's keys in the order in which they
/// were added. `otherwise` says what becomes of a string that is not UTF-8: an exception, or U+FFFD in place of what is wrong.
std::string written(const nlohmann::json& value, int indent = -1, NotUtf8 otherwise = NotUtf8::strict);
std::string written(const nlohmann::ordered_json& value, int indent = -1, NotUtf8 otherwise = NotUtf8::strict);

// ---- fields of model folders' files: every failure is Exit::checkpoint

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
