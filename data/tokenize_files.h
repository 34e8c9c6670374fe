// The work of ./tokenize: documents of text and JSON Lines files -> token shards for training and validation.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/documents.h"
#include "data/manifest.h"

struct TokenizeOptions {
    std::vector<std::string> inputs;       // .txt, .jsonl, "-"; none: "-"
    std::string out;                       // folder, created where it is missing
    std::string name;                      // of the shards; "": after the first input
    std::string tokenizer = "bytes";
    double val_fraction = 0.1;             // of the documents, or of the bytes of one single document; [0, 1)
    int64_t shard_tokens = 100000000;      // most tokens of a shard
    DocumentRules rules;
};

struct TokenizeProgress {
    uint64_t bytes_read = 0;      // of bytes_total, which is 0 while the documents are still being counted
    uint64_t bytes_total = 0;
    uint64_t documents = 0;
    uint64_t tokens = 0;
};

struct TokenizeReport {
    Manifest manifest;
    std::string manifest_path;
    uint64_t train_tokens = 0;
    uint64_t val_tokens = 0;
    std::vector<std::string> removed;     // shards of an earlier run under the same name that this one did not replace
};

/// Writes OUT/NAME_train_000001.bin, ..., OUT/NAME_val_000000.bin, ... and, last, OUT/NAME_manifest.json. All shards are written
/// under temporary names first and renamed when the last one is complete, so a run that fails or is stopped changes nothing.
/// `on_progress` is called between any two pieces of a document and may throw to stop. Options that make no sense: Exit::usage;
/// inputs that cannot be read, broken lines, no text at all, a full disk: Exit::data.
TokenizeReport tokenize_files(const TokenizeOptions& options, const std::function<void(const TokenizeProgress&)>& on_progress);
