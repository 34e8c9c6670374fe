// Unicode's normalisation form C: e followed by a combining acute becomes é, Hangul letters become syllables. utf8proc has the
// tables; what is here finds the few places of a text that need it.
#pragma once
#include <string>
#include <string_view>

/// The NFC form of valid UTF-8: `text` itself where it has that form already, else `buffer`, which is overwritten.
/// Linear in the text but for runs of combining marks, which are sorted. Thread-safe.
std::string_view nfc(std::string_view text, std::string& buffer);

/// Whether nfc() can tell the form of this text: always, unless the program was built without utf8proc.
bool knows_nfc(std::string_view text);
