#include "data/tokenizers/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "model/base/error.h"

template <auto release>
struct Releaser {
    template <class T>
    void operator()(T* object) const {
        release(object);
    }
};
using CompileContext = std::unique_ptr<pcre2_compile_context, Releaser<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Releaser<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Releaser<pcre2_match_data_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Releaser<pcre2_jit_stack_free>>;

namespace {

// Backtracking limit: a match beyond it would take minutes and is a defect of the pattern.
constexpr uint32_t match_limit = 100'000'000;
constexpr size_t jit_stack_bytes = size_t{1} << 20;

PCRE2_SPTR units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::string message_of(int error) {
    PCRE2_UCHAR text[256];
    pcre2_get_error_message(error, text, sizeof text);
    return reinterpret_cast<const char*>(text);
}

// Constructs that Oniguruma (Ruby's syntax) and PCRE2 read alike, any number of them. Among those that they do not: ^ and $ (at lines in
// Ruby), scripts such as \p{Han}, classes within classes, a + or ? behind a {n,m}.
constexpr std::string_view common_syntax = R"((?(DEFINE) (?<escape> \\ (?: [sSdDrntf] | [^a-zA-Z0-9] | [pP]\{[LMNPSZC][a-z]?\} )))
    (?: (?&escape)
      | \[ \^?+ (?!\]) (?: (?&escape) | (?!&&) [^][\\] )* \]
      | \( (?! [?*] ) | \(\? (?: [:=!>] | <[=!] | i: )
      | \{ [0-9]+ (?: , [0-9]* )? \} (?! [+?] )
      | [^[\\({^$]
    )*+)";

std::shared_ptr<pcre2_code> compiled(std::string_view pattern, uint32_t options, const std::string& where) {
    const CompileContext context(pcre2_compile_context_create(nullptr));
    if (!context) throw std::bad_alloc();
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);   // what . does not match
    int error;
    size_t place;
    pcre2_code* code = pcre2_compile(units(pattern), pattern.size(), options, &error, &place, context.get());
    if (!code)
        fail(Exit::data, where, ": the regular expression \"", pattern, "\" is wrong near \"", pattern.substr(place), "\": ",
             message_of(error));
    return {code, pcre2_code_free};
}

// Exit::data for constructs not known to mean the same in both.
void require_common_syntax(const std::string& regex, const std::string& where) {
    const auto syntax = compiled(common_syntax, PCRE2_EXTENDED | PCRE2_ANCHORED, where);
    const MatchData match(pcre2_match_data_create_from_pattern(syntax.get(), nullptr));
    if (!match) throw std::bad_alloc();
    const int result = pcre2_match(syntax.get(), units(regex), regex.size(), 0, 0, match.get(), nullptr);
    if (result < 0) fail(Exit::data, where, ": the regular expression cannot be checked: ", message_of(result));
    const size_t end = pcre2_get_ovector_pointer(match.get())[1];
    if (end < regex.size())
        fail(Exit::data, where, ": \"", regex.substr(end, 16), "\" at byte ", end, " of the regular expression \"", regex,
             "\" is not supported; supported are characters, classes, groups, lookaround, alternatives, repetition and the escapes "
             "\\s \\S \\d \\D \\r \\n \\t \\f and \\p{...} of a general category, as in GPT-2's and Qwen's patterns");
}

// \s and \S as Unicode's White_Space.
std::string with_white_space(const std::string& regex) {
    std::string result;
    for (size_t at = 0; at < regex.size(); ++at) {
        result += regex[at];
        if (regex[at] != '\\') continue;
        const char kind = regex[++at];
        if (kind == 's' || kind == 'S') result += kind == 's' ? "p{White_Space}" : "P{White_Space}";
        else result += kind;
    }
    return result;
}

}  // namespace

// ------------------------------------------------------------------------------------------------------------------- matching

struct MatchScratch::Parts {
    MatchData data{pcre2_match_data_create(1, nullptr)};   // 1: only the whole match, no groups
    MatchContext context{pcre2_match_context_create(nullptr)};
    JitStack stack{pcre2_jit_stack_create(jit_stack_bytes / 32, jit_stack_bytes, nullptr)};
};

MatchScratch::MatchScratch() : parts_(std::make_unique<Parts>()) {
    if (!parts_->data || !parts_->context) throw std::bad_alloc();
    pcre2_set_match_limit(parts_->context.get(), match_limit);
    if (parts_->stack) pcre2_jit_stack_assign(parts_->context.get(), nullptr, parts_->stack.get());
}

MatchScratch::~MatchScratch() = default;

Pattern::Pattern(const std::string& regex, const std::string& where) : where_(where) {
    require_common_syntax(regex, where);
    const std::shared_ptr<pcre2_code> code = compiled(with_white_space(regex), PCRE2_UTF | PCRE2_UCP, where);
    pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);   // if unavailable, pcre2_match() interprets
    code_ = code;
}

Pattern::Match Pattern::find(std::string_view text, size_t from, MatchScratch& scratch) const {
    const auto& parts = *scratch.parts_;
    const int result = pcre2_match(static_cast<const pcre2_code*>(code_.get()), units(text), text.size(), from, PCRE2_NO_UTF_CHECK,
                                   parts.data.get(), parts.context.get());
    if (result == PCRE2_ERROR_NOMATCH) return {std::string_view::npos, std::string_view::npos};
    if (result < 0)
        fail(Exit::data, where_, ": the regular expression cannot be matched at byte ", from, " of a text of ", text.size(),
             " bytes: ", message_of(result));
    const size_t* offsets = pcre2_get_ovector_pointer(parts.data.get());
    return {offsets[0], offsets[1]};
}
