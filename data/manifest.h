// NAME_manifest.json, which ./tokenize writes beside its shards once they are complete: what made them and their checksums.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/shard.h"

struct Manifest {
    std::string tokenizer;      // "bytes", or the name of a tokenizer.json beside the manifest
    int vocabulary = 0;
    uint64_t documents = 0;
    uint64_t tokens = 0;        // of all shards, end-of-text tokens included
    std::vector<ShardInfo> shards;
};

std::string manifest_to_json(const Manifest& manifest);

/// The reverse; `where` is named in errors (Exit::data).
Manifest manifest_from_json(const std::string& text, const std::string& where);

/// "x_train_000001.bin" or "x_val_000000.bin" -> "x"; "" for a file that is not named like a shard of ./tokenize.
std::string shard_series(const std::string& file);

/// "d/x_train_000001.bin" -> "d/x_manifest.json"; "" for a file that is not named like a shard of ./tokenize.
std::string manifest_path(const std::string& shard_path);
