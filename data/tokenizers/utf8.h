// UTF-8: where it is valid, what replaces it where it is not, and GPT-2's way of writing bytes as visible characters.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

struct Utf8Character {
    size_t bytes;
    bool valid;
};

/// The first character of `text` (at least one byte), or the longest start of one that nothing valid follows. Overlong forms,
/// surrogates and code points above U+10FFFF are not valid (Unicode standard, table 3-7).
Utf8Character first_character(std::string_view text);

/// Bytes at the start of `text` that are below 0x80.
size_t ascii_prefix(std::string_view text);

/// Bytes at the start of `text` that are valid UTF-8.
size_t valid_prefix(std::string_view text);

/// Bytes that are no valid UTF-8 become U+FFFD, one for each start of a character that breaks off (as Python and Hugging Face
/// do), so that samples can be printed and put into JSON.
std::string replace_invalid_utf8(std::string_view text);

/// The first code point of valid UTF-8; moves `text` behind it.
char32_t take_code_point(std::string_view& text);

void append_utf8(std::string& text, char32_t code_point);

// ---- as every byte-level vocabulary file has bytes

constexpr int byte_values = 256;

/// The character (UTF-8) that stands for a byte in a vocabulary file: itself where it prints, else U+0100, U+0101, ... in
/// order. A space is "Ġ", a newline "Ċ".
const std::string& visible(unsigned char byte);

/// The bytes that a token of a vocabulary file stands for; nothing when it holds a character that stands for no byte.
std::optional<std::string> visible_to_bytes(std::string_view token);
