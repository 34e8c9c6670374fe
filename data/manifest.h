// The files that ./tokenize writes next to its shards. NAME_manifest.json (tokenizer, checksums) belongs to complete shards. Until then,
// progress.json in their folder records the finished shards of a stopped run and the place where the next run resumes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/shard.h"

struct Manifest {
    std::string tokenizer;      // "bytes", or the name of a tokenizer.json next to the manifest
    int vocabulary = 0;
    uint64_t documents = 0;
    uint64_t tokens = 0;        // of all shards, end-of-text tokens included
    std::vector<ShardInfo> shards;
};

std::string manifest_to_json(const Manifest& manifest);

/// Parses a manifest, in which every shard has its hash; `where` is named in errors (Exit::data).
Manifest manifest_from_json(const std::string& text, const std::string& where);

/// "x_train_000001.bin" or "x_val_000000.bin" -> "x"; "" for a file not named like a shard of ./tokenize.
std::string shard_series(const std::string& file);

/// "d/x_train_000001.bin" -> "d/x_manifest.json"; "" for a file not named like a shard of ./tokenize.
std::string manifest_path(const std::string& shard_path);

constexpr uint64_t nowhere = ~uint64_t{0};

/// The border between training and validation; nowhere if another rule splits.
struct Split {
    uint64_t train_documents = nowhere;
    uint64_t divide_at = nowhere;     // bytes of a single document
};

struct SavedRun {
    std::string made_by;                   // options and inputs, a line each; a stopped run can be resumed only with equal ones
    Split split;
    std::vector<ShardInfo> train, val;     // finished shards

    // The piece that was being written when the last of them became full.
    uint64_t batches = 0;             // before its batch
    uint64_t written = 0;             // tokens of this batch in finished shards
    uint64_t text_hash = 0;           // of all text before the piece
    bool in_validation = false;       // the last finished shard belongs to validation
};

std::string saved_run_to_json(const SavedRun& run);

/// Nothing if the text was not written by saved_run_to_json().
std::optional<SavedRun> saved_run_from_json(const std::string& text);
