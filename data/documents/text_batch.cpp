#include "data/documents/text_batch.h"

#include "data/tokenizers/utf8.h"

namespace {

constexpr size_t batch_bytes = size_t{1} << 20;

void encode(std::string_view text, const Tokenizer& tokenizer, std::vector<uint32_t>& ids) {
    while (!text.empty()) {
        const size_t length = part_length(text);
        tokenizer.encode(text.substr(0, length), ids);
        text.remove_prefix(length);
    }
}

// One document of --mask-prompts. The end-of-text before it ends the completion before that.
void encode_masked(const PromptAndCompletion& document, const Tokenizer& tokenizer, TextBatch& batch) {
    batch.ids.push_back(tokenizer.end_of_text());
    batch.mask.push_back(1);
    encode(document.prompt, tokenizer, batch.ids);
    batch.mask.resize(batch.ids.size(), 0);
    encode(document.completion, tokenizer, batch.ids);
    batch.mask.resize(batch.ids.size(), 1);
}

}  // namespace

bool BatchReader::next(TextBatch& batch) {
    batch.number = batches_++;
    for (; input_ < inputs_.size() && batch.items.empty(); ++input_) {
        if (!reader_) reader_.emplace(inputs_[input_], rules_, tick_, divide_at_);
        batch.input = input_;
        Piece piece;
        while (batch.text.size() < batch_bytes && reader_->next(piece)) {
            batch.text += piece.text;
            batch.items.push_back({batch.text.size(), piece.line, piece.begins, piece.divides});
        }
        batch.consumed = reader_->consumed();
        if (batch.text.size() >= batch_bytes) return true;   // the input may have more
        reader_.reset();
    }
    return !batch.items.empty();
}

void encode_batch(TextBatch& batch, const Input& input, const DocumentRules& rules, const Tokenizer& tokenizer) {
    size_t begin = 0;
    for (TextBatch::Item& item : batch.items) {
        const std::string_view text = std::string_view(batch.text).substr(begin, item.text_end - begin);
        begin = item.text_end;
        const auto where = [&] { return input.name() + ":" + std::to_string(item.line); };
        if (rules.mask_prompts) {
            encode_masked(prompt_of_json_line(text, where()), tokenizer, batch);
        } else {
            if (item.begins || item.divides) batch.ids.push_back(tokenizer.end_of_text());
            if (input.json_lines()) encode(text_of_json_line(text, rules.text_field, where()), tokenizer, batch.ids);
            else batch.invalid += invalid_characters(text), encode(text, tokenizer, batch.ids);
        }
        item.ids_end = batch.ids.size();
    }
}
