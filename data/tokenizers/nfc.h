// Unicode normalisation form C: e followed by a combining acute becomes é, Hangul letters become syllables. utf8proc has the
// tables; this finds the few places of a text that need it.
#pragma once
#include <string>
#include <string_view>

/// Precondition: valid UTF-8. The NFC form: `text` itself if it is already normalised, else `buffer`, which is overwritten. Linear
/// in the text, except for runs of combining marks, which are sorted. Thread-safe.
std::string_view nfc(std::string_view text, std::string& buffer);

/// Whether nfc() supports this text: always, unless the program was built without utf8proc.
bool knows_nfc(std::string_view text);
