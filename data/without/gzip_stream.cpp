// data/documents/gzip_stream.cpp without zlib.
#include "data/documents/compressed.h"
#include "data/without/refuse.h"

std::unique_ptr<ByteStream> open_gzip(const std::string& path, Descriptor, uint64_t) {
    refuse_without("zlib", "zlib1g-dev", path + ": must be decompressed first (gunzip)");
}
