// A run's output: one line per step, and log.jsonl.
#pragma once
#include <cmath>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "model/attention_report.h"

/// log.jsonl: one JSON object per line, numbers in full precision, each line written at once. A line that cannot be written is kept and
/// written before the next one. If more than a MiB is waiting, the oldest lines are dropped, and the log gets a record
/// {"event":"gap","missing":N,"reason":...}.
class JsonLines {
public:
    using Value = std::variant<int64_t, double, std::string, HeadTable>;
    using Field = std::pair<std::string, Value>;

    JsonLines() = default;   // writes nothing; for ranks other than the first

    /// Opens a new file; an older one is kept as PATH.old. With resume_step >= 0, records up to that step are kept and later ones of a
    /// killed run are dropped, so that no step appears twice. Invalid lines and steps without a record give a warning and a gap.
    /// Exit::checkpoint if the file cannot be written, or if the older one cannot be read or belongs to another run: its step
    /// resume_step has a loss other than `loss`.
    JsonLines(const std::string& path, int64_t resume_step, double loss = NAN);

    /// A new file that finish() renames into place: complete or absent.
    static JsonLines whole(const std::string& path);
    void finish();

    ~JsonLines();
    JsonLines(JsonLines&& other) noexcept { *this = std::move(other); }
    JsonLines& operator=(JsonLines&& other) noexcept;

    /// Writes a record. Numbers that are not finite become null, because JSON cannot represent them.
    void write(const std::vector<Field>& fields);

    /// The same with a further field `key`, whose value is JSON text on one line.
    void write(const std::vector<Field>& fields, const char* key, const std::string& json);

    /// Syncs the file to disk. Warns once if that fails.
    void sync();

    /// Whether lines wait or were dropped (a warning was printed).
    bool failed() const { return !waiting_.empty() || dropped_ > 0; }

private:
    void open(const std::string& path);
    void name(bool keep_older);
    void put(const std::string& line);
    bool write_waiting();
    void warn(const std::string& reason);

    int descriptor_ = -1;
    std::string path_, unnamed_;   // final path, and temporary path until the rename
    size_t whole_ = 0;             // bytes of the complete lines in the file
    std::deque<std::string> waiting_;
    size_t waiting_bytes_ = 0;
    int64_t dropped_ = 0;          // lines dropped since the last gap record
    std::string reason_;           // why lines wait or were dropped
    bool warned_ = false, sync_warned_ = false;
};

/// The fields of a record about this program: `commit`, `dirty` (1: built from files that differ from the commit) and `binary_hash`.
std::vector<JsonLines::Field> of_program();

inline void append(std::vector<JsonLines::Field>& fields, const std::vector<JsonLines::Field>& more) {
    fields.insert(fields.end(), more.begin(), more.end());
}

/// The figures of one optimiser step, for output and log.
struct StepReport {
    int64_t step, steps;   // from 1; total of the run
    int64_t tokens;        // trained so far
    double loss;   // NaN if the loss mask hides every target of the step
    double grad_norm, lr;
    double seconds;   // of this step
    double tokens_per_second;
    double flops_per_second;
    double mfu;   // relative to the measured ceiling of all ranks
};

/// "2.3456", or "-" for NaN.
std::string shown_loss(double loss);

/// The step line: rewritten in place on a terminal, one line per step in a pipe, nothing on ranks other than the first. If a launcher
/// stops reading its pipe (mpirun after SIGTERM), step lines are dropped rather than blocking the run. For other readers the run waits,
/// until a signal requests a stop; then it drops output that does not fit into the pipe.
class Progress {
public:
    Progress(bool prints, bool launched);
    void step(const StepReport& report, int64_t steps_in_this_run);
    /// Shows a transient status in place of the current line, on a terminal only.
    void show_status(const std::string& what);
    /// Prints other output, on its own lines.
    void print(const std::string& what);

private:
    void put(const std::string& line);

    bool prints_, launched_, in_place_, line_open_ = false, shows_status_ = false;
    double average_ = 0;   // smoothed seconds per step, for the time left
};

/// Plots the run's log with a program of scripts/; prints how to install missing packages.
void plot(const std::string& script, const std::string& log, const std::string& png);
