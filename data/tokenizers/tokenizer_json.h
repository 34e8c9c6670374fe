// Hugging Face tokenizer.json, form "version 1.0": which byte-level BPE tokenizer it describes; writing that of the bytes tokenizer.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizers/bpe.h"

/// A token that no merge makes: it has a place in the vocabulary and is found in a text by its letters, or not at all.
struct AddedToken {
    std::string content;
    uint32_t id;
    bool special;         // stands for no text
    bool normalized;      // looked for behind the normaliser, not in front of it
};

/// What of tokenizer.json has a part in the ids.
struct TokenizerFile {
    std::vector<std::pair<std::string, uint32_t>> vocabulary;   // as written, without added tokens that are not in it
    std::vector<AddedToken> added;
    std::array<uint32_t, byte_values> byte_ids;
    std::vector<Merge> merges;
    std::vector<std::string> patterns;     // of the pre-tokenizer, in their order
    bool normalizes = false;               // to NFC
    bool adds_prefix_space = false;        // in front of a text that does not begin with one
    bool ignores_merges = false;           // a piece that is in the vocabulary is that token, whatever the merges say
};

/// Supported is what GPT-2's and Qwen's files hold: model BPE without dropout, unknown token and byte fallback over a vocabulary
/// that has all bytes; normalizer NFC or none; pre_tokenizer ByteLevel, or a Sequence of Split by a regular expression (Isolated)
/// and ByteLevel. Anything else, and whatever contradicts itself, is Exit::data naming `where`, the field, its value, and what is
/// supported. "truncation", "padding" and "post_processor" have no part in the ids of a document and are not read.
TokenizerFile parse_tokenizer_json(std::string_view text, const std::string& where);

/// The content of the end-of-text token that a tokenizer_config.json names as "eos_token"; "" where it names none.
std::string eos_token_of_config(std::string_view text, const std::string& where);

/// A tokenizer.json that maps text to exactly the ids of the bytes tokenizer: byte b is id b, `end_of_text` is id 256, and ids from
/// there to `ids` - 1 are unused.
std::string bytes_tokenizer_json(int ids, const std::string& end_of_text);

/// The least that transformers needs beside a tokenizer.json to open it (PreTrainedTokenizerFast).
std::string plain_tokenizer_config_json(const std::string& end_of_text);
