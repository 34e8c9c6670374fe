#include "data/split.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include "model/base/error.h"

namespace {

struct Survey {
    uint64_t documents = 0;
    uint64_t bytes = 0;       // of their text; valid only if lines are parsed
};

// Counting documents needs no parsing; counting the bytes of their text does.
Survey survey(const std::vector<Input>& inputs, const DocumentRules& rules, bool parse, const OnDocument& on_document) {
    const std::atomic<bool> never = false;   // on_document may throw instead
    Survey found;
    for (const Input& input : inputs) {
        DocumentReader reader(input, rules, never);
        Piece piece;
        while (reader.next(piece)) {
            found.documents += piece.begins();
            if (parse && input.json_lines())
                found.bytes += text_of_json_line(piece.text, rules.text_field, input.name(), piece.place.line + 1).size();
            else
                found.bytes += piece.text.size();
            on_document(found.documents);
        }
    }
    return found;
}

// floor(n * (1 - val_fraction)), at least 1; the small term compensates rounding, as in 98.99999 for 99.
uint64_t train_part(uint64_t n, double val_fraction) {
    const double part = std::floor(static_cast<double>(n) * (1.0 - val_fraction) + 1e-6);
    return std::clamp<uint64_t>(static_cast<uint64_t>(part), 1, std::max<uint64_t>(n, 1));
}

}  // namespace

Split choose_split(const std::vector<Input>& inputs, const DocumentRules& rules, double val_fraction,
                   const OnDocument& on_document) {
    Split split;
    const uint64_t documents = survey(inputs, rules, false, on_document).documents;
    split.train_documents = train_part(documents, val_fraction);
    if (documents > 1) return split;
    if (documents == 1 && rules.mask_prompts)
        fail(Exit::data, inputs[0].name(), ": holds a single prompt and completion, which cannot be split; give --val-fraction 0");
    split.train_bytes = train_part(survey(inputs, rules, true, on_document).bytes, val_fraction);
    return split;
}

SplitWriter::SplitWriter(const SplitWriterOptions& options, SavedRun run, Save save)
    : options_(options), run_(std::move(run)), save_(std::move(save)), in_validation_(run_.in_validation), skip_(run_.written),
      documents_(run_.documents_before) {
    for (const ShardInfo& shard : run_.train) train_tokens_ += shard.tokens;
    for (const ShardInfo& shard : run_.val) val_tokens_ += shard.tokens;
}

void SplitWriter::add(const TextBatch& batch) {
    size_t begin = 0;
    for (const TextBatch::Item& item : batch.items) {
        run_.input = batch.input;
        run_.place = item.place;
        run_.written = 0;
        run_.documents_before = documents_;
        const bool begins = item.place.document_bytes == 0;
        documents_ += begins;
        if (begins && skip_ == 0) switch_to(belongs_to_validation());
        write(batch, begin, item.validation_from);
        if (item.validation_from < item.ids_end) switch_to(true);
        write(batch, item.validation_from, item.ids_end);
        begin = item.ids_end;
    }
}

const SavedRun& SplitWriter::finish() {
    run_.documents_before = documents_;
    run_.complete = true;
    if (shard_) finish_shard();
    else save_(run_);
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
    char suffix[32];
    std::snprintf(suffix, sizeof suffix, "_%s_%06d.bin", in_validation_ ? "val" : "train", number);
    shard_.emplace(options_.stem + suffix, options_.vocabulary);
}

void SplitWriter::finish_shard() {
    (in_validation_ ? run_.val : run_.train).push_back(shard_->finish());
    run_.in_validation = in_validation_;
    save_(run_);
    shard_->leave();
    shard_.reset();
}

uint64_t SplitWriter::max_tokens() const {
    // A validation set given in tokens is one file.
    return in_validation_ && options_.val_tokens > 0 ? std::numeric_limits<int32_t>::max() : options_.shard_tokens;
}
