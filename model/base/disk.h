// Checkpoint files: memory-mapped reading and durable writing. All failures are Exit::checkpoint and name the path.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/base/error.h"
#include "model/base/hash.h"

/// Repeats a system call while a signal interrupts it (EINTR). Not for close(), which has closed the descriptor all the same.
template <class Call>
auto retried(Call call) {
    for (;;) {
        const auto result = call();
        if (result >= 0 || errno != EINTR) return result;
    }
}

/// Exit::checkpoint: a file exists, or may exist, but could not be read now.
struct Unreadable : Error {
    using Error::Error;
};

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

/// A file mapped for reading. Unreadable, or another Error where there is none or it is no regular file. The bytes stay valid as long as
/// the object lives; an empty file gives an empty span.
class MappedFile {
public:
    explicit MappedFile(const std::filesystem::path& path);
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&&) = delete;
    ~MappedFile();

    std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(start_), size_}; }

    /// Releases the pages wholly inside `part`: they no longer count as memory of the process.
    void release(std::span<const std::byte> part) const;

private:
    void* start_ = nullptr;
    size_t size_ = 0;
};

/// The absolute path without links; the last parts of it need not exist. Unreadable where one of them cannot be examined.
std::filesystem::path resolved(const std::filesystem::path& path);

/// Writes all bytes, in as many calls as necessary. False on failure (reason in errno).
bool write_all(int descriptor, const char* data, size_t bytes);

/// Replaces the contents of a small file by `text`: writes `path`.PID.tmp, syncs and renames it, so that readers see the old file or the
/// new one, and the old one stays on failure. Returns the reason of a failure, or "".
std::string replace_file(const std::filesystem::path& path, const std::string& text);

/// Opens a new file for writing. Removes a file that another process left under this name; never follows a symbolic link. -1 with errno on
/// failure.
int open_new(const std::filesystem::path& path);

/// Called after each piece of a long file, at most PIECE_BYTES of it, so that a watchdog does not take a slow disk for a hang.
using OnPiece = std::function<void()>;
inline constexpr size_t PIECE_BYTES = size_t(16) << 20;

/// Writes a new file sequentially and hashes it on the way.
class FileWriter {
public:
    /// Precondition: the file does not exist.
    explicit FileWriter(const std::filesystem::path& path, OnPiece on_piece = {});

    void write(const void* data, size_t bytes);

    /// Syncs to disk and closes; only then is the file known to be complete.
    void close();

    uint64_t size() const { return size_; }
    uint64_t hash() const { return hasher_.digest(); }   // XXH3 of everything written so far

private:
    std::filesystem::path path_;
    OnPiece on_piece_;
    Descriptor file_;
    uint64_t size_ = 0;
    Hasher hasher_;
};

/// Locks a folder against other runs while the result lives: a second run fails. The kernel releases the lock when the process ends, in
/// every case. Without effect on a file system that has no locks. lock_run() locks the file "lock" in the folder, which network file
/// systems can lock, too.
Descriptor lock_folder(const std::filesystem::path& folder);
Descriptor lock_run(const std::filesystem::path& folder);

/// The contents of a text file of at most `limit` bytes.
std::string read_text(const std::filesystem::path& path, size_t limit = 64 << 20);

/// False only if nothing exists there. Exit::checkpoint for a path that cannot be examined, or a link without a target.
bool path_exists(const std::filesystem::path& path);

/// The paths of a folder's entries, in no order; none if the folder is not there. A folder that cannot be listed is Exit::checkpoint.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder);

/// Renames a file or folder; on failure Exit::checkpoint.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);

/// Creates a folder and its parents, each entry synced to disk.
void make_folders(const std::filesystem::path& folder);

/// Precondition: `folder` exists. Bytes that this user may still write to its file system.
uint64_t free_bytes(const std::filesystem::path& folder);

/// Syncs a folder's entries (files created, renamed, deleted) to disk.
void sync_directory(const std::filesystem::path& folder);
