// libFuzzer target: any bytes as a compressed input of ./tokenize; the first byte chooses the format. Reading must end in an Error
// or in text, the same text however much is asked for at a time.
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

#include "data/documents/byte_stream.h"
#include "model/base/disk.h"
#include "model/base/error.h"

namespace {

constexpr size_t enough = size_t{1} << 24;   // a few bytes can be gigabytes of text

std::optional<std::string> text_of(const std::string& path, Compression compression, size_t at_a_time) {
    try {
        const auto stream = open_compressed(path, compression);
        std::string text, buffer(at_a_time, '\0');
        for (size_t got = 1; got > 0 && text.size() < enough; text.append(buffer, 0, got)) {
            got = stream->read(buffer.data(), buffer.size());
            if (got > buffer.size()) std::abort();
        }
        return text;
    } catch (const Error&) {
        return std::nullopt;
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    if (bytes == 0) return 0;
    Descriptor file(memfd_create("compressed", MFD_CLOEXEC));
    if (!write_all(file.get(), reinterpret_cast<const char*>(data + 1), bytes - 1)) std::abort();
    const Compression kinds[] = {Compression::gzip, Compression::xz, Compression::zstd};
    const std::string path = "/proc/self/fd/" + std::to_string(file.get());
    const auto whole = text_of(path, kinds[data[0] % 3], size_t{1} << 16), parts = text_of(path, kinds[data[0] % 3], 1000);
    for (const auto& text : {whole, parts})
        if (text && text->size() >= enough) return 0;   // an error may lie behind what one of them has read
    if (whole != parts) std::abort();
    return 0;
}
