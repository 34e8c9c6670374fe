// Batches of text and their tokens: what ./tokenize reads, encodes and writes at a time.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/documents/documents.h"
#include "data/tokenizers/tokenizer.h"

/// About a megabyte of whole pieces of one input, and their tokens.
struct TextBatch {
    struct Item {
        size_t text_end;          // its text lies in `text` between the previous item's end and here
        uint64_t line;            // as of its Piece
        bool begins, divides;
        size_t ids_end = 0;       // its tokens lie in `ids` likewise
    };
    uint64_t number = 0;          // batches before it
    size_t input = 0;
    std::string text;
    std::vector<Item> items;
    std::vector<uint32_t> ids;
    std::vector<uint8_t> mask;    // for each id, whether it counts as a target; empty without --mask-prompts
    uint64_t invalid = 0;         // characters that are not UTF-8; JSON has none
    uint64_t consumed = 0;        // bytes of the input's file read so far
};

/// Divides inputs into batches, deterministically.
class BatchReader {
public:
    /// Precondition: the references outlive the reader.
    BatchReader(const std::vector<Input>& inputs, const DocumentRules& rules, const Tick& tick, uint64_t divide_at)
        : inputs_(inputs), rules_(rules), tick_(tick), divide_at_(divide_at) {}

    /// Fills an empty batch; false at the end of the last input. Exit::data if an input cannot be read.
    bool next(TextBatch& batch);

private:
    const std::vector<Input>& inputs_;
    const DocumentRules& rules_;
    const Tick& tick_;
    uint64_t divide_at_;
    uint64_t batches_ = 0;
    size_t input_ = 0;
    std::optional<DocumentReader> reader_;   // of inputs_[input_]
};

/// Tokenizes the texts of a batch. An end-of-text precedes each document, and the rest of one that is divided. With rules.mask_prompts a
/// document is a prompt and its completion, encoded each for itself; the end-of-text behind a completion counts as a target like it.
/// Exit::data, naming it, for a malformed line of a .jsonl file.
void encode_batch(TextBatch& batch, const Input& input, const DocumentRules& rules, const Tokenizer& tokenizer);
