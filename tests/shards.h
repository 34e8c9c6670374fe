// Shared by the tests of data/: files in a temporary folder, and small shards.
#pragma once
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "data/shard.h"
#include "tests/errors.h"
#include "tests/temporary_folder.h"

inline std::string file_in(const TemporaryFolder& folder, const std::string& name) { return (folder / name).string(); }

/// The names in a folder, sorted; none if the folder does not exist.
inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
    std::vector<std::string> names;
    if (!std::filesystem::exists(folder)) return names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
}

inline void write_text(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
}

inline std::string write_shard(const std::string& path, const std::vector<uint32_t>& ids, int vocabulary) {
    ShardWriter writer(path, vocabulary);
    writer.write(ids);
    writer.publish();
    return path;
}

/// first, first + 1, ...: a token's value is its position.
inline std::vector<uint32_t> ramp(size_t count, uint32_t first = 0) {
    std::vector<uint32_t> ids(count);
    std::iota(ids.begin(), ids.end(), first);
    return ids;
}
