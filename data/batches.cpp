#include "data/batches.h"

#include <algorithm>

namespace {

constexpr size_t batch_bytes = size_t{1} << 20;

// How much of a text lies before byte `train_bytes` of its document, of which `before` bytes came earlier. At a character of UTF-8.
size_t part_for_training(std::string_view text, uint64_t before, uint64_t train_bytes) {
    if (train_bytes <= before) return 0;
    if (train_bytes - before >= text.size()) return text.size();
    size_t cut = train_bytes - before;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
    return cut;
}

void encode(std::string_view text, const Tokenizer& tokenizer, std::vector<uint32_t>& ids) {
    while (!text.empty()) {
        const size_t length = part_length(text);
        tokenizer.encode(text.substr(0, length), ids);
        text.remove_prefix(length);
    }
}

}  // namespace

bool BatchReader::next(TextBatch& batch) {
    for (; input_ < inputs_.size() && batch.items.empty(); ++input_) {
        if (!reader_) reader_.emplace(inputs_[input_], rules_, stop_, start_);
        batch.input = input_;
        Piece piece;
        while (batch.text.size() < batch_bytes && reader_->next(piece)) {
            batch.text += piece.text;
            batch.items.push_back({piece.place, batch.text.size()});
        }
        batch.consumed = reader_->consumed();
        if (batch.text.size() >= batch_bytes) return true;   // the input may go on
        reader_.reset();
        start_ = {};
    }
    return !batch.items.empty();
}

void encode_batch(TextBatch& batch, const Input& input, const DocumentRules& rules, const Tokenizer& tokenizer, uint64_t train_bytes) {
    size_t begin = 0;
    for (TextBatch::Item& item : batch.items) {
        std::string_view text = std::string_view(batch.text).substr(begin, item.text_end - begin);
        begin = item.text_end;
        std::string parsed;
        if (input.json_lines()) text = parsed = text_of_json_line(text, rules.text_field, input.name(), item.place.line + 1);
        if (item.place.document_bytes == 0) batch.ids.push_back(tokenizer.end_of_text());

        const size_t train = part_for_training(text, item.place.document_bytes, train_bytes);
        encode(text.substr(0, train), tokenizer, batch.ids);
        item.validation_from = batch.ids.size();
        if (train < text.size() && item.place.document_bytes <= train_bytes) batch.ids.push_back(tokenizer.end_of_text());
        encode(text.substr(train), tokenizer, batch.ids);
        item.ids_end = batch.ids.size();
    }
}
