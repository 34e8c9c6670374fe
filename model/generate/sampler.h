// The next token from logits.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "model/base/splitmix64.h"

struct Sampling {
    double temperature = 1;   // 0: the likeliest token
    int top_k = 0;            // 0: all tokens
    double top_p = 1;         // the likeliest tokens whose probabilities sum to top_p
    uint64_t seed = 1;
};

/// A uniform variate in [0, 1) that depends only on (seed, index).
inline double uniform(uint64_t seed, uint64_t index) {
    return splitmix64::uniform(splitmix64::mix(seed * splitmix64::INCREMENT + (index + 1) * 0xbf58476d1ce4e5b9ull));
}

inline constexpr int32_t NO_TOKEN = -1;

/// Samples a token from softmax(logits (vocabulary) / temperature) after top-k and top-p; ties keep the tokens that come first. `index`
/// counts the samples. NO_TOKEN if a logit is NaN or the largest is infinite. Only the tokens that top-p needs are sorted: a full sort of
/// 50,000 logits takes longer than a GPU's pass.
template <class X>
int32_t sample_token(const X* logits, int vocabulary, const Sampling& how, uint64_t index) {
    const int32_t likeliest = int32_t(std::max_element(logits, logits + vocabulary) - logits);
    const bool numbers = std::none_of(logits, logits + vocabulary, [](X logit) { return std::isnan(logit); });
    if (!numbers || std::isinf(logits[likeliest])) return NO_TOKEN;
    if (how.temperature <= 0) return likeliest;
    std::vector<int32_t> kept(vocabulary);
    std::iota(kept.begin(), kept.end(), 0);
    const auto likelier = [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
    int in_order = 0;   // tokens at the front of `kept` that are the likeliest, in order
    const auto sort_front = [&](int count) {
        const int all = int(kept.size());
        if (count > all / 8) count = all;   // one full sort is faster than a growing part
        if (count < all) std::nth_element(kept.begin() + in_order, kept.begin() + count - 1, kept.end(), likelier);
        std::sort(kept.begin() + in_order, kept.begin() + count, likelier);
        in_order = count;
    };
    if (how.top_k > 0 && how.top_k < vocabulary) {
        sort_front(how.top_k);
        kept.resize(how.top_k);
    }
    std::vector<double> weight(kept.size());
    const auto weigh = [&](int from, int to) {
        for (int n = from; n < to; n++)
            weight[n] = std::exp((double(logits[kept[n]]) - double(logits[likeliest])) / how.temperature);
    };
    weigh(0, int(kept.size()));
    double mass = std::accumulate(weight.begin(), weight.end(), 0.0);
    if (how.top_p < 1) {
        const double enough = how.top_p * mass;
        int count = 0;
        for (mass = 0; count < int(kept.size()) && (count == 0 || mass < enough); mass += weight[count++])
            if (count == in_order) {
                sort_front(std::min(int(kept.size()), std::max(64, 4 * count)));
                weigh(count, in_order);
            }
        kept.resize(count);
    }
    double left = uniform(how.seed, index) * mass;
    for (size_t n = 0; n < kept.size(); n++)
        if ((left -= weight[n]) < 0) return kept[n];
    return kept.back();
}
