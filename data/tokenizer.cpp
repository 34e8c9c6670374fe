#include "data/tokenizer.h"

#include <nlohmann/json.hpp>

#include "model/error.h"

namespace {

constexpr int byte_values = 256;
constexpr int bytes_vocabulary = 512;   // a round number: matrices over the vocabulary stay aligned
constexpr const char* end_of_text_name = "<|endoftext|>";

class BytesTokenizer : public Tokenizer {
public:
    void encode(std::string_view text, std::vector<uint32_t>& ids) const override {
        const size_t before = ids.size();
        ids.resize(before + text.size());
        for (size_t i = 0; i < text.size(); ++i) ids[before + i] = static_cast<unsigned char>(text[i]);
    }

    std::string decode(std::span<const int32_t> ids) const override {
        std::string text;
        text.reserve(ids.size());
        for (const int32_t id : ids) {
            if (id >= 0 && id < byte_values) text.push_back(static_cast<char>(id));
            if (id < 0 || id >= bytes_vocabulary) text += "\xEF\xBF\xBD";   // U+FFFD: a model may have more ids than its tokenizer
        }
        return text;
    }

    int vocabulary() const override { return bytes_vocabulary; }
    uint32_t end_of_text() const override { return byte_values; }
    int bytes(uint32_t id) const override { return id < byte_values ? 1 : 0; }
    std::string name() const override { return "bytes"; }
};

// A code point below U+0800 as UTF-8.
std::string utf8(int code_point) {
    if (code_point < 0x80) return {static_cast<char>(code_point)};
    return {static_cast<char>(0xC0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3F))};
}

// GPT-2's byte-to-unicode table: bytes that print stand for themselves, the others for U+0100, U+0101, ... in order,
// so that every byte is one visible character of the vocabulary file.
std::vector<std::string> byte_to_unicode() {
    std::vector<std::string> characters;
    int next_free = 0x100;
    for (int byte = 0; byte < byte_values; ++byte) {
        const bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        characters.push_back(utf8(prints ? byte : next_free++));
    }
    return characters;
}

struct Character {
    size_t bytes;
    bool valid;
};

// The first character of UTF-8 in `text` (at least one byte), or the longest start of one that nothing valid follows. Overlong
// forms, surrogates and code points above U+10FFFF are not valid (Unicode standard, table 3-7).
Character first_character(std::string_view text) {
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

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& what) {
    if (what == "bytes") return std::make_unique<BytesTokenizer>();
    fail(Exit::usage, "tokenizer '", what, "' is not known; supported is: bytes");
}

std::string bytes_tokenizer_json() {
    using nlohmann::ordered_json;
    ordered_json vocabulary = ordered_json::object();
    const std::vector<std::string> characters = byte_to_unicode();
    for (int byte = 0; byte < byte_values; ++byte) vocabulary[characters[byte]] = byte;

    ordered_json added = ordered_json::array();
    for (int id = byte_values; id < bytes_vocabulary; ++id) {
        const std::string content = id == byte_values ? end_of_text_name : "<|unused_" + std::to_string(id) + "|>";
        added.push_back({{"id", id}, {"content", content}, {"single_word", false}, {"lstrip", false},
                         {"rstrip", false}, {"normalized", false}, {"special", true}});
    }

    const ordered_json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
    const ordered_json model = {{"type", "BPE"}, {"dropout", nullptr}, {"unk_token", nullptr}, {"continuing_subword_prefix", nullptr},
                                {"end_of_word_suffix", nullptr}, {"fuse_unk", false}, {"byte_fallback", false},
                                {"vocab", vocabulary}, {"merges", ordered_json::array()}};
    const ordered_json file = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"added_tokens", added},
                               {"normalizer", nullptr}, {"pre_tokenizer", byte_level}, {"post_processor", nullptr},
                               {"decoder", byte_level}, {"model", model}};
    return file.dump(1) + "\n";
}

std::string bytes_tokenizer_config_json() {
    // clean_up_tokenization_spaces would change the text on decoding ("a ." to "a.").
    const nlohmann::ordered_json file = {
        {"tokenizer_class", "PreTrainedTokenizerFast"}, {"bos_token", end_of_text_name}, {"eos_token", end_of_text_name},
        {"unk_token", nullptr}, {"add_prefix_space", false}, {"clean_up_tokenization_spaces", false}};
    return file.dump(2) + "\n";
}

std::string replace_invalid_utf8(std::string_view text) {
    std::string valid;
    valid.reserve(text.size());
    while (!text.empty()) {
        const Character first = first_character(text);
        valid.append(first.valid ? text.substr(0, first.bytes) : "\xEF\xBF\xBD");
        text.remove_prefix(first.bytes);
    }
    return valid;
}
