// The bytes of a file or of standard input as a stream, decompressed according to the file's extension.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

constexpr size_t stream_buffer_bytes = size_t{1} << 18;   // read from a file at a time

/// Called periodically during long operations; may throw to abort them.
using Tick = std::function<void()>;

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

    /// Bytes of the underlying file read so far; for progress.
    virtual uint64_t consumed() const = 0;
};

constexpr uint64_t to_its_end = ~uint64_t{0};

/// A descriptor from its present position on, without decompression. Precondition: it outlives the stream. Reads `bytes` bytes of a
/// regular file (fewer are an error), or a pipe to its end (`to_its_end`). Calls `tick` before each read and ten times a second while
/// waiting for one.
std::unique_ptr<ByteStream> open_plain(const std::string& name, int file, uint64_t bytes, const Tick& tick);

/// gzip, by zlib. Concatenated compressed parts are one text, as for gzip itself.
std::unique_ptr<ByteStream> open_gzip(const std::string& name, std::unique_ptr<ByteStream> source);

/// xz or zstd, by libarchive; likewise. Precondition: the descriptor is at its first byte and outlives the stream.
std::unique_ptr<ByteStream> open_archive(const std::string& name, int file, Compression compression);

/// UTF-8 from another encoding, given by iconv's name ("UTF-16", "latin1"); errors on reading name the first invalid byte. "UTF-8" is not
/// checked. Exit::usage for an encoding that iconv lacks.
std::unique_ptr<ByteStream> as_utf8(const std::string& name, std::unique_ptr<ByteStream> from, const std::string& encoding);

/// Exit::usage for an encoding that iconv lacks.
void require_encoding(const std::string& encoding);
