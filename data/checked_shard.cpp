#include "data/checked_shard.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "model/base/disk.h"
#include "model/base/hash.h"

namespace fs = std::filesystem;

static std::string cache_folder() {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    if (cache && *cache) return std::string(cache) + "/train_gpt/shards";
    return home && *home ? std::string(home) + "/.cache/train_gpt/shards" : "";
}

uint64_t hash_of_both_ends(const void* data, uint64_t bytes, uint64_t seed) {
    const uint64_t end = std::min<uint64_t>(bytes, 65536);
    const char* first = static_cast<const char*>(data);
    return xxh3(first + bytes - end, end, xxh3(first, end, seed));
}

CheckedShard::CheckedShard(const std::string& path, const void* data, uint64_t bytes) {
    std::error_code unknown;
    const std::string absolute = fs::canonical(path, unknown).string(), folder = cache_folder();
    struct stat status;
    if (unknown || folder.empty() || ::stat(absolute.c_str(), &status) != 0) return;
    std::ostringstream identity;
    identity << absolute << ' ' << status.st_size << ' ' << status.st_ino << ' ' << status.st_mtim.tv_sec << '.'
             << status.st_mtim.tv_nsec << ' ' << status.st_ctim.tv_sec << '.' << status.st_ctim.tv_nsec << ' '
             << hexadecimal(hash_of_both_ends(data, bytes));
    identity_ = identity.str();
    file_ = folder + "/" + hexadecimal(xxh3(absolute.data(), absolute.size()));
}

std::string CheckedShard::passed_hash(uint32_t vocabulary) const {
    std::ifstream record(file_);
    std::string identity, hash;
    uint32_t largest;
    const bool is_this = std::getline(record, identity) && identity == identity_;
    return is_this && record >> largest >> hash && largest < vocabulary ? hash : "";   // older records may lack the hash
}

void CheckedShard::remember(uint32_t largest_token, const std::string& xxh64) const {
    if (file_.empty()) return;
    std::error_code ignored;
    fs::create_directories(fs::path(file_).parent_path(), ignored);
    replace_file(file_, identity_ + "\n" + std::to_string(largest_token) + " " + xxh64 + "\n");   // without it: another check
}
