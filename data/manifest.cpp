#include "data/manifest.h"

#include <algorithm>

#include "model/base/error.h"
#include "model/base/json.h"

using nlohmann::json;
using nlohmann::ordered_json;   // keeps keys in insertion order

// Found by the JSON library by argument-dependent lookup, hence not in an unnamed namespace.
void to_json(ordered_json& object, const ShardInfo& shard) {
    object["file"] = shard.file;
    object["tokens"] = shard.tokens;
    object["bytes"] = shard.bytes;
    object["xxh64"] = shard.xxh64;
}
void from_json(const json& object, ShardInfo& shard) {
    object.at("file").get_to(shard.file);
    object.at("tokens").get_to(shard.tokens);
    object.at("bytes").get_to(shard.bytes);
    object.at("xxh64").get_to(shard.xxh64);
}
void to_json(ordered_json& object, const Place& place) {
    object["offset"] = place.offset;
    object["line"] = place.line;
    object["document_bytes"] = place.document_bytes;
    object["after_newline"] = place.after_newline;
    object["digest"] = place.digest;
}
void from_json(const json& object, Place& place) {
    object.at("offset").get_to(place.offset);
    object.at("line").get_to(place.line);
    object.at("document_bytes").get_to(place.document_bytes);
    object.at("after_newline").get_to(place.after_newline);
    object.at("digest").get_to(place.digest);
}

std::string manifest_to_json(const Manifest& manifest) {
    ordered_json file;
    file["tokenizer"] = manifest.tokenizer;
    file["vocabulary"] = manifest.vocabulary;
    file["documents"] = manifest.documents;
    file["tokens"] = manifest.tokens;
    file["shards"] = manifest.shards;
    return written(file, 2) + "\n";
}

Manifest manifest_from_json(const std::string& text, const std::string& where) {
    try {
        const json file = parse_json(text);
        Manifest manifest;
        file.at("tokenizer").get_to(manifest.tokenizer);
        file.at("vocabulary").get_to(manifest.vocabulary);
        file.at("documents").get_to(manifest.documents);
        file.at("tokens").get_to(manifest.tokens);
        file.at("shards").get_to(manifest.shards);
        for (const ShardInfo& shard : manifest.shards) {
            if (!is_plain_name(shard.file)) fail(Exit::data, where, ": names the shard '", shard.file, "', which is not in its folder");
            if (shard.xxh64.size() != 16 || shard.xxh64.find_first_not_of("0123456789abcdef") != std::string::npos)
                fail(Exit::data, where, ": the \"xxh64\" of ", shard.file, " is \"", shard.xxh64,
                     "\", expected 16 hexadecimal digits; copy the manifest again, or run ./tokenize again");
        }
        return manifest;
    } catch (const nlohmann::json::exception& error) {
        fail(Exit::data, where, ": is not a manifest of token shards (", error.what(), "); remove it or run ./tokenize again");
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

std::string saved_run_to_json(const SavedRun& run) {
    ordered_json file, made_by = ordered_json::object();
    for (const auto& [name, value] : run.made_by) made_by[name] = value;
    file["made_by"] = made_by;
    file["train_documents"] = run.split.train_documents;
    file["train_bytes"] = run.split.train_bytes;
    file["val"] = run.val;
    file["train"] = run.train;
    file["input"] = run.input;
    file["place"] = run.place;
    file["written"] = run.written;
    file["documents_before"] = run.documents_before;
    file["in_validation"] = run.in_validation;
    file["complete"] = run.complete;
    return written(file, 2, NotUtf8::replace) + "\n";   // file names need not be UTF-8
}

std::optional<SavedRun> saved_run_from_json(const std::string& text) {
    try {
        const json file = parse_json(text);
        SavedRun run;
        for (const auto& [name, value] : file.at("made_by").items()) run.made_by.emplace_back(name, value);
        file.at("train_documents").get_to(run.split.train_documents);
        file.at("train_bytes").get_to(run.split.train_bytes);
        file.at("val").get_to(run.val);
        file.at("train").get_to(run.train);
        file.at("input").get_to(run.input);
        file.at("place").get_to(run.place);
        file.at("written").get_to(run.written);
        file.at("documents_before").get_to(run.documents_before);
        file.at("in_validation").get_to(run.in_validation);
        file.at("complete").get_to(run.complete);
        return run;
    } catch (const nlohmann::json::exception&) {
        return std::nullopt;
    }
}

std::string difference(const Fingerprint& before, const Fingerprint& now) {
    const auto value_in = [](const Fingerprint& all, const std::string& name) -> std::string {
        const auto found = std::find_if(all.begin(), all.end(), [&](const auto& entry) { return entry.first == name; });
        return found == all.end() ? "not there" : found->second;
    };
    for (const Fingerprint* names : {&now, &before})   // their orders may differ
        for (const auto& [name, ignored] : *names)
            if (value_in(before, name) != value_in(now, name))
                return name + " was " + value_in(before, name) + ", is " + value_in(now, name);
    return "";
}
