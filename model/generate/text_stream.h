// Output of a text while it is generated.
#pragma once
#include <cstdio>
#include <string>
#include <string_view>

#include "data/tokenizers/utf8.h"
#include "model/base/error.h"
#include "model/base/process.h"

/// Bytes at the end of `text` that begin a character and may still become one.
inline size_t unfinished_suffix(std::string_view text) {
    for (size_t n = 1; n <= 3 && n <= text.size(); n++) {
        const unsigned char lead = text[text.size() - n];
        if (lead < 0x80) return 0;
        if (lead < 0xc0) continue;   // inside a character
        const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
        return bytes > n ? n : 0;
    }
    return 0;
}

/// Writes the pieces of a text as they come, but only whole characters; invalid bytes become U+FFFD. The output equals
/// replace_invalid_utf8() of the whole text.
class TextStream {
public:
    explicit TextStream(std::FILE* to) : to_(to) {}

    void add(std::string_view piece) {
        held_ += piece;
        write(held_.size() - unfinished_suffix(held_));
    }
    /// Ends the text.
    void finish() { write(held_.size()); }

private:
    /// Exit::data if it cannot be written.
    void write(size_t bytes) {
        const std::string text = replace_invalid_utf8(held_.substr(0, bytes));
        held_.erase(0, bytes);
        if (std::fwrite(text.data(), 1, text.size(), to_) != text.size() || std::fflush(to_) != 0)
            fail(Exit::data, "standard output cannot be written: ", last_os_error());
    }

    std::FILE* to_;
    std::string held_;
};
