// The byte-level BPE tokenizer of a Hugging Face tokenizer.json: GPT-2, Qwen2, Qwen2.5, Qwen3 and their like.
#pragma once
#include <memory>
#include <string>

#include "data/tokenizers/tokenizer.h"

/// Reads the file `path`, and the tokenizer_config.json beside it where there is one (for a file x_tokenizer.json:
/// x_tokenizer_config.json). What cannot be read or is not supported (tokenizer_json.h): Exit::data naming file, field and value.
std::unique_ptr<Tokenizer> open_bpe_tokenizer(const std::string& path);

/// The same from the files' texts; an empty `config` is none. `path` is the tokenizer's name, and named in errors.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(std::string text, std::string config, const std::string& path);
