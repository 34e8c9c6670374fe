#include "model/base/disk.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace fs = std::filesystem;

// No descriptor, with errno, on failure.
static Descriptor opened(const fs::path& path, int flags) {
    return Descriptor(retried([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0644); }));
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
}

bool Descriptor::close() {
    const int fd = std::exchange(fd_, -1);
    return fd < 0 || ::close(fd) == 0 || errno == EINTR;   // interrupted, it is closed nevertheless
}

MappedFile::MappedFile(const fs::path& path) {
    const Descriptor descriptor = opened(path, O_RDONLY | O_NONBLOCK);   // opening a named pipe must not wait for a writer
    if (!descriptor.is_open()) {
        const bool missing = errno == ENOENT || errno == ENOTDIR;
        const std::string sentence = path.string() + ": cannot be opened (" + last_os_error() + ")";
        if (!missing) throw Unreadable(Exit::checkpoint, sentence);
        throw Error(Exit::checkpoint, sentence);
    }
    struct stat info;
    const bool regular = fstat(descriptor.get(), &info) == 0 && S_ISREG(info.st_mode);
    size_ = regular ? size_t(info.st_size) : 0;
    if (size_ > 0) start_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor.get(), 0);
    if (!regular) fail(Exit::checkpoint, path.string(), ": is not a regular file; replace it with one");
    if (start_ == MAP_FAILED)
        throw Unreadable(Exit::checkpoint, path.string() + ": cannot be mapped into memory (" + last_os_error() + ")");
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

bool write_all(int descriptor, const char* data, size_t bytes) {
    while (bytes > 0) {
        const ssize_t written = retried([&] { return ::write(descriptor, data, bytes); });
        if (written == 0) errno = EIO;   // would be repeated for ever
        if (written <= 0) return false;
        data += written;
        bytes -= size_t(written);
    }
    return true;
}

int open_new(const fs::path& path) {
    retried([&] { return unlink(path.c_str()); });   // a link itself, not what it names
    return retried([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_APPEND | O_CLOEXEC, 0644); });
}

std::string replace_file(const fs::path& path, const std::string& text) {
    const fs::path unfinished = path.string() + "." + std::to_string(getpid()) + ".tmp";
    unlink(unfinished.c_str());   // left by another process of this number
    try {
        FileWriter file(unfinished);
        file.write(text.data(), text.size());
        file.close();
        rename_file(unfinished, path);
        sync_directory(path.parent_path());
    } catch (const Error& error) {
        unlink(unfinished.c_str());
        return error.what();
    }
    return "";
}

FileWriter::FileWriter(const fs::path& path, OnPiece on_piece)
    : path_(path), on_piece_(std::move(on_piece)), file_(opened(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW)) {
    if (!file_.is_open()) fail(Exit::checkpoint, path.string(), ": cannot be created (", last_os_error(), ")");
}

void FileWriter::write(const void* data, size_t bytes) {
    for (const char* rest = static_cast<const char*>(data); bytes > 0;) {
        const size_t piece = std::min(PIECE_BYTES, bytes);
        if (!write_all(file_.get(), rest, piece)) {
            const std::string reason = last_os_error();
            fail(Exit::checkpoint, path_.string(), ": writing stopped at byte ", lseek(file_.get(), 0, SEEK_CUR), " with ",
                 free_bytes(path_.parent_path()), " bytes free (", reason, ")");
        }
        hasher_.add(rest, piece);
        rest += piece, bytes -= piece, size_ += piece;
        if (on_piece_) on_piece_();
    }
}

void FileWriter::close() {
    const bool synced = retried([&] { return fsync(file_.get()); }) == 0;
    const std::string reason = synced ? "" : last_os_error();
    // Dropped from the page cache, so that reading the file back reads the disk.
    posix_fadvise(file_.get(), 0, 0, POSIX_FADV_DONTNEED);
    const bool closed = file_.close();
    if (!synced) fail(Exit::checkpoint, path_.string(), ": cannot be forced to the disk (", reason, ")");
    if (!closed) fail(Exit::checkpoint, path_.string(), ": cannot be closed (", last_os_error(), ")");
    if (on_piece_) on_piece_();
}

static Descriptor locked(const fs::path& path, int flags, const fs::path& folder) {
    Descriptor file = opened(path, flags);
    if (!file.is_open()) fail(Exit::checkpoint, path.string(), ": cannot be locked (", last_os_error(), "); choose another --out");
    if (retried([&] { return flock(file.get(), LOCK_EX | LOCK_NB); }) != 0 && errno == EWOULDBLOCK)
        fail(Exit::checkpoint, folder.string(), ": another run is writing there; wait for it or choose another --out");
    return file;
}

Descriptor lock_folder(const fs::path& folder) { return locked(folder, O_RDONLY, folder); }
Descriptor lock_run(const fs::path& folder) { return locked(folder / "lock", O_WRONLY | O_CREAT | O_NOFOLLOW, folder); }

std::string read_text(const fs::path& path, size_t limit) {
    const MappedFile file(path);
    const auto bytes = file.bytes();
    if (bytes.size() > limit) fail(Exit::checkpoint, path.string(), ": holds ", bytes.size(), " bytes, expected at most ", limit);
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

bool path_exists(const fs::path& path) {
    struct stat info;
    if (retried([&] { return stat(path.c_str(), &info); }) == 0) return true;
    if (errno != ENOENT && errno != ENOTDIR) fail(Exit::checkpoint, path.string(), ": cannot be examined (", last_os_error(), ")");
    std::error_code no_link;
    if (const fs::path target = fs::read_symlink(path, no_link); !no_link)
        fail(Exit::checkpoint, path.string(), ": is a link to ", target.string(),
             ", which is not there; put the file in its place, or remove the link");
    return false;
}

fs::path resolved(const fs::path& path) {
    std::error_code error;
    const fs::path whole = fs::weakly_canonical(path, error);
    if (error) throw Unreadable(Exit::checkpoint, path.string() + ": cannot be examined (" + error.message() + ")");
    return whole;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
    std::vector<fs::path> found;
    std::error_code error;
    fs::directory_iterator entry(folder, error);
    while (error == std::errc::interrupted) entry = fs::directory_iterator(folder, error);
    if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory) return found;
    for (const fs::directory_iterator end; !error && entry != end; entry.increment(error)) found.push_back(entry->path());
    if (error)
        fail(Exit::checkpoint, folder.string(), ": the folder cannot be listed (", error.message(), "); make it readable, or give another");
    return found;
}

void rename_file(const fs::path& from, const fs::path& to) {
    if (retried([&] { return std::rename(from.c_str(), to.c_str()); }) != 0)
        fail(Exit::checkpoint, from.string(), ": cannot be renamed to ", to.string(), " (", last_os_error(), ")");
}

void make_folders(const fs::path& folder) {
    if (folder.empty() || path_exists(folder)) return;
    make_folders(folder.parent_path());
    if (retried([&] { return mkdir(folder.c_str(), 0777); }) != 0 && errno != EEXIST)
        fail(Exit::checkpoint, folder.string(), ": cannot be made (", last_os_error(), "); choose another place");
    sync_directory(folder.parent_path());
}

uint64_t free_bytes(const fs::path& folder) {
    struct statvfs info;
    if (retried([&] { return statvfs(folder.empty() ? "." : folder.c_str(), &info); }) != 0)
        fail(Exit::checkpoint, folder.string(), ": its free space cannot be read (", last_os_error(), ")");
    return uint64_t(info.f_bavail) * info.f_frsize;
}

void sync_directory(const fs::path& folder) {
    const Descriptor descriptor = opened(folder.empty() ? "." : folder, O_RDONLY | O_DIRECTORY);
    if (!descriptor.is_open()) fail(Exit::checkpoint, folder.string(), ": cannot be opened (", last_os_error(), ")");
    // Some network file systems cannot sync a folder (EINVAL) and need not.
    if (retried([&] { return fsync(descriptor.get()); }) != 0 && errno != EINVAL)
        fail(Exit::checkpoint, folder.string(), ": cannot be forced to the disk (", last_os_error(), ")");
}
