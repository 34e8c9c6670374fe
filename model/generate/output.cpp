#include "model/generate/output.h"

#include <fcntl.h>
#include <unistd.h>

#include "model/base/disk.h"
#include "model/base/error.h"

void StreamedText::add(const Text& text) {
    const int32_t token = text.ids.back();
    const bool first = text.written() == 1;
    if (first && tokenizer_) stream_.add(prompt_);   // only now is the checkpoint known to be undamaged
    if (!first && !tokenizer_) stream_.add(" ");
    stream_.add(tokenizer_ ? tokenizer_->decode({&token, 1}) : std::to_string(token));
}

void StreamedText::finish() {
    stream_.finish();
    stream_.add("\n");
}

/// Keeps the file's content.
static Descriptor open_to_write(const std::string& path) {
    Descriptor file(retried([&] { return open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666); }));
    if (!file.is_open()) fail(Exit::data, path, ": cannot be written: ", last_os_error());
    return file;
}

TextLines::TextLines(const std::string& path, const std::vector<Prompt>& prompts, const Tokenizer* tokenizer, int most_tokens)
    : path_(path.empty() ? "standard output" : path), file_(path.empty() ? Descriptor() : open_to_write(path)), prompts_(prompts),
      tokenizer_(tokenizer), most_tokens_(most_tokens),
      shows_progress_(isatty(STDERR_FILENO) && !isatty(path.empty() ? STDOUT_FILENO : file_.get())) {}

void TextLines::write(const std::string& line) {
    const std::string text = line + "\n";
    const auto cut = [&] { return file_.is_open() && retried([&] { return ftruncate(file_.get(), off_t(whole_)); }) == 0; };
    if (whole_ == 0) cut();
    const bool good = file_.is_open() ? write_all(file_.get(), text.data(), text.size())
                                      : std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
    if (!good) {
        const std::string why = last_os_error();
        fail(Exit::data, path_, ": cannot be written: ", why, cut() ? "; earlier lines are complete" : "");
    }
    whole_ += text.size();
}

void TextLines::add(const Text&) {
    tokens_++;
    if (shows_progress_) show_progress();
}

void TextLines::end(const Text& text, TextEnd end) {
    ended_++;
    const std::vector<int32_t> ids(text.ids.begin() + ptrdiff_t(text.prompt), text.ids.end());
    waiting_[text.number] = line_with_text(prompts_[text.number], ids, tokenizer_, end);
    for (auto first = waiting_.begin(); first != waiting_.end() && first->first == next_; next_++) {
        write(first->second);
        first = waiting_.erase(first);
    }
}

void TextLines::finish() {
    const bool synced = !file_.is_open() || retried([&] { return fsync(file_.get()); }) == 0 || errno == EINVAL;   // EINVAL: a pipe
    if (!synced) fail(Exit::data, path_, ": cannot be synced to disk: ", last_os_error());
    if (shows_progress_) std::fprintf(stderr, "\r\033[K");
}

void TextLines::show_progress() {
    const double now = clock_.seconds();
    if (now < shown_ + 0.1) return;
    shown_ = now;
    const double rate = double(tokens_) / now, most = double(prompts_.size()) * most_tokens_;
    std::fprintf(stderr, "\r\033[K%zu of %zu texts | %zu tokens | %.1f tok/s | at most %s left", ended_, prompts_.size(), tokens_, rate,
                 human_seconds((most - double(tokens_)) / rate).c_str());
}
