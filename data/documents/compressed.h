// Compressed streams, by libraries that may be missing. Stand-ins in data/without/ then report the missing library.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "data/documents/byte_stream.h"
#include "data/documents/files.h"

/// By zlib. Precondition: `file` is open at its first byte and has `size` bytes.
std::unique_ptr<ByteStream> open_gzip(const std::string& path, Descriptor file, uint64_t size);

/// By libarchive: xz or zstd.
std::unique_ptr<ByteStream> open_archive(const std::string& path, Compression compression);
