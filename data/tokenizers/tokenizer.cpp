#include "data/tokenizers/tokenizer.h"

#include <filesystem>

#include "data/files.h"
#include "data/tokenizers/tokenizer_json.h"
#include "model/base/error.h"

namespace {

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
    std::string json() const override { return bytes_tokenizer_json(bytes_vocabulary, end_of_text_name); }
    std::string config_json() const override { return plain_tokenizer_config_json(end_of_text_name); }
};

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& what) {
    namespace fs = std::filesystem;
    if (what == "bytes") return std::make_unique<BytesTokenizer>();
    std::error_code ignored;
    const fs::path file = fs::is_directory(what, ignored) ? fs::path(what) / "tokenizer.json" : fs::path(what);
    if (!fs::exists(file, ignored))
        fail(Exit::usage, "tokenizer '", what, "' is not known; give bytes, a Hugging Face tokenizer.json, or a folder ",
             "that has one (", file.string(), " does not exist)");
    const std::string path = file.string(), config = fs::path(file).replace_extension().string() + "_config.json";   // of x_tokenizer.json
    const bool has_config = path.ends_with("tokenizer.json") && fs::exists(config);
    return make_bpe_tokenizer(read_small_file(path), has_config ? read_small_file(config) : "", path);
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& what, int model_vocabulary) {
    std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(what);
    if (what != "bytes" && tokenizer->vocabulary() > model_vocabulary)   // a model for bytes may omit the unused ids
        fail(Exit::data, tokenizer->name(), ": has ", tokenizer->vocabulary(), " ids, and the model's vocabulary is ",
             model_vocabulary, "; use the tokenizer that the model was made for, or a model with a larger vocabulary");
    return tokenizer;
}

bool same_tokenizer(const std::string& a, const std::string& b) {
    const auto is_file = [](const std::string& name) { return !name.empty() && name != "bytes"; };
    return a == b || (is_file(a) && is_file(b) && file_hash(a) == file_hash(b));
}
