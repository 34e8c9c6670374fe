#include "data/tokenizers/tokenizer_json.h"

#include <unordered_set>

#include "data/tokenizers/pretokenizer.h"
#include "model/base/error.h"
#include "model/base/json.h"

namespace {

using nlohmann::json;
using nlohmann::ordered_json;   // keeps keys in insertion order
using Ids = std::unordered_map<std::string_view, uint32_t>;   // views of strings owned by the json

constexpr uint32_t max_id_count = uint32_t{1} << 24;   // far above any vocabulary: a wrong id must not allocate gigabytes

// A value of the file together with its path, for errors.
class Field {
public:
    Field(const json& value, std::string where, std::string path = "")
        : value_(value), where_(std::move(where)), path_(std::move(path)) {}

    const json& value() const { return value_; }
    std::string name() const { return where_ + ": " + path_; }

    /// A missing member reads as null.
    Field member(const char* key) const {
        static const json null;
        if (!value_.is_object()) refuse("an object");
        const auto found = value_.find(key);
        return named(found == value_.end() ? null : *found, key);
    }
    Field named(const json& value, const std::string& key) const {
        return {value, where_, path_.empty() ? key : path_ + "." + key};
    }
    Field element(size_t i) const { return {value_[i], where_, path_ + "[" + std::to_string(i) + "]"}; }

    bool is_null() const { return value_.is_null(); }
    const std::string& text() const {
        if (!value_.is_string()) refuse("a string");
        return value_.get_ref<const std::string&>();
    }
    bool truth() const {
        if (!value_.is_boolean()) refuse("true or false");
        return value_.get<bool>();
    }
    bool truth_or(bool otherwise) const { return is_null() ? otherwise : truth(); }
    uint32_t id() const {
        if (!value_.is_number_unsigned() || value_.get<uint64_t>() >= max_id_count) refuse("an id from 0 to 2^24 - 1");
        return value_.get<uint32_t>();
    }
    size_t elements() const {
        if (!value_.is_array()) refuse("a list");
        return value_.size();
    }

    [[noreturn]] void refuse(const std::string& supported) const {
        fail(Exit::data, name(), is_null() ? " is missing or null" : " is " + shown(value_), "; supported is ", supported);
    }

private:
    const json& value_;
    std::string where_, path_;
};

// ------------------------------------------------------------------------------------------------------------ before the model

bool reads_normalizer(const Field& normalizer) {
    if (normalizer.is_null()) return false;
    const Field type = normalizer.member("type");
    if (type.text() != "NFC") type.refuse("NFC, or no normalizer");
    return true;
}

// Appends the pattern of a ByteLevel, if it has one.
void read_byte_level(const Field& level, TokenizerFile& file) {
    file.adds_prefix_space = level.member("add_prefix_space").truth();
    if (level.member("use_regex").truth_or(true)) file.patterns.push_back(gpt2_pattern);
}

void read_split(const Field& split, TokenizerFile& file) {
    const Field behavior = split.member("behavior"), invert = split.member("invert");
    if (behavior.text() != "Isolated") behavior.refuse("Isolated");
    if (invert.truth_or(false)) invert.refuse("false");
    file.patterns.push_back(split.member("pattern").member("Regex").text());
}

void read_pretokenizer(const Field& pretokenizer, TokenizerFile& file) {
    const std::string supported = "ByteLevel, or a Sequence of Split (Regex, Isolated) and, at its end, ByteLevel";
    if (pretokenizer.is_null()) pretokenizer.refuse(supported);
    const Field type = pretokenizer.member("type");
    if (type.text() == "ByteLevel") return read_byte_level(pretokenizer, file);
    if (type.text() != "Sequence") type.refuse(supported);
    const Field parts = pretokenizer.member("pretokenizers");
    if (parts.elements() == 0) parts.refuse(supported);
    for (size_t i = 0; i < parts.elements(); ++i) {
        const Field part = parts.element(i), part_type = part.member("type");
        const bool last = i + 1 == parts.elements();
        if (part_type.text() != (last ? "ByteLevel" : "Split")) part_type.refuse(supported);
        if (!last) read_split(part, file);
        else read_byte_level(part, file);
    }
    if (parts.elements() > 1 && file.adds_prefix_space)   // it would be prepended to every piece
        parts.element(parts.elements() - 1).member("add_prefix_space").refuse("false after a Split");
}

// ------------------------------------------------------------------------------------------------------------------- the model

void require_plain_bpe(const Field& model) {
    const Field type = model.member("type"), dropout = model.member("dropout");
    if (!type.is_null() && type.text() != "BPE") type.refuse("BPE");   // old files do not name it
    if (!dropout.is_null() && dropout.value() != 0.0) dropout.refuse("null");
    if (const Field unknown = model.member("unk_token"); !unknown.is_null()) unknown.refuse("null: a byte is never unknown");
    if (const Field fallback = model.member("byte_fallback"); fallback.truth_or(false)) fallback.refuse("false");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
        if (const Field mark = model.member(key); !mark.is_null() && !mark.text().empty()) mark.refuse("null or \"\"");
}

Ids read_vocabulary(const Field& vocabulary, TokenizerFile& file) {
    if (!vocabulary.value().is_object()) vocabulary.refuse("an object of tokens and their ids");
    Ids ids;
    std::unordered_map<uint32_t, std::string_view> tokens;
    ids.reserve(vocabulary.value().size());
    tokens.reserve(vocabulary.value().size());
    for (const auto& [token, value] : vocabulary.value().get_ref<const json::object_t&>()) {
        const uint32_t id = vocabulary.named(value, token).id();
        const auto [other, is_new] = tokens.emplace(id, token);
        if (!is_new) fail(Exit::data, vocabulary.name(), ": id ", id, " is both \"", other->second, "\" and \"", token, "\"");
        ids.emplace(token, id);
        file.vocabulary.emplace_back(token, id);
    }
    for (int byte = 0; byte < byte_values; ++byte) {
        const std::string& character = visible(static_cast<unsigned char>(byte));
        const auto found = ids.find(character);
        if (found == ids.end())
            fail(Exit::data, vocabulary.name(), " has no token \"", character, "\" for the byte ", byte, "; supported are vocabularies with all 256 bytes");
        file.byte_ids[byte] = found->second;
    }
    return ids;
}

// Merges are "left right" or ["left", "right"]; the first line of merges.txt, "#version: 0.2", may be among them.
std::pair<std::string_view, std::string_view> read_merge(const Field& merge) {
    const std::string supported = "\"left right\" or [\"left\", \"right\"]";
    if (merge.value().is_array()) {
        if (merge.elements() != 2) merge.refuse(supported);
        return {merge.element(0).text(), merge.element(1).text()};
    }
    if (!merge.value().is_string()) merge.refuse(supported);
    const std::string_view line = merge.text();
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) merge.refuse(supported);
    return {line.substr(0, space), line.substr(space + 1)};
}

void read_merges(const Field& merges, const Ids& ids, TokenizerFile& file) {
    file.merges.reserve(merges.elements());
    for (size_t i = 0; i < merges.elements(); ++i) {
        const Field merge = merges.element(i);
        if (merge.value().is_string() && merge.text().starts_with("#version")) continue;
        const auto pair = read_merge(merge);
        const auto id_of = [&](std::string_view token) {
            const auto found = ids.find(token);
            if (found == ids.end())
                fail(Exit::data, merge.name(), ": \"", pair.first, "\" and \"", pair.second, "\" need \"", token,
                     "\", which is not in model.vocab");
            return found->second;
        };
        file.merges.push_back({id_of(pair.first), id_of(pair.second), id_of(std::string(pair.first).append(pair.second))});
    }
}

// ---------------------------------------------------------------------------------------------------------------- added tokens

// The tokenizers library numbers tokens that are not in model.vocab itself, starting at its size, and ignores other ids.
void read_added_tokens(const Field& tokens, const Ids& ids, TokenizerFile& file) {
    if (tokens.is_null()) return;
    auto next_id = static_cast<uint32_t>(ids.size());
    std::unordered_set<std::string_view> seen;
    for (size_t i = 0; i < tokens.elements(); ++i) {
        const Field token = tokens.element(i), content = token.member("content"), id = token.member("id");
        if (content.text().empty()) content.refuse("a text that is not empty");
        if (!seen.insert(content.text()).second) content.refuse("every token once");
        const auto in_vocabulary = ids.find(content.text());
        const uint32_t expected = in_vocabulary != ids.end() ? in_vocabulary->second : next_id++;
        if (id.id() != expected)
            id.refuse(std::to_string(expected) + ", which the tokenizers library gives \"" + content.text() + "\"");
        const bool special = token.member("special").truth_or(false);
        for (const char* key : {"single_word", "lstrip", "rstrip"})
            if (const Field flag = token.member(key); flag.truth_or(false) && !special)
                flag.refuse("false for a token that is not special");
        file.added.push_back({content.text(), expected, special, token.member("normalized").truth_or(!special)});
    }
}

}  // namespace

TokenizerFile parse_tokenizer_json(std::string_view text, const std::string& where) {
    const json object = parse_json_object(text, where, Exit::data);
    const Field root(object, where);
    TokenizerFile file;
    if (const Field version = root.member("version"); !version.is_null() && version.text() != "1.0") version.refuse("\"1.0\"");
    file.normalizes = reads_normalizer(root.member("normalizer"));
    read_pretokenizer(root.member("pre_tokenizer"), file);
    if (const Field decoder = root.member("decoder"); !decoder.is_null())
        if (const Field type = decoder.member("type"); type.text() != "ByteLevel") type.refuse("ByteLevel");
    const Field model = root.member("model");
    require_plain_bpe(model);
    file.ignores_merges = model.member("ignore_merges").truth_or(false);
    const Ids ids = read_vocabulary(model.member("vocab"), file);
    read_merges(model.member("merges"), ids, file);
    read_added_tokens(root.member("added_tokens"), ids, file);
    return file;
}

std::string eos_token_of_config(std::string_view text, const std::string& where) {
    const json object = parse_json_object(text, where, Exit::data);
    const Field token = Field(object, where).member("eos_token");
    if (token.is_null()) return "";
    return token.value().is_object() ? token.member("content").text() : token.text();
}

std::string bytes_tokenizer_json(int ids, const std::string& end_of_text) {
    ordered_json added = ordered_json::array(), vocabulary;
    for (int id = byte_values; id < ids; ++id)
        added.push_back({{"id", id}, {"content", id == byte_values ? end_of_text : "<|unused_" + std::to_string(id) + "|>"},
                         {"single_word", false}, {"lstrip", false}, {"rstrip", false}, {"normalized", false}, {"special", true}});
    for (int byte = 0; byte < byte_values; ++byte) vocabulary[visible(static_cast<unsigned char>(byte))] = byte;
    const ordered_json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
    const ordered_json model = {{"type", "BPE"}, {"dropout", nullptr}, {"unk_token", nullptr}, {"continuing_subword_prefix", nullptr},
                                {"end_of_word_suffix", nullptr}, {"fuse_unk", false}, {"byte_fallback", false}, {"vocab", vocabulary},
                                {"merges", ordered_json::array()}};
    const ordered_json file = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"added_tokens", added},
                               {"normalizer", nullptr}, {"pre_tokenizer", byte_level}, {"post_processor", nullptr},
                               {"decoder", byte_level}, {"model", model}};
    return written(file, 1) + "\n";
}

std::string plain_tokenizer_config_json(const std::string& end_of_text) {
    const ordered_json file = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"bos_token", end_of_text}, {"eos_token", end_of_text},
                               {"unk_token", nullptr}, {"add_prefix_space", false},
                               {"clean_up_tokenization_spaces", false}};   // true would change the text on decoding ("a ." to "a.")
    return written(file, 2) + "\n";
}
