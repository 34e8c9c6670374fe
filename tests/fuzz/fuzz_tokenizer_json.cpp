// libFuzzer target: any JSON as a change (merge patch, RFC 7396) to a sound tokenizer.json, and any other bytes as a whole one.
// The file is refused with an Error, or makes a tokenizer that encodes to ids of its vocabulary and decodes.
#include <cstdint>
#include <cstdlib>

#include "model/base/error.h"
#include "tests/tokenizer_files.h"

static std::string changed(const std::string& text) {
    const nlohmann::json patch = nlohmann::json::parse(text, nullptr, false);
    if (!patch.is_object()) return text;
    nlohmann::json file = small_tokenizer();
    file.merge_patch(patch);
    return file.dump();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    try {
        const auto tokenizer = make_bpe_tokenizer(changed(std::string(reinterpret_cast<const char*>(data), size)), "", "fuzz");
        const std::vector<uint32_t> ids = ids_of(*tokenizer, "The 1st e\u0301 abcabc  \n\t x<think>'s \xFF");
        for (const uint32_t id : ids)
            if (id >= static_cast<uint32_t>(tokenizer->vocabulary())) std::abort();
        text_of(*tokenizer, ids);
    } catch (const Error&) {
    }
    return 0;
}
