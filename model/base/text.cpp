#include "model/base/text.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

std::string text(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    va_list again;
    va_copy(again, arguments);
    std::string line(size_t(std::vsnprintf(nullptr, 0, format, arguments)), '\0');
    std::vsnprintf(line.data(), line.size() + 1, format, again);
    va_end(again);
    va_end(arguments);
    return line;
}

void print_table(const std::string& title, const std::vector<std::pair<std::string, std::string>>& rows) {
    size_t left = title.size(), right = 0;
    for (const auto& [name, value] : rows) left = std::max(left, name.size()), right = std::max(right, value.size());
    const std::string rule = text("+%s+%s+\n", std::string(left + 2, '-').c_str(), std::string(right + 2, '-').c_str());
    auto line = [&](const std::string& name, const std::string& value) {
        return text("| %-*s | %-*s |\n", int(left), name.c_str(), int(right), value.c_str());
    };
    std::string all = rule + line(title, "") + rule;
    for (const auto& [name, value] : rows) all += line(name, value);
    std::fputs((all + rule).c_str(), stdout);
}

std::string human_seconds(double seconds) {
    const auto s = static_cast<long long>(std::llround(std::max(0.0, seconds)));
    if (s >= 3600) return text("%lldh %02lldm", s / 3600, s / 60 % 60);
    if (s >= 60) return text("%lldm %02llds", s / 60, s % 60);
    return text("%lld s", s);
}

std::string human_bytes(double bytes) {
    const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    while (bytes >= 1024 && unit < 4) bytes /= 1024, unit++;
    return text(unit ? "%.2f %s" : "%.0f %s", bytes, units[unit]);
}
