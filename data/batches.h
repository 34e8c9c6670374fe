// The two ends of the pipeline of ./tokenize: documents of all inputs as batches, and batches as tokens.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "data/documents.h"
#include "data/pipeline.h"
#include "data/tokenizer.h"

/// Cuts inputs, from a place in one of them on, into batches.
class BatchReader {
public:
    /// The references must outlive the reader.
    BatchReader(const std::vector<Input>& inputs, const DocumentRules& rules, const std::atomic<bool>& stop, size_t input,
                const Place& start)
        : inputs_(inputs), rules_(rules), stop_(stop), input_(input), start_(start) {}

    /// Fills an empty batch; false at the end of the last input. Exit::data where an input cannot be read.
    bool next(TextBatch& batch);

private:
    const std::vector<Input>& inputs_;
    const DocumentRules& rules_;
    const std::atomic<bool>& stop_;
    size_t input_;
    Place start_;                            // in inputs_[input_]
    std::optional<DocumentReader> reader_;   // of inputs_[input_]
};

/// Replaces the texts of a batch by their tokens, each document behind an end-of-text. A text that goes on behind `train_bytes`
/// bytes of its document is divided there, at a character, and validation begins with an end-of-text of its own. A broken line of a
/// .jsonl file: Exit::data naming it.
void encode_batch(TextBatch& batch, const Input& input, const DocumentRules& rules, const Tokenizer& tokenizer, uint64_t train_bytes);
