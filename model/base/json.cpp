#include "model/base/json.h"

#include <fstream>

using nlohmann::json;

namespace {

class BeyondLimits : public json::exception {
public:
    explicit BeyondLimits(const std::string& what) : json::exception(599, what.c_str()) {}
};

/// The position of the quote that ends the string whose opening quote is at `at`.
size_t end_of_string(std::string_view text, size_t at, size_t longest) {
    const size_t begin = ++at;
    while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
    if (at >= text.size()) throw BeyondLimits("the string that begins at byte " + std::to_string(begin - 1) + " has no end");
    if (at - begin > longest) throw BeyondLimits("a string is longer than " + std::to_string(longest) + " bytes");
    return at;
}

/// Throws BeyondLimits; in one pass before the parser, which would first make the values. The parser finds all other errors.
void require_within_limits(std::string_view text, size_t most_values, size_t longest_string) {
    int depth = 0;
    size_t values = 0;   // commas, brackets and braces: at least as many as values
    for (size_t at = 0; at < text.size(); at++) {
        const char c = text[at];
        if (c == '"') at = end_of_string(text, at, longest_string);
        depth += (c == '[' || c == '{') - (c == ']' || c == '}');
        values += c == '[' || c == '{' || c == ',';
        if (depth > deepest_json) throw BeyondLimits("it is nested more than " + std::to_string(deepest_json) + " levels deep");
        if (values > most_values) throw BeyondLimits("it has more than " + std::to_string(most_values) + " values");
    }
}

}   // namespace

json parse_json(std::string_view text, bool throws, const json::parser_callback_t& keep) {
    try {
        require_within_limits(text, keep ? SIZE_MAX : most_json_values, keep ? longest_dropped_string : longest_json_line);
        return json::parse(text, keep);
    } catch (const json::exception& error) {
        if (!throws) return json(json::value_t::discarded);
        const std::string_view what = error.what();
        if (what.size() <= 400) throw;
        throw BeyondLimits(std::string(what.substr(0, 400)) + "...");   // the library quotes the whole string that is wrong
    }
}

std::string written(const json& value, int indent, NotUtf8 otherwise) { return value.dump(indent, ' ', false, otherwise); }
std::string written(const nlohmann::ordered_json& value, int indent, NotUtf8 otherwise) {
    return value.dump(indent, ' ', false, otherwise);
}

/// The next line, without its end; false at the end of the file.
static bool read_line(std::istream& file, std::string& line, const std::string& where) {
    line.clear();
    char c;
    while (file.get(c) && c != '\n') {
        if (line.size() == longest_json_line)
            fail(Exit::data, where, ": the line is longer than ", longest_json_line, " bytes; is this a JSON Lines file?");
        line.push_back(c);
    }
    return file || !line.empty();
}

void each_json_line(const std::string& path, const std::function<bool(const json&, const std::string&, int64_t)>& use) {
    std::ifstream file(path);
    while (!file.is_open() && errno == EINTR) file.open(path);
    if (!file.is_open()) fail(Exit::data, path, ": cannot be opened: ", last_os_error());
    std::string line;
    for (int64_t number = 1;; number++) {
        const std::string where = path + ":" + std::to_string(number);
        if (!read_line(file, line, where)) break;
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        if (!use(parse_json_object(line, where, Exit::data), where, number)) return;
    }
    if (file.bad()) fail(Exit::data, path, ": cannot be read: ", last_os_error());
}

json parse_json_object(std::string_view text, const std::string& where, Exit code) {
    if (text.find('\0') != std::string_view::npos) fail(code, where, ": has a zero byte");   // where the parser would stop
    json object;
    try {
        object = parse_json(text);
    } catch (const json::exception& error) {
        std::string reason = error.what();
        if (const size_t at = reason.find("line 1, "); at != reason.npos) reason.erase(at, 8);   // the file's line is in `where`
        fail(code, where, ": is not JSON: ", reason);
    }
    if (!object.is_object()) fail(code, where, ": is not a JSON object {...}, but of the type ", object.type_name());
    return object;
}

std::string shown(const json& value) {
    if (value.is_structured()) return std::string("an ") + value.type_name();
    std::string text = written(value);
    if (text.size() > 80) text = text.substr(0, 80) + "...";
    return text;
}

const json& required_field(const json& object, const std::string& key, const std::string& where, Exit code, const std::string& hint) {
    const auto field = object.find(key);
    if (field == object.end()) fail(code, where, ": the key \"", key, "\" is missing", hint);
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

std::string string_field(const json& object, const std::string& key, const std::string& where, Exit code, const std::string& hint) {
    const json& value = required_field(object, key, where, code, hint);
    if (!value.is_string()) fail(code, where, ": \"", key, "\" is ", shown(value), ", expected a string");
    return value.get<std::string>();
}

bool has_field(const json& object, const char* key) {
    const auto field = object.find(key);
    return field != object.end() && !field->is_null();
}
