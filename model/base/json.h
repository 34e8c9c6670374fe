// JSON: parsing, writing, and access to an object's fields with errors that name the file, the key, the value found and what was
// expected. Include from .cpp files only: nlohmann's header is slow to compile. Its parse() and dump() are slower still; only
// json.cpp calls them, so that they are compiled once.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "model/base/error.h"

/// Limits of all JSON that is parsed: foreign text of a few megabytes must take neither gigabytes nor the whole stack.
constexpr int deepest_json = 100;                          // levels of objects and lists
constexpr size_t most_json_values = size_t{1} << 22;       // more than twice those of Gemma's tokenizer.json
constexpr size_t longest_json_line = size_t{1} << 26;      // bytes; also of a string
constexpr size_t longest_dropped_string = size_t{1} << 24;   // where values may be dropped

/// nlohmann::json::parse() within these limits: on invalid JSON or beyond them a json::exception, or, unless `throws`, a discarded
/// value. With `keep`, nlohmann's callback, which may drop values as they are parsed, their number is not limited.
nlohmann::json parse_json(std::string_view text, bool throws = true, const nlohmann::json::parser_callback_t& keep = nullptr);

using NotUtf8 = nlohmann::json::error_handler_t;

/// nlohmann's dump(): one line, or several if `indent` >= 0; an ordered_json's keys in insertion order. `otherwise` selects what
/// happens to invalid UTF-8: an exception, or replacement by U+FFFD.
std::string written(const nlohmann::json& value, int indent = -1, NotUtf8 otherwise = NotUtf8::strict);
std::string written(const nlohmann::ordered_json& value, int indent = -1, NotUtf8 otherwise = NotUtf8::strict);

/// Calls use(object, "path:line", line) for every line of a JSON Lines file that is not blank, in order, until it returns false.
/// Exit::data for a file that cannot be read and for a line that is not a JSON object or is longer than longest_json_line.
void each_json_line(const std::string& path, const std::function<bool(const nlohmann::json&, const std::string&, int64_t)>& use);

/// Parses a JSON object. Fails with `code`, naming `where` (the file's path, and the line if the text is one), for a text that is none.
nlohmann::json parse_json_object(std::string_view text, const std::string& where, Exit code = Exit::checkpoint);

// ---- fields; every failure is Exit::checkpoint unless another code is given

/// A value for an error message: at most 80 characters of a scalar, only the kind of a structure.
std::string shown(const nlohmann::json& value);

/// The field `key` of `object`, which must be present; `hint` ends the sentence about a missing one.
const nlohmann::json& required_field(const nlohmann::json& object, const std::string& key, const std::string& where,
                                     Exit code = Exit::checkpoint, const std::string& hint = "");

/// An integer in [lowest, highest]; a JSON number with a decimal point is not one.
int64_t integer_field(const nlohmann::json& object, const char* key, int64_t lowest, int64_t highest, const std::string& where);

/// A finite number in [lowest, highest].
double number_field(const nlohmann::json& object, const char* key, double lowest, double highest, const std::string& where);

bool bool_field(const nlohmann::json& object, const char* key, const std::string& where);
std::string string_field(const nlohmann::json& object, const std::string& key, const std::string& where, Exit code = Exit::checkpoint,
                         const std::string& hint = "");

/// Whether the key is present and not null.
bool has_field(const nlohmann::json& object, const char* key);
