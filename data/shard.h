// Token shards, the training data: 256 little-endian int32 (magic, version, number of tokens, zeros), then the tokens, 16 or 32 bits each,
// and optionally a loss mask, one byte per token: whether it counts as a target. The format is llm.c's, except for the mask;
// data/README.md describes it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/documents/files.h"

constexpr size_t shard_header_bytes = 256 * sizeof(int32_t);

/// One shard, memory-mapped for reading. Move-only. The constructor validates the header and the file's size (Exit::data, naming
/// the path, what was found and what was expected); check_range() validates the tokens.
class Shard {
public:
    explicit Shard(const std::string& path);
    ~Shard();
    Shard(Shard&& other) noexcept;
    Shard& operator=(Shard&& other) noexcept;

    const std::string& path() const { return path_; }
    uint64_t size() const { return tokens_; }                    // tokens
    int bytes_per_token() const { return bytes_per_token_; }     // 2 or 4
    bool masked() const { return masked_; }                      // without a mask every token counts as a target

    /// A hash of the file's size and of its first and last 64 KiB, which goes on from `seed`.
    uint64_t fingerprint(uint64_t seed) const;

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
    const void* payload() const { return static_cast<const char*>(map_) + shard_header_bytes; }
    uint64_t mask_begin() const { return shard_header_bytes + tokens_ * static_cast<uint64_t>(bytes_per_token_); }
    const uint8_t* mask() const { return static_cast<const uint8_t*>(map_) + mask_begin(); }
    void require_whole() const;
    uint32_t scan_all(uint32_t vocabulary, FileHasher& hasher) const;
    void unmap();

    std::string path_;
    void* map_ = nullptr;        // the whole file
    uint64_t file_bytes_ = 0;
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

/// Writes one shard sequentially: 16-bit tokens if the vocabulary allows, else 32-bit. The file gets its final name only in
/// publish(); if the object is destroyed earlier, nothing remains. Failures (disk full, no permission) are Exit::data.
class ShardWriter {
public:
    ShardWriter(const std::string& path, int vocabulary);

    /// Appends tokens, and whether each counts as a target (0 or 1): either all calls have a mask or none. Exit::data for an id
    /// outside the vocabulary or more tokens than a header can count (2^31 - 1).
    void write(std::span<const uint32_t> ids, std::span<const uint8_t> mask = {});

    /// Writes the number of tokens to the header, syncs and closes; the file keeps its temporary name.
    ShardInfo finish();

    /// finish() unless already done, then renames to the final name.
    void publish();

    /// Precondition: finish(). The file outlives the object under its temporary name.
    void leave() { file_.leave(); }

    uint64_t tokens() const { return tokens_; }

private:
    OutputFile file_;
    int vocabulary_;
    uint64_t tokens_ = 0;
    bool finished_ = false;
    std::vector<uint16_t> narrow_;     // scratch of write()
    std::vector<uint8_t> mask_;        // of all tokens so far, or of none: it comes last in the file
};

/// The files that match a shell pattern (*, ?, [a-z]) or a plain path, sorted by name. Exit::data, naming `expected`, if none do.
std::vector<std::string> expand_glob(const std::string& pattern,
                                     const std::string& expected = "token shards (./tokenize writes them)");
