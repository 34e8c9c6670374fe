// All shards of a glob as one long sequence of tokens.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/shard.h"

/// The concatenated tokens of the shards, in the order of their names. Opening checks every header, every file size, every token
/// against the vocabulary and every file against the hash in its manifest (Exit::data). Reading is thread-safe. Move-only.
class TokenStream {
public:
    /// With `check_again`, large shards that have been checked before are read again.
    TokenStream(const std::string& glob, int vocabulary, bool check_again = false);

    uint64_t size() const { return starts_.empty() ? 0 : starts_.back(); }
    size_t shards() const { return shards_.size(); }

    /// Its name in messages: the glob.
    const std::string& name() const { return name_; }

    /// The tokenizer recorded in the manifest next to the shards, for open_tokenizer(); "" if there is none. All shards have the
    /// same one (Exit::data on opening).
    const std::string& tokenizer() const { return tokenizer_; }

    /// 16 hexadecimal digits: a hash of all bytes of the shards, in order, with or without manifests.
    const std::string& fingerprint() const { return fingerprint_; }

    /// Copies tokens [start, start + count), across shards. Exit::data beyond the end.
    void copy(uint64_t start, size_t count, int32_t* out) const;

    /// Whether a shard has a loss mask.
    bool masked() const;

    /// Writes -1 over the masked ones of `targets`, which are tokens [start, start + count).
    void hide_targets(uint64_t start, size_t count, int32_t* targets) const;

    /// The number of tokens start .. start + count - 1 that count as targets.
    uint64_t count_targets(uint64_t start, uint64_t count) const;

private:
    /// Calls visit(shard, offset in it, count) for the parts of tokens start .. start + count - 1, in order.
    template <class Visit>
    void for_parts(uint64_t start, uint64_t count, Visit visit) const;

    std::string name_;
    std::string tokenizer_;
    std::string fingerprint_;
    std::vector<Shard> shards_;
    std::vector<uint64_t> starts_;   // (shards + 1) index of each shard's first token, and the total
};
