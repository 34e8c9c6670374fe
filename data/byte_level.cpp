#include "data/byte_level.h"

#include <array>

#include "data/utf8.h"

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
