#include "data/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "model/base/hash.h"

static constexpr size_t buffer_bytes = size_t{1} << 20;

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

void OutputFile::overwrite_start(const void* data, size_t bytes) {
    flush();
    const bool written = ::lseek(file_.get(), 0, SEEK_SET) == 0 && write_all(file_.get(), static_cast<const char*>(data), bytes);
    if (!written) fail_to_write();
}

void OutputFile::publish() {
    flush();
    if (retried([&] { return ::fsync(file_.get()); }) != 0) fail_to_write();
    if (!file_.close()) fail_to_write();
    if (retried([&] { return ::rename(temporary_.c_str(), path_.c_str()); }) != 0) fail_to_write();
    temporary_.clear();
}

OutputFile::~OutputFile() {
    if (temporary_.empty()) return;
    file_.close();
    ::unlink(temporary_.c_str());
}

std::string read_small_file(const std::string& path) {
    return as_data([&] { return read_text(path); });
}

bool is_plain_name(const std::string& name) {
    return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
}

std::string file_hash(const std::string& path) {
    const MappedFile file = as_data([&] { return MappedFile(path); });
    FileHasher hasher;
    hasher.add(file.bytes().data(), file.bytes().size());
    return hexadecimal(hasher.digest());
}
