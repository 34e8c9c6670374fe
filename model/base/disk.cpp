#include "model/base/disk.h"

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "model/base/error.h"

namespace fs = std::filesystem;

MappedFile::MappedFile(const fs::path& path) {
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) fail(Exit::checkpoint, path.string(), ": cannot be opened (", last_os_error(), ")");
    struct stat info;
    const bool regular = fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode);
    size_ = regular ? size_t(info.st_size) : 0;
    if (size_ > 0) start_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    const int error = errno;
    ::close(descriptor);
    if (!regular) fail(Exit::checkpoint, path.string(), ": is not a regular file");
    if (start_ == MAP_FAILED) fail(Exit::checkpoint, path.string(), ": cannot be mapped into memory (", std::strerror(error), ")");
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : start_(std::exchange(other.start_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
    if (start_) munmap(start_, size_);
}

void MappedFile::release(std::span<const std::byte> part) const {
    const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE)), first = reinterpret_cast<uintptr_t>(part.data());
    const uintptr_t begin = (first + page - 1) / page * page, end = (first + part.size()) / page * page;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

std::string replace_file(const fs::path& path, const std::string& text) {
    const fs::path unfinished = path.string() + "." + std::to_string(getpid()) + ".tmp";
    std::ofstream file(unfinished, std::ios::binary);
    file << text;
    file.close();
    if (file && std::rename(unfinished.c_str(), path.c_str()) == 0) return "";
    const std::string reason = last_os_error();
    std::error_code ignored;
    fs::remove(unfinished, ignored);
    return reason;
}

FileWriter::FileWriter(const fs::path& path) : path_(path) {
    descriptor_ = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (descriptor_ < 0) fail(Exit::checkpoint, path.string(), ": cannot be created (", last_os_error(), ")");
}

FileWriter::~FileWriter() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

void FileWriter::write(const void* data, size_t bytes) {
    const char* rest = static_cast<const char*>(data);
    for (size_t left = bytes; left > 0;) {
        const ssize_t written = ::write(descriptor_, rest, left);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) {
            const std::string reason = written < 0 ? last_os_error() : "nothing was written";
            fail(Exit::checkpoint, path_.string(), ": writing stopped at byte ", size_ + (bytes - left), " with ", left, " bytes to go and ",
                 free_bytes(path_.parent_path()), " free (", reason, ")");
        }
        rest += written;
        left -= size_t(written);
    }
    hasher_.add(data, bytes);
    size_ += bytes;
}

void FileWriter::close() {
    const int descriptor = std::exchange(descriptor_, -1);
    const bool synced = fsync(descriptor) == 0;
    const std::string reason = synced ? "" : last_os_error();
    // Dropped from the page cache, so that reading the file back reads the disk.
    posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    const bool closed = ::close(descriptor) == 0;
    if (!synced) fail(Exit::checkpoint, path_.string(), ": cannot be forced to the disk (", reason, ")");
    if (!closed) fail(Exit::checkpoint, path_.string(), ": cannot be closed (", last_os_error(), ")");
}

FolderLock::FolderLock(const fs::path& folder) {
    const fs::path path = folder / "lock";
    descriptor_ = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor_ < 0) fail(Exit::checkpoint, path.string(), ": cannot be created (", last_os_error(), "); choose another --out");
    if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
    const bool taken = errno == EWOULDBLOCK;   // otherwise the file system has no locks: go on without one
    ::close(std::exchange(descriptor_, -1));
    if (taken) fail(Exit::checkpoint, folder.string(), ": another run is writing there; wait for it or choose another --out");
}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
}

FolderLock::~FolderLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

std::string read_text(const fs::path& path, size_t limit) {
    const MappedFile file(path);
    const auto bytes = file.bytes();
    if (bytes.size() > limit) fail(Exit::checkpoint, path.string(), ": holds ", bytes.size(), " bytes, expected at most ", limit);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

bool path_exists(const fs::path& path) {
    std::error_code ignored;
    return fs::exists(path, ignored);
}

uint64_t free_bytes(const fs::path& folder) {
    struct statvfs info;
    if (statvfs(folder.empty() ? "." : folder.c_str(), &info) != 0)
        fail(Exit::checkpoint, folder.string(), ": its free space cannot be read (", last_os_error(), ")");
    return uint64_t(info.f_bavail) * info.f_frsize;
}

void sync_directory(const fs::path& folder) {
    const int descriptor = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) fail(Exit::checkpoint, folder.string(), ": cannot be opened (", last_os_error(), ")");
    // Some network file systems cannot sync a folder (EINVAL) and need not.
    const bool synced = fsync(descriptor) == 0 || errno == EINVAL;
    const std::string reason = synced ? "" : last_os_error();
    ::close(descriptor);
    if (!synced) fail(Exit::checkpoint, folder.string(), ": cannot be forced to the disk (", reason, ")");
}
