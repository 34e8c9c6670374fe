// data/nfc.cpp without utf8proc's tables: text of ASCII has the form already.
#include "data/nfc.h"

#include "data/utf8.h"
#include "data/without/refuse.h"

std::string_view nfc(std::string_view text, std::string&) {
    const size_t ascii = ascii_prefix(text);
    if (ascii == text.size()) return text;
    const std::string character(text.substr(ascii, first_character(text.substr(ascii)).bytes));
    refuse_without("utf8proc", "libutf8proc-dev",
                   "a text with \"" + character + "\" cannot be encoded, since the tokenizer wants it in Unicode's normalisation form C");
}
