// NAME_progress.json: what a run of ./tokenize that was stopped has finished, and where the next one goes on.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/documents.h"
#include "data/shard.h"
#include "data/split.h"

/// Options and inputs, by name: with others a stopped run cannot go on.
using Fingerprint = std::vector<std::pair<std::string, std::string>>;

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

/// None for a text that is not what saved_run_to_json() wrote.
std::optional<SavedRun> saved_run_from_json(const std::string& text);

/// The first thing in which two fingerprints differ: "--shard-tokens was 1000, is 2000"; "" when they are equal.
std::string difference(const Fingerprint& before, const Fingerprint& now);
