// Text in encodings other than UTF-8.
#include <iconv.h>

#include <cerrno>
#include <utility>

#include "data/documents/byte_stream.h"
#include "model/base/error.h"

namespace {

// UTF-8 from another encoding, by iconv.
class ConvertedStream : public ByteStream {
public:
    ConvertedStream(std::string name, std::unique_ptr<ByteStream> from, std::string encoding)
        : name_(std::move(name)), encoding_(std::move(encoding)), from_(std::move(from)) {
        require_encoding(encoding_);
        convert_ = ::iconv_open("UTF-8", encoding_.c_str());
    }
    ~ConvertedStream() override { ::iconv_close(convert_); }
    ConvertedStream(const ConvertedStream&) = delete;
    ConvertedStream& operator=(const ConvertedStream&) = delete;

    size_t read(char* out, size_t bytes) override {
        while (taken_ == text_.size() && convert_more()) {}
        const size_t count = text_.copy(out, bytes, taken_);
        taken_ += count;
        return count;
    }
    uint64_t consumed() const override { return from_->consumed(); }

private:
    // Reads and converts a buffer; false at the end.
    bool convert_more() {
        const size_t kept = raw_.size();   // part of a character
        raw_.resize(kept + stream_buffer_bytes);
        const size_t got = from_->read(raw_.data() + kept, stream_buffer_bytes);
        raw_.resize(kept + got);
        if (got == 0 && kept > 0) fail(Exit::data, name_, ": ends within a character of ", encoding_, "; give another --encoding");
        taken_ = 0;
        text_.resize(4 * raw_.size() + 16);   // a byte gives at most one character of 4 bytes
        char *at = raw_.data(), *to = text_.data();
        size_t left = raw_.size(), room = text_.size();
        const bool last = got == 0;   // some encodings keep a character back
        const bool ended = ::iconv(convert_, last ? nullptr : &at, last ? nullptr : &left, &to, &room) != static_cast<size_t>(-1);
        converted_ += raw_.size() - left;
        if (!ended && errno != EINVAL) fail(Exit::data, name_, ": byte ", converted_, " is not ", encoding_, "; give another --encoding");
        raw_.erase(0, raw_.size() - left);
        text_.resize(text_.size() - room);
        return !last;
    }

    std::string name_, encoding_;
    std::unique_ptr<ByteStream> from_;
    iconv_t convert_;
    std::string raw_;              // read and not yet converted
    std::string text_;             // converted, and returned up to taken_
    size_t taken_ = 0;
    uint64_t converted_ = 0;       // bytes of the input
};

}  // namespace

void require_encoding(const std::string& encoding) {
    const iconv_t convert = ::iconv_open("UTF-8", encoding.c_str());
    if (convert == reinterpret_cast<iconv_t>(-1))
        fail(Exit::usage, "--encoding ", encoding, ": is unknown to this system; `iconv -l` lists the names it has");
    ::iconv_close(convert);
}

std::unique_ptr<ByteStream> as_utf8(const std::string& name, std::unique_ptr<ByteStream> from, const std::string& encoding) {
    if (encoding == "UTF-8") return from;
    return std::make_unique<ConvertedStream>(name, std::move(from), encoding);
}
