// The next token from logits.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

struct Sampling {
    double temperature = 1;   // 0: the likeliest token
    int top_k = 0;            // 0: all tokens
    double top_p = 1;         // the likeliest tokens whose probabilities sum to top_p
    uint64_t seed = 1;
};

/// A uniform variate in [0, 1) that depends only on (seed, index).
inline double uniform(uint64_t seed, uint64_t index) {
    uint64_t z = seed * 0x9e3779b97f4a7c15ull + (index + 1) * 0xbf58476d1ce4e5b9ull;   // splitmix64's finaliser
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return double((z ^ (z >> 31)) >> 11) / double(1ull << 53);
}

/// A token sampled from softmax(logits (vocabulary) / temperature) after top-k and top-p; `index` counts the samples.
template <class X>
int32_t sample_token(const X* logits, int vocabulary, const Sampling& how, uint64_t index) {
    std::vector<int32_t> order(vocabulary);
    std::iota(order.begin(), order.end(), 0);
    auto likelier = [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
    if (how.temperature <= 0) return *std::min_element(order.begin(), order.end(), likelier);
    std::sort(order.begin(), order.end(), likelier);
    if (how.top_k > 0 && how.top_k < vocabulary) order.resize(how.top_k);
    std::vector<double> weight(order.size());
    for (size_t n = 0; n < order.size(); n++)
        weight[n] = std::exp((double(logits[order[n]]) - double(logits[order[0]])) / how.temperature);
    const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
    size_t kept = 0;
    double mass = 0;
    while (kept < weight.size() && (kept == 0 || mass < how.top_p * total)) mass += weight[kept++];
    double left = uniform(how.seed, index) * mass;
    for (size_t n = 0; n < kept; n++)
        if ((left -= weight[n]) < 0) return order[n];
    return order[kept - 1];
}
