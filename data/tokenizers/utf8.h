// UTF-8 validation and replacement, and GPT-2's mapping of bytes to visible characters.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

struct Utf8Character {
    size_t bytes;
    bool valid;
};

/// Precondition: `text` is not empty. Its first character, or the longest prefix of one that is not completed validly. Overlong
/// forms, surrogates and code points above U+10FFFF are invalid (Unicode standard, table 3-7).
Utf8Character first_character(std::string_view text);

/// Bytes at the start of `text` that are below 0x80.
size_t ascii_prefix(std::string_view text);

/// Bytes at the start of `text` that are valid UTF-8.
size_t valid_prefix(std::string_view text);

/// How many U+FFFD replace_invalid_utf8() would write.
size_t invalid_characters(std::string_view text);

/// Replaces invalid UTF-8 by U+FFFD, one per truncated character (as Python and Hugging Face do), so that samples can be printed
/// and written to JSON.
std::string replace_invalid_utf8(std::string_view text);

/// Precondition: `text` is valid UTF-8 and not empty. Removes and returns its first code point.
char32_t take_code_point(std::string_view& text);

void append_utf8(std::string& text, char32_t code_point);

// ---- bytes in byte-level vocabulary files

constexpr int byte_values = 256;

/// The character (UTF-8) that represents a byte in a vocabulary file: itself if printable, else U+0100, U+0101, ... in order. A
/// space is "Ġ", a newline "Ċ".
const std::string& visible(unsigned char byte);

/// The bytes of a token of a vocabulary file; nothing if it contains a character that represents no byte.
std::optional<std::string> visible_to_bytes(std::string_view token);
