// Files that hold checkpoints: memory-mapped reading, and writing that ends on the disk or fails with the reason.
// All failures are Exit::checkpoint and name the path.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "model/base/hash.h"

/// A file mapped for reading. The bytes stay valid as long as the object lives; an empty file gives an empty span.
class MappedFile {
public:
    explicit MappedFile(const std::filesystem::path& path);
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&&) = delete;
    ~MappedFile();

    std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(start_), size_}; }

    /// Gives the pages that lie wholly inside `part` back: what has been read does not count as memory of the process.
    void release(std::span<const std::byte> part) const;

private:
    void* start_ = nullptr;
    size_t size_ = 0;
};

/// Writes a new file from front to back and hashes it on the way.
class FileWriter {
public:
    /// The file must not exist yet.
    explicit FileWriter(const std::filesystem::path& path);
    FileWriter(const FileWriter&) = delete;
    FileWriter& operator=(const FileWriter&) = delete;
    ~FileWriter();

    void write(const void* data, size_t bytes);

    /// Forces the bytes to the disk and closes; only then is the file known to be complete.
    void close();

    uint64_t size() const { return size_; }
    uint64_t hash() const { return hasher_.digest(); }   // XXH3 of everything written so far

private:
    std::filesystem::path path_;
    int descriptor_ = -1;
    uint64_t size_ = 0;
    Hasher hasher_;
};

/// Keeps other runs out of a folder as long as the object lives: a second one fails and says so. The kernel lets go of the lock
/// when the process ends, however it ends.
class FolderLock {
public:
    FolderLock() = default;   // locks nothing
    explicit FolderLock(const std::filesystem::path& folder);
    FolderLock(const FolderLock&) = delete;
    FolderLock& operator=(FolderLock&& other) noexcept;
    ~FolderLock();

private:
    int descriptor_ = -1;
};

/// The whole of a small text file; one larger than `limit` bytes is refused.
std::string read_text(const std::filesystem::path& path, size_t limit = 64 << 20);

/// False also where a folder on the way cannot be read: opening the file then says so.
bool path_exists(const std::filesystem::path& path);

/// Bytes that this user may still write where `folder` (which exists) lies.
uint64_t free_bytes(const std::filesystem::path& folder);

/// Forces the names in a folder (files created, renamed, deleted) to the disk.
void sync_directory(const std::filesystem::path& folder);
