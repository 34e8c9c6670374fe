// Tokens found in a text by their spelling, such as <think>: the leftmost match, and of several there the longest. One that is added as
// text stays text, and no other token is found within it.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
