// data/tokenizers/pretokenizer.cpp without PCRE2. A tokenizer.json can be opened and ids decoded; encoding is refused.
#include "data/tokenizers/pretokenizer.h"

#include "data/without/refuse.h"

struct MatchScratch::Parts {};
MatchScratch::MatchScratch() = default;
MatchScratch::~MatchScratch() = default;

Pattern::Pattern(const std::string&, const std::string& where) : where_(where) {}

Pattern::Match Pattern::find(std::string_view, size_t, MatchScratch&) const {
    refuse_without("PCRE2", "libpcre2-dev", where_ + ": no text can be encoded to this tokenizer's ids");
}
