// Shared by the tests of data/: files in a temporary folder, small shards, and the Error that a call throws.
#pragma once
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "data/shard.h"
#include "model/base/error.h"
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

/// The Error that `call` throws, or one with code `done` if it throws none. Other exceptions propagate.
template <class Call>
Error error_of(Call call) {
    try {
        call();
    } catch (const Error& error) {
        return error;
    }
    return Error(Exit::done, "nothing was thrown");
}

/// Whether the error's sentence contains all parts.
inline bool says(const Error& error, const std::vector<std::string>& parts) {
    const std::string sentence = error.what();
    return std::all_of(parts.begin(), parts.end(), [&](const std::string& part) { return sentence.find(part) != std::string::npos; });
}
