// Finding checkpoints, setting them aside and deleting them.
#include <algorithm>
#include <charconv>
#include <optional>

#include "model/base/disk.h"
#include "model/base/error.h"
#include "model/checkpoint/checkpoint.h"

namespace fs = std::filesystem;

namespace {

/// The step in a finished checkpoint's folder name; nothing for any other name, including *.tmp.
std::optional<int64_t> step_of(const std::string& name) {
    if (!name.starts_with("step_")) return {};
    const char* end = name.data() + name.size();
    int64_t step = 0;
    const auto [stop, error] = std::from_chars(name.data() + 5, end, step);
    if (error != std::errc() || stop != end || step < 0) return {};
    return step;
}

/// Of a checkpoint, of the log or the options, or of what was set aside before; not superseded.tmp, which holds whole checkpoints.
bool is_leftover(const std::string& name) {
    const bool ours = name.starts_with("step_") || name.starts_with("log.jsonl.") || name.starts_with("options.toml.");
    return (ours && name.ends_with(".tmp")) || name == "superseded.old.tmp";
}

struct FoundCheckpoint {
    int64_t step;
    fs::path path;
};

std::vector<FoundCheckpoint> list_checkpoints(const fs::path& out_dir) {
    std::vector<FoundCheckpoint> found;
    for (const fs::path& path : entries_of(out_dir))
        if (const auto step = step_of(path.filename().string())) found.push_back({*step, path});
    std::sort(found.begin(), found.end(), [](const FoundCheckpoint& a, const FoundCheckpoint& b) { return a.step > b.step; });
    return found;
}

}   // namespace

void remove_leftovers(const fs::path& out_dir) {
    std::error_code ignored;
    for (const fs::path& path : entries_of(out_dir))
        if (is_leftover(path.filename().string())) fs::remove_all(path, ignored);   // a link itself, not what it names
}

// ------------------------------------------------------------------------------------------------------------ setting aside

namespace {

/// Where checkpoints are set aside, while they are moved there, and what was there before, until it is deleted.
struct AsidePlaces {
    fs::path aside, moving, before;
    explicit AsidePlaces(const fs::path& out_dir)
        : aside(out_dir / "superseded"), moving(out_dir / "superseded.tmp"), before(out_dir / "superseded.old.tmp") {}
};

/// A second name for a file, or a copy where the file system has no links. Nothing for one that is not there.
void link_or_copy(const fs::path& from, const fs::path& to) {
    std::error_code error;
    if (!path_exists(from)) return;
    fs::create_hard_link(from, to, error);
    if (error) fs::copy_file(from, to, error);
    if (error) fail(Exit::checkpoint, from.string(), ": cannot be set aside as ", to.string(), " (", error.message(), ")");
}

}   // namespace

bool aside_interrupted(const fs::path& out_dir) { return path_exists(AsidePlaces(out_dir).moving); }

void undo_interrupted(const fs::path& out_dir) {
    const AsidePlaces places(out_dir);
    std::error_code ignored;
    if (fs::is_symlink(places.moving, ignored)) fs::remove(places.moving, ignored);   // nothing of ours
    if (!path_exists(places.moving)) return;
    if (path_exists(places.before) && !path_exists(places.aside)) rename_file(places.before, places.aside);
    for (const fs::path& path : entries_of(places.moving))
        if (step_of(path.filename().string())) rename_file(path, out_dir / path.filename());
    fs::remove_all(places.moving, ignored);   // links to the log and the options
    sync_directory(out_dir);
}

int set_later_ones_aside(const fs::path& out_dir, int64_t step) {
    undo_interrupted(out_dir);
    std::vector<FoundCheckpoint> later = list_checkpoints(out_dir);
    std::erase_if(later, [&](const FoundCheckpoint& found) { return found.step <= step; });
    if (later.empty()) return 0;
    const AsidePlaces places(out_dir);
    make_folders(places.moving);
    if (step < 0)
        for (const char* name : {"log.jsonl", "options.toml"}) link_or_copy(out_dir / name, places.moving / name);
    for (const FoundCheckpoint& found : later) rename_file(found.path, places.moving / found.path.filename());
    sync_directory(places.moving);
    if (path_exists(places.aside)) rename_file(places.aside, places.before);
    rename_file(places.moving, places.aside);
    sync_directory(out_dir);
    std::error_code ignored;
    fs::remove_all(places.before, ignored);
    return int(later.size());
}

bool is_set_aside(const fs::path& folder, const fs::path& out_dir) {
    return resolved(folder).parent_path() == resolved(AsidePlaces(out_dir).aside);   // neither need exist
}

void prune_checkpoints(const fs::path& out_dir, int keep) {
    if (keep < 1) return;
    std::vector<FoundCheckpoint> found = list_checkpoints(out_dir);
    if (found.size() <= size_t(keep)) return;
    std::error_code ignored;   // they must not stop a run
    for (auto doomed = found.begin() + keep; doomed != found.end(); ++doomed)
        fs::rename(doomed->path, doomed->path.string() + ".old.tmp", ignored);
    remove_leftovers(out_dir);
}

void require_no_run(const fs::path& folder) {
    const std::vector<FoundCheckpoint> checkpoints = list_checkpoints(folder);
    if (!checkpoints.empty() && !path_exists(folder / "config.json"))
        fail(Exit::checkpoint, folder.string(), ": is the output folder of a run; give one of its checkpoints, such as the newest, ",
             checkpoints.front().path.string());
}

std::optional<fs::path> latest_checkpoint(const fs::path& out_dir, std::vector<std::string>& complaints) {
    for (const FoundCheckpoint& found : list_checkpoints(out_dir)) {
        if (!path_exists(found.path)) continue;   // removed since; a link to a disk that is missing is refused
        try {
            verify_checkpoint(found.path);
            return found.path;
        } catch (const Unreadable& error) {   // it may be sound, and going on from an earlier one would set it aside
            fail(error.code, error.what(), "; try again, or give an earlier one of ", out_dir.string(), " as --checkpoint");
        } catch (const Error& error) {
            complaints.push_back(error.what());
        }
    }
    return {};
}
