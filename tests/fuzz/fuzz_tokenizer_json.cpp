// libFuzzer target: any text as a tokenizer.json. It is refused with an Error, or makes a tokenizer that encodes and decodes.
#include <cstdint>
#include <cstdlib>

#include "data/bpe_tokenizer.h"
#include "model/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    try {
        const auto tokenizer = make_bpe_tokenizer(std::string(reinterpret_cast<const char*>(data), size), "", "fuzz");
        std::vector<uint32_t> ids;
        tokenizer->encode("The 1st e\u0301 abcabc  \n\t x<think>'s \xFF", ids);
        for (const uint32_t id : ids)
            if (id >= static_cast<uint32_t>(tokenizer->vocabulary())) std::abort();
        tokenizer->decode(std::vector<int32_t>(ids.begin(), ids.end()));
    } catch (const Error&) {
    }
    return 0;
}
