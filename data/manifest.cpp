#include "data/manifest.h"

#include <fnmatch.h>

#include "model/base/error.h"
#include "model/base/json.h"

using nlohmann::json;
using nlohmann::ordered_json;   // keeps keys in insertion order

// Found by the JSON library by argument-dependent lookup, hence not in an unnamed namespace.
void to_json(ordered_json& object, const ShardInfo& shard) {
    object = {{"file", shard.file}, {"tokens", shard.tokens}, {"bytes", shard.bytes}, {"xxh64", shard.xxh64}};
}
void from_json(const json& object, ShardInfo& shard) {
    shard = {object.at("file"), object.at("tokens"), object.at("bytes"), object.at("xxh64")};
}

std::string manifest_to_json(const Manifest& manifest) {
    const ordered_json object = {{"tokenizer", manifest.tokenizer}, {"vocabulary", manifest.vocabulary}, {"documents", manifest.documents},
                                 {"tokens", manifest.tokens}, {"shards", manifest.shards}};
    return written(object, 2) + "\n";
}

Manifest manifest_from_json(const std::string& text, const std::string& where) {
    Manifest manifest;
    try {
        const json object = parse_json(text);
        manifest = {object.at("tokenizer"), object.at("vocabulary"), object.at("documents"), object.at("tokens"), object.at("shards")};
    } catch (const nlohmann::json::exception& error) {
        fail(Exit::data, where, ": is not a manifest of token shards (", error.what(), "); remove it or run ./tokenize again");
    }
    for (const ShardInfo& shard : manifest.shards) {
        if (!is_plain_name(shard.file)) fail(Exit::data, where, ": names the shard '", shard.file, "', which is not in its folder");
        if (shard.xxh64.size() != 16 || shard.xxh64.find_first_not_of("0123456789abcdef") != std::string::npos)
            fail(Exit::data, where, ": the \"xxh64\" of ", shard.file, " is \"", shard.xxh64,
                 "\", expected 16 hexadecimal digits; copy the manifest again, or run ./tokenize again");
    }
    return manifest;
}

std::string shard_series(const std::string& file) {
    const std::string number = "000000.bin", digits = "[0-9][0-9][0-9][0-9][0-9][0-9].bin";
    for (const std::string split : {"_train_", "_val_"})
        if (::fnmatch(("*" + split + digits).c_str(), file.c_str(), 0) == 0)
            return file.substr(0, file.size() - split.size() - number.size());
    return "";
}

std::string manifest_path(const std::string& shard_path) {
    const size_t slash = shard_path.rfind('/') + 1;   // npos + 1 is 0: no folder
    const std::string series = shard_series(shard_path.substr(slash));
    return series.empty() ? "" : shard_path.substr(0, slash) + series + "_manifest.json";
}

std::string saved_run_to_json(const SavedRun& run) {
    const ordered_json split = {{"train_documents", run.split.train_documents}, {"divide_at", run.split.divide_at}};
    const ordered_json object = {{"made_by", run.made_by}, {"split", split}, {"val", run.val}, {"train", run.train},
                                 {"batches", run.batches}, {"text_hash", run.text_hash}, {"written", run.written},
                                 {"in_validation", run.in_validation}};
    return written(object, 2, NotUtf8::replace) + "\n";   // file names need not be UTF-8
}

std::optional<SavedRun> saved_run_from_json(const std::string& text) {
    try {
        const json object = parse_json(text), &split = object.at("split");
        return SavedRun{.made_by = object.at("made_by"), .split = {split.at("train_documents"), split.at("divide_at")},
                        .train = object.at("train"), .val = object.at("val"), .batches = object.at("batches"),
                        .written = object.at("written"), .text_hash = object.at("text_hash"), .in_validation = object.at("in_validation")};
    } catch (const nlohmann::json::exception&) {
        return std::nullopt;
    }
}
