// A run's output: one line per step, and log.jsonl.
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "model/attention_report.h"

/// log.jsonl: one JSON object per line, numbers in full precision, each line flushed.
class JsonLines {
public:
    using Value = std::variant<int64_t, double, std::string, HeadTable>;
    using Field = std::pair<std::string, Value>;

    JsonLines() = default;   // writes nothing: ranks other than the first

    /// A new file; an older one is kept as PATH.old. With resume_step >= 0, records up to that step are kept and what a killed run
    /// wrote after them is dropped, so that no step appears twice. Exit::checkpoint if the file cannot be written.
    JsonLines(const std::string& path, int64_t resume_step);

    /// A new file that finish() renames into place: complete or absent.
    static JsonLines whole(const std::string& path);
    void finish();

    ~JsonLines();
    JsonLines(JsonLines&& other) noexcept { *this = std::move(other); }
    JsonLines& operator=(JsonLines&& other) noexcept;

    /// Writes a record. Numbers that are not finite become null, as JSON has none.
    void write(const std::vector<Field>& fields);

    /// Whether a write has failed (a warning was printed).
    bool failed() const { return failed_; }

    /// The same with one more field, `key`, whose value is JSON text on one line.
    void write(const std::vector<Field>& fields, const char* key, const std::string& json);

private:
    void open(const std::string& path);
    void name(bool keep_older);
    void put(const std::string& line);
    std::FILE* file_ = nullptr;
    std::string path_, unnamed_;   // final path, and temporary path until the rename
    bool failed_ = false;
};

/// What a record says of the program that writes it: `commit`, `dirty` (1: built of files that differ from the commit) and
/// `binary_hash`.
std::vector<JsonLines::Field> of_program();

inline void append(std::vector<JsonLines::Field>& fields, const std::vector<JsonLines::Field>& more) {
    fields.insert(fields.end(), more.begin(), more.end());
}

/// One optimiser step, as printed and logged.
struct StepReport {
    int64_t step, steps;   // from 1; of how many
    int64_t tokens;        // trained on so far
    double loss;   // NaN where the loss mask hides every target of the step
    double grad_norm, lr;
    double seconds;   // of this step
    double tokens_per_second;
    double flops_per_second;
    double mfu;   // relative to the measured ceiling of all ranks
};

/// "2.3456", or "-" where there is none.
std::string shown_loss(double loss);

/// The step line: rewritten in place on a terminal, one line per step when piped, nothing on ranks other than the first. If a
/// launcher stops reading its pipe (mpirun after SIGTERM), step lines are dropped rather than blocking the run.
class Progress {
public:
    Progress(bool speaks, bool launched);
    void step(const StepReport& report, int64_t steps_in_this_run);
    /// A transient status that replaces the current line, on a terminal only.
    void passing(const std::string& what);
    /// Anything else, on its own lines.
    void say(const std::string& what);

private:
    bool speaks_, launched_, in_place_, line_open_ = false, passing_ = false;
    double average_ = 0;   // smoothed seconds per step, for the time left
};

/// Plots the run's log with a program of scripts/; says how to install what is missing.
void plot(const std::string& script, const std::string& log, const std::string& png);
