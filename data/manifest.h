// The files that ./tokenize writes next to its shards. NAME_manifest.json (tokenizer, checksums) belongs to complete shards. Until then,
// NAME_progress.json records the finished shards of a stopped run and the place where the next run resumes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/documents/documents.h"
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

/// Options and inputs, by name. A stopped run can be resumed only with equal ones.
using Fingerprint = std::vector<std::pair<std::string, std::string>>;

/// The border between training and validation; no limit if another rule splits.
struct Split {
    uint64_t train_documents = ~uint64_t{0};
    uint64_t train_bytes = ~uint64_t{0};     // bytes of a single document
};

struct SavedRun {
    Fingerprint made_by;
    Split split;
    std::vector<ShardInfo> train, val;     // finished shards, under temporary names until all are

    // The piece that was being written when the last of them became full.
    uint64_t input = 0;
    Place place;
    uint64_t written = 0;             // tokens of the piece in finished shards
    uint64_t documents_before = 0;    // documents that begin before the piece
    bool in_validation = false;       // the last finished shard belongs to validation

    bool complete = false;            // only renaming the shards remains; documents_before counts all documents
};

std::string saved_run_to_json(const SavedRun& run);

/// Nothing if the text was not written by saved_run_to_json(). `made_by` is returned in alphabetical order.
std::optional<SavedRun> saved_run_from_json(const std::string& text);

/// The first difference between two fingerprints: "--shard-tokens was 1000, is 2000"; "" if they are equal.
std::string difference(const Fingerprint& before, const Fingerprint& now);
