// Hugging Face's tokenizer.json, version 1.0: parsing the byte-level BPE tokenizer it describes, and writing one for the bytes
// tokenizer.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizers/bpe.h"

/// A token that no merge produces: it has an id and is found in a text by its spelling, or not at all.
struct AddedToken {
    std::string content;
    uint32_t id;
    bool special;         // stands for no text
    bool normalized;      // matched after the normaliser, not before it
};

/// The parts of tokenizer.json that affect the ids.
struct TokenizerFile {
    std::vector<std::pair<std::string, uint32_t>> vocabulary;   // model.vocab as written, without other added tokens
    std::vector<AddedToken> added;
    std::array<uint32_t, byte_values> byte_ids;
    std::vector<Merge> merges;
    std::vector<std::string> patterns;     // of the pre-tokenizer, in order
    bool normalizes = false;               // to NFC
    bool adds_prefix_space = false;        // to a text that does not begin with one
    bool ignores_merges = false;           // a piece in the vocabulary is that token, regardless of merges
};

/// Supports what GPT-2's and Qwen's files contain: model BPE without dropout, unknown token or byte fallback, over a vocabulary
/// with all bytes; normalizer NFC or none; pre_tokenizer ByteLevel, or a Sequence of Split by regular expression (Isolated) and
/// ByteLevel. Exit::data, naming `where`, the field, its value and what is supported, for anything else or inconsistent.
/// "truncation", "padding" and "post_processor" do not affect the ids of a document and are not read.
TokenizerFile parse_tokenizer_json(std::string_view text, const std::string& where);

/// The content of the "eos_token" of a tokenizer_config.json; "" if there is none.
std::string eos_token_of_config(std::string_view text, const std::string& where);

/// A tokenizer.json that gives exactly the ids of the bytes tokenizer: byte b is id b, `end_of_text` is id 256, and ids 257 to
/// `ids` - 1 are unused.
std::string bytes_tokenizer_json(int ids, const std::string& end_of_text);

/// The minimal tokenizer_config.json that transformers needs to open a tokenizer.json (PreTrainedTokenizerFast).
std::string plain_tokenizer_config_json(const std::string& end_of_text);
