#include "model/run/report.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <set>
#include <utility>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data/files.h"
#include "model/base/disk.h"
#include "model/base/error.h"
#include "model/base/json.h"
#include "model/base/process.h"
#include "model/base/text.h"

// ---- log.jsonl

namespace {

/// What a run resumed at `step` keeps of a log: each training step and each validation up to it once, and the other records up to it,
/// except a finished run's last.
struct KeptLog {
    int64_t step;
    std::string lines{};
    std::set<std::pair<bool, int64_t>> steps{};   // of training (true) and of validations
    int64_t begin = -1;                           // step of the first config record
    int64_t invalid = 0, in_gaps = 0;
    double loss = NAN;                            // of `step`

    void take(const std::string& line);

    /// Training steps that have no record and that no gap record counts; without such steps, invalid lines.
    int64_t missing() const {
        const int64_t from = std::max<int64_t>(0, begin), there = std::distance(steps.upper_bound({true, from}), steps.end());
        const int64_t absent = step - from - there - in_gaps;
        return absent > 0 ? absent : invalid;
    }
};

void KeptLog::take(const std::string& line) {
    const auto record = parse_json(line, false);
    const auto whole = [&](const char* key) { return record.contains(key) && record[key].is_number_integer(); };
    if (!record.is_object() || (record.contains("step") && !whole("step"))) return void(invalid++);
    const int64_t of = whole("step") ? record["step"].get<int64_t>() : 0;
    const bool has_event = record.contains("event"), trains = record.contains("grad_norm");
    const std::string event = has_event && record["event"].is_string() ? record["event"].get<std::string>() : "";
    if (event == "done" || of > step || (!has_event && !steps.emplace(trains, of).second)) return;
    if (!has_event && trains && of == step && record.contains("loss") && record["loss"].is_number()) loss = record["loss"].get<double>();
    if (event == "config" && begin < 0) begin = of;
    if (event == "gap" && whole("missing")) in_gaps += record["missing"].get<int64_t>();
    lines += line + "\n";
}

}   // namespace

/// The lines that a run resumed at `step`, with loss `loss`, keeps of the log, and a gap record for missing ones. The last line, which a
/// kill may have cut, does not count as missing.
static std::string kept_lines(const std::string& path, int64_t step, double loss) {
    std::string all;
    try {
        if (path_exists(path)) all = read_text(path, SIZE_MAX);
    } catch (const Error& error) {
        fail(Exit::checkpoint, error.what(), "; --resume appends to this log; make it readable, or move it away to start another");
    }
    KeptLog kept{step};
    for (size_t at = 0, end; at < all.size(); at = end + 1) {
        end = std::min(all.find('\n', at), all.size());
        const std::string line = all.substr(at, end - at);
        if (end < all.size() || parse_json(line, false).is_object()) kept.take(line);
    }
    if (std::isfinite(loss) && std::isfinite(kept.loss) && kept.loss != loss)
        fail(Exit::checkpoint, path, ": is the log of another run (its step ", step, " has the loss ", kept.loss, ", the checkpoint ", loss,
             "); move it away to start another");
    const int64_t missing = kept.missing();
    if (missing == 0) return kept.lines;
    std::fprintf(stderr, "warning: %s: %lld records are missing or invalid\n", path.c_str(), static_cast<long long>(missing));
    const nlohmann::ordered_json gap{{"event", "gap"}, {"missing", missing}, {"reason", "records missing or invalid, found on resuming"}};
    return kept.lines + written(gap) + "\n";
}

void JsonLines::open(const std::string& path, int64_t resume_step, double loss) {
    const std::string kept = resume_step >= 0 ? kept_lines(path, resume_step, loss) : "";
    open_whole(path);
    if (!write_all(descriptor_, kept.data(), kept.size()) || retried([&] { return fsync(descriptor_); }) != 0)
        fail(Exit::checkpoint, unnamed_, ": cannot be written (", last_os_error(), "); ", path, " is as it was");
    whole_ = kept.size();
    name(resume_step < 0);
}

void JsonLines::open_whole(const std::string& path) {
    std::error_code ignored;
    const auto there = std::filesystem::symlink_status(path, ignored);
    if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there))
        fail(Exit::checkpoint, path, ": exists and is not a regular file; choose another path");
    path_ = path;
    const std::string unnamed = path + ".tmp";   // if killed before the rename, the old file is intact
    descriptor_ = open_new(unnamed);
    if (descriptor_ < 0) fail(Exit::checkpoint, unnamed, ": cannot be written (", last_os_error(), "); choose another path");
    unnamed_ = unnamed;
}

void JsonLines::finish() {
    if (descriptor_ < 0) return;
    if (failed() && !write_waiting()) fail(Exit::data, path_, ": could not be written completely");
    sync();
    name(true);
}

void JsonLines::name(bool keep_older) {
    if (keep_older && path_exists(path_) && std::rename(path_.c_str(), (path_ + ".old").c_str()) != 0)
        fail(Exit::checkpoint, path_, ": cannot be renamed to ", path_, ".old (", last_os_error(), "); choose another path");
    if (std::rename(unnamed_.c_str(), path_.c_str()) != 0)
        fail(Exit::checkpoint, path_, ": cannot be written (", last_os_error(), "); choose another path");
    unnamed_.clear();
    sync_directory(std::filesystem::path(path_).parent_path());
}

JsonLines::~JsonLines() {
    if (descriptor_ >= 0) write_waiting(), ::close(descriptor_);
    if (!unnamed_.empty()) std::remove(unnamed_.c_str());
    if (failed()) std::fprintf(stderr, "warning: %s lacks its last %zu records (%s)\n", path_.c_str(), waiting_.size(), reason_.c_str());
}

/// Writes the waiting lines. False if some still wait; a partial line is removed. A log that cannot be written does not stop the run.
bool JsonLines::write_waiting() {
    for (; !waiting_.empty(); waiting_.pop_front()) {
        const std::string& line = waiting_.front();
        if (!write_all(descriptor_, line.data(), line.size())) {
            reason_ = last_os_error();
            if (!std::exchange(warned_, true))
                std::fprintf(stderr, "warning: %s cannot be written (%s); the run continues and retries with each record\n", path_.c_str(),
                             reason_.c_str());
            const bool cut = retried([&] { return ftruncate(descriptor_, off_t(whole_)); }) == 0;
            if (!cut) (void)write_all(descriptor_, "\n", 1);
            return false;
        }
        whole_ += line.size();
    }
    if (std::exchange(warned_, false)) std::fprintf(stderr, "note: %s can be written again\n", path_.c_str());
    return true;
}

void JsonLines::sync() {
    if (descriptor_ < 0 || retried([&] { return fsync(descriptor_); }) == 0 || std::exchange(sync_warned_, true)) return;
    std::fprintf(stderr, "warning: %s cannot be synced to disk (%s)\n", path_.c_str(), last_os_error().c_str());
}

static nlohmann::ordered_json json_of(const RawJson& value) { return parse_json(value.text); }
template <class X>
nlohmann::ordered_json json_of(const X& value) {
    return value;
}

void JsonLines::write(const std::vector<Field>& fields) {
    if (descriptor_ < 0) return;
    nlohmann::ordered_json object;
    for (const auto& [key, value] : fields) std::visit([&, name = key](const auto& v) { object[name] = json_of(v); }, value);
    waiting_.push_back(written(object, -1, NotUtf8::replace) + "\n");   // paths and prompts need not be valid UTF-8
    write_waiting();
}

std::vector<JsonLines::Field> of_program() {
    const std::string path = program_path();
    return {{"commit", source_commit()}, {"dirty", int64_t(source_is_dirty())}, {"binary_hash", path.empty() ? "" : file_hash(path)}};
}

// ---- the step line

std::string shown_loss(double loss) { return std::isnan(loss) ? "-" : text("%.4f", loss); }

Progress::Progress(bool prints, bool launched)
    : prints_(prints), launched_(launched), in_place_(!launched && isatty(STDOUT_FILENO) != 0) {}

/// Whether standard output can take PIPE_BUF bytes without blocking, now or within `milliseconds`.
static bool writable(int milliseconds) {
    pollfd out{STDOUT_FILENO, POLLOUT, 0};
    return poll(&out, 1, milliseconds) == 1;
}

/// Waits until standard output can be written. False if a stop is requested instead, because a blocked write cannot be aborted.
static bool wait_for_reader() {
    while (!writable(200))
        if (stop_requested()) return false;
    return true;
}

void Progress::put(const std::string& line) {
    for (size_t at = 0; at < line.size() && wait_for_reader(); at += PIPE_BUF) {
        std::fwrite(line.data() + at, 1, std::min<size_t>(PIPE_BUF, line.size() - at), stdout);
        std::fflush(stdout);
    }
}

void Progress::step(const std::string& what, double seconds, int64_t steps_left) {
    average_ = ++steps_ <= 2 ? seconds : 0.9 * average_ + 0.1 * seconds;   // ignores the first step, which warms up
    if (!prints_ || (launched_ && !writable(0))) return;
    const std::string line = what + " | " + human_seconds(average_ * double(steps_left)) + " left";
    put(in_place_ ? "\r\033[K" + line : line + "\n");
    line_open_ = in_place_, shows_status_ = false;
}

void Progress::show_status(const std::string& what) {
    if (!prints_ || !in_place_) return;
    put((shows_status_ || !line_open_ ? "\r\033[K" : "\n") + what);
    line_open_ = shows_status_ = true;
}

void Progress::print(const std::string& what) {
    if (!prints_) return;
    put((!line_open_ ? "" : shows_status_ ? "\r\033[K" : "\n") + what + "\n");
    line_open_ = shows_status_ = false;
}

void plot(const std::string& name, const std::string& log, const std::string& png) {
    const std::string script = program_folder() + "/scripts/" + name;
    std::fflush(stdout);
    const pid_t child = fork();
    if (child < 0) return;
    if (child == 0) {
        execlp("python3", "python3", script.c_str(), log.c_str(), "--out", png.c_str(), static_cast<char*>(nullptr));
        std::fputs("no picture was drawn: apt install python3-matplotlib\n", stderr);
        _exit(127);
    }
    int status;
    waitpid(child, &status, 0);
}
