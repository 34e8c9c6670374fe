// Sampling text from a model, token by token.
#pragma once
#include <algorithm>
#include <vector>

#include "model/generate/sampler.h"
#include "model/gpt.h"
#include "model/run/feed.cuh"

/// Precondition: `ids` is not empty. Appends `count` tokens to it, each by a forward pass over at most the last gpt.T tokens;
/// without a cache, as every variant is trained. Documents are not kept apart: text behind an end-of-text sees what is before it.
template <class Device, class X>
void generate(Device device, GPT<Device, X>& gpt, std::vector<int32_t>& ids, int count, const Sampling& how) {
    BatchFeed<Device> feed(1, gpt.T, gpt.net.config.V);
    feed.allocate(device);
    std::vector<X> logits(gpt.net.config.V);
    std::vector<Wide<X>> wide(logits.size());
    for (int n = 0; n < count; n++) {
        const int T = int(std::min<size_t>(ids.size(), gpt.T));
        gpt_forward(device, gpt, feed.put(device, ids.data() + ids.size() - T, nullptr, 1, T));
        to_host(device, logits.data(), gpt_logits(device, gpt, T - 1, 1), logits.size());
        std::transform(logits.begin(), logits.end(), wide.begin(), widened<X>);
        ids.push_back(sample_token(wide.data(), gpt.net.config.V, how, n));
    }
}
