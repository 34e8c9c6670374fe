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

/// A field's value that is JSON text already, on one line.
struct RawJson {
    std::string text;
};

/// log.jsonl: one JSON object per line, numbers in full precision, each line written at once. A line that cannot be written stays in
/// memory, however many do, and is written before the next one.
class JsonLines {
public:
    using Value = std::variant<int64_t, double, std::string, HeadTable, std::vector<float>, RawJson>;
    using Field = std::pair<std::string, Value>;

    JsonLines() = default;   // writes nothing until it is opened; on ranks other than the first it stays so
    JsonLines(const JsonLines&) = delete;
    ~JsonLines();

    /// Opens a new file; an older one is kept as PATH.old. With resume_step >= 0, records up to that step are kept and later ones of a
    /// killed run are dropped, so that no step appears twice. Invalid lines and steps without a record give a warning and a gap.
    /// Exit::checkpoint if the file cannot be written, or if the older one cannot be read or belongs to another run: its step
    /// resume_step has a loss other than `loss`.
    void open(const std::string& path, int64_t resume_step = -1, double loss = NAN);

    /// Opens a file that finish() renames into place: complete or absent. Exit::data if lines could not be written.
    void open_whole(const std::string& path);
    void finish();

    /// Writes a record. Numbers that are not finite become null, because JSON cannot represent them.
    void write(const std::vector<Field>& fields);

    /// Syncs the file to disk. Warns once if that fails.
    void sync();

    /// Whether lines wait (a warning was printed).
    bool failed() const { return !waiting_.empty(); }

private:
    void name(bool keep_older);
    bool write_waiting();

    int descriptor_ = -1;
    std::string path_, unnamed_;   // final path, and temporary path until the rename
    size_t whole_ = 0;             // bytes of the complete lines in the file
    std::deque<std::string> waiting_;
    std::string reason_;           // why lines wait
    bool warned_ = false, sync_warned_ = false;
};

/// The fields of a record about this program: `commit`, `dirty` (1: built from files that differ from the commit) and `binary_hash`.
std::vector<JsonLines::Field> of_program();

inline void append(std::vector<JsonLines::Field>& fields, const std::vector<JsonLines::Field>& more) {
    fields.insert(fields.end(), more.begin(), more.end());
}

/// "-" for NaN: the loss mask hides every target of the step.
std::string shown_loss(double loss);

/// The step line: rewritten in place on a terminal, one line per step in a pipe, nothing on ranks other than the first. If a launcher
/// stops reading its pipe (mpirun after SIGTERM), step lines are dropped rather than blocking the run. For other readers the run waits,
/// until a signal requests a stop; then it drops output that does not fit into the pipe.
class Progress {
public:
    Progress(bool prints, bool launched);
    /// Shows a step that took `seconds`, and the time that `steps_left` more will take.
    void step(const std::string& what, double seconds, int64_t steps_left);
    /// Shows a transient status in place of the current line, on a terminal only.
    void show_status(const std::string& what);
    void print(const std::string& what);

private:
    void put(const std::string& line);

    bool prints_, launched_, in_place_, line_open_ = false, shows_status_ = false;
    int64_t steps_ = 0;
    double average_ = 0;   // smoothed seconds per step, for the time left
};

/// Plots the run's log with a program of scripts/; prints how to install missing packages.
void plot(const std::string& script, const std::string& log, const std::string& png);
