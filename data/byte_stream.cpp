#include "data/byte_stream.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "model/error.h"

namespace {

constexpr size_t buffer_bytes = size_t{1} << 18;

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
            if (ready == 0 || (ready < 0 && errno == EINTR)) continue;   // silent: look at stop_ again
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

// zlib, because libarchive does not look at gzip's checksums: a damaged file would give damaged text.
class GzipStream : public ByteStream {
public:
    GzipStream(std::string path, Descriptor file, uint64_t size)
        : path_(std::move(path)), file_(std::move(file)), source_(path_, file_.get(), size), buffer_(buffer_bytes) {
        constexpr int gzip_and_no_other_format = 15 + 16;
        if (::inflateInit2(&zlib_, gzip_and_no_other_format) != Z_OK) fail(Exit::out_of_memory, path_, ": no memory to decompress");
    }
    ~GzipStream() override { ::inflateEnd(&zlib_); }

    size_t read(char* out, size_t bytes) override {
        zlib_.next_out = reinterpret_cast<Bytef*>(out);
        zlib_.avail_out = static_cast<uInt>(std::min(bytes, buffer_bytes));
        const uInt room = zlib_.avail_out;
        while (zlib_.avail_out == room) {
            if (zlib_.avail_in == 0 && !refill()) return 0;
            decompress();
        }
        return room - zlib_.avail_out;
    }

    uint64_t consumed() const override { return source_.consumed(); }

private:
    // False at the end of the file, which must be the end of a member as well.
    bool refill() {
        const size_t got = source_.read(buffer_.data(), buffer_.size());
        if (got == 0 && inside_) fail(Exit::data, path_, ": is cut short: the compressed data go on behind its last byte");
        zlib_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
        zlib_.avail_in = static_cast<uInt>(got);
        return got > 0;
    }

    // Behind a member there may be zero bytes, as tapes and disks fill their blocks; gzip ignores them at the end too.
    void skip_zeros() {
        while (zlib_.avail_in > 0 && *zlib_.next_in == 0) zlib_.next_in++, zlib_.avail_in--;
    }

    void decompress() {
        if (!inside_) skip_zeros();
        if (zlib_.avail_in == 0) return;
        const int result = ::inflate(&zlib_, Z_NO_FLUSH);
        inside_ = result != Z_STREAM_END;
        if (result == Z_STREAM_END) ::inflateReset(&zlib_);   // another member may follow
        else if (result != Z_OK && result != Z_BUF_ERROR)
            fail(Exit::data, path_, ": is damaged or no gzip file, near byte ", source_.consumed() - zlib_.avail_in, ": ",
                 zlib_.msg ? zlib_.msg : "zlib gives no reason");
    }

    std::string path_;
    Descriptor file_;
    PlainStream source_;
    std::vector<char> buffer_;
    z_stream zlib_ = {};
    bool inside_ = true;     // a member has begun; the first one must be there
};

// libarchive with one filter and no archive format.
class ArchiveStream : public ByteStream {
public:
    ArchiveStream(std::string path, int filter) : path_(std::move(path)), archive_(::archive_read_new()) {
        if (!archive_) fail(Exit::out_of_memory, path_, ": no memory to decompress");
        check(::archive_read_append_filter(archive_.get(), filter));
        check(::archive_read_set_format(archive_.get(), ARCHIVE_FORMAT_RAW));
        check(::archive_read_open_filename(archive_.get(), path_.c_str(), buffer_bytes));
        archive_entry* entry = nullptr;
        const int result = ::archive_read_next_header(archive_.get(), &entry);
        if (result != ARCHIVE_EOF) check(result);
    }

    size_t read(char* out, size_t bytes) override {
        const la_ssize_t got = ::archive_read_data(archive_.get(), out, bytes);
        if (got < 0) check(static_cast<int>(got));
        return static_cast<size_t>(got);
    }

    uint64_t consumed() const override { return static_cast<uint64_t>(::archive_filter_bytes(archive_.get(), -1)); }

private:
    void check(int result) const {
        if (result == ARCHIVE_OK) return;
        const char* reason = ::archive_error_string(archive_.get());
        fail(Exit::data, path_, ": is damaged, cut short or not of the format that its name says, near byte ", consumed(), ": ",
             reason ? reason : "libarchive gives no reason");
    }

    struct Free {
        void operator()(archive* a) const { ::archive_read_free(a); }
    };
    std::string path_;
    std::unique_ptr<archive, Free> archive_;
};

}  // namespace

void ByteStream::skip(uint64_t bytes) {
    std::vector<char> buffer(buffer_bytes);
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
    Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.is_open()) fail(Exit::data, path, ": cannot be opened: ", last_os_error());
    struct stat status;
    if (::fstat(file.get(), &status) != 0) fail(Exit::data, path, ": cannot be examined: ", last_os_error());
    // libarchive would see no error in it.
    if (status.st_size == 0) fail(Exit::data, path, ": is empty, and so no compressed file");
    if (compression == Compression::gzip)
        return std::make_unique<GzipStream>(path, std::move(file), static_cast<uint64_t>(status.st_size));
    return std::make_unique<ArchiveStream>(path, compression == Compression::xz ? ARCHIVE_FILTER_XZ : ARCHIVE_FILTER_ZSTD);
}
