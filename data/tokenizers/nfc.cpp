#include "data/tokenizers/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <bitset>
#include <memory>
#include <vector>

#include "data/tokenizers/utf8.h"

namespace {

constexpr utf8proc_int32_t code_points = 0x110000;
constexpr int longest_decomposition = 18;   // of one code point, over all normalisation forms
constexpr auto canonical = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

int combining_class(utf8proc_int32_t code_point) { return utf8proc_get_property(code_point)->combining_class; }

void append_decomposition(std::vector<utf8proc_int32_t>& sequence, utf8proc_int32_t code_point) {
    utf8proc_int32_t parts[longest_decomposition];
    int boundary = 0;
    const auto count = utf8proc_decompose_char(code_point, parts, longest_decomposition, canonical, &boundary);
    sequence.insert(sequence.end(), parts, parts + count);
}

// Sorts runs of marks by combining class. utf8proc's own sort takes quadratic time for long runs.
void order_marks(std::vector<utf8proc_int32_t>& sequence) {
    const auto is_mark = [](utf8proc_int32_t c) { return combining_class(c) != 0; };
    const auto by_class = [](utf8proc_int32_t a, utf8proc_int32_t b) { return combining_class(a) < combining_class(b); };
    for (auto begin = sequence.begin(); begin != sequence.end();) {
        begin = std::find_if(begin, sequence.end(), is_mark);
        const auto end = std::find_if_not(begin, sequence.end(), is_mark);
        std::stable_sort(begin, end, by_class);
        begin = end;
    }
}

void compose(std::vector<utf8proc_int32_t>& sequence) {
    order_marks(sequence);
    sequence.resize(utf8proc_normalize_utf32(sequence.data(), static_cast<utf8proc_ssize_t>(sequence.size()), canonical));
}

// Characters that are unchanged whatever precedes them, and whatever follows that takes no part in a composition: a text can be cut
// before each of them and the parts normalised separately. Most texts consist of nothing else.
class InertCharacters {
public:
    InertCharacters() {
        std::vector<utf8proc_int32_t> parts;
        std::vector<utf8proc_int32_t> first_parts(code_points);
        for (utf8proc_int32_t c = 0; c < code_points; ++c) {
            parts.clear();
            append_decomposition(parts, c);
            first_parts[c] = parts[0];
            if (combining_class(c) != 0) active_.set(c);
            if (parts.size() == 1 && parts[0] == c) continue;
            for (size_t i = 1; i < parts.size(); ++i) active_.set(parts[i]);
            compose(parts);
            if (parts.size() != 1 || parts[0] != c) active_.set(c);
        }
        for (utf8proc_int32_t c = 0; c < code_points; ++c)
            if (active_[first_parts[c]]) active_.set(c);
    }

    bool contain(char32_t c) const { return !active_[c]; }

private:
    std::bitset<code_points> active_;
};

const InertCharacters& inert() {
    static const auto characters = std::make_unique<const InertCharacters>();
    return *characters;
}

size_t previous_character(std::string_view text, size_t at) {
    do --at;
    while ((text[at] & 0xC0) == 0x80);
    return at;
}

// Length in bytes of the prefix of inert characters, or of others.
template <bool INERT>
size_t prefix(std::string_view text) {
    const InertCharacters& characters = inert();
    std::string_view rest = text;
    while (true) {
        if (INERT) rest.remove_prefix(ascii_prefix(rest));
        std::string_view behind = rest;
        if (rest.empty() || characters.contain(take_code_point(behind)) != INERT) return text.size() - rest.size();
        rest = behind;
    }
}

std::string normalized(std::string_view text) {
    std::vector<utf8proc_int32_t> sequence;
    while (!text.empty()) append_decomposition(sequence, static_cast<utf8proc_int32_t>(take_code_point(text)));
    compose(sequence);
    std::string result;
    for (const utf8proc_int32_t c : sequence) append_utf8(result, static_cast<char32_t>(c));
    return result;
}

}  // namespace

std::string_view nfc(std::string_view text, std::string& buffer) {
    size_t copied = 0;   // bytes of `text` already normalised into the buffer
    buffer.clear();
    for (size_t at = prefix<true>(text); at < text.size(); at += prefix<true>(text.substr(at))) {
        const size_t begin = at == 0 ? 0 : previous_character(text, at);   // which marks may combine with
        at += prefix<false>(text.substr(at));
        const std::string_view stretch = text.substr(begin, at - begin);
        const std::string form = normalized(stretch);
        if (form == stretch) continue;
        buffer.append(text.substr(copied, begin - copied)).append(form);
        copied = at;
    }
    if (copied == 0) return text;
    return buffer.append(text.substr(copied));
}

bool knows_nfc(std::string_view) { return true; }
