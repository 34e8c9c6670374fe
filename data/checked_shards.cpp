#include "data/checked_shards.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "model/hash.h"

namespace {

namespace fs = std::filesystem;

std::string cache_folder() {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    if (cache && *cache) return std::string(cache) + "/train_gpt/shards";
    return home && *home ? std::string(home) + "/.cache/train_gpt/shards" : "";
}

uint64_t hash_of_both_ends(const void* data, uint64_t bytes) {
    const uint64_t end = std::min<uint64_t>(bytes, 65536);
    const char* first = static_cast<const char*>(data);
    return xxh3(first + bytes - end, end, xxh3(first, end));
}

}   // namespace

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

std::optional<uint32_t> CheckedShard::largest_token() const {
    std::ifstream record(file_);
    std::string identity;
    uint32_t largest;
    if (!std::getline(record, identity) || identity != identity_ || !(record >> largest)) return std::nullopt;
    return largest;
}

void CheckedShard::remember(uint32_t largest_token) const {
    if (file_.empty()) return;
    std::error_code ignored;
    fs::create_directories(fs::path(file_).parent_path(), ignored);
    const std::string temporary = file_ + "." + std::to_string(::getpid());   // ranks may check the same shard at once
    const bool written = bool(std::ofstream(temporary) << identity_ << '\n' << largest_token << std::endl);
    if (written) fs::rename(temporary, file_, ignored);
    if (!written || ignored) fs::remove(temporary, ignored);
}
