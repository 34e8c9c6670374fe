// Streams of compressed files, each by a library that not every machine has: where it is missing, data/without/ says so.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "data/documents/byte_stream.h"
#include "data/documents/files.h"

/// By zlib. `file` is open at its first byte and has `size` bytes.
std::unique_ptr<ByteStream> open_gzip(const std::string& path, Descriptor file, uint64_t size);

/// By libarchive: xz or zstd.
std::unique_ptr<ByteStream> open_archive(const std::string& path, Compression compression);
