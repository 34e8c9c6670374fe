// All shards of a glob as one long sequence of tokens.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/shard.h"

/// Tokens 0 .. size() - 1 of the shards one behind the other, in the order of their names. Opening checks every header, every
/// file size and every token against the vocabulary (Exit::data). Reading is thread-safe. Move-only.
class TokenStream {
public:
    TokenStream(const std::string& glob, int vocabulary);
    TokenStream(const std::vector<std::string>& paths, int vocabulary);

    uint64_t size() const { return starts_.empty() ? 0 : starts_.back(); }
    size_t shards() const { return shards_.size(); }

    /// What messages call it: the glob, or the first path.
    const std::string& name() const { return name_; }

    /// What open_tokenizer() takes for the tokenizer of the manifest beside the shards, "" where there is none. Shards of
    /// different tokenizers make no stream.
    const std::string& tokenizer() const { return tokenizer_; }

    /// Copies tokens start .. start + count - 1, over as many shards as they span. Beyond the end: Exit::data.
    void copy(uint64_t start, size_t count, int32_t* out) const;

private:
    void open(const std::vector<std::string>& paths, int vocabulary);

    std::string name_;
    std::string tokenizer_;
    std::vector<Shard> shards_;
    std::vector<uint64_t> starts_;   // starts_[i] is the first token of shard i; one more at the end: all tokens
};
