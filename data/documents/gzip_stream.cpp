// gzip streams, by zlib: libarchive does not verify gzip's checksums, so a damaged file would give damaged text.
#include <zlib.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "data/documents/byte_stream.h"
#include "model/base/error.h"

namespace {

class GzipStream : public ByteStream {
public:
    GzipStream(std::string name, std::unique_ptr<ByteStream> source)
        : name_(std::move(name)), source_(std::move(source)), buffer_(stream_buffer_bytes) {
        constexpr int gzip_and_no_other_format = 15 + 16;
        if (::inflateInit2(&zlib_, gzip_and_no_other_format) != Z_OK) fail(Exit::out_of_memory, name_, ": no memory to decompress");
    }
    ~GzipStream() override { ::inflateEnd(&zlib_); }

    size_t read(char* out, size_t bytes) override {
        zlib_.next_out = reinterpret_cast<Bytef*>(out);
        zlib_.avail_out = static_cast<uInt>(std::min(bytes, stream_buffer_bytes));
        const uInt room = zlib_.avail_out;
        while (zlib_.avail_out == room) {
            if (zlib_.avail_in == 0 && !refill()) return 0;
            decompress();
        }
        return room - zlib_.avail_out;
    }

    uint64_t consumed() const override { return source_->consumed(); }

private:
    // False at the end of the file, which must be the end of a member as well.
    bool refill() {
        const size_t got = source_->read(buffer_.data(), buffer_.size());
        if (got == 0 && inside_) fail(Exit::data, name_, ": is cut short: it ends inside the compressed data");
        zlib_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
        zlib_.avail_in = static_cast<uInt>(got);
        return got > 0;
    }

    // A member may be followed by zero padding, as tapes and disks fill their blocks; gzip ignores it too.
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
            fail(Exit::data, name_, ": is damaged or no gzip file, near byte ", source_->consumed() - zlib_.avail_in, ": ",
                 zlib_.msg ? zlib_.msg : "zlib gives no reason");
    }

    std::string name_;
    std::unique_ptr<ByteStream> source_;
    std::vector<char> buffer_;
    z_stream zlib_ = {};
    bool inside_ = true;     // in a member; the first one must exist
};

}  // namespace

std::unique_ptr<ByteStream> open_gzip(const std::string& name, std::unique_ptr<ByteStream> source) {
    return std::make_unique<GzipStream>(name, std::move(source));
}
