// Where written texts go: one to the terminal as it grows, several to JSON Lines.
#pragma once
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "model/generate/prompts.h"
#include "model/generate/text_stream.h"
#include "model/generate/write_texts.h"

class TextOutput {
public:
    virtual ~TextOutput() = default;
    /// The last token of text.ids is new.
    virtual void add(const Text& text) = 0;
    /// No more will follow; `ended`: the last token ends a text.
    virtual void end(const Text& text, bool ended) = 0;
    /// After the last text, or when writing was stopped before that.
    virtual void finish() = 0;
};

/// stdout: a prompt and its text, or ids on one line, as they are written.
class StreamedText final : public TextOutput {
public:
    /// Without a tokenizer: ids, and no prompt.
    StreamedText(const Tokenizer* tokenizer, std::string prompt) : tokenizer_(tokenizer), prompt_(std::move(prompt)), stream_(stdout) {}

    void add(const Text& text) override;
    void end(const Text&, bool) override {}
    void finish() override;

private:
    const Tokenizer* tokenizer_;
    std::string prompt_;
    TextStream stream_;
};

/// A file of line_with_text() for each prompt, in the prompts' order, or stdout; how far it has come on stderr, if that is a terminal.
class TextLines final : public TextOutput {
public:
    /// `path` empty: stdout. Exit::data if the file cannot be written. At most `most_tokens` are written for each prompt.
    TextLines(const std::string& path, const std::vector<Prompt>& prompts, const Tokenizer* tokenizer, int most_tokens);
    ~TextLines() override;
    TextLines(const TextLines&) = delete;

    void add(const Text& text) override;
    void end(const Text& text, bool ended) override;
    void finish() override;

private:
    void write(const std::string& line);
    void show_progress() const;

    std::string path_;
    std::FILE* file_;
    const std::vector<Prompt>& prompts_;
    const Tokenizer* tokenizer_;
    int most_tokens_;
    bool shows_progress_;
    std::map<size_t, std::string> waiting_;   // lines of texts that ended before one of an earlier prompt
    size_t next_ = 0;                         // the first prompt whose line has not been written
    size_t ended_ = 0, tokens_ = 0;           // of texts that have ended; of all
    Stopwatch clock_;
};
