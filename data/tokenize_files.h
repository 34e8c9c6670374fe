// The work of ./tokenize: documents of text and JSON Lines files -> token shards for training and validation.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/documents/documents.h"
#include "data/manifest.h"

struct TokenizeOptions {
    std::vector<std::string> inputs;       // .txt, .jsonl, either with .gz, .xz or .zst, "-"; none: "-"
    std::string out;                       // folder, created where it is missing
    std::string name;                      // of the shards; "": after the first input
    std::string tokenizer = "bytes";
    double val_fraction = 0.1;             // the last part of the documents, or of the bytes of one single document; [0, 1)
    int64_t val_tokens = 0;                // above 0, instead of it: the first documents, until they have that many tokens
    int64_t shard_tokens = 100000000;      // most tokens of a shard
    int64_t documents = 0;                 // that the inputs must hold, where somebody knows; 0: any number
    int threads = 0;                       // that encode; 0: one per processor
    DocumentRules rules;
};

struct TokenizeProgress {
    bool counting = false;        // the documents, before anything is tokenized
    uint64_t bytes_read = 0;      // of bytes_total, of the files as they are (compressed); 0 of 0 for standard input
    uint64_t bytes_total = 0;
    uint64_t text_bytes = 0;      // tokenized in this run
    uint64_t documents = 0;
    uint64_t documents_total = 0; // where it is known
    uint64_t tokens = 0;
};

struct TokenizeReport {
    Manifest manifest;
    std::string manifest_path;
    uint64_t train_tokens = 0;
    uint64_t val_tokens = 0;
    std::vector<std::string> removed;     // shards of an earlier run under the same name that this one did not replace
};

/// Writes OUT/NAME_train_000001.bin, ..., OUT/NAME_val_000000.bin, ... and, last, OUT/NAME_manifest.json: the same bytes whatever
/// the number of threads. Shards keep temporary names until the last one is complete, so that a run that fails or is stopped leaves
/// what earlier ones have made. What such a run has finished it leaves too, with OUT/NAME_progress.json: the same call goes on from
/// there, and a call with other options or changed inputs starts over. `on_note` is told which of both.
/// `on_progress` is called at least ten times a second and may throw to stop. Options that make no sense: Exit::usage; inputs that
/// cannot be read or are damaged, broken lines, too few documents, a full disk, another run in the same folder: Exit::data.
TokenizeReport tokenize_files(const TokenizeOptions& options, const std::function<void(const TokenizeProgress&)>& on_progress,
                              const std::function<void(const std::string&)>& on_note = [](const std::string&) {});
