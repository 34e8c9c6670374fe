// Splits text into the pieces that byte-pair encoding works on: words, numbers, runs of punctuation, white space.
//
// tokenizer.json specifies this by regular expressions in Oniguruma's dialect (Ruby syntax), which the tokenizers library uses;
// here PCRE2 runs them. Constructs that the two interpret differently are refused, and \s and \S are rewritten to Unicode's
// White_Space: PCRE2's own \s also includes the Mongolian vowel separator, U+180E.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/utf8.h"

/// GPT-2's pattern, used by "ByteLevel" with "use_regex".
inline constexpr const char* gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Temporaries for matching; for one thread at a time.
class MatchScratch {
public:
    MatchScratch();
    ~MatchScratch();

private:
    friend class Pattern;
    struct Parts;
    std::unique_ptr<Parts> parts_;
};

/// One regular expression, JIT-compiled if PCRE2 can. Immutable.
class Pattern {
public:
    /// Exit::data for unsupported constructs and syntax errors; `where` names file and field.
    Pattern(const std::string& regex, const std::string& where);

    struct Match {
        size_t begin, end;
    };
    /// Precondition: `text` is valid UTF-8. The first match that begins at or after `from`; begin is npos if there is none.
    Match find(std::string_view text, size_t from, MatchScratch& scratch) const;

private:
    std::shared_ptr<void> code_;
    std::string where_;
};

/// A sequence of patterns, each splitting the pieces of the previous one: pieces are the matches and the text between them.
class Pretokenizer {
public:
    Pretokenizer(const std::vector<std::string>& regexes, const std::string& where) {
        for (const std::string& regex : regexes) patterns_.emplace_back(regex, where);
    }

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
