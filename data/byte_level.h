// GPT-2's way of writing bytes as visible characters, which every byte-level vocabulary file uses.
#pragma once
#include <optional>
#include <string>
#include <string_view>

constexpr int byte_values = 256;

/// The character (UTF-8) that stands for a byte in a vocabulary file: itself where it prints, else U+0100, U+0101, ... in
/// order. A space is "Ġ", a newline "Ċ".
const std::string& visible(unsigned char byte);

/// The bytes that a token of a vocabulary file stands for; nothing when it holds a character that stands for no byte.
std::optional<std::string> visible_to_bytes(std::string_view token);
