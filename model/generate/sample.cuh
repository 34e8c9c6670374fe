// Text from a model that is being trained.
#pragma once
#include "model/base/process.h"
#include "model/generate/decode.cuh"

/// Appends `count` tokens to `ids`, which is not empty, by decode (decode.cuh) in memory of its own (sample_bytes()). Documents are not
/// kept apart: text after an end-of-text token sees the text before it.
template <class Device, class X>
void sample_text(Device device, GPT<Device, X>& gpt, std::vector<int32_t>& ids, int count, const Sampling& how) {
    Decoder<Device, X> decoder(device, gpt);
    decoder.allocate();
    const auto* logits = decoder.begin(0, ids);
    for (int n = 0; n < count && !stop_requested(); n++) {
        if (n > 0) logits = decoder.next({{0, &ids}});
        const int32_t token = sample_token(logits, decoder.vocabulary(), how, n);
        if (token == NO_TOKEN) return;   // the next step reports damaged weights
        ids.push_back(token);
    }
}

/// Bytes on the device for a text of gpt.T tokens.
template <class Device, class X>
size_t sample_bytes(Device device, GPT<Device, X>& gpt) {
    const Decoder<Device, X> decoder(device, gpt);
    return decoder.cache_bytes() + decoder.row_bytes();
}
