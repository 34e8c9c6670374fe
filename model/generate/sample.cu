#include "model/generate/sample.h"

#include "model/base/process.h"
#include "model/generate/decode.cuh"

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

template <class Device, class X>
size_t sample_bytes(Device device, GPT<Device, X>& gpt) {
    const Decoder<Device, X> decoder(device, gpt);
    return decoder.cache_bytes() + decoder.row_bytes();
}

#define INSTANTIATE(Device, X)                                                                                       \
    template void sample_text(Device, GPT<Device, X>&, std::vector<int32_t>&, int, const Sampling&);                 \
    template size_t sample_bytes(Device, GPT<Device, X>&);
#ifdef WITH_GPU
#ifdef GPU_FLOAT32
INSTANTIATE(GPU, float)
#endif
INSTANTIATE(GPU, bf16)
#else
INSTANTIATE(CPU, float)
INSTANTIATE(CPU, double)
#endif
