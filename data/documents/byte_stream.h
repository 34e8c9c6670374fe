// The bytes of a file or of standard input, one behind the other, decompressed where the file's name says so.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "data/documents/files.h"

constexpr size_t stream_buffer_bytes = size_t{1} << 18;   // what streams read of a file at a time

enum class Compression { none, gzip, xz, zstd };

/// By the end of the name: .gz, .xz, .zst; none for anything else.
Compression compression_of(const std::string& path);

/// Reads once from the start to the end. Errors (Exit::data) carry the name of the file. Bytes that are damaged or end too early
/// are errors: a stream that says it is at its end has given everything that was compressed into it.
class ByteStream {
public:
    virtual ~ByteStream() = default;

    /// Up to `bytes` bytes, at least one of them unless the stream is at its end.
    virtual size_t read(char* out, size_t bytes) = 0;

    /// Leaves out that many bytes, or all there are.
    virtual void skip(uint64_t bytes);

    /// Bytes of the file behind it that were read so far; for progress.
    virtual uint64_t consumed() const = 0;
};

/// A regular file as it is. What is appended after `size` was taken is not read; a file that got shorter is an error. The
/// descriptor must outlive the stream, is shared with other streams and is not moved.
std::unique_ptr<ByteStream> open_plain(const std::string& name, int file, uint64_t size);

/// A compressed file. Several compressed parts one behind the other are one text, as for gzip, xz and zstd themselves.
std::unique_ptr<ByteStream> open_compressed(const std::string& path, Compression compression);

/// Standard input (any descriptor `file`), which can be silent for long: once `stop` is set, reading ends within a tenth of a
/// second.
std::unique_ptr<ByteStream> open_pipe(const std::string& name, int file, const std::atomic<bool>& stop);
