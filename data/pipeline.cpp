#include "data/pipeline.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "data/tokenizers/utf8.h"
#include "model/base/error.h"

namespace {

constexpr size_t batch_bytes = size_t{1} << 20;

// How much of a text, which begins at byte `before` of its document, lies before byte `train_bytes`; at a UTF-8 character boundary.
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
    for (; input_ < inputs_.size() && batch.items.empty(); ++input_) {
        if (!reader_) reader_.emplace(inputs_[input_], rules_, stop_, start_);
        batch.input = input_;
        Piece piece;
        while (batch.text.size() < batch_bytes && reader_->next(piece)) {
            batch.text += piece.text;
            batch.items.push_back({piece.place, batch.text.size()});
        }
        batch.consumed = reader_->consumed();
        if (batch.text.size() >= batch_bytes) return true;   // the input may have more
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
        if (rules.mask_prompts) {
            encode_masked(prompt_of_json_line(text, input.name(), item.place.line + 1), tokenizer, batch);
            item.validation_from = item.ids_end = batch.ids.size();
            continue;
        }
        std::string parsed;
        if (!input.json_lines()) batch.invalid += invalid_characters(text);
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

Pipeline::Pipeline(int threads, size_t room, Read read, Encode encode, std::atomic<bool>& stop)
    : room_(room), read_(std::move(read)), encode_(std::move(encode)), stop_(stop) {
    try {
        threads_.emplace_back([this] { read_all(); });
        for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { encode_all(); });
    } catch (const std::system_error& error) {   // a limit of the user or the container
        if (encoders() > 0) return;
        join();
        fail(Exit::out_of_memory, "two threads cannot be started (", error.what(), "); raise the limit on processes (ulimit -u)");
    }
}

Pipeline::~Pipeline() { join(); }

void Pipeline::join() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

// False if the pipeline is stopping.
bool Pipeline::put(std::unique_ptr<TextBatch> batch, bool done) {
    std::unique_lock lock(mutex_);
    const size_t bytes = batch->text.size();
    changed_.wait(lock, [&] { return stop_ || in_order_.empty() || bytes_ + bytes <= room_; });
    if (stop_) return false;
    bytes_ += bytes;
    in_order_.push_back(std::make_shared<Slot>(Slot{std::move(batch), done}));
    if (!done) to_encode_.push_back(in_order_.back());
    changed_.notify_all();
    return true;
}

void Pipeline::read_all() {
    bool more = true;
    while (more) {
        auto batch = std::make_unique<TextBatch>();
        try {
            more = read_(*batch);
        } catch (...) {
            batch->error = std::current_exception();
        }
        const bool failed = batch->error != nullptr;
        more = more && put(std::move(batch), failed) && !failed;
    }
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
}

void Pipeline::encode_all() {
    while (true) {
        std::shared_ptr<Slot> slot;
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [&] { return stop_ || ended_ || !to_encode_.empty(); });
            if (stop_ || to_encode_.empty()) return;
            slot = std::move(to_encode_.front());
            to_encode_.pop_front();
        }
        try {
            encode_(*slot->batch);
        } catch (...) {
            slot->batch->error = std::current_exception();
        }
        const std::lock_guard lock(mutex_);
        slot->done = true;
        changed_.notify_all();
    }
}

std::unique_ptr<TextBatch> Pipeline::next(const Tick& tick) {
    std::unique_ptr<TextBatch> batch;
    while (!batch) {
        tick();
        std::unique_lock lock(mutex_);
        const auto ready = [&] { return in_order_.empty() ? ended_ : in_order_.front()->done; };
        if (!changed_.wait_for(lock, std::chrono::milliseconds(100), ready)) continue;
        if (in_order_.empty()) return nullptr;
        batch = std::move(in_order_.front()->batch);
        in_order_.pop_front();
        bytes_ -= batch->text.size();
        changed_.notify_all();
    }
    if (batch->error) std::rethrow_exception(batch->error);
    return batch;
}
