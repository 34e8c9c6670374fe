#include "data/manifest.h"

#include <nlohmann/json.hpp>

#include "model/error.h"

std::string manifest_to_json(const Manifest& manifest) {
    using nlohmann::ordered_json;
    ordered_json shards = ordered_json::array();
    for (const ShardInfo& shard : manifest.shards)
        shards.push_back({{"file", shard.file}, {"tokens", shard.tokens}, {"bytes", shard.bytes}, {"xxh64", shard.xxh64}});
    const ordered_json file = {{"tokenizer", manifest.tokenizer}, {"vocabulary", manifest.vocabulary}, {"documents", manifest.documents},
                               {"tokens", manifest.tokens}, {"shards", shards}};
    return file.dump(2) + "\n";
}

Manifest manifest_from_json(const std::string& text, const std::string& where) {
    try {
        const nlohmann::json file = nlohmann::json::parse(text);
        Manifest manifest;
        file.at("tokenizer").get_to(manifest.tokenizer);
        file.at("vocabulary").get_to(manifest.vocabulary);
        file.at("documents").get_to(manifest.documents);
        file.at("tokens").get_to(manifest.tokens);
        for (const nlohmann::json& shard : file.at("shards"))
            manifest.shards.push_back({shard.at("file"), shard.at("tokens"), shard.at("bytes"), shard.at("xxh64")});
        return manifest;
    } catch (const nlohmann::json::exception& error) {
        fail(Exit::data, where, ": is no manifest of token shards (", error.what(), "); remove it or run ./tokenize again");
    }
}

std::string shard_series(const std::string& file) {
    const std::string number_and_suffix = "_000000.bin";
    if (file.size() < number_and_suffix.size()) return "";
    const size_t stem_size = file.size() - number_and_suffix.size();
    for (size_t i = 0; i < number_and_suffix.size(); ++i) {
        const char c = file[stem_size + i];
        const bool fits = number_and_suffix[i] == '0' ? c >= '0' && c <= '9' : c == number_and_suffix[i];
        if (!fits) return "";
    }
    const std::string stem = file.substr(0, stem_size);
    for (const std::string split : {"_train", "_val"})
        if (stem.ends_with(split)) return stem.substr(0, stem.size() - split.size());
    return "";
}

std::string manifest_path(const std::string& shard_path) {
    const size_t slash = shard_path.rfind('/') + 1;   // npos + 1 is 0: no folder
    const std::string series = shard_series(shard_path.substr(slash));
    return series.empty() ? "" : shard_path.substr(0, slash) + series + "_manifest.json";
}
