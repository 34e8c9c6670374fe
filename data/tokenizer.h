// Text to token ids and back. One abstract Tokenizer, one class per kind; open_tokenizer() chooses by name.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// What a program needs to know of a tokenizer. Thread-safe: nothing changes after construction.
struct Tokenizer {
    virtual ~Tokenizer() = default;

    /// Appends the ids of `text` to `ids`. Text is only ever text: "<|endoftext|>" typed in a document gives the ids of
    /// its letters, never the special token, so that no document can forge a boundary.
    virtual void encode(std::string_view text, std::vector<uint32_t>& ids) const = 0;

    /// The bytes that the ids stand for, one behind the other; specials stand for none. A sequence cut or made up by a
    /// model need not be valid UTF-8: see replace_invalid_utf8(). An id outside the vocabulary stands for U+FFFD.
    virtual std::string decode(std::span<const int32_t> ids) const = 0;

    virtual int vocabulary() const = 0;            // ids are 0 .. vocabulary() - 1
    virtual uint32_t end_of_text() const = 0;      // precedes every document
    virtual int bytes(uint32_t id) const = 0;      // bytes of UTF-8 that the id stands for, 0 for specials; for bits per byte
    virtual std::string name() const = 0;          // what open_tokenizer() takes and the manifest of the shards records
};

/// "bytes": ids 0..255 are the bytes, 256 is end-of-text, 257..511 are unused. Anything else: Exit::usage.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& what);

/// tokenizer.json of Hugging Face's tokenizers library that maps text to exactly the ids of the bytes tokenizer.
std::string bytes_tokenizer_json();

/// The tokenizer_config.json that belongs to it (PreTrainedTokenizerFast).
std::string bytes_tokenizer_config_json();

/// Bytes that are no valid UTF-8 become U+FFFD, one for each start of a character that breaks off (as Python and Hugging Face
/// do), so that samples can be printed and put into JSON.
std::string replace_invalid_utf8(std::string_view text);
