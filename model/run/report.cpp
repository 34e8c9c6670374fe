#include "model/run/report.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data/documents/files.h"
#include "model/base/error.h"
#include "model/base/json.h"
#include "model/base/process.h"
#include "model/base/text.h"

// ---- log.jsonl

/// The lines of `path` that a run resumed at `step` keeps: complete JSON objects of steps up to it, except a finished run's last.
static std::string kept_lines(const std::string& path, int64_t step) {
    std::ifstream file(path);
    std::string line, kept;
    while (std::getline(file, line)) {
        const auto record = parse_json(line, false);
        if (!record.is_object()) continue;
        const auto event = record.find("event"), at = record.find("step");
        if (event != record.end() && event->is_string() && event->get_ref<const std::string&>() == "done") continue;
        if (at != record.end() && (!at->is_number_integer() || at->get<int64_t>() > step)) continue;
        kept += line + "\n";
    }
    return kept;
}

JsonLines::JsonLines(const std::string& path, int64_t resume_step) {
    const std::string kept = resume_step >= 0 ? kept_lines(path, resume_step) : "";
    open(path);
    put(kept);
    if (!failed_) name(resume_step < 0);   // otherwise the old file stays
}

JsonLines JsonLines::whole(const std::string& path) {
    JsonLines lines;
    lines.open(path);
    return lines;
}

void JsonLines::finish() {
    if (file_) name(true);   // put() has closed a file that could not be written
}

void JsonLines::open(const std::string& path) {
    std::error_code ignored;
    const auto there = std::filesystem::symlink_status(path, ignored);
    if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there))
        fail(Exit::checkpoint, path, ": exists and is not a regular file; choose another name");
    const std::string unnamed = path + ".tmp";   // if killed before the rename, the old file is intact
    file_ = std::fopen(unnamed.c_str(), "w");
    if (!file_) fail(Exit::checkpoint, unnamed, ": cannot be written (", last_os_error(), "); choose another place");
    path_ = path, unnamed_ = unnamed;
}

void JsonLines::name(bool keep_older) {
    std::error_code error;
    if (keep_older && std::filesystem::exists(path_, error)) std::filesystem::rename(path_, path_ + ".old", error);
    std::filesystem::rename(std::exchange(unnamed_, ""), path_, error);
    if (error) fail(Exit::checkpoint, path_, ": cannot be written (", error.message(), "); choose another place");
}

JsonLines::~JsonLines() {
    if (file_) std::fclose(file_);
    if (!unnamed_.empty()) std::remove(unnamed_.c_str());
}

JsonLines& JsonLines::operator=(JsonLines&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(path_, other.path_);
    std::swap(unnamed_, other.unnamed_);
    std::swap(failed_, other.failed_);
    return *this;
}

/// A log that cannot be written does not stop the run: warns once and continues.
void JsonLines::put(const std::string& line) {
    if (!file_ || (std::fwrite(line.data(), 1, line.size(), file_) == line.size() && std::fflush(file_) == 0)) return;
    std::fprintf(stderr, "warning: %s cannot be written (%s); the run goes on without it\n", path_.c_str(),
                 last_os_error().c_str());
    std::fclose(file_);
    file_ = nullptr;
    failed_ = true;
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

Progress::Progress(bool speaks, bool launched)
    : speaks_(speaks), launched_(launched), in_place_(!launched && isatty(STDOUT_FILENO) != 0) {}

/// Whether standard output can take a line without blocking.
static bool writable() {
    pollfd out{STDOUT_FILENO, POLLOUT, 0};
    return poll(&out, 1, 0) == 1;
}

void Progress::step(const StepReport& r, int64_t steps_in_this_run) {
    average_ = steps_in_this_run <= 2 ? r.seconds : 0.9 * average_ + 0.1 * r.seconds;   // ignores the first step, which warms up
    if (!speaks_ || (launched_ && !writable())) return;
    const std::string line =
        text("step %5lld/%lld %5.1f%% | loss %s | norm %.3f | lr %.2e | %.0f ms | %.1f GFLOP/s | %.0f tok/s | %s left",
             static_cast<long long>(r.step), static_cast<long long>(r.steps), 100.0 * double(r.step) / double(r.steps),
             shown_loss(r.loss).c_str(), r.grad_norm, r.lr, r.seconds * 1e3, r.flops_per_second / 1e9, r.tokens_per_second,
             human_seconds(average_ * double(r.steps - r.step)).c_str());
    std::printf(in_place_ ? "\r\033[K%s" : "%s\n", line.c_str());
    std::fflush(stdout);
    line_open_ = in_place_, passing_ = false;
}

void Progress::passing(const std::string& what) {
    if (!speaks_ || !in_place_) return;
    std::printf(passing_ || !line_open_ ? "\r\033[K%s" : "\n%s", what.c_str());
    std::fflush(stdout);
    line_open_ = passing_ = true;
}

void Progress::say(const std::string& what) {
    if (!speaks_) return;
    std::printf("%s%s\n", !line_open_ ? "" : passing_ ? "\r\033[K" : "\n", what.c_str());
    std::fflush(stdout);
    line_open_ = passing_ = false;
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
