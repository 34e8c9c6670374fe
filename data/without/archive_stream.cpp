// data/documents/archive_stream.cpp without libarchive.
#include "data/documents/byte_stream.h"
#include "data/without/refuse.h"

std::unique_ptr<ByteStream> open_archive(const std::string& name, int, Compression compression) {
    const std::string program = compression == Compression::xz ? "unxz" : "unzstd";
    refuse_without("libarchive", "libarchive-dev", name + ": must be decompressed first (" + program + ")");
}
