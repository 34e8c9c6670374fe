// data/documents/gzip_stream.cpp without zlib.
#include "data/documents/byte_stream.h"
#include "data/without/refuse.h"

std::unique_ptr<ByteStream> open_gzip(const std::string& name, std::unique_ptr<ByteStream>) {
    refuse_without("zlib", "zlib1g-dev", name + ": must be decompressed first (gunzip)");
}
