// Token shards, the files that training reads: 256 little-endian int32 (magic, version, number of tokens, zeros), then the
// tokens, 16 or 32 bits each. The bytes are llm.c's; data/README.md describes them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/documents/files.h"

constexpr size_t shard_header_bytes = 256 * sizeof(int32_t);

/// One shard, memory-mapped for reading. Move-only. The constructor checks everything that the header and the file's size
/// tell (Exit::data names the path, what was found and what would be right); check_range() checks the tokens themselves.
class Shard {
public:
    explicit Shard(const std::string& path);
    ~Shard();
    Shard(Shard&& other) noexcept;
    Shard& operator=(Shard&& other) noexcept;

    const std::string& path() const { return path_; }
    uint64_t size() const { return tokens_; }                    // tokens
    int bytes_per_token() const { return bytes_per_token_; }     // 2 or 4

    /// Copies tokens start .. start + count - 1 to `out`; the caller keeps start + count <= size(). A file that somebody
    /// shortened after it was opened: Exit::data (reading beyond its end through the map would end the program).
    void copy(uint64_t start, size_t count, int32_t* out) const;

    /// Exit::data when a token is not below `vocabulary`; names the file, byte offset, index and id of the first one. A large
    /// shard that has been checked before and is unchanged since is not read again.
    void check_range(int vocabulary) const;

private:
    const void* payload() const { return static_cast<const char*>(map_) + shard_header_bytes; }
    void unmap();

    std::string path_;
    void* map_ = nullptr;        // the whole file
    uint64_t file_bytes_ = 0;
    uint64_t inode_ = 0;
    uint64_t tokens_ = 0;
    int bytes_per_token_ = 0;
};

/// Shards of fewer bytes are checked every time: that takes some milliseconds.
inline constexpr uint64_t smallest_remembered_shard = uint64_t{8} << 20;

/// What the manifest says of one shard.
struct ShardInfo {
    std::string file;        // name without folder
    uint64_t tokens = 0;
    uint64_t bytes = 0;      // of the file
    std::string xxh64;       // of the file, 16 hexadecimal digits
};

/// Writes one shard in a stream: 16-bit tokens where the vocabulary allows, else 32-bit. The file has its final name only
/// after publish(); an object that dies before leaves nothing. Failures (disk full, no permission) are Exit::data.
class ShardWriter {
public:
    ShardWriter(const std::string& path, int vocabulary);

    /// Appends tokens. An id outside the vocabulary or more tokens than a header can count (2^31 - 1): Exit::data.
    void write(std::span<const uint32_t> ids);

    /// Puts the number of tokens into the header, syncs and closes; the file keeps its temporary name.
    ShardInfo finish();

    /// finish() where that was not done, then the final name.
    void publish();

    /// After finish(): the file outlives the object, under its temporary name.
    void leave() { file_.leave(); }

    uint64_t tokens() const { return tokens_; }

private:
    OutputFile file_;
    int vocabulary_;
    uint64_t tokens_ = 0;
    bool finished_ = false;
    std::vector<uint16_t> narrow_;     // scratch of write()
};

/// The files that a shell pattern (*, ?, [a-z]) or a plain path names, sorted by name. None: Exit::data, and what was `expected`.
std::vector<std::string> expand_glob(const std::string& pattern,
                                     const std::string& expected = "token shards (./tokenize writes them)");
