#include "data/documents/byte_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "data/documents/compressed.h"
#include "model/base/error.h"

namespace {

class PlainStream : public ByteStream {
public:
    PlainStream(std::string name, int file, uint64_t size) : name_(std::move(name)), file_(file), size_(size) {}

    size_t read(char* out, size_t bytes) override {
        const size_t wanted = std::min<uint64_t>(bytes, size_ - offset_);
        while (wanted > 0) {
            const ssize_t got = ::pread(file_, out, wanted, static_cast<off_t>(offset_));
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) fail(Exit::data, name_, ": cannot be read at byte ", offset_, ": ", last_os_error());
            if (got == 0)
                fail(Exit::data, name_, ": was cut short while it was read: it had ", size_, " bytes, now ", offset_);
            offset_ += static_cast<uint64_t>(got);
            return static_cast<size_t>(got);
        }
        return 0;
    }

    void skip(uint64_t bytes) override { offset_ += std::min(bytes, size_ - offset_); }
    uint64_t consumed() const override { return offset_; }

private:
    std::string name_;
    int file_;
    uint64_t size_;
    uint64_t offset_ = 0;
};

class PipeStream : public ByteStream {
public:
    PipeStream(std::string name, int file, const std::atomic<bool>& stop) : name_(std::move(name)), file_(file), stop_(stop) {}

    size_t read(char* out, size_t bytes) override {
        while (!stop_) {
            pollfd wait = {file_, POLLIN, 0};
            const int ready = ::poll(&wait, 1, 100);
            if (ready == 0 || (ready < 0 && errno == EINTR)) continue;   // no data: check stop_ again
            const ssize_t got = ::read(file_, out, bytes);
            if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
            if (got < 0) fail(Exit::data, name_, ": cannot be read: ", last_os_error());
            consumed_ += static_cast<uint64_t>(got);
            return static_cast<size_t>(got);
        }
        fail(Exit::signal, name_, ": reading was stopped");
    }

    uint64_t consumed() const override { return consumed_; }

private:
    std::string name_;
    int file_;
    const std::atomic<bool>& stop_;
    uint64_t consumed_ = 0;
};

}  // namespace

void ByteStream::skip(uint64_t bytes) {
    std::vector<char> buffer(stream_buffer_bytes);
    while (bytes > 0) {
        const size_t got = read(buffer.data(), std::min<uint64_t>(bytes, buffer.size()));
        if (got == 0) return;
        bytes -= got;
    }
}

Compression compression_of(const std::string& path) {
    if (path.ends_with(".gz")) return Compression::gzip;
    if (path.ends_with(".xz")) return Compression::xz;
    return path.ends_with(".zst") ? Compression::zstd : Compression::none;
}

std::unique_ptr<ByteStream> open_plain(const std::string& name, int file, uint64_t size) {
    return std::make_unique<PlainStream>(name, file, size);
}

std::unique_ptr<ByteStream> open_pipe(const std::string& name, int file, const std::atomic<bool>& stop) {
    return std::make_unique<PipeStream>(name, file, stop);
}

std::unique_ptr<ByteStream> open_compressed(const std::string& path, Compression compression) {
    Descriptor file(retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
    if (!file.is_open()) fail(Exit::data, path, ": cannot be opened: ", last_os_error());
    struct stat status;
    if (::fstat(file.get(), &status) != 0) fail(Exit::data, path, ": cannot be examined: ", last_os_error());
    // libarchive would report no error.
    if (status.st_size == 0) fail(Exit::data, path, ": is empty, so it is not a compressed file");
    if (compression != Compression::gzip) return open_archive(path, compression);
    return open_gzip(path, std::move(file), static_cast<uint64_t>(status.st_size));
}
