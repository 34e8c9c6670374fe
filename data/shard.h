// Token shards, the training data: a header, tokens of 16 or 32 bits, and optionally a loss mask, one byte per token: whether it counts as
// a target. data/README.md describes the format, llm.c's except for the mask.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/files.h"
#include "model/base/disk.h"

constexpr size_t shard_header_bytes = 256 * sizeof(int32_t);

/// One shard, memory-mapped for reading. Move-only. The constructor validates the header and the file's size (Exit::data, naming
/// the path, what was found and what was expected); check_content() validates the tokens.
class Shard {
public:
    explicit Shard(const std::string& path);

    const std::string& path() const { return path_; }
    uint64_t size() const { return tokens_; }                    // tokens
    int bytes_per_token() const { return bytes_per_token_; }     // 2 or 4
    bool masked() const { return masked_; }                      // without a mask every token counts as a target

    /// Precondition: start + count <= size(). Copies tokens [start, start + count) to `out`. Exit::data if the file was truncated
    /// after it was opened (reading past its end through the mapping would raise SIGBUS).
    void copy(uint64_t start, size_t count, int32_t* out) const;

    /// Writes -1 over the masked ones of `targets`, which are tokens [start, start + count).
    void hide_targets(uint64_t start, size_t count, int32_t* targets) const;

    /// The number of unmasked tokens in [start, start + count).
    uint64_t count_targets(uint64_t start, uint64_t count) const;

    /// Exit::data if a token is not below `vocabulary`, naming the file, byte offset, index and id of the first, if a byte of the
    /// mask is neither 0 nor 1, or if the file's hash is not `xxh64` (unless that is ""). All in one pass. A large shard that has been
    /// checked before and has not changed is read again only if `again` is set. Returns the file's hash.
    std::string check_content(int vocabulary, const std::string& xxh64 = "", bool again = false) const;

private:
    const char* bytes() const { return reinterpret_cast<const char*>(map_.bytes().data()); }
    uint64_t file_bytes() const { return map_.bytes().size(); }
    uint64_t mask_begin() const { return shard_header_bytes + tokens_ * static_cast<uint64_t>(bytes_per_token_); }
    const uint8_t* mask() const { return reinterpret_cast<const uint8_t*>(bytes() + mask_begin()); }
    void require_whole() const;
    void release(uint64_t begin, uint64_t end) const;
    template <class Number, class Refuse>
    uint32_t scan(uint64_t begin, uint64_t end, uint32_t limit, FileHasher& hasher, Refuse refuse) const;
    uint32_t scan_all(uint32_t vocabulary, FileHasher& hasher) const;

    std::string path_;
    MappedFile map_;
    uint64_t inode_ = 0;
    uint64_t tokens_ = 0;
    int bytes_per_token_ = 0;
    bool masked_ = false;
};

/// Shards below this size in bytes are checked every time, which takes milliseconds.
inline constexpr uint64_t smallest_remembered_shard = uint64_t{8} << 20;

/// A shard's entry in the manifest.
struct ShardInfo {
    std::string file;        // name without folder
    uint64_t tokens = 0;
    uint64_t bytes = 0;      // of the file
    std::string xxh64;       // of the file, 16 hexadecimal digits
};

/// Writes one shard sequentially: 16-bit tokens if the vocabulary allows, else 32-bit. The file gets its name only in publish(); if the
/// object is destroyed earlier, nothing remains. Failures (disk full, no permission) are Exit::data.
class ShardWriter {
public:
    ShardWriter(const std::string& path, int vocabulary);

    /// Appends tokens, and whether each counts as a target (0 or 1): either all calls have a mask or none. Exit::data for an id
    /// outside the vocabulary or more tokens than a header can count (2^31 - 1).
    void write(std::span<const uint32_t> ids, std::span<const uint8_t> mask = {});

    /// Writes the number of tokens to the header, syncs, closes and renames.
    ShardInfo publish();

    uint64_t tokens() const { return tokens_; }

private:
    OutputFile file_;
    int vocabulary_;
    uint64_t tokens_ = 0;
    std::vector<uint16_t> narrow_;     // scratch of write()
    std::vector<uint8_t> mask_;        // of all tokens so far, or of none: it comes last in the file
};

/// The files that match a shell pattern (*, ?, [a-z]) or a plain path, sorted by name. Exit::data, naming `expected`, if none do.
std::vector<std::string> expand_glob(const std::string& pattern,
                                     const std::string& expected = "token shards (./tokenize writes them)");
