// Text in encodings other than UTF-8.
#include <iconv.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "data/documents/byte_stream.h"
#include "model/base/error.h"

namespace {

using namespace std::string_view_literals;

// Bytes at the start of a text that were read and not yet returned.
class Pending {
public:
    std::string bytes;
    bool empty() const { return begin_ == bytes.size(); }
    size_t take(char* out, size_t most) {
        const size_t count = std::min(most, bytes.size() - begin_);
        std::copy_n(bytes.data() + begin_, count, out);
        begin_ += count;
        return count;
    }
    void restart() { bytes.clear(), begin_ = 0; }

private:
    size_t begin_ = 0;
};

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
        while (pending_.empty() && convert_more()) {}
        return pending_.take(out, bytes);
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
        pending_.restart();
        pending_.bytes.resize(4 * raw_.size() + 16);   // a byte gives at most one character of 4 bytes
        char *at = raw_.data(), *to = pending_.bytes.data();
        size_t left = raw_.size(), room = pending_.bytes.size();
        const bool last = got == 0;   // some encodings keep a character back
        const bool ended = ::iconv(convert_, last ? nullptr : &at, last ? nullptr : &left, &to, &room) != static_cast<size_t>(-1);
        converted_ += raw_.size() - left;
        if (!ended && errno != EINVAL) fail(Exit::data, name_, ": byte ", converted_, " is not ", encoding_, "; give another --encoding");
        raw_.erase(0, raw_.size() - left);
        pending_.bytes.resize(pending_.bytes.size() - room);
        return !last;
    }

    std::string name_, encoding_;
    std::unique_ptr<ByteStream> from_;
    iconv_t convert_;
    std::string raw_;              // read and not yet converted
    Pending pending_;
    uint64_t converted_ = 0;       // bytes of the input
};

// UTF-8 without its byte-order mark. Other byte-order marks are errors.
class UnmarkedStream : public ByteStream {
public:
    UnmarkedStream(std::string name, std::unique_ptr<ByteStream> from) : name_(std::move(name)), from_(std::move(from)) {}

    size_t read(char* out, size_t bytes) override {
        if (!begun_) begin();
        return head_.empty() ? from_->read(out, bytes) : head_.take(out, bytes);
    }
    void skip(uint64_t bytes) override {
        if (!begun_) begin();
        std::string passed(std::min<uint64_t>(bytes, head_.bytes.size()), 0);
        from_->skip(bytes - head_.take(passed.data(), passed.size()));
    }
    uint64_t consumed() const override { return from_->consumed(); }

private:
    void begin() {
        begun_ = true;
        std::string& head = head_.bytes;
        for (size_t got = 1; head.size() < 4 && got > 0;) {
            char four[4];
            got = from_->read(four, 4 - head.size());
            head.append(four, got);
        }
        for (const auto& [mark, encoding] : {std::pair("\xFF\xFE\0\0"sv, "UTF-32"), {"\0\0\xFE\xFF"sv, "UTF-32"},
                                             {"\xFF\xFE"sv, "UTF-16"}, {"\xFE\xFF"sv, "UTF-16"}})
            if (head.starts_with(mark))
                fail(Exit::data, name_, ": begins with the byte-order mark of ", encoding, "; give --encoding ", encoding);
        if (head.starts_with("\xEF\xBB\xBF")) head.erase(0, 3);
    }

    std::string name_;
    std::unique_ptr<ByteStream> from_;
    bool begun_ = false;
    Pending head_;
};

}  // namespace

void require_encoding(const std::string& encoding) {
    const iconv_t convert = ::iconv_open("UTF-8", encoding.c_str());
    if (convert == reinterpret_cast<iconv_t>(-1))
        fail(Exit::usage, "--encoding ", encoding, ": is unknown to this system; `iconv -l` lists the names it has");
    ::iconv_close(convert);
}

std::unique_ptr<ByteStream> as_utf8(const std::string& name, std::unique_ptr<ByteStream> from, const std::string& encoding) {
    if (encoding != "UTF-8") from = std::make_unique<ConvertedStream>(name, std::move(from), encoding);
    return std::make_unique<UnmarkedStream>(name, std::move(from));
}
