#include "model/config.h"
#include "model/error.h"

#include <cmath>

void complete_settings(Config& config, const std::vector<Setting>& settings) {
    for (const Setting& s : settings) {
        const double value = config.settings.emplace(s.key, s.value).first->second;
        const bool in_range = value >= s.lowest && value <= s.highest && (!s.whole || value == std::floor(value));
        if (!in_range)
            fail(Exit::usage, s.option, " (", s.key, ") is ", value, ", but must be ", s.whole ? "a whole number" : "a number",
                 " from ", s.lowest, " to ", s.highest);
    }
}

void require_within_sequence(const std::vector<Setting>& settings, const std::map<std::string, double>& given, int T) {
    for (const Setting& s : settings) {
        const auto value = given.find(s.key);
        if (!s.of_sequence || value == given.end() || value->second <= T) continue;
        if (s.lowest > T)
            fail(Exit::usage, s.option, " is ", value->second, ", and --seq-len ", T, " is less than the least that it can be, ",
                 s.lowest, "; raise --seq-len");
        fail(Exit::usage, s.option, " is ", value->second, ", but with --seq-len ", T, " must be ",
             s.whole ? "a whole number" : "a number", " from ", s.lowest, " to ", T);
    }
}
