// Text from a model, token by token.
#pragma once
#include <algorithm>
#include <vector>

#include "model/run/feed.cuh"
#include "model/gpt.h"
#include "model/generate/sampler.h"

/// Appends `count` tokens to `ids` (at least one). Each comes from a forward pass over the last gpt.T tokens at most; nothing is
/// cached between passes, so that every variant can be sampled as it is trained.
template <class Device, class X>
void generate(Device device, GPT<Device, X>& gpt, std::vector<int32_t>& ids, int count, const Sampling& how) {
    Feed<Device> feed(1, gpt.T, gpt.net.config.V);
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
