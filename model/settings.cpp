#include "model/config.h"
#include "model/error.h"

#include <algorithm>
#include <cmath>
#include <string>

void complete_settings(Config& config, const std::vector<Setting>& settings) {
    for (const Setting& s : settings) {
        const double value = config.settings.emplace(s.key, s.value).first->second;
        const bool in_range = value >= s.lowest && value <= s.highest && (!s.whole || value == std::floor(value));
        if (!in_range)
            fail(Exit::usage, s.option, " (", s.key, ") is ", value, ", but must be ", s.whole ? "a whole number" : "a number",
                 " from ", s.lowest, " to ", s.highest);
    }
}

/// How many tokens one of what the setting counts has.
static int tokens_of_part(const Setting& s, const std::vector<Setting>& settings, const std::map<std::string, double>& given) {
    if (!s.part_key) return s.part;
    if (const auto value = given.find(s.part_key); value != given.end()) return int(value->second);
    const auto named = [&](const Setting& other) { return std::string(other.key) == s.part_key; };
    return int(std::find_if(settings.begin(), settings.end(), named)->value);
}

void require_within_sequence(const std::vector<Setting>& settings, const std::map<std::string, double>& given, int T) {
    for (const Setting& s : settings) {
        const auto value = given.find(s.key);
        if (!s.of_sequence || value == given.end()) continue;
        const int part = std::max(1, tokens_of_part(s, settings, given)), most = (T + part - 1) / part;
        if (value->second <= most) continue;
        const std::string blocks = part > 1 ? " (blocks of " + std::to_string(part) + ": " + std::to_string(most) + ")" : "";
        if (s.lowest > most)
            fail(Exit::usage, s.option, " is ", value->second, ", and --seq-len ", T, blocks,
                 " is less than the least that it can be, ", s.lowest, "; raise --seq-len");
        fail(Exit::usage, s.option, " is ", value->second, ", but with --seq-len ", T, blocks, " must be ",
             s.whole ? "a whole number" : "a number", " from ", s.lowest, " to ", most);
    }
}
