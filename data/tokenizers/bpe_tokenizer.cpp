// The byte-level BPE tokenizer of a Hugging Face tokenizer.json: GPT-2, Qwen2, Qwen2.5, Qwen3 and similar.
#include <algorithm>
#include <mutex>
#include <optional>

#include "data/tokenizers/bpe.h"
#include "data/tokenizers/nfc.h"
#include "data/tokenizers/pretokenizer.h"
#include "data/tokenizers/tokenizer.h"
#include "data/tokenizers/tokenizer_json.h"
#include "data/tokenizers/utf8.h"
#include "model/base/error.h"

namespace {

// Temporaries of one call of encode(). Tokenizers pool them, so that their caches stay warm.
struct EncodeScratch {
    std::string valid, normalized, prefixed;
    MatchScratch match;
    MergeScratch merge;
};

class ScratchPool {
public:
    std::unique_ptr<EncodeScratch> take() {
        const std::lock_guard lock(mutex_);
        if (unused_.empty()) return std::make_unique<EncodeScratch>();
        std::unique_ptr<EncodeScratch> scratch = std::move(unused_.back());
        unused_.pop_back();
        return scratch;
    }
    void give_back(std::unique_ptr<EncodeScratch> scratch) {
        const std::lock_guard lock(mutex_);
        unused_.push_back(std::move(scratch));
    }

private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<EncodeScratch>> unused_;   // at most one per concurrent caller
};

// Tokens found in a text by their spelling, such as <think>: the leftmost match, and of several there the longest. One that is added as
// text stays text, and no other token is found within it.
class AddedTokens {
public:
    static constexpr uint32_t as_text = UINT32_MAX;   // in place of an id

    void add(const std::string& content, uint32_t id) {
        auto& tokens = by_first_byte_[static_cast<unsigned char>(content[0])];
        tokens.emplace_back(content, id);
        const auto longer = [](const Token& a, const Token& b) { return a.first.size() > b.first.size(); };
        std::sort(tokens.begin(), tokens.end(), longer);
        empty_ = false;
    }

    /// Calls token(id) for the tokens found and text(part) for the non-empty parts between them, in order.
    template <class Text, class Token>
    void split(std::string_view whole, const Text& text, const Token& token) const {
        size_t done = 0;
        const auto text_until = [&](size_t end) {
            if (end > done) text(whole.substr(done, end - done));
        };
        for (size_t at = 0; !empty_ && at < whole.size();) {
            const auto* found = longest_at(whole.substr(at));
            if (!found || found->second == as_text) {
                at += found ? found->first.size() : 1;
                continue;
            }
            text_until(at);
            token(found->second);
            done = at += found->first.size();
        }
        text_until(whole.size());
    }

private:
    using Token = std::pair<std::string, uint32_t>;

    const Token* longest_at(std::string_view text) const {
        const std::vector<Token>& tokens = by_first_byte_[static_cast<unsigned char>(text[0])];
        const auto fits = [&](const Token& token) { return text.starts_with(token.first); };
        const auto found = std::find_if(tokens.begin(), tokens.end(), fits);
        return found == tokens.end() ? nullptr : &*found;
    }

    std::array<std::vector<Token>, 256> by_first_byte_;   // longest first
    bool empty_ = true;
};

std::unordered_map<std::string, uint32_t> whole_pieces(const TokenizerFile& file) {
    std::unordered_map<std::string, uint32_t> pieces;
    if (!file.ignores_merges) return pieces;
    for (const auto& [token, id] : file.vocabulary)
        if (const std::optional<std::string> bytes = visible_to_bytes(token)) pieces.emplace(*bytes, id);
    for (const AddedToken& token : file.added)
        if (token.special) pieces.erase(token.content);
    return pieces;
}

class BpeTokenizer : public Tokenizer {
public:
    BpeTokenizer(const TokenizerFile& file, uint32_t end_of_text, std::string text, std::string config, const std::string& path)
        : path_(path),
          json_(std::move(text)),
          config_(std::move(config)),
          normalizes_(file.normalizes),
          adds_prefix_space_(file.adds_prefix_space),
          end_of_text_(end_of_text),
          pretokenizer_(file.patterns, path + ": pre_tokenizer"),
          encoder_(file.byte_ids, file.merges, whole_pieces(file)) {
        for (const auto& [token, id] : file.vocabulary) set_bytes(id, visible_to_bytes(token).value_or(token));
        for (const AddedToken& token : file.added) add(token);
    }

    void encode(std::string_view text, std::vector<uint32_t>& ids) const override {
        std::unique_ptr<EncodeScratch> scratch = pool_.take();
        if (valid_prefix(text) < text.size()) {
            scratch->valid = replace_invalid_utf8(text);
            text = scratch->valid;
        }
        const auto token = [&](uint32_t id) { ids.push_back(id); };
        const auto normalize = [&](std::string_view part) {
            if (normalizes_) part = nfc(part, scratch->normalized);
            normalized_tokens_.split(part, [&](std::string_view piece) { encode_text(piece, *scratch, ids); }, token);
        };
        raw_tokens_.split(text, normalize, token);
        pool_.give_back(std::move(scratch));
    }

    std::string decode(std::span<const int32_t> ids) const override {
        std::string text;
        for (const int32_t id : ids) {
            if (id >= 0 && id < vocabulary()) text += token_bytes_[id];
            else text += "\xEF\xBF\xBD";   // U+FFFD: a model may have more ids than its tokenizer
        }
        return text;
    }

    int vocabulary() const override { return static_cast<int>(token_bytes_.size()); }
    uint32_t end_of_text() const override { return end_of_text_; }
    int bytes(uint32_t id) const override { return id < token_bytes_.size() ? static_cast<int>(token_bytes_[id].size()) : 0; }
    std::string name() const override { return path_; }
    std::string json() const override { return json_; }
    std::string config_json() const override { return config_; }

private:
    void set_bytes(uint32_t id, const std::string& bytes) {
        if (token_bytes_.size() <= id) token_bytes_.resize(id + 1);
        token_bytes_[id] = bytes;
    }

    void add(const AddedToken& token) {
        set_bytes(token.id, token.special ? "" : token.content);
        const uint32_t id = token.special ? AddedTokens::as_text : token.id;
        if (!token.normalized) return raw_tokens_.add(token.content, id);
        if (normalizes_ && !knows_nfc(token.content)) return;   // then encode() refuses any text that contains it
        std::string buffer;
        normalized_tokens_.add(normalizes_ ? std::string(nfc(token.content, buffer)) : token.content, id);
    }

    void encode_text(std::string_view text, EncodeScratch& scratch, std::vector<uint32_t>& ids) const {
        if (adds_prefix_space_ && text[0] != ' ') {
            scratch.prefixed.assign(1, ' ').append(text);
            text = scratch.prefixed;
        }
        pretokenizer_.split(text, scratch.match, [&](std::string_view piece) { encoder_.encode(piece, scratch.merge, ids); });
    }

    std::string path_, json_, config_;
    bool normalizes_, adds_prefix_space_;
    uint32_t end_of_text_;
    Pretokenizer pretokenizer_;
    BytePairEncoder encoder_;
    AddedTokens raw_tokens_, normalized_tokens_;   // raw ones take precedence, even if shorter; special ones are added as text
    std::vector<std::string> token_bytes_;         // by id
    mutable ScratchPool pool_;
};

// The token that precedes documents. It never stands for text, even if the file does not mark it special.
AddedToken& find_end_of_text(std::vector<AddedToken>& added, const std::string& config, const std::string& path) {
    const std::string of_config = config.empty() ? "" : eos_token_of_config(config, path + ": its tokenizer_config.json");
    for (const std::string& name : {std::string("<|endoftext|>"), of_config})
        for (AddedToken& token : added)
            if (token.content == name) return token;
    fail(Exit::data, path, ": added_tokens has no token <|endoftext|>",
         of_config.empty() ? ", and no tokenizer_config.json next to it names an eos_token" : " and no eos_token " + of_config,
         "; one of them is needed to precede every document");
}

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(std::string text, std::string config, const std::string& path) {
    TokenizerFile file = parse_tokenizer_json(text, path);
    AddedToken& end_of_text = find_end_of_text(file.added, config, path);
    end_of_text.special = true;
    if (config.empty()) config = plain_tokenizer_config_json(end_of_text.content);
    return std::make_unique<BpeTokenizer>(file, end_of_text.id, std::move(text), std::move(config), path);
}
