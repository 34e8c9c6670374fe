// The bytes of a file or of standard input as a stream, decompressed according to the file's extension.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "data/documents/files.h"

constexpr size_t stream_buffer_bytes = size_t{1} << 18;   // read from a file at a time

enum class Compression { none, gzip, xz, zstd };

/// By the extension: .gz, .xz, .zst; none for anything else.
Compression compression_of(const std::string& path);

/// Reads once from start to end. Errors (Exit::data) name the file. Damaged or truncated data is an error: a stream that reports
/// its end has returned everything that was compressed into it.
class ByteStream {
public:
    virtual ~ByteStream() = default;

    /// Up to `bytes` bytes, at least one of them unless the stream is at its end.
    virtual size_t read(char* out, size_t bytes) = 0;

    /// Skips this many bytes, or all that remain.
    virtual void skip(uint64_t bytes);

    /// Bytes of the underlying file read so far; for progress.
    virtual uint64_t consumed() const = 0;
};

/// Precondition: the descriptor outlives the stream; it may be shared, as its offset is not used. A regular file, uncompressed.
/// Data appended beyond `size` is not read; a file that became shorter is an error.
std::unique_ptr<ByteStream> open_plain(const std::string& name, int file, uint64_t size);

/// A compressed file. Concatenated compressed parts are one text, as for gzip, xz and zstd themselves.
std::unique_ptr<ByteStream> open_compressed(const std::string& path, Compression compression);

/// UTF-8 from another encoding, given by iconv's name ("UTF-16", "latin1"), without its byte-order mark. "UTF-8" itself is not checked,
/// but another encoding's byte-order mark is an error. Exit::usage for an unknown encoding; errors on reading name the first invalid
/// byte.
std::unique_ptr<ByteStream> as_utf8(const std::string& name, std::unique_ptr<ByteStream> from, const std::string& encoding);

/// Exit::usage for an encoding that iconv lacks.
void require_encoding(const std::string& encoding);

/// Standard input (any descriptor `file`), which may block for long: once `stop` is set, reading ends within a tenth of a second
/// (Exit::signal).
std::unique_ptr<ByteStream> open_pipe(const std::string& name, int file, const std::atomic<bool>& stop);
