// libFuzzer: any bytes are either refused with an Error or give tensors whose every number can be read.
#include <vector>

#include "model/base/error.h"
#include "model/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    try {
        for (const StoredTensor& tensor : parse_safetensors(std::as_bytes(std::span(data, size)), "fuzz")) {
            if (tensor.dtype[0] != 'F' && tensor.dtype[0] != 'B') continue;
            std::vector<float> out(tensor.count);
            convert_to_float(tensor, out.data(), "fuzz");
        }
    } catch (const Error&) {
    }
    return 0;
}
