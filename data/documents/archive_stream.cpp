// xz and zstd streams, by libarchive.
#include <archive.h>
#include <archive_entry.h>

#include <utility>

#include "data/documents/byte_stream.h"
#include "model/base/error.h"

namespace {

// libarchive with one filter and no archive format.
class ArchiveStream : public ByteStream {
public:
    ArchiveStream(std::string name, int file, int filter) : name_(std::move(name)), archive_(::archive_read_new()) {
        if (!archive_) fail(Exit::out_of_memory, name_, ": no memory to decompress");
        check(::archive_read_append_filter(archive_.get(), filter));
        check(::archive_read_set_format(archive_.get(), ARCHIVE_FORMAT_RAW));
        check(::archive_read_open_fd(archive_.get(), file, stream_buffer_bytes));
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
        fail(Exit::data, name_, ": is damaged, cut short or not in the format of its extension, near byte ", consumed(), ": ",
             reason ? reason : "libarchive gives no reason");
    }

    struct Free {
        void operator()(archive* a) const { ::archive_read_free(a); }
    };
    std::string name_;
    std::unique_ptr<archive, Free> archive_;
};

}  // namespace

std::unique_ptr<ByteStream> open_archive(const std::string& name, int file, Compression compression) {
    return std::make_unique<ArchiveStream>(name, file, compression == Compression::xz ? ARCHIVE_FILTER_XZ : ARCHIVE_FILTER_ZSTD);
}
