#include "data/stream.h"

#include <algorithm>
#include <filesystem>

#include "data/manifest.h"
#include "data/tokenizers/tokenizer.h"
#include "model/base/error.h"

namespace {

// What open_tokenizer() takes for the tokenizer that the manifest beside a shard records ("bytes", or a file beside the manifest);
// "" when no manifest lists this shard.
std::string tokenizer_of(const std::string& shard_path) {
    const std::string path = manifest_path(shard_path);
    if (path.empty() || !std::filesystem::exists(path)) return "";
    const Manifest manifest = manifest_from_json(read_small_file(path), path);
    const std::string file = std::filesystem::path(shard_path).filename().string();
    const auto is_this = [&](const ShardInfo& shard) { return shard.file == file; };
    const bool listed = std::any_of(manifest.shards.begin(), manifest.shards.end(), is_this);
    if (!listed || manifest.tokenizer == "bytes") return listed ? manifest.tokenizer : "";
    const std::string tokenizer = (std::filesystem::path(path).parent_path() / manifest.tokenizer).string();
    if (!std::filesystem::exists(tokenizer))
        fail(Exit::data, path, ": names the tokenizer ", manifest.tokenizer,
             ", which is not beside it; copy it there from where the shards were made");
    return tokenizer;
}

}  // namespace

TokenStream::TokenStream(const std::string& glob, int vocabulary) : name_(glob) { open(expand_glob(glob), vocabulary); }

TokenStream::TokenStream(const std::vector<std::string>& paths, int vocabulary) {
    if (paths.empty()) fail(Exit::data, "the list of token shards is empty");
    name_ = paths[0];
    open(paths, vocabulary);
}

void TokenStream::open(const std::vector<std::string>& paths, int vocabulary) {
    // All headers first: a typo in the last path should not wait for the scan of the first gigabytes.
    for (const std::string& path : paths) shards_.emplace_back(path);
    tokenizer_ = tokenizer_of(paths[0]);
    uint64_t start = 0;
    for (const Shard& shard : shards_) {
        const std::string tokenizer = tokenizer_of(shard.path());
        if (!same_tokenizer(tokenizer, tokenizer_))
            fail(Exit::data, shard.path(), ": its tokenizer is '", tokenizer, "', that of ", paths[0], " is '", tokenizer_,
                 "' ('' is unknown); tokens of different tokenizers cannot be mixed");
        shard.check_range(vocabulary);
        starts_.push_back(start);
        start += shard.size();
    }
    starts_.push_back(start);
}

void TokenStream::copy(uint64_t start, size_t count, int32_t* out) const {
    if (start > size() || count > size() - start)
        fail(Exit::data, name_, ": holds ", size(), " tokens, but ", count, " were asked for from token ", start);
    size_t i = std::upper_bound(starts_.begin(), starts_.end(), start) - starts_.begin() - 1;
    while (count > 0) {
        const uint64_t offset = start - starts_[i];
        const size_t part = std::min<uint64_t>(count, shards_[i].size() - offset);
        shards_[i].copy(offset, part, out);
        start += part;
        out += part;
        count -= part;
        ++i;
    }
}
