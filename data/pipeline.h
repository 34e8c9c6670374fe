// Documents of all inputs as tokens, reading ahead of encoding, encoding ahead of writing: one thread reads pieces of documents,
// many encode them, and the caller gets the tokens in the order of the documents.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "data/documents/documents.h"
#include "data/tokenizers/tokenizer.h"

/// About a megabyte of pieces of one input, and their tokens. A piece is never divided.
struct TextBatch {
    struct Item {
        Place place;
        size_t text_end = 0;          // its text is what of `text` lies between the end of the item before and here
        size_t ids_end = 0;           // its tokens likewise
        size_t validation_from = 0;   // the first of its tokens that belongs to validation, ids_end for none: see encode_batch()
    };
    size_t input = 0;
    std::string text;
    std::vector<Item> items;
    std::vector<uint32_t> ids;
    uint64_t consumed = 0;            // bytes of the input's file that were read with it
    std::exception_ptr error;         // what reading or encoding it threw
};

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
void encode_batch(TextBatch& batch, const Input& input, const DocumentRules& rules, const Tokenizer& tokenizer,
                  uint64_t train_bytes);

/// The threads and the batches between them. Batches of at most `room` bytes of text are on their way at any time, or one that is
/// larger.
class Pipeline {
public:
    using Read = std::function<bool(TextBatch&)>;       // fills a batch, false at the end; called by one thread
    using Encode = std::function<void(TextBatch&)>;     // called by `threads` threads

    /// `stop` becomes true when the pipeline ends early; `read` should then return soon. It must outlive the pipeline.
    Pipeline(int threads, size_t room, Read read, Encode encode, std::atomic<bool>& stop);
    ~Pipeline();     // waits until each thread has done with its batch
    Pipeline(const Pipeline&) = delete;
    Pipeline& operator=(const Pipeline&) = delete;

    /// The next batch in order, null at the end. Calls `tick` about ten times a second while it waits. What reading or encoding a
    /// batch threw is thrown here, when it is the batch's turn: the same error comes first whatever the number of threads.
    std::unique_ptr<TextBatch> next(const Tick& tick);

private:
    struct Slot {
        std::unique_ptr<TextBatch> batch;
        bool done = false;
    };

    void read_all();
    void encode_all();
    bool put(std::unique_ptr<TextBatch> batch, bool done);

    const size_t room_;
    const Read read_;
    const Encode encode_;
    std::atomic<bool>& stop_;
    std::mutex mutex_;                                  // guards everything below
    std::condition_variable changed_;
    std::deque<std::shared_ptr<Slot>> in_order_;        // read, but not yet taken by next()
    std::deque<std::shared_ptr<Slot>> to_encode_;
    size_t bytes_ = 0;                                  // of text of the batches in in_order_
    bool ended_ = false;                                // no more batches will come
    std::vector<std::thread> threads_;
};
