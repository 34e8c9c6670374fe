// libFuzzer target: any bytes as text (run from the repository's root). What GPT-2's rules encode decodes to the text again, with
// U+FFFD for what is no UTF-8; what Qwen's rules encode, to its NFC form, which encodes to the same ids. The library utf8proc
// normalises whole texts too: nfc(), which looks for the places that need it, must agree.
#include <utf8proc.h>

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "data/tokenizers/nfc.h"
#include "data/tokenizers/tokenizer.h"

namespace {

std::vector<int32_t> encoded(const Tokenizer& tokenizer, std::string_view text) {
    std::vector<uint32_t> ids;
    tokenizer.encode(text, ids);
    return {ids.begin(), ids.end()};
}

std::string nfc_by_utf8proc(const std::string& text) {
    utf8proc_uint8_t* form = nullptr;
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    const auto* units = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
    const auto bytes = utf8proc_map(units, static_cast<utf8proc_ssize_t>(text.size()), &form, options);
    if (bytes < 0) std::abort();
    const std::string result(reinterpret_cast<const char*>(form), static_cast<size_t>(bytes));
    std::free(form);
    return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const auto gpt2 = open_tokenizer("tests/fixtures/tokenizers/gpt2_tokenizer.json");
    static const auto qwen = open_tokenizer("tests/fixtures/tokenizers/qwen_tokenizer.json");
    const std::string text(reinterpret_cast<const char*>(data), size), valid = replace_invalid_utf8(text);
    if (gpt2->decode(encoded(*gpt2, text)) != valid) std::abort();

    std::string buffer;
    const std::string form(nfc(valid, buffer));
    if (form != nfc_by_utf8proc(valid)) std::abort();
    if (text.find('<') != std::string::npos) return 0;   // an added token would be a border over which nothing composes
    const std::vector<int32_t> ids = encoded(*qwen, text);
    if (qwen->decode(ids) != form || encoded(*qwen, form) != ids) std::abort();
    return 0;
}
