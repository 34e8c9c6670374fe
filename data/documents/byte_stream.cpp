#include "data/documents/byte_stream.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "model/base/error.h"

namespace {

class PlainStream : public ByteStream {
public:
    PlainStream(std::string name, int file, uint64_t bytes, const Tick& tick)
        : name_(std::move(name)), file_(file), bytes_(bytes), tick_(tick) {}

    size_t read(char* out, size_t bytes) override {
        const size_t wanted = std::min<uint64_t>(bytes, bytes_ - consumed_);
        while (wanted > 0) {
            tick_();
            pollfd wait = {file_, POLLIN, 0};
            const int ready = ::poll(&wait, 1, 100);
            if (ready == 0 || (ready < 0 && errno == EINTR)) continue;   // no data
            const ssize_t got = ::read(file_, out, wanted);
            if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
            if (got < 0) fail(Exit::data, name_, ": cannot be read at byte ", consumed_, ": ", last_os_error());
            if (got == 0 && bytes_ != to_its_end)
                fail(Exit::data, name_, ": was cut short while it was read: it had ", bytes_, " bytes, now ", consumed_);
            consumed_ += static_cast<uint64_t>(got);
            return static_cast<size_t>(got);
        }
        return 0;
    }

    uint64_t consumed() const override { return consumed_; }

private:
    std::string name_;
    int file_;
    uint64_t bytes_;
    Tick tick_;
    uint64_t consumed_ = 0;
};

}  // namespace

Compression compression_of(const std::string& path) {
    if (path.ends_with(".gz")) return Compression::gzip;
    if (path.ends_with(".xz")) return Compression::xz;
    return path.ends_with(".zst") ? Compression::zstd : Compression::none;
}

std::unique_ptr<ByteStream> open_plain(const std::string& name, int file, uint64_t bytes, const Tick& tick) {
    return std::make_unique<PlainStream>(name, file, bytes, tick);
}
