// Text to token ids and back. One abstract Tokenizer, one class per kind; open_tokenizer() chooses.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/utf8.h"

/// What a program needs to know of a tokenizer. Thread-safe: encode() may be called by many threads at once.
struct Tokenizer {
    virtual ~Tokenizer() = default;

    /// Appends the ids of `text` to `ids`. Text is only ever text: "<|endoftext|>" typed in a document gives the ids of
    /// its letters, never the special token, so that no document can forge a boundary. The ids are those of the tokenizers
    /// library with encode_special_tokens = True and without the tokens that its post-processor adds.
    ///   - Added tokens that are not special (Qwen's <think>, <tool_call>) are text with an id of its own: they are found by
    ///     their letters, as the library does.
    ///   - Bytes that are no UTF-8: a tokenizer.json is for text, so they count as U+FFFD (replace_invalid_utf8(), which is what
    ///     Python's errors="replace" gives the library). The bytes tokenizer keeps them.
    virtual void encode(std::string_view text, std::vector<uint32_t>& ids) const = 0;

    /// The bytes that the ids stand for, one behind the other; specials stand for none. Gives back exactly the text that was
    /// encoded, but for what the tokenizer's own rules change before (NFC, a space in front, U+FFFD). A sequence cut or made up
    /// by a model need not be valid UTF-8: see replace_invalid_utf8(). An id outside the vocabulary stands for U+FFFD.
    virtual std::string decode(std::span<const int32_t> ids) const = 0;

    virtual int vocabulary() const = 0;            // ids are 0 .. vocabulary() - 1, added tokens included
    virtual uint32_t end_of_text() const = 0;      // precedes every document: <|endoftext|>, or what its config calls eos_token
    virtual int bytes(uint32_t id) const = 0;      // bytes of UTF-8 that the id stands for, 0 for specials; for bits per byte
    virtual std::string name() const = 0;          // what open_tokenizer() takes: "bytes" or the path of the tokenizer.json

    /// The texts of the tokenizer.json and tokenizer_config.json that go into a checkpoint, with which Hugging Face gets the same
    /// ids: the files' own texts where there are files.
    virtual std::string json() const = 0;
    virtual std::string config_json() const = 0;
};

/// `what` is "bytes" (ids 0..255 are the bytes, 256 is end-of-text, 257..511 are unused), a Hugging Face tokenizer.json, or a
/// folder that has one; any other name: Exit::usage. A file that cannot be used: Exit::data (bpe_tokenizer.h).
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& what);

/// The same for a model with ids 0 .. model_vocabulary - 1; a tokenizer.json that has more ids than that: Exit::data.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& what, int model_vocabulary);

/// Whether two names that open_tokenizer() takes mean the same: equal names, or files of equal bytes.
bool same_tokenizer(const std::string& a, const std::string& b);
