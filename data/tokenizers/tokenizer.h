// Text to token ids and back: an abstract Tokenizer with one class per kind, selected by open_tokenizer().
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/utf8.h"

/// A tokenizer. Thread-safe: encode() may be called concurrently.
struct Tokenizer {
    virtual ~Tokenizer() = default;

    /// Appends the ids of `text` to `ids`. Text is only ever text: "<|endoftext|>" in a document gives the ids of its letters,
    /// never the special token, so that no document can forge a boundary. The ids are those of the tokenizers library with
    /// encode_special_tokens = True, without the tokens that its post-processor adds (data/README.md). The bytes tokenizer keeps invalid
    /// UTF-8, a tokenizer.json replaces it by U+FFFD.
    virtual void encode(std::string_view text, std::vector<uint32_t>& ids) const = 0;

    /// The concatenated bytes of the ids; special tokens have none. Restores the encoded text exactly, except for what the
    /// tokenizer itself changes first (NFC, a prepended space, U+FFFD). A truncated or generated sequence need not be valid UTF-8:
    /// see replace_invalid_utf8(). An id outside the vocabulary gives U+FFFD.
    virtual std::string decode(std::span<const int32_t> ids) const = 0;

    virtual int vocabulary() const = 0;            // ids are 0 .. vocabulary() - 1, added tokens included
    virtual uint32_t end_of_text() const = 0;      // precedes every document: <|endoftext|>, or what its config calls eos_token
    virtual int bytes(uint32_t id) const = 0;      // UTF-8 bytes of the id, 0 for special tokens; for bits per byte
    virtual std::string name() const = 0;          // argument for open_tokenizer(): "bytes" or the path of the tokenizer.json

    /// The contents of tokenizer.json and tokenizer_config.json for a checkpoint, with which Hugging Face gives the same ids: the
    /// original files' if there are any.
    virtual std::string json() const = 0;
    virtual std::string config_json() const = 0;
};

/// `what` is "bytes" (ids 0..255 are the bytes, 256 is end-of-text, 257..511 are unused), a Hugging Face tokenizer.json, or a
/// folder that has one, with the tokenizer_config.json next to it, if any (for x_tokenizer.json: x_tokenizer_config.json). Exit::usage for
/// other names, Exit::data for an unusable file.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& what);

/// The tokenizer in the contents of these files; `config` may be empty. `path` is its name, also in errors. Exit::data, naming field and
/// value, for what is not supported (tokenizer_json.h).
std::unique_ptr<Tokenizer> make_bpe_tokenizer(std::string text, std::string config, const std::string& path);

/// open_tokenizer() for a model with ids 0 .. model_vocabulary - 1. Exit::data for a tokenizer.json with more ids.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& what, int model_vocabulary);

/// Whether two arguments of open_tokenizer() mean the same tokenizer: equal names, or files with equal contents.
bool same_tokenizer(const std::string& a, const std::string& b);
