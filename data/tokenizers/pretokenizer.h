// Cuts text into the pieces within which byte-pair merging works: words, numbers, runs of punctuation, white space.
//
// tokenizer.json says how with regular expressions in the dialect of Oniguruma (Ruby's syntax), which the tokenizers library
// uses; here PCRE2 runs them. Constructs that the two read differently are refused, and \s and \S are rewritten to Unicode's
// White_Space: PCRE2's own \s has the Mongolian vowel separator, U+180E, besides.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/utf8.h"

/// GPT-2's pattern, which "ByteLevel" stands for with "use_regex".
inline constexpr const char* gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// What a thread needs to match a pattern; not to be used by two at once.
class MatchScratch {
public:
    MatchScratch();
    ~MatchScratch();

private:
    friend class Pattern;
    struct Parts;
    std::unique_ptr<Parts> parts_;
};

/// One regular expression, compiled to machine code where PCRE2 can do that. Immutable.
class Pattern {
public:
    /// `where` names file and field in errors (Exit::data): a construct that is not supported, or a syntax error and its place.
    Pattern(const std::string& regex, const std::string& where);

    struct Match {
        size_t begin, end;
    };
    /// The first match that begins at or behind `from`; begin is npos where there is none. `text` is valid UTF-8.
    Match find(std::string_view text, size_t from, MatchScratch& scratch) const;

private:
    std::shared_ptr<void> code_;
    std::string where_;
};

/// Patterns one after the other, each cutting the pieces of the one before: matches are pieces, and what lies between them.
class Pretokenizer {
public:
    explicit Pretokenizer(std::vector<Pattern> patterns) : patterns_(std::move(patterns)) {}

    /// Calls use(piece) for all pieces of `text` in order; none is empty.
    template <class Use>
    void split(std::string_view text, MatchScratch& scratch, const Use& use, size_t level = 0) const {
        if (text.empty()) return;
        if (level == patterns_.size()) return use(text);
        size_t done = 0;
        const auto cut = [&](size_t end) {
            split(text.substr(done, end - done), scratch, use, level + 1);
            done = end;
        };
        for (size_t from = 0; from < text.size();) {
            const Pattern::Match match = patterns_[level].find(text, from, scratch);
            if (match.begin == std::string_view::npos) break;
            cut(match.begin);
            cut(match.end);
            from = match.end > match.begin ? match.end : next_character(text, match.end);
        }
        cut(text.size());
    }

private:
    static size_t next_character(std::string_view text, size_t at) { return at + first_character(text.substr(at)).bytes; }

    std::vector<Pattern> patterns_;
};
