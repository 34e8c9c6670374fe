// A cache of check results for large shards, so that runs need not read them all again: one small file per shard in
// $XDG_CACHE_HOME/train_gpt/shards, or ~/.cache/train_gpt/shards. Deleting it only costs another check.
#pragma once
#include <cstdint>
#include <string>

/// A hash of the first and last 64 KiB of a file mapped at `data` (bytes), which goes on from `seed`.
uint64_t hash_of_both_ends(const void* data, uint64_t bytes, uint64_t seed = 0);

/// Identifies the current state of a shard: its path, size, inode, mtime and ctime (which programs cannot set), and a hash of its
/// first and last 64 KiB.
class CheckedShard {
public:
    CheckedShard() = default;   // has not passed

    /// Of the file `path`, mapped at `data` (bytes).
    CheckedShard(const std::string& path, const void* data, uint64_t bytes);

    /// The file's hash, if an earlier check of this exact file took it and found all tokens below `vocabulary`; else "".
    std::string passed_hash(uint32_t vocabulary) const;

    /// Records a check. Write errors are ignored.
    void remember(uint32_t largest_token, const std::string& xxh64) const;

private:
    std::string file_;        // path of the record; "" if there is no place for it
    std::string identity_;    // first line of the record
};
