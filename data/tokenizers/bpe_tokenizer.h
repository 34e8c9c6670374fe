// The byte-level BPE tokenizer of a Hugging Face tokenizer.json: GPT-2, Qwen2, Qwen2.5, Qwen3 and similar.
#pragma once
#include <memory>
#include <string>

#include "data/tokenizers/tokenizer.h"

/// Reads the file `path` and, if present, the tokenizer_config.json next to it (for x_tokenizer.json: x_tokenizer_config.json).
/// Exit::data, naming file, field and value, for what cannot be read or is not supported (tokenizer_json.h).
std::unique_ptr<Tokenizer> open_bpe_tokenizer(const std::string& path);

/// The same from the files' contents; `config` may be empty. `path` is the tokenizer's name, also in errors.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(std::string text, std::string config, const std::string& path);
