#include "data/documents/split.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "model/base/error.h"
#include "model/base/hash.h"
#include "model/base/text.h"

// floor(n * (1 - val_fraction)), at least 1; the small term compensates rounding, as in 98.99999 for 99.
static uint64_t train_part(uint64_t n, double val_fraction) {
    const double part = std::floor(static_cast<double>(n) * (1.0 - val_fraction) + 1e-6);
    return std::clamp<uint64_t>(static_cast<uint64_t>(part), 1, std::max<uint64_t>(n, 1));
}

Split choose_split(const std::vector<Input>& inputs, const DocumentRules& rules, double val_fraction,
                   const std::function<void(uint64_t)>& on_document) {
    uint64_t documents = 0, bytes = 0;
    bool json_lines = false;
    for (const Input& input : inputs) {
        DocumentReader reader(input, rules, [&] { on_document(documents); });
        for (Piece piece; reader.next(piece); bytes += piece.text.size()) {
            documents += piece.begins;
            on_document(documents);
            json_lines = json_lines || input.json_lines();
        }
    }
    if (documents == 1 && json_lines)
        fail(Exit::data, inputs[0].name(), ": holds a single document, and a line of JSON cannot be split; give --val-fraction 0");
    return {train_part(documents, val_fraction), documents == 1 ? train_part(bytes, val_fraction) : nowhere};
}

SplitWriter::SplitWriter(const SplitWriterOptions& options, SavedRun run, Save save)
    : options_(options), run_(std::move(run)), resumed_at_(run_.batches), save_(std::move(save)), in_validation_(run_.in_validation),
      skip_(run_.written) {
    if (resumed_at_ > 0 || skip_ > 0) resumed_hash_ = run_.text_hash;
    run_.text_hash = 0;
    for (const ShardInfo& shard : run_.train) train_tokens_ += shard.tokens;
    for (const ShardInfo& shard : run_.val) val_tokens_ += shard.tokens;
}

void SplitWriter::require_same_text(bool ends_within) const {
    if (resumed_hash_ && (run_.text_hash != *resumed_hash_ || ends_within))
        fail(Exit::data, "the inputs differ from the stopped run's; give it the same text again, or remove the folder ", options_.folder,
             " to start over");
}

void SplitWriter::add(const TextBatch& batch) {
    run_.batches = batches_++, run_.written = 0;
    size_t begin = 0, text_begin = 0;
    for (const TextBatch::Item& item : batch.items) {
        documents_ += item.begins;
        if (run_.batches >= resumed_at_) {
            if (skip_ < item.ids_end - begin) require_same_text(false), resumed_hash_.reset();
            if (skip_ == 0 && (item.begins || item.divides)) switch_to(item.divides || belongs_to_validation());
            write(batch, begin, item.ids_end);
        }
        run_.text_hash = xxh3(batch.text.data() + text_begin, item.text_end - text_begin, run_.text_hash);
        begin = item.ids_end, text_begin = item.text_end;
    }
}

const SavedRun& SplitWriter::finish() {
    require_same_text(skip_ > 0);
    run_.batches = batches_, run_.written = 0;
    if (shard_) finish_shard();
    return run_;
}

bool SplitWriter::belongs_to_validation() const {
    if (options_.val_tokens > 0) return val_tokens_ < options_.val_tokens;
    return documents_ > run_.split.train_documents;
}

void SplitWriter::switch_to(bool validation) {
    if (validation != in_validation_ && shard_) finish_shard();
    in_validation_ = validation;
}

// Tokens begin .. end - 1 of a batch.
void SplitWriter::write(const TextBatch& batch, size_t begin, size_t end) {
    const size_t there = std::min<uint64_t>(skip_, end - begin);
    skip_ -= there;
    run_.written += there;
    begin += there;
    const std::span<const uint32_t> ids(batch.ids);
    const std::span<const uint8_t> mask(batch.mask);
    while (begin < end) {
        if (shard_ && shard_->tokens() == max_tokens()) finish_shard();
        if (!shard_) start_shard();
        const size_t part = std::min<uint64_t>(end - begin, max_tokens() - shard_->tokens());
        shard_->write(ids.subspan(begin, part), mask.empty() ? mask : mask.subspan(begin, part));
        (in_validation_ ? val_tokens_ : train_tokens_) += part;
        run_.written += part;
        begin += part;
    }
}

void SplitWriter::start_shard() {
    const int number = static_cast<int>(in_validation_ ? run_.val.size() : run_.train.size() + 1);
    const std::string suffix = text("_%s_%06d.bin", in_validation_ ? "val" : "train", number);
    shard_.emplace(options_.folder + "/" + options_.name + suffix, options_.vocabulary);
}

void SplitWriter::finish_shard() {
    (in_validation_ ? run_.val : run_.train).push_back(shard_->publish());
    run_.in_validation = in_validation_;
    save_(run_);
    shard_.reset();
}

uint64_t SplitWriter::max_tokens() const {
    // A validation set given in tokens is one file.
    return in_validation_ && options_.val_tokens > 0 ? std::numeric_limits<int32_t>::max() : options_.shard_tokens;
}
