#include "data/tokenizers/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>

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

bool is_one_of(std::string_view set, char c) { return set.find(c) != std::string_view::npos; }

std::string message_of(int error) {
    PCRE2_UCHAR text[256];
    pcre2_get_error_message(error, text, sizeof text);
    return reinterpret_cast<const char*>(text);
}

// Translates an Oniguruma pattern to PCRE2; Exit::data for constructs not known to mean the same in both.
class Translation {
public:
    Translation(const std::string& regex, const std::string& where) : regex_(regex), where_(where) {
        while (at_ < regex_.size()) take();
    }
    const std::string& result() const { return result_; }

private:
    bool next_is(std::string_view text) const { return std::string_view(regex_).substr(at_).starts_with(text); }

    void copy(size_t count) {
        result_.append(regex_, at_, count);
        at_ += count;
    }

    [[noreturn]] void refuse(size_t count) const {
        fail(Exit::data, where_, ": \"", regex_.substr(at_, count), "\" at byte ", at_, " of the regular expression \"", regex_,
             "\" is not supported; supported are characters, classes, groups, lookaround, alternatives, repetition and the escapes "
             "\\s \\S \\d \\D \\r \\n \\t \\f and \\p{...} of a general category, as in GPT-2's and Qwen's patterns");
    }

    void take() {
        if (next_is("\\")) return take_escape();
        if (in_class_) return take_in_class();
        if (next_is("[]") || next_is("[^]")) refuse(2);   // a literal bracket for PCRE2 only
        if (next_is("[")) {
            in_class_ = true;
            return copy(next_is("[^") ? 2 : 1);
        }
        if (next_is("(?")) return take_group();
        if (next_is("(*") || next_is("^") || next_is("$")) refuse(2);   // ^ and $ match at lines in Ruby, not in PCRE2
        if (next_is("{")) return take_count();
        copy(1);
    }

    void take_in_class() {
        if (next_is("[") || next_is("&&")) refuse(2);   // nested classes and intersections: Ruby only
        if (next_is("]")) in_class_ = false;
        copy(1);
    }

    void take_group() {
        for (const char* known : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:"})
            if (next_is(known)) return copy(std::string_view(known).size());
        refuse(3);
    }

    // {n}, {n,} or {n,m}. A + after it is possessive in PCRE2 but repeats in Ruby; with a ? the two differ as well.
    void take_count() {
        const size_t end = regex_.find('}', at_);
        const size_t size = end == std::string::npos ? regex_.size() - at_ : end + 1 - at_;
        const bool begins_with_digit = at_ + 1 < regex_.size() && std::isdigit(static_cast<unsigned char>(regex_[at_ + 1]));
        const bool known = begins_with_digit && end != std::string::npos && regex_.find_first_not_of("0123456789,", at_ + 1) == end;
        if (!known || (end + 1 < regex_.size() && is_one_of("+?", regex_[end + 1]))) refuse(size + 1);
        copy(size);
    }

    void take_escape() {
        if (at_ + 1 == regex_.size()) refuse(1);
        const char kind = regex_[at_ + 1];
        if (kind == 's' || kind == 'S') {
            result_ += kind == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
            at_ += 2;
            return;
        }
        if (kind == 'p' || kind == 'P') return take_property();
        if (std::isalnum(static_cast<unsigned char>(kind)) && !is_one_of("dDrntf", kind)) refuse(2);
        copy(2);
    }

    // \p{L}, \p{Lu}: general categories of one or two letters. The libraries disagree on script names.
    void take_property() {
        const size_t end = regex_.find('}', at_);
        const size_t size = end == std::string::npos ? regex_.size() - at_ : end + 1 - at_;
        const bool has_braces = size >= 4 && regex_[at_ + 2] == '{' && end != std::string::npos;
        const bool is_category = has_braces && size <= 6 && is_one_of("LMNPSZC", regex_[at_ + 3]) &&
                                 (size == 5 || std::islower(static_cast<unsigned char>(regex_[at_ + 4])));
        if (!is_category) refuse(size);
        copy(size);
    }

    const std::string& regex_;
    const std::string& where_;
    std::string result_;
    size_t at_ = 0;
    bool in_class_ = false;
};

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
    const CompileContext context(pcre2_compile_context_create(nullptr));
    if (!context) throw std::bad_alloc();
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);   // what . does not match
    const std::string pattern = Translation(regex, where).result();
    int error;
    size_t place;
    pcre2_code* code = pcre2_compile(units(pattern), pattern.size(), PCRE2_UTF | PCRE2_UCP, &error, &place, context.get());
    if (!code)
        fail(Exit::data, where, ": the regular expression \"", regex, "\" is wrong near \"", pattern.substr(place), "\": ",
             message_of(error));
    code_ = std::shared_ptr<void>(code, [](void* compiled) { pcre2_code_free(static_cast<pcre2_code*>(compiled)); });
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);   // if unavailable, pcre2_match() interprets
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
