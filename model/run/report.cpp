#include "model/run/report.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data/documents/files.h"
#include "model/base/disk.h"
#include "model/base/error.h"
#include "model/base/json.h"
#include "model/base/process.h"
#include "model/base/retry.h"
#include "model/base/text.h"

// ---- log.jsonl

static std::string gap_record(int64_t missing, const std::string& reason) {
    return written(nlohmann::ordered_json{{"event", "gap"}, {"missing", missing}, {"reason", reason}}, -1, NotUtf8::replace) + "\n";
}

namespace {

/// The part of a log that a run resumed at `step` keeps: each training step up to it once, and the other records up to it, except a
/// finished run's last.
struct KeptLog {
    int64_t step = 0;
    std::string lines{};
    std::set<int64_t> trained{}, validated{};   // steps with such a record
    std::optional<int64_t> begin{};             // step of the first config record
    int64_t no_records = 0, doubled = 0, in_gaps = 0;
    double loss = NAN;   // of `step`

    void take(const std::string& line);
    int64_t absent() const;
};

void KeptLog::take(const std::string& line) {
    const auto record = parse_json(line, false);
    const auto at = record.find("step"), event = record.find("event"), missing = record.find("missing"), its_loss = record.find("loss");
    if (!record.is_object() || (at != record.end() && !at->is_number_integer())) return void(no_records++);
    const int64_t of = at == record.end() ? 0 : at->get<int64_t>();
    const std::string name = event != record.end() && event->is_string() ? event->get<std::string>() : "";
    if (name == "done" || of > step) return;
    if (event == record.end()) {
        const bool of_training = record.contains("grad_norm");
        if (!(of_training ? trained : validated).insert(of).second) return void(doubled++);
        if (of_training && of == step && its_loss != record.end() && its_loss->is_number()) loss = its_loss->get<double>();
    }
    if (name == "config" && !begin) begin = of;
    if (name == "gap" && missing != record.end() && missing->is_number_integer()) in_gaps += missing->get<int64_t>();
    lines += line + "\n";
}

/// Training steps that have no record and that no gap record counts.
int64_t KeptLog::absent() const {
    const int64_t from = begin.value_or(0), there = std::distance(trained.upper_bound(from), trained.end());
    return std::max<int64_t>(0, step - from - there - in_gaps);
}

void warn_of_log(const std::string& path, int64_t count, const char* what) {
    if (count > 0) std::fprintf(stderr, "warning: %s: %lld %s\n", path.c_str(), static_cast<long long>(count), what);
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
    warn_of_log(path, kept.no_records, "invalid lines were dropped");
    warn_of_log(path, kept.doubled, "duplicate records were dropped");
    const int64_t absent = kept.absent();
    warn_of_log(path, absent, "steps have no record");
    if (absent > 0) return kept.lines + gap_record(absent, "steps without a record, found on resuming");
    return kept.lines + (kept.no_records ? gap_record(kept.no_records, "invalid lines, found on resuming") : "");
}

JsonLines::JsonLines(const std::string& path, int64_t resume_step, double loss) {
    const std::string kept = resume_step >= 0 ? kept_lines(path, resume_step, loss) : "";
    open(path);
    if (!write_all(descriptor_, kept.data(), kept.size()) || retried([&] { return fsync(descriptor_); }) != 0)
        fail(Exit::checkpoint, unnamed_, ": cannot be written (", last_os_error(), "); ", path, " is as it was");
    whole_ = kept.size();
    name(resume_step < 0);
}

JsonLines JsonLines::whole(const std::string& path) {
    JsonLines lines;
    lines.open(path);
    return lines;
}

void JsonLines::finish() {
    if (descriptor_ < 0 || (failed() && !write_waiting())) return;
    sync();
    name(true);
}

void JsonLines::open(const std::string& path) {
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
    if (failed())
        std::fprintf(stderr, "warning: %s lacks its last %lld records (%s)\n", path_.c_str(),
                     static_cast<long long>(int64_t(waiting_.size()) + dropped_), reason_.c_str());
}

JsonLines& JsonLines::operator=(JsonLines&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(path_, other.path_);
    std::swap(unnamed_, other.unnamed_);
    std::swap(whole_, other.whole_);
    std::swap(waiting_, other.waiting_);
    std::swap(waiting_bytes_, other.waiting_bytes_);
    std::swap(dropped_, other.dropped_);
    std::swap(reason_, other.reason_);
    std::swap(warned_, other.warned_);
    std::swap(sync_warned_, other.sync_warned_);
    return *this;
}

void JsonLines::warn(const std::string& reason) {
    reason_ = reason;
    if (!std::exchange(warned_, true))
        std::fprintf(stderr, "warning: %s cannot be written (%s); the run continues and retries with each record\n", path_.c_str(),
                     reason.c_str());
}

/// A log that cannot be written does not stop the run.
void JsonLines::put(const std::string& line) {
    constexpr size_t MOST_WAITING = size_t(1) << 20;
    if (descriptor_ < 0) return;
    waiting_.push_back(line);
    waiting_bytes_ += line.size();
    if (write_waiting() || waiting_bytes_ <= MOST_WAITING) return;
    for (; waiting_bytes_ > MOST_WAITING / 2; dropped_++) {   // half, or every record would drop one
        waiting_bytes_ -= waiting_.front().size();
        waiting_.pop_front();
    }
}

/// Writes the waiting lines, after a gap record for dropped ones. False if some still wait; a partial line is removed.
bool JsonLines::write_waiting() {
    if (dropped_ > 0) waiting_.push_front(gap_record(dropped_, reason_)), waiting_bytes_ += waiting_.front().size(), dropped_ = 0;
    while (!waiting_.empty()) {
        const std::string& line = waiting_.front();
        if (!write_all(descriptor_, line.data(), line.size())) {
            warn(last_os_error());
            const bool cut = retried([&] { return ftruncate(descriptor_, off_t(whole_)); }) == 0;
            if (!cut) (void)write_all(descriptor_, "\n", 1);
            return false;
        }
        whole_ += line.size(), waiting_bytes_ -= line.size();
        waiting_.pop_front();
    }
    if (std::exchange(warned_, false)) std::fprintf(stderr, "note: %s can be written again\n", path_.c_str());
    return true;
}

void JsonLines::sync() {
    if (descriptor_ < 0 || retried([&] { return fsync(descriptor_); }) == 0 || std::exchange(sync_warned_, true)) return;
    std::fprintf(stderr, "warning: %s cannot be synced to disk (%s)\n", path_.c_str(), last_os_error().c_str());
}

static nlohmann::ordered_json object_of(const std::vector<JsonLines::Field>& fields) {
    nlohmann::ordered_json object;
    for (const auto& [key, value] : fields) std::visit([&, name = key](const auto& v) { object[name] = v; }, value);
    return object;
}

/// Paths and prompts need not be valid UTF-8; invalid bytes become U+FFFD.
static std::string line_of(const nlohmann::ordered_json& object) {
    return written(object, -1, NotUtf8::replace) + "\n";
}

void JsonLines::write(const std::vector<Field>& fields) { put(line_of(object_of(fields))); }

void JsonLines::write(const std::vector<Field>& fields, const char* key, const std::string& json) {
    std::string line = line_of(object_of(fields));
    line.insert(line.rfind('}'), text(",\"%s\":%s", key, json.c_str()));
    put(line);
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

void Progress::step(const StepReport& r, int64_t steps_in_this_run) {
    average_ = steps_in_this_run <= 2 ? r.seconds : 0.9 * average_ + 0.1 * r.seconds;   // ignores the first step, which warms up
    if (!prints_ || (launched_ && !writable(0))) return;
    const std::string line =
        text("step %5lld/%lld %5.1f%% | loss %s | norm %.3f | lr %.2e | %.0f ms | %.1f GFLOP/s | %.0f tok/s | %s left",
             static_cast<long long>(r.step), static_cast<long long>(r.steps), 100.0 * double(r.step) / double(r.steps),
             shown_loss(r.loss).c_str(), r.grad_norm, r.lr, r.seconds * 1e3, r.flops_per_second / 1e9, r.tokens_per_second,
             human_seconds(average_ * double(r.steps - r.step)).c_str());
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
