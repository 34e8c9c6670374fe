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
    TokenStream(const std::vector<std::string>& paths, int vocabulary, bool check_again = false);

    uint64_t size() const { return starts_.empty() ? 0 : starts_.back(); }
    size_t shards() const { return shards_.size(); }

    /// Its name in messages: the glob, or the first path.
    const std::string& name() const { return name_; }

    /// The tokenizer recorded in the manifest next to the shards, for open_tokenizer(); "" if there is none. All shards have the
    /// same one (Exit::data on opening).
    const std::string& tokenizer() const { return tokenizer_; }

    /// 16 hexadecimal digits of the shards' sizes and of their first and last 64 KiB, in order: other data, another fingerprint.
    const std::string& fingerprint() const { return fingerprint_; }

    /// 16 hexadecimal digits of all bytes of the shards, in order, whether manifests list them or not. Unlike fingerprint() it
    /// differs where tokens between the ends do.
    const std::string& contents() const { return contents_; }

    /// For people: the shards that a manifest lists, the glob would name, and the folder lacks. "" if there are none.
    const std::string& missing() const { return missing_; }

    /// Copies tokens [start, start + count), across shards. Exit::data beyond the end.
    void copy(uint64_t start, size_t count, int32_t* out) const;

    /// Whether a shard has a loss mask.
    bool masked() const;

    /// Writes -1 over those of `targets`, which are tokens [start, start + count), that a mask hides.
    void hide_targets(uint64_t start, size_t count, int32_t* targets) const;

    /// How many of the tokens start .. start + count - 1 count as targets.
    uint64_t count_targets(uint64_t start, uint64_t count) const;

private:
    /// visit(shard, offset in it, count) for the parts of tokens start .. start + count - 1, in order.
    template <class Visit>
    void for_parts(uint64_t start, uint64_t count, Visit visit) const;

    void open(const std::vector<std::string>& paths, int vocabulary, bool check_again);

    std::string name_;
    std::string tokenizer_;
    std::string fingerprint_, contents_;
    std::vector<Shard> shards_;
    std::vector<uint64_t> starts_;   // (shards + 1) index of each shard's first token, and the total
    std::string missing_;
};
