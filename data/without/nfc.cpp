// data/tokenizers/nfc.cpp without utf8proc's tables. Text below U+0300, where combining marks begin, is already in the form.
#include "data/tokenizers/nfc.h"

#include "data/tokenizers/utf8.h"
#include "data/without/refuse.h"

static std::string_view from_first_unknown(std::string_view text) {
    for (std::string_view rest = text; !rest.empty(); text = rest)
        if (take_code_point(rest) >= 0x300) break;
    return text;
}

bool knows_nfc(std::string_view text) { return from_first_unknown(text).empty(); }

std::string_view nfc(std::string_view text, std::string&) {
    const std::string_view unknown = from_first_unknown(text);
    if (unknown.empty()) return text;
    const std::string character(unknown.substr(0, first_character(unknown).bytes));
    refuse_without("utf8proc", "libutf8proc-dev",
                   "a text with \"" + character + "\" cannot be brought into normalisation form C, which this tokenizer requires");
}
