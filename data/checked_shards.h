// What earlier runs found out about large shards, so that a start need not read them all again. Per shard one small file in
// $XDG_CACHE_HOME/train_gpt/shards, or ~/.cache/train_gpt/shards; deleting them costs a check and nothing else.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

/// A shard as it is now: where it is, its size, inode and times of the last change (of the bytes, and of anything, which programs
/// cannot set), and a hash of its first and last 64 KiB.
class CheckedShard {
public:
    /// Of `path`, which is open and mapped: `bytes` bytes at `data`.
    CheckedShard(const std::string& path, const void* data, uint64_t bytes);

    /// The greatest token that a check of this very file has found; nothing when none is on record.
    std::optional<uint32_t> largest_token() const;

    /// Puts it on record. What cannot be written is not remembered, and nobody is told.
    void remember(uint32_t largest_token) const;

private:
    std::string file_;        // of the record; "" where there is no place for one
    std::string identity_;    // first line of the record
};

/// Shards of fewer bytes are checked every time: that takes some milliseconds.
inline constexpr uint64_t smallest_remembered_shard = uint64_t{8} << 20;
