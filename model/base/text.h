// Text for people: tables, durations, sizes.
#pragma once
#include <chrono>
#include <string>
#include <utility>
#include <vector>

/// "+---+" box with one "| name | value |" line per row, on stdout.
void print_table(const std::string& title, const std::vector<std::pair<std::string, std::string>>& rows);

/// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...);

/// "1h 02m", "2m 31s", "12 s"
std::string human_seconds(double seconds);

/// "1.50 GiB", "12.3 MiB", "640 B"
std::string human_bytes(double bytes);

/// Seconds since the object was made.
class Stopwatch {
public:
    double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
    double lap() {
        const double s = seconds();
        start_ = std::chrono::steady_clock::now();
        return s;
    }

private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};
