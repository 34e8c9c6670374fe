// Files that appear atomically: written under a temporary name, synced to disk, then renamed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

/// A file descriptor that closes itself. Move-only.
class Descriptor {
public:
    explicit Descriptor(int fd = -1) : fd_(fd) {}
    ~Descriptor() { close(); }
    Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
    Descriptor& operator=(Descriptor&& other) noexcept;
    int get() const { return fd_; }
    bool is_open() const { return fd_ >= 0; }
    /// False if closing reports a failed write (in errno).
    bool close();

private:
    int fd_;
};

/// Writes `path` via `path`.tmp, which is always a new file: a file or a symbolic link of that name is removed first. Failures (no
/// permission, disk full) are Exit::data naming the file. If the object is destroyed before publish(), its temporary is removed and
/// whatever was at `path` is untouched.
class OutputFile {
public:
    explicit OutputFile(const std::string& path);
    ~OutputFile() { discard(); }
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;

    void write(const void* data, size_t bytes);                          // appends, buffered
    void overwrite(uint64_t offset, const void* data, size_t bytes);     // replaces bytes already written
    void finish();     // flushes, syncs, closes; the file keeps its temporary name
    void publish();    // finish() unless already done, then renames
    void leave();      // finish() unless already done; the file outlives the object under its temporary name

    const std::string& path() const { return path_; }
    const std::string& temporary() const { return temporary_; }

private:
    void flush();
    void discard();
    [[noreturn]] void fail_to_write() const;

    std::string path_;
    std::string temporary_;     // empty once the file has its final name
    Descriptor file_;
    std::vector<char> buffer_;
};

/// Makes renames and removals in `folder` survive a power failure.
void sync_folder(const std::string& folder);

/// Creates `folder` and its parents. Exit::data on failure.
void make_folder(const std::string& folder);

/// Locks `folder` against other processes while the result lives; Exit::data if it is locked. Without effect if the file system has
/// no locks.
Descriptor lock_folder(const std::string& folder);

/// The contents of a file of at most 64 MiB. Exit::data if it is larger or cannot be read.
std::string read_small_file(const std::string& path);

/// The same, but Exit::data if the path is not a regular file: opening a named pipe would block.
std::string read_regular_file(const std::string& path);

/// Whether `name` is the name of a file in a folder: not empty, without a slash, neither . nor ..
bool is_plain_name(const std::string& name);

/// XXH64 (seed 0) of bytes that are added in pieces, as printed by `xxhsum -H64`.
class FileHasher {
public:
    FileHasher();
    void add(const void* data, size_t bytes);
    std::string digest() const;     // 16 hexadecimal digits

private:
    struct Free {
        void operator()(void* state) const;
    };
    std::unique_ptr<void, Free> state_;
};

/// The same of a whole file.
std::string file_hash(const std::string& path);
