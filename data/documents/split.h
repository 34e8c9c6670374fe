// Splits documents into training and validation, and writes their tokens to shards.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/documents/documents.h"
#include "data/documents/text_batch.h"
#include "data/manifest.h"
#include "data/shard.h"

/// Reads all inputs, without tokenizing, to find the split that leaves the last `val_fraction` (0 to 1) of the documents for validation,
/// or of the bytes of a single text. Calls on_document with the number of documents so far. Exit::data for a single line of JSON.
Split choose_split(const std::vector<Input>& inputs, const DocumentRules& rules, double val_fraction,
                   const std::function<void(uint64_t)>& on_document);

struct SplitWriterOptions {
    std::string folder, name;      // of the shards: FOLDER/NAME_train_000001.bin
    int vocabulary = 0;
    uint64_t shard_tokens = 0;     // maximum tokens per shard
    uint64_t val_tokens = 0;       // validation takes the first documents up to this many tokens; 0: it begins at SavedRun::split
};

/// Writes shards NAME_train_000001.bin, ... and NAME_val_000000.bin, ..., one after the other. After each finished one it calls `save`,
/// so that a later object can resume from there. A shard that is unfinished when the object is destroyed is removed. Failures (disk full,
/// no permission) are Exit::data.
class SplitWriter {
public:
    using Save = std::function<void(const SavedRun&)>;

    /// Resumes where `run` ended; a new run has no shards.
    SplitWriter(const SplitWriterOptions& options, SavedRun run, Save save);

    /// Precondition: all batches of a BatchReader in order. Those before run.batches need not be encoded. Exit::data if their text
    /// differs from the stopped run's.
    void add(const TextBatch& batch);

    /// Completes the last shard and the record.
    const SavedRun& finish();

    uint64_t documents() const { return documents_; }
    uint64_t train_tokens() const { return train_tokens_; }
    uint64_t val_tokens() const { return val_tokens_; }

private:
    void require_same_text(bool ends_within) const;   // as the earlier run's; `ends_within`: before the place to resume
    bool belongs_to_validation() const;     // whether the document that begins now does
    void switch_to(bool validation);
    void write(const TextBatch& batch, size_t begin, size_t end);
    void start_shard();
    void finish_shard();
    uint64_t max_tokens() const;            // of the shard being written

    SplitWriterOptions options_;
    SavedRun run_;                          // with the batch being written
    const uint64_t resumed_at_;             // batches that an earlier run has written
    std::optional<uint64_t> resumed_hash_;  // of the text before the place to resume, until that is reached
    Save save_;
    std::optional<ShardWriter> shard_;      // the shard being written
    bool in_validation_;                    // whether this shard, or else the next one, belongs to validation
    uint64_t skip_;                         // tokens of the batch resumed_at_ that the earlier run has written
    uint64_t batches_ = 0;
    uint64_t documents_ = 0;
    uint64_t train_tokens_ = 0, val_tokens_ = 0;
};
