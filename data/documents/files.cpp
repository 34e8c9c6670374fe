#include "data/documents/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "model/base/disk.h"
#include "model/base/error.h"
#include "model/base/hash.h"
#include "model/base/retry.h"

namespace {

constexpr size_t buffer_bytes = size_t{1} << 20;
constexpr size_t small_file_bytes = size_t{1} << 26;

Descriptor open_to_read(const std::string& path) {
    Descriptor file(retried([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
    if (!file.is_open()) fail(Exit::data, path, ": cannot be opened: ", last_os_error());
    return file;
}

// Calls take(data, bytes) for each buffer of the file in order. Exit::data if the file ends before its size.
template <class Take>
void read_in_pieces(const std::string& path, Take take) {
    const Descriptor file = open_to_read(path);
    struct stat status;
    if (::fstat(file.get(), &status) != 0) fail(Exit::data, path, ": cannot be examined: ", last_os_error());
    std::vector<char> buffer(buffer_bytes);
    for (off_t done = 0;;) {
        const ssize_t got = retried([&] { return ::read(file.get(), buffer.data(), buffer.size()); });
        if (got < 0) fail(Exit::data, path, ": cannot be read: ", last_os_error());
        if (got == 0 && done < status.st_size) fail(Exit::data, path, ": reading stopped at byte ", done, " of ", status.st_size);
        if (got == 0) return;
        done += got;
        take(buffer.data(), static_cast<size_t>(got));
    }
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
    if (this == &other) return *this;
    close();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
}

bool Descriptor::close() {
    const int fd = std::exchange(fd_, -1);
    return fd < 0 || close_file(fd);
}

OutputFile::OutputFile(const std::string& path) : path_(path), temporary_(path + ".tmp") {
    ::unlink(temporary_.c_str());   // of a stopped run, or a link; O_EXCL fails if it is still there
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    file_ = Descriptor(retried([&] { return ::open(temporary_.c_str(), flags, 0666); }));
    if (!file_.is_open()) {
        const std::string reason = last_os_error(), unfinished = std::exchange(temporary_, "");   // the existing file is not removed
        fail(Exit::data, path, ": cannot be created: ", unfinished, ", its temporary name: ", reason);
    }
    buffer_.reserve(buffer_bytes);
}

void OutputFile::fail_to_write() const {
    fail(Exit::data, path_, ": cannot be written: ", last_os_error(), "; the partial file was removed");
}

void OutputFile::write(const void* data, size_t bytes) {
    const char* next = static_cast<const char*>(data);
    while (bytes > 0) {
        const size_t part = std::min(bytes, buffer_bytes - buffer_.size());
        buffer_.insert(buffer_.end(), next, next + part);
        if (buffer_.size() == buffer_bytes) flush();
        next += part;
        bytes -= part;
    }
}

void OutputFile::flush() {
    if (!write_all(file_.get(), buffer_.data(), buffer_.size())) fail_to_write();
    buffer_.clear();
}

void OutputFile::overwrite(uint64_t offset, const void* data, size_t bytes) {
    flush();
    const char* from = static_cast<const char*>(data);
    for (size_t done = 0; done < bytes;) {
        const auto at = static_cast<off_t>(offset + done);
        const ssize_t written = retried([&] { return ::pwrite(file_.get(), from + done, bytes - done, at); });
        if (written == 0) errno = EIO;   // would be retried forever
        if (written <= 0) fail_to_write();
        done += static_cast<size_t>(written);
    }
}

void OutputFile::finish() {
    if (!file_.is_open()) return;
    flush();
    if (retried([&] { return ::fsync(file_.get()); }) != 0) fail_to_write();
    if (!file_.close()) fail_to_write();
}

void OutputFile::publish() {
    finish();
    if (retried([&] { return ::rename(temporary_.c_str(), path_.c_str()); }) != 0) fail_to_write();
    temporary_.clear();
}

void OutputFile::leave() {
    finish();
    temporary_.clear();
}

void OutputFile::discard() {
    if (temporary_.empty()) return;
    file_.close();
    ::unlink(temporary_.c_str());
}

void sync_folder(const std::string& folder) {
    const Descriptor file = open_to_read(folder.empty() ? "." : folder);
    // Some network file systems cannot sync a folder (EINVAL); nothing more can be done.
    if (retried([&] { return ::fsync(file.get()); }) != 0 && errno != EINVAL)
        fail(Exit::data, folder, ": cannot be synced: ", last_os_error());
}

void make_folder(const std::string& folder) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) fail(Exit::data, folder, ": cannot be created as a folder: ", error.message());
    if (!std::filesystem::is_directory(folder, error)) fail(Exit::data, folder, ": is not a folder");
}

Descriptor lock_folder(const std::string& folder) {
    Descriptor file = open_to_read(folder);
    if (retried([&] { return ::flock(file.get(), LOCK_EX | LOCK_NB); }) != 0 && errno == EWOULDBLOCK)
        fail(Exit::data, folder, ": another run is writing there; wait for it or choose another folder");
    return file;
}

std::string read_small_file(const std::string& path) {
    std::string text;
    read_in_pieces(path, [&](const char* data, size_t bytes) {
        if (text.size() + bytes > small_file_bytes)
            fail(Exit::data, path, ": is larger than ", small_file_bytes, " bytes, the limit");
        text.append(data, bytes);
    });
    return text;
}

std::string read_regular_file(const std::string& path) {
    std::error_code unknown;
    if (std::filesystem::exists(path, unknown) && !std::filesystem::is_regular_file(path, unknown))
        fail(Exit::data, path, ": is not a regular file; replace it with one");
    return read_small_file(path);
}

bool is_plain_name(const std::string& name) {
    return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
}

void FileHasher::Free::operator()(void* state) const { XXH64_freeState(static_cast<XXH64_state_t*>(state)); }

FileHasher::FileHasher() : state_(XXH64_createState()) {
    if (!state_) fail(Exit::out_of_memory, "no memory for the state of a hash");
    XXH64_reset(static_cast<XXH64_state_t*>(state_.get()), 0);
}

void FileHasher::add(const void* data, size_t bytes) { XXH64_update(static_cast<XXH64_state_t*>(state_.get()), data, bytes); }

std::string FileHasher::digest() const { return hexadecimal(XXH64_digest(static_cast<const XXH64_state_t*>(state_.get()))); }

std::string file_hash(const std::string& path) {
    FileHasher hasher;
    read_in_pieces(path, [&](const char* data, size_t bytes) { hasher.add(data, bytes); });
    return hasher.digest();
}
