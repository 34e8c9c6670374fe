#include "model/generate/output.h"

#include <unistd.h>

#include "model/base/error.h"

void StreamedText::add(const Text& text) {
    const int32_t token = text.ids.back();
    const bool first = text.written() == 1;
    if (first && tokenizer_) stream_.add(prompt_);   // not before the checkpoint is known to be sound
    if (!first && !tokenizer_) stream_.add(" ");
    stream_.add(tokenizer_ ? tokenizer_->decode({&token, 1}) : std::to_string(token));
}

void StreamedText::finish() {
    stream_.finish();
    stream_.add("\n");
}

static std::FILE* open_to_write(const std::string& path) {
    std::FILE* const file = std::fopen(path.c_str(), "w");
    if (!file) fail(Exit::data, path, ": cannot be written: ", last_os_error());
    return file;
}

TextLines::TextLines(const std::string& path, const std::vector<Prompt>& prompts, const Tokenizer* tokenizer, int most_tokens)
    : path_(path.empty() ? "standard output" : path), file_(path.empty() ? stdout : open_to_write(path)), prompts_(prompts),
      tokenizer_(tokenizer), most_tokens_(most_tokens), shows_progress_(isatty(STDERR_FILENO) != 0) {}

TextLines::~TextLines() {
    if (file_ != stdout) std::fclose(file_);   // every line was flushed
}

void TextLines::write(const std::string& line) {
    if (std::fputs((line + "\n").c_str(), file_) < 0 || std::fflush(file_) != 0)
        fail(Exit::data, path_, ": cannot be written: ", last_os_error(), "; the lines before are whole");
}

void TextLines::add(const Text&) {
    tokens_++;
    if (shows_progress_) show_progress();
}

void TextLines::end(const Text& text, bool ended) {
    ended_++;
    const std::vector<int32_t> ids(text.ids.begin() + ptrdiff_t(text.prompt), text.ids.end());
    waiting_[text.number] = line_with_text(prompts_[text.number], ids, tokenizer_, ended);
    for (auto first = waiting_.begin(); first != waiting_.end() && first->first == next_; next_++) {
        write(first->second);
        first = waiting_.erase(first);
    }
}

void TextLines::finish() {
    if (shows_progress_) std::fprintf(stderr, "\r\033[K");
    for (const auto& [number, line] : waiting_) write(line);
    waiting_.clear();
}

void TextLines::show_progress() const {
    const double rate = double(tokens_) / std::max(1e-9, clock_.seconds()), most = double(prompts_.size()) * most_tokens_;
    std::fprintf(stderr, "\r\033[K%zu of %zu texts | %zu tokens | %.1f tok/s | at most %s left", ended_, prompts_.size(), tokens_, rate,
                 human_seconds((most - double(tokens_)) / rate).c_str());
}
