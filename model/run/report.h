// What a run shows: tables at the start, one line per step, log.jsonl.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "model/attention_report.h"

/// "+---+" box with one "| name | value |" line per row, on stdout.
void print_table(const std::string& title, const std::vector<std::pair<std::string, std::string>>& rows);

/// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...);

/// "1h 02m", "2m 31s", "12 s"
std::string human_seconds(double seconds);

/// log.jsonl: one JSON object a line, numbers in full precision, every line written at once.
class JsonLines {
public:
    using Value = std::variant<int64_t, double, std::string, HeadTable>;
    using Field = std::pair<std::string, Value>;

    JsonLines() = default;   // writes nothing: ranks other than the first

    /// A new file; an older one is kept as PATH.old. With resume_step >= 0 instead the records up to that step stay and what a
    /// killed run wrote behind them is dropped, so that no step appears twice. Exit::checkpoint when the file cannot be written.
    JsonLines(const std::string& path, int64_t resume_step);

    /// A new file that appears under its name in finish(): whole, or not at all.
    static JsonLines whole(const std::string& path);
    void finish();

    ~JsonLines();
    JsonLines(JsonLines&& other) noexcept { *this = std::move(other); }
    JsonLines& operator=(JsonLines&& other) noexcept;

    /// A number that is not finite becomes null, as JSON has no word for it.
    void write(const std::vector<Field>& fields);

    /// Whether something could not be written, which has been said then.
    bool failed() const { return failed_; }

    /// The same with `json` (an object's text, in one line) as the value of the last key.
    void write(const std::vector<Field>& fields, const char* key, const std::string& json);

private:
    void open(const std::string& path);
    void name(bool keep_older);
    void put(const std::string& line);
    std::FILE* file_ = nullptr;
    std::string path_, unnamed_;   // unnamed: where it is until it gets its name
    bool failed_ = false;
};

/// One optimiser step, as printed and logged.
struct StepReport {
    int64_t step, steps;   // from 1; of how many
    int64_t tokens;        // trained on so far
    double loss, grad_norm, lr;
    double seconds;   // of this step
    double tokens_per_second;
    double flops_per_second;
    double mfu;   // of the measured ceiling of all ranks
};

/// The step line: rewritten in place on a terminal, a line each when piped, nothing on ranks other than the first. A launcher's
/// pipe that nobody empties (mpirun after SIGTERM) costs step lines, never the run.
class Progress {
public:
    Progress(bool speaks, bool launched);
    void step(const StepReport& report, int64_t steps_in_this_run);
    /// Something that takes a while, in place of the line before, on a terminal only.
    void passing(const std::string& what);
    /// Anything else, on lines of its own.
    void say(const std::string& what);

private:
    bool speaks_, launched_, in_place_, line_open_ = false, passing_ = false;
    double average_ = 0;   // seconds per step, smoothed, for the time left
};

/// Draws a picture of the run's log with a program of scripts/; says how to get what is missing.
void plot(const std::string& script, const std::string& log, const std::string& png);

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
