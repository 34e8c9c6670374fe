// Which documents are for training and which for validation, and their tokens as shards of either kind.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/documents/documents.h"
#include "data/manifest.h"
#include "data/pipeline.h"
#include "data/shard.h"

/// Called with the number of documents so far; may throw.
using OnDocument = std::function<void(uint64_t)>;

/// Reads all inputs, without tokenizing, for a split that leaves the last `val_fraction` (0 to 1) of the documents for validation,
/// or the last part of the bytes of a single document.
Split choose_split(const std::vector<Input>& inputs, const DocumentRules& rules, double val_fraction,
                   const OnDocument& on_document);

struct SplitWriterOptions {
    std::string stem;              // OUT/NAME
    int vocabulary = 0;
    uint64_t shard_tokens = 0;     // most tokens of a shard
    uint64_t val_tokens = 0;       // documents from the first one on are for validation until it has this many tokens; 0: the
                                   // split of the SavedRun says where validation begins
};

/// Writes one shard after the other, OUT/NAME_train_000001.bin, ... and OUT/NAME_val_000000.bin, ..., and leaves them under their
/// temporary names. Whenever one is finished it calls `save`, so that a later object can go on from there. A shard that is not
/// finished when the object dies is removed. Failures (disk full, no permission) are Exit::data.
class SplitWriter {
public:
    using Save = std::function<void(const SavedRun&)>;

    /// Goes on where `run` ended; that of a new run has no shards.
    SplitWriter(const SplitWriterOptions& options, SavedRun run, Save save);

    /// The batches must be those of a BatchReader that started at the input and place of `run`.
    void add(const TextBatch& batch);

    /// Completes the last shard, and the record.
    const SavedRun& finish();

    uint64_t documents() const { return documents_; }
    uint64_t train_tokens() const { return train_tokens_; }
    uint64_t val_tokens() const { return val_tokens_; }

private:
    bool belongs_to_validation() const;     // the document that begins now
    void turn_to(bool validation);
    void write(std::span<const uint32_t> ids);
    void start_shard();
    void finish_shard();
    uint64_t most_tokens() const;           // of the shard being written

    SplitWriterOptions options_;
    SavedRun run_;                          // of the piece being written
    Save save_;
    std::optional<ShardWriter> shard_;      // the one being written
    bool in_validation_;                    // it belongs to validation, or the next one will
    uint64_t skip_;                         // tokens of the first piece that an earlier run has written
    uint64_t documents_;
    uint64_t train_tokens_ = 0, val_tokens_ = 0;
};
