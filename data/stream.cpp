#include "data/stream.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "data/manifest.h"
#include "data/tokenizers/tokenizer.h"
#include "model/base/error.h"
#include "model/base/hash.h"

namespace {

namespace fs = std::filesystem;

// The tokenizer that a manifest names, for open_tokenizer(): "bytes", or the path of a file next to the manifest.
std::string tokenizer_of(const Manifest& manifest, const std::string& manifest_path) {
    const std::string& name = manifest.tokenizer;
    if (name == "bytes") return name;
    const fs::path folder = fs::path(manifest_path).parent_path(), path = folder / name;
    const std::string names = manifest_path + ": names the tokenizer " + name;
    if (!is_plain_name(name)) fail(Exit::data, names, ", which is not a file name; it must name a file in the same folder");
    if (!fs::exists(path))
        fail(Exit::data, names, ", which is not in the same folder; copy it there from where the shards were made");
    if (fs::canonical(path).parent_path() != fs::canonical(folder.empty() ? "." : folder))
        fail(Exit::data, names, ", which is a symbolic link to another folder; put a copy of the file in its place");
    return path.string();
}

// The entries for shards in the manifests next to them.
class Manifests {
public:
    struct Entry {
        std::string tokenizer, xxh64;   // "" if no manifest lists the shard
    };

    Entry find(const std::string& shard_path) {
        const std::string path = manifest_path(shard_path), file = fs::path(shard_path).filename().string();
        if (path.empty() || !fs::exists(path)) return {};
        if (!by_path_.contains(path)) by_path_[path] = manifest_from_json(read_small_file(path), path);
        for (const ShardInfo& shard : by_path_[path].shards)
            if (shard.file == file) return {tokenizer_of(by_path_[path], path), shard.xxh64};
        return {};
    }

private:
    std::map<std::string, Manifest> by_path_;
};

}  // namespace

TokenStream::TokenStream(const std::string& glob, int vocabulary, bool check_again) : name_(glob) {
    const std::vector<std::string> paths = expand_glob(glob);
    // All headers first: a problem with the last path should not wait for a scan of gigabytes.
    for (const std::string& path : paths) shards_.emplace_back(path);
    Manifests manifests;
    tokenizer_ = manifests.find(paths[0]).tokenizer;
    uint64_t start = 0;
    std::string hashes;
    for (const Shard& shard : shards_) {
        const auto [tokenizer, xxh64] = manifests.find(shard.path());
        if (!same_tokenizer(tokenizer, tokenizer_))
            fail(Exit::data, shard.path(), ": its tokenizer is '", tokenizer, "', that of ", paths[0], " is '", tokenizer_,
                 "' ('' is unknown); tokens of different tokenizers cannot be mixed");
        hashes += shard.check_content(vocabulary, xxh64, check_again) + "\n";
        starts_.push_back(start);
        start += shard.size();
    }
    starts_.push_back(start);
    fingerprint_ = hexadecimal(xxh3(hashes));
}

template <class Visit>
void TokenStream::for_parts(uint64_t start, uint64_t count, Visit visit) const {
    if (start > size() || count > size() - start)
        fail(Exit::data, name_, ": holds ", size(), " tokens, but ", count, " were requested from token ", start);
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
