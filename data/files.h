// Files that appear atomically: written under a temporary name, synced to disk, then renamed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "model/base/disk.h"
#include "model/base/error.h"

/// Writes `path` via `path`.tmp, which is always a new file: a file or a symbolic link of that name is removed first. Failures (no
/// permission, disk full) are Exit::data naming the file. If the object is destroyed before publish(), its temporary is removed and
/// whatever was at `path` is untouched.
class OutputFile {
public:
    explicit OutputFile(const std::string& path);
    ~OutputFile();
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;

    void write(const void* data, size_t bytes);                          // appends, buffered
    void overwrite_start(const void* data, size_t bytes);                // replaces the first bytes; nothing may be appended later
    void publish();    // flushes, syncs, closes and renames

    const std::string& path() const { return path_; }

private:
    void flush();
    [[noreturn]] void fail_to_write() const;

    std::string path_;
    std::string temporary_;     // empty once the file has its final name
    Descriptor file_;
    std::vector<char> buffer_;
};

/// Calls use() and rethrows its errors as Exit::data.
template <class Use>
auto as_data(Use use) {
    try {
        return use();
    } catch (const Error& error) {
        throw Error(Exit::data, error.what());
    }
}

/// The contents of a regular file of at most 64 MiB. Exit::data if it is larger, another kind of file or cannot be read.
std::string read_small_file(const std::string& path);

/// Whether `name` is the name of a file in a folder: not empty, without a slash, neither . nor ..
bool is_plain_name(const std::string& name);

/// XXH64 of a whole file, as printed by `xxhsum -H64`.
std::string file_hash(const std::string& path);
