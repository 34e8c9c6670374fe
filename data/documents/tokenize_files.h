// The implementation of ./tokenize: documents in text and JSON Lines files -> token shards for training and validation.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/documents/documents.h"
#include "data/manifest.h"

struct TokenizeOptions {
    std::vector<std::string> inputs;       // .txt, .jsonl, either with .gz, .xz or .zst, "-"; none: "-"
    std::string out;                       // folder, created if missing
    std::string name;                      // beginning of the shards' names; "": the first input's name
    std::string tokenizer = "bytes";
    double val_fraction = 0.1;             // the last part of the documents, or of the bytes of a single document; [0, 1)
    int64_t val_tokens = 0;                // if above 0, in place of val_fraction: the first documents, up to this many tokens
    int64_t shard_tokens = 100000000;      // maximum tokens per shard
    int64_t documents = 0;                 // expected in the inputs; 0: any number
    int threads = 0;                       // for encoding; 0: one per processor
    DocumentRules rules;
};

struct TokenizeProgress {
    uint64_t documents = 0;
    uint64_t tokens = 0;          // 0 while documents are counted, before anything is tokenized
    uint64_t text_bytes = 0;      // tokenized in this run
    double share = 0;             // of the (compressed) files that has been read, or of the expected documents; 0 if unknown
};

struct TokenizeReport {
    Manifest manifest;
    std::string manifest_path;
    uint64_t train_tokens = 0;
    uint64_t val_tokens = 0;
};

/// Writes OUT/NAME_train_000001.bin, ..., OUT/NAME_val_000000.bin, ... and, last, OUT/NAME_manifest.json: the same bytes for any
/// number of threads, and after any stop ("How ./tokenize works" in data/README.md). `on_note` receives a sentence when a stopped run is
/// resumed, or cannot be. `on_progress` is called at least ten times a second and may throw to stop. Exit::usage for inputs and names
/// that cannot be; Exit::data for inputs that cannot be read or are damaged, malformed lines, too few documents, a full disk, another run
/// in the same folder.
TokenizeReport tokenize_files(const TokenizeOptions& options, const std::function<void(const TokenizeProgress&)>& on_progress,
                              const std::function<void(const std::string&)>& on_note = [](const std::string&) {});
