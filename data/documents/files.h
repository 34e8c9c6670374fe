// Files that appear whole or not at all: written under a temporary name, synced to the disk, then renamed.
#pragma once
#include <cstddef>
#include <cstdint>
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
    /// False when the system reports at closing that something was not written (errno tells what).
    bool close();

private:
    int fd_;
};

/// Writes `path` by way of `path`.tmp. Every failure (no permission, disk full) is Exit::data naming the file; whenever an
/// object dies before publish(), its temporary is removed and what was at `path` before is untouched.
class OutputFile {
public:
    explicit OutputFile(const std::string& path);
    ~OutputFile() { discard(); }
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;

    void write(const void* data, size_t bytes);                          // appends, buffered
    void overwrite(uint64_t offset, const void* data, size_t bytes);     // replaces bytes that were written before
    void finish();     // flushes, syncs, closes; the file is still under its temporary name
    void publish();    // finish() where that was not done, then renames
    void leave();      // finish() where that was not done; the file stays under its temporary name when the object dies

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

/// Writes all bytes, however many calls that takes. False on failure (errno tells why).
bool write_all(int fd, const char* data, size_t bytes);

/// Makes renames and removals in `folder` survive a power cut.
void sync_folder(const std::string& folder);

/// Creates `folder` and its parents. Exit::data when that cannot be done.
void make_folder(const std::string& folder);

/// Keeps other callers, of other processes, out of `folder` for as long as the result lives: Exit::data when one is there. Where
/// the file system knows no locks it keeps nobody out.
Descriptor lock_folder(const std::string& folder);

/// The whole of a small file. Exit::data when it cannot be read.
std::string read_small_file(const std::string& path);

/// XXH64 (seed 0) of a file's bytes as 16 hexadecimal digits: what `xxhsum -H64` prints.
std::string file_hash(const std::string& path);
