#include "data/manifest.h"

#include <nlohmann/json.hpp>
#include <regex>

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

std::string manifest_path(const std::string& shard_path) {
    static const std::regex shard_name("(.*)_(train|val)_[0-9]+\\.bin");
    const size_t slash = shard_path.rfind('/') + 1;   // npos + 1 is 0: no folder
    const std::string name = shard_path.substr(slash);
    std::smatch match;
    if (!std::regex_match(name, match, shard_name)) return "";
    return shard_path.substr(0, slash) + match[1].str() + "_manifest.json";
}
