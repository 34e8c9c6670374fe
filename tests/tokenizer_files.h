// A tokenizer.json for tests, to be changed piece by piece: the bytes as ids 0 to 255 in the order of their values, two merges,
// <|endoftext|> and whatever a test adds.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/tokenizers/nfc.h"
#include "data/tokenizers/tokenizer.h"
#include "data/tokenizers/utf8.h"

inline nlohmann::json added_token(int id, const std::string& content, bool special, bool normalized = false) {
    return {{"id", id}, {"content", content}, {"single_word", false}, {"lstrip", false}, {"rstrip", false},
            {"normalized", normalized}, {"special", special}};
}

inline nlohmann::json byte_level(bool use_regex, bool add_prefix_space = false) {
    return {{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

inline nlohmann::json split_by(const std::string& regex) {
    const nlohmann::json split = {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
    return {{"type", "Sequence"}, {"pretokenizers", {split, byte_level(false)}}};
}

/// vocab: bytes, ab 256, bc 257, abc 258; merges a+b, b+c, ab+c; added: <|endoftext|> 259.
inline nlohmann::json small_tokenizer() {
    nlohmann::json vocabulary = {{"ab", 256}, {"bc", 257}, {"abc", 258}};
    for (int byte = 0; byte < byte_values; ++byte) vocabulary[visible(static_cast<unsigned char>(byte))] = byte;
    const nlohmann::json model = {{"type", "BPE"}, {"dropout", nullptr}, {"unk_token", nullptr}, {"continuing_subword_prefix", ""},
                                  {"end_of_word_suffix", ""}, {"fuse_unk", false}, {"byte_fallback", false},
                                  {"vocab", vocabulary}, {"merges", {"a b", "b c", "ab c"}}};
    return {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr},
            {"added_tokens", nlohmann::json::array({added_token(259, "<|endoftext|>", true)})},
            {"normalizer", nullptr}, {"pre_tokenizer", byte_level(true)}, {"post_processor", nullptr},
            {"decoder", byte_level(true)}, {"model", model}};
}

inline std::unique_ptr<Tokenizer> made(const nlohmann::json& file, const std::string& config = "") {
    return make_bpe_tokenizer(file.dump(), config, "t.json");
}

inline std::vector<uint32_t> ids_of(const Tokenizer& tokenizer, std::string_view text) {
    std::vector<uint32_t> ids;
    tokenizer.encode(text, ids);
    return ids;
}

inline std::string text_of(const Tokenizer& tokenizer, const std::vector<uint32_t>& ids) {
    return tokenizer.decode(std::vector<int32_t>(ids.begin(), ids.end()));
}

inline std::string nfc_of(const std::string& text) {
    std::string buffer;
    return std::string(nfc(text, buffer));
}
