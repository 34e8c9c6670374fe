#include "model/base/json.h"

#include <fstream>

#include "model/base/error.h"

using nlohmann::json;

json parse_json(std::string_view text, const json::parser_callback_t& on_value, bool throws) {
    return json::parse(text, on_value, throws);
}

std::string written(const json& value, int indent, NotUtf8 otherwise) { return value.dump(indent, ' ', false, otherwise); }
std::string written(const nlohmann::ordered_json& value, int indent, NotUtf8 otherwise) {
    return value.dump(indent, ' ', false, otherwise);
}

/// Exit::data for what is too deep for functions that call themselves for each level, the library's among them.
static json::parser_callback_t require_depth(const std::string& where) {
    return [&where](int depth, json::parse_event_t, json&) {
        if (depth > 100) fail(Exit::data, where, ": is nested more than 100 levels deep");
        return true;
    };
}

static json parse_json_line(const std::string& line, const std::string& where) {
    if (line.find('\0') != std::string::npos) fail(Exit::data, where, ": has a zero byte");   // where the parser would stop
    json object;
    try {
        object = parse_json(line, require_depth(where));
    } catch (const json::exception& error) {
        fail(Exit::data, where, ": is not JSON: ", error.what());
    }
    if (!object.is_object()) fail(Exit::data, where, ": is not a JSON object");
    return object;
}

void each_json_line(const std::string& path, const std::function<bool(const json&, const std::string&, int64_t)>& use) {
    std::ifstream file(path);
    while (!file.is_open() && errno == EINTR) file.open(path);
    if (!file.is_open()) fail(Exit::data, path, ": cannot be opened: ", last_os_error());
    std::string line;
    for (int64_t number = 1; std::getline(file, line); number++) {
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        const std::string where = path + ":" + std::to_string(number);
        if (!use(parse_json_line(line, where), where, number)) return;
    }
    if (file.bad()) fail(Exit::data, path, ": cannot be read: ", last_os_error());
}

json parse_json_object(const std::string& text, const std::string& where) {
    json object;
    try {
        object = parse_json(text);
    } catch (const json::exception& e) {
        fail(Exit::checkpoint, where, ": not valid JSON (", e.what(), ")");
    }
    if (!object.is_object()) fail(Exit::checkpoint, where, ": holds a JSON ", object.type_name(), ", expected an object {...}");
    return object;
}

std::string shown(const json& value) {
    if (value.is_structured()) return std::string("an ") + value.type_name();
    std::string text = written(value);
    if (text.size() > 80) text = text.substr(0, 80) + "...";
    return text;
}

const json& required_field(const json& object, const char* key, const std::string& where) {
    const auto field = object.find(key);
    if (field == object.end()) fail(Exit::checkpoint, where, ": the key \"", key, "\" is missing");
    return *field;
}

int64_t integer_field(const json& object, const char* key, int64_t lowest, int64_t highest, const std::string& where) {
    const json& value = required_field(object, key, where);
    const bool beyond_int64 = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(INT64_MAX);
    const bool fits = value.is_number_integer() && !beyond_int64 && value.get<int64_t>() >= lowest && value.get<int64_t>() <= highest;
    if (!fits)
        fail(Exit::checkpoint, where, ": \"", key, "\" is ", shown(value), ", expected a whole number from ", lowest, " to ", highest);
    return value.get<int64_t>();
}

double number_field(const json& object, const char* key, double lowest, double highest, const std::string& where) {
    const json& value = required_field(object, key, where);
    const bool fits = value.is_number() && value.get<double>() >= lowest && value.get<double>() <= highest;
    if (!fits) fail(Exit::checkpoint, where, ": \"", key, "\" is ", shown(value), ", expected a number from ", lowest, " to ", highest);
    return value.get<double>();
}

bool bool_field(const json& object, const char* key, const std::string& where) {
    const json& value = required_field(object, key, where);
    if (!value.is_boolean()) fail(Exit::checkpoint, where, ": \"", key, "\" is ", shown(value), ", expected true or false");
    return value.get<bool>();
}

std::string string_field(const json& object, const char* key, const std::string& where) {
    const json& value = required_field(object, key, where);
    if (!value.is_string()) fail(Exit::checkpoint, where, ": \"", key, "\" is ", shown(value), ", expected a string");
    return value.get<std::string>();
}

bool has_field(const json& object, const char* key) {
    const auto field = object.find(key);
    return field != object.end() && !field->is_null();
}
