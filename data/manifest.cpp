#include "data/manifest.h"

#include <fnmatch.h>

#include <tuple>
#include <utility>

#include "model/base/error.h"
#include "model/base/json.h"

using nlohmann::json;
using nlohmann::ordered_json;   // keeps keys in insertion order

namespace {

constexpr std::tuple shard_fields = {std::pair("file", &ShardInfo::file), std::pair("tokens", &ShardInfo::tokens),
                                     std::pair("bytes", &ShardInfo::bytes), std::pair("xxh64", &ShardInfo::xxh64)};
constexpr std::tuple manifest_fields = {std::pair("tokenizer", &Manifest::tokenizer), std::pair("vocabulary", &Manifest::vocabulary),
                                        std::pair("documents", &Manifest::documents), std::pair("tokens", &Manifest::tokens),
                                        std::pair("shards", &Manifest::shards)};
constexpr std::tuple split_fields = {std::pair("train_documents", &Split::train_documents), std::pair("divide_at", &Split::divide_at)};
constexpr std::tuple run_fields = {std::pair("made_by", &SavedRun::made_by), std::pair("split", &SavedRun::split),
                                   std::pair("val", &SavedRun::val), std::pair("train", &SavedRun::train),
                                   std::pair("batches", &SavedRun::batches), std::pair("text_hash", &SavedRun::text_hash),
                                   std::pair("written", &SavedRun::written), std::pair("in_validation", &SavedRun::in_validation)};

template <class Record, class Fields>
void write_fields(ordered_json& object, const Record& record, const Fields& fields) {
    std::apply([&](const auto&... field) { ((object[field.first] = record.*field.second), ...); }, fields);
}

template <class Record, class Fields>
void read_fields(const json& object, Record& record, const Fields& fields) {
    std::apply([&](const auto&... field) { (object.at(field.first).get_to(record.*field.second), ...); }, fields);
}

}  // namespace

// Found by the JSON library by argument-dependent lookup, hence not in an unnamed namespace.
void to_json(ordered_json& object, const ShardInfo& shard) { write_fields(object, shard, shard_fields); }
void from_json(const json& object, ShardInfo& shard) { read_fields(object, shard, shard_fields); }
void to_json(ordered_json& object, const Split& split) { write_fields(object, split, split_fields); }
void from_json(const json& object, Split& split) { read_fields(object, split, split_fields); }

std::string manifest_to_json(const Manifest& manifest) {
    ordered_json file;
    write_fields(file, manifest, manifest_fields);
    return written(file, 2) + "\n";
}

Manifest manifest_from_json(const std::string& text, const std::string& where) {
    Manifest manifest;
    try {
        read_fields(parse_json(text), manifest, manifest_fields);
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
    ordered_json file;
    write_fields(file, run, run_fields);
    return written(file, 2, NotUtf8::replace) + "\n";   // file names need not be UTF-8
}

std::optional<SavedRun> saved_run_from_json(const std::string& text) {
    try {
        SavedRun run;
        read_fields(parse_json(text), run, run_fields);
        return run;
    } catch (const nlohmann::json::exception&) {
        return std::nullopt;
    }
}
