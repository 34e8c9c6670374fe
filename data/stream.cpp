#include "data/stream.h"

#include <algorithm>
#include <filesystem>

#include "data/manifest.h"
#include "data/tokenizers/tokenizer.h"
#include "model/base/error.h"
#include "model/base/hash.h"

namespace {

// The tokenizer recorded in the manifest next to a shard, for open_tokenizer() ("bytes", or a file next to the manifest); "" if no
// manifest lists this shard.
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
             ", which is not in the same folder; copy it there from where the shards were made");
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
    // All headers first: a problem with the last path should not wait for a scan of gigabytes.
    for (const std::string& path : paths) shards_.emplace_back(path);
    tokenizer_ = tokenizer_of(paths[0]);
    uint64_t start = 0, hash = 0;
    for (const Shard& shard : shards_) {
        const std::string tokenizer = tokenizer_of(shard.path());
        if (!same_tokenizer(tokenizer, tokenizer_))
            fail(Exit::data, shard.path(), ": its tokenizer is '", tokenizer, "', that of ", paths[0], " is '", tokenizer_,
                 "' ('' is unknown); tokens of different tokenizers cannot be mixed");
        shard.check_range(vocabulary);
        starts_.push_back(start);
        start += shard.size();
        hash = shard.fingerprint(hash);
    }
    starts_.push_back(start);
    fingerprint_ = hexadecimal(hash);
}

template <class Visit>
void TokenStream::for_parts(uint64_t start, uint64_t count, Visit visit) const {
    if (start > size() || count > size() - start)
        fail(Exit::data, name_, ": holds ", size(), " tokens, but ", count, " were asked for from token ", start);
    size_t i = std::upper_bound(starts_.begin(), starts_.end(), start) - starts_.begin() - 1;
    while (count > 0) {
        const uint64_t offset = start - starts_[i];
        const uint64_t part = std::min(count, shards_[i].size() - offset);
        visit(shards_[i], offset, part);
        start += part;
        count -= part;
        ++i;
    }
}

void TokenStream::copy(uint64_t start, size_t count, int32_t* out) const {
    for_parts(start, count, [&](const Shard& shard, uint64_t offset, uint64_t part) {
        shard.copy(offset, part, out);
        out += part;
    });
}

bool TokenStream::masked() const {
    return std::any_of(shards_.begin(), shards_.end(), [](const Shard& shard) { return shard.masked(); });
}

void TokenStream::hide_targets(uint64_t start, size_t count, int32_t* targets) const {
    for_parts(start, count, [&](const Shard& shard, uint64_t offset, uint64_t part) {
        shard.hide_targets(offset, part, targets);
        targets += part;
    });
}

uint64_t TokenStream::count_targets(uint64_t start, uint64_t count) const {
    uint64_t targets = 0;
    for_parts(start, count, [&](const Shard& shard, uint64_t offset, uint64_t part) { targets += shard.count_targets(offset, part); });
    return targets;
}
