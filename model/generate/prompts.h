// Prompts from the command line or a JSON Lines file.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizers/tokenizer.h"

struct Prompt {
    std::vector<int32_t> ids;       // at least one
    std::optional<uint64_t> seed;   // overrides the program's sampling seed
    std::string line;               // of the file
};

/// A prompt of text or, if that is empty, of ids; without either, the token that begins a document. `tokenizer` may be null.
/// Exit::usage for ids outside the model's vocabulary 0 .. V - 1, for an empty prompt and for more than `positions` tokens; `what` is
/// named in errors.
Prompt make_prompt(const std::string& text, const std::vector<int64_t>& ids, const Tokenizer* tokenizer, int V, int64_t positions,
                   const std::string& what);

/// One prompt from each line: {"prompt": TEXT} or {"prompt_ids": [1, 2, 3]}, and optionally "seed"; other keys are kept.
/// Exit::data for other lines, and for a file without prompts.
std::vector<Prompt> read_prompts(const std::string& path, const Tokenizer* tokenizer, int V, int64_t positions);

/// The end of a text: its last token ends it, it has the requested number of tokens, or a signal came.
enum class TextEnd { end_of_text, length, stopped };

/// The prompt's line with the new text: "text" or "ids", the number of "tokens", whether it "ended" with an end-of-text token and, after
/// a signal, "stopped".
std::string line_with_text(const Prompt& prompt, const std::vector<int32_t>& written_ids, const Tokenizer* tokenizer, TextEnd end);
