// Tokenizes the documents of all inputs in a pipeline: one thread reads pieces of documents, several encode them, and the caller receives
// the tokens in document order.
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

/// About a megabyte of whole pieces of one input, and their tokens.
struct TextBatch {
    struct Item {
        Place place;
        size_t text_end = 0;          // its text lies in `text` between the previous item's end and here
        size_t ids_end = 0;           // its tokens likewise in `ids`
        size_t validation_from = 0;   // its first token that belongs to validation, ids_end for none: see encode_batch()
    };
    size_t input = 0;
    std::string text;
    std::vector<Item> items;
    std::vector<uint32_t> ids;
    std::vector<uint8_t> mask;        // for each id, whether it counts as a target; empty without --mask-prompts
    uint64_t invalid = 0;             // characters that are not UTF-8; JSON has none
    uint64_t consumed = 0;            // bytes of the input's file read so far
    std::exception_ptr error;         // thrown while reading or encoding it
};

/// Divides inputs, from a given place on, into batches.
class BatchReader {
public:
    /// Precondition: the references outlive the reader.
    BatchReader(const std::vector<Input>& inputs, const DocumentRules& rules, const std::atomic<bool>& stop, size_t input,
                const Place& start)
        : inputs_(inputs), rules_(rules), stop_(stop), input_(input), start_(start) {}

    /// Fills an empty batch; false at the end of the last input. Exit::data if an input cannot be read.
    bool next(TextBatch& batch);

private:
    const std::vector<Input>& inputs_;
    const DocumentRules& rules_;
    const std::atomic<bool>& stop_;
    size_t input_;
    Place start_;                            // in inputs_[input_]
    std::optional<DocumentReader> reader_;   // of inputs_[input_]
};

/// Tokenizes the texts of a batch, each document preceded by an end-of-text. A document longer than `train_bytes` bytes is split
/// there, at a character boundary, and its validation part begins with its own end-of-text. With rules.mask_prompts a document is a
/// prompt and its completion, encoded each for itself and never split; the end-of-text behind a completion counts as a target like
/// it. Exit::data, naming it, for a malformed line of a .jsonl file.
void encode_batch(TextBatch& batch, const Input& input, const DocumentRules& rules, const Tokenizer& tokenizer,
                  uint64_t train_bytes);

/// The threads and the queue of batches between them. At most `room` bytes of text are in flight at any time, or one larger batch.
class Pipeline {
public:
    using Read = std::function<bool(TextBatch&)>;       // fills a batch, false at the end; called by one thread
    using Encode = std::function<void(TextBatch&)>;     // called by `threads` threads

    /// Precondition: `stop` outlives the pipeline, which sets it on destruction; `read` should then return soon. Encodes with fewer threads
    /// if the system starts no more; Exit::out_of_memory if it starts none.
    Pipeline(int threads, size_t room, Read read, Encode encode, std::atomic<bool>& stop);
    ~Pipeline();     // waits for each thread to finish its batch
    Pipeline(const Pipeline&) = delete;
    Pipeline& operator=(const Pipeline&) = delete;
    int encoders() const { return static_cast<int>(threads_.size()) - 1; }

    /// The next batch in order, null at the end. Calls `tick` about ten times a second while waiting. Rethrows what reading or
    /// encoding this batch threw, so the first error does not depend on the number of threads.
    std::unique_ptr<TextBatch> next(const Tick& tick);

private:
    struct Slot {
        std::unique_ptr<TextBatch> batch;
        bool done = false;
    };

    void join();
    void read_all();
    void encode_all();
    bool put(std::unique_ptr<TextBatch> batch, bool done);

    const size_t room_;
    const Read read_;
    const Encode encode_;
    std::atomic<bool>& stop_;
    std::mutex mutex_;                                  // guards everything below
    std::condition_variable changed_;
    std::deque<std::shared_ptr<Slot>> in_order_;        // read, not yet returned by next()
    std::deque<std::shared_ptr<Slot>> to_encode_;
    size_t bytes_ = 0;                                  // of text in in_order_
    bool ended_ = false;                                // no more batches will come
    std::vector<std::thread> threads_;
};
