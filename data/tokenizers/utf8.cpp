#include "data/tokenizers/utf8.h"

#include <array>
#include <cstdint>
#include <cstring>

Utf8Character first_character(std::string_view text) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char lead = byte(0);
    if (lead < 0x80) return {1, true};
    if (lead < 0xC2 || lead > 0xF4) return {1, false};
    const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    unsigned char lowest = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    unsigned char highest = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    size_t i = 1;
    for (; i < length && i < text.size() && byte(i) >= lowest && byte(i) <= highest; ++i) {
        lowest = 0x80;
        highest = 0xBF;
    }
    return {i, i == length};
}

size_t ascii_prefix(std::string_view text) {
    size_t i = 0;
    for (uint64_t eight; i + sizeof eight <= text.size(); i += sizeof eight) {
        std::memcpy(&eight, text.data() + i, sizeof eight);
        if (eight & 0x8080808080808080) break;
    }
    while (i < text.size() && static_cast<unsigned char>(text[i]) < 0x80) ++i;
    return i;
}

size_t valid_prefix(std::string_view text) {
    size_t i = 0;
    while (i < text.size()) {
        const Utf8Character first = first_character(text.substr(i));
        if (!first.valid) return i;
        i += first.bytes > 1 ? first.bytes : ascii_prefix(text.substr(i));
    }
    return i;
}

size_t invalid_characters(std::string_view text) {
    size_t count = 0;
    for (text.remove_prefix(valid_prefix(text)); !text.empty(); text.remove_prefix(valid_prefix(text)), ++count)
        text.remove_prefix(first_character(text).bytes);
    return count;
}

std::string replace_invalid_utf8(std::string_view text) {
    std::string valid;
    valid.reserve(text.size());
    while (true) {
        const size_t good = valid_prefix(text);
        valid.append(text.substr(0, good));
        text.remove_prefix(good);
        if (text.empty()) return valid;
        valid.append("\xEF\xBF\xBD");
        text.remove_prefix(first_character(text).bytes);
    }
}

char32_t take_code_point(std::string_view& text) {
    const auto lead = static_cast<unsigned char>(text[0]);
    const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    char32_t code_point = length == 1 ? lead : lead & (0xFF >> (length + 1));
    for (size_t i = 1; i < length; ++i) code_point = code_point << 6 | (static_cast<unsigned char>(text[i]) & 0x3F);
    text.remove_prefix(length);
    return code_point;
}

void append_utf8(std::string& text, char32_t code_point) {
    const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
    const auto continuation = [&](int shift) { put(0x80 | (code_point >> shift & 0x3F)); };
    if (code_point < 0x80) return put(code_point);
    if (code_point < 0x800) return put(0xC0 | code_point >> 6), continuation(0);
    if (code_point < 0x10000) return put(0xE0 | code_point >> 12), continuation(6), continuation(0);
    put(0xF0 | code_point >> 18), continuation(12), continuation(6), continuation(0);
}

namespace {

constexpr char32_t first_stand_in = 0x100;

struct Alphabet {
    std::array<std::string, byte_values> character;
    std::array<int, 2 * byte_values> byte;     // by code point, -1: stands for none

    Alphabet() {
        byte.fill(-1);
        char32_t next_free = first_stand_in;
        for (int value = 0; value < byte_values; ++value) {
            const bool prints = (value >= '!' && value <= '~') || (value >= 0xA1 && value <= 0xAC) || value >= 0xAE;
            const char32_t code_point = prints ? static_cast<char32_t>(value) : next_free++;
            append_utf8(character[value], code_point);
            byte[code_point] = value;
        }
    }
};

const Alphabet& alphabet() {
    static const Alphabet table;
    return table;
}

}  // namespace

const std::string& visible(unsigned char byte) { return alphabet().character[byte]; }

std::optional<std::string> visible_to_bytes(std::string_view token) {
    std::string bytes;
    while (!token.empty()) {
        const char32_t code_point = take_code_point(token);
        if (code_point >= alphabet().byte.size() || alphabet().byte[code_point] < 0) return {};
        bytes.push_back(static_cast<char>(alphabet().byte[code_point]));
    }
    return bytes;
}
