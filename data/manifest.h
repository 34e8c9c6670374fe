// What ./tokenize writes beside its shards: NAME_manifest.json once they are complete (what made them and their checksums), and
// NAME_progress.json until then: what a run that was stopped has finished, and where the next one goes on.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/documents/documents.h"
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

/// Options and inputs, by name: with others a stopped run cannot go on.
using Fingerprint = std::vector<std::pair<std::string, std::string>>;

/// Where training ends and validation begins; no limit where another rule divides.
struct Split {
    uint64_t train_documents = ~uint64_t{0};
    uint64_t train_bytes = ~uint64_t{0};     // of the one document where there is only one
};

struct SavedRun {
    Fingerprint made_by;
    Split split;
    std::vector<ShardInfo> train, val;     // finished; each a file under its temporary name until all are

    // The piece that was being written when the last of them was full, and what of it is in them.
    uint64_t input = 0;
    Place place;
    uint64_t written = 0;             // tokens of the piece that the finished shards hold
    uint64_t documents_before = 0;    // documents that begin before the piece
    bool in_validation = false;       // the last finished shard is one of validation

    bool complete = false;            // nothing is left but to give the shards their names; documents_before counts all
};

std::string saved_run_to_json(const SavedRun& run);

/// None for a text that is not what saved_run_to_json() wrote. `made_by` comes back in alphabetical order.
std::optional<SavedRun> saved_run_from_json(const std::string& text);

/// The first thing in which two fingerprints differ: "--shard-tokens was 1000, is 2000"; "" when they are equal.
std::string difference(const Fingerprint& before, const Fingerprint& now);
