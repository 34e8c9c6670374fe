// How likely a model finds given tokens behind others.
#pragma once
#include <algorithm>
#include <numeric>
#include <vector>

#include "data/evaluation.h"
#include "model/feed.cuh"
#include "model/gpt.cuh"

/// Log-likelihoods, in nats, of up to gpt.B answers behind their contexts. They are padded at the end to one length, which rows
/// before it cannot see; the head is applied to the rows that predict tokens of answers alone.
template <class Device, class X, class A>
std::vector<double> log_likelihoods(Device device, GPT<Device, X, A>& gpt, Feed<Device>& feed,
                                    const std::vector<const Answer*>& answers) {
    const Config& c = gpt.net.config;
    const int B = int(answers.size());
    int T = 1;
    for (const Answer* answer : answers) T = std::max(T, int(answer->tokens.size()) - 1);
    std::vector<int32_t> tokens(size_t(B) * T, 0), rows, targets;
    for (int b = 0; b < B; b++) {
        const std::vector<int32_t>& ids = answers[b]->tokens;
        std::copy(ids.begin(), ids.end() - 1, tokens.begin() + size_t(b) * T);
        for (int t = answers[b]->begin; t < int(ids.size()); t++) rows.push_back(b * T + t - 1), targets.push_back(ids[t]);
    }
    const int n = int(rows.size());
    std::vector<Wide<X>> losses(n);
    gpt_forward(device, gpt, feed.put(device, tokens.data(), nullptr, B, T));
    X* const normed = gpt.scratch.branch;   // (n, C), the rows picked out as an embedding picks out those of its table
    embedding_forward(device, normed, feed.put(device, rows.data(), nullptr, 1, n).tokens, gpt.final_normed, n, c.C);
    const int32_t* const next = feed.put(device, targets.data(), nullptr, 1, n).tokens;
    for (int row = 0; row < n; row += gpt.logit_rows()) {
        const int here = std::min(gpt.logit_rows(), n - row);
        linear_forward(device, gpt.scratch.logits, normed + size_t(row) * c.C, gpt.weights + gpt.net.head.offset,
                       static_cast<const X*>(nullptr), here, c.C, c.V);
        cross_entropy(device, gpt.scratch.losses + row, gpt.scratch.logits, next + row, here, c.V, Wide<X>(0));
    }
    to_host(device, losses.data(), gpt.scratch.losses, n);
    std::vector<double> sums;
    for (const Wide<X>* loss = losses.data(); const Answer* answer : answers)
        sums.push_back(-std::accumulate(loss, loss + answer->length(), 0.0)), loss += answer->length();
    return sums;
}
