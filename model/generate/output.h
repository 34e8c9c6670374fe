// Output of texts: a single one to the terminal as it grows, several to JSON Lines.
#pragma once
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "data/files.h"
#include "model/generate/prompts.h"
#include "model/generate/text_stream.h"
#include "model/generate/write_texts.h"

class TextOutput {
public:
    virtual ~TextOutput() = default;
    /// Outputs the last token of text.ids, which is new.
    virtual void add(const Text& text) = 0;
    /// Ends a text.
    virtual void end(const Text& text, TextEnd end) = 0;
    /// Called once, after all texts.
    virtual void finish() = 0;
};

/// A prompt and its text on stdout, or ids on one line, token by token.
class StreamedText final : public TextOutput {
public:
    /// Without a tokenizer, ids are written and no prompt.
    StreamedText(const Tokenizer* tokenizer, std::string prompt) : tokenizer_(tokenizer), prompt_(std::move(prompt)), stream_(stdout) {}

    void add(const Text& text) override;
    void end(const Text&, TextEnd) override {}
    void finish() override;

private:
    const Tokenizer* tokenizer_;
    std::string prompt_;
    TextStream stream_;
};

/// Writes line_with_text() for each prompt, in the prompts' order, to a file or stdout. Progress goes to stderr if that is a terminal and
/// the lines go elsewhere. The file keeps its previous content until the first line is complete. If the disk is full, a partial line is
/// removed.
class TextLines final : public TextOutput {
public:
    /// `path` empty: stdout. Exit::data if the file cannot be written. At most `most_tokens` are written for each prompt.
    TextLines(const std::string& path, const std::vector<Prompt>& prompts, const Tokenizer* tokenizer, int most_tokens);

    void add(const Text& text) override;
    void end(const Text& text, TextEnd end) override;
    void finish() override;

private:
    void write(const std::string& line);
    void show_progress();

    std::string path_;
    Descriptor file_;                         // none: stdout
    const std::vector<Prompt>& prompts_;
    const Tokenizer* tokenizer_;
    int most_tokens_;
    bool shows_progress_;
    std::map<size_t, std::string> waiting_;   // lines of texts that ended before an earlier prompt's
    size_t next_ = 0;                         // the first prompt whose line has not been written
    size_t whole_ = 0;                        // bytes of the lines so far
    size_t ended_ = 0, tokens_ = 0;           // texts that have ended; tokens of all
    double shown_ = 0;                        // time of the last progress line, in seconds
    Stopwatch clock_;
};
