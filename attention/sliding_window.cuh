// Sliding window attention (Beltagy, Peters and Cohan 2020, "Longformer", its form for language models; Child et al. 2019).
//     z_ij = q_i.k_j / sqrt(HS)   for i - left <= j <= i
// The source counts w keys per query; here --window is the reach to the left, so a query sees left + 1 keys, including its own.
// Hugging Face's sliding_window is the count: config.json has left + 1 there, and transformers opens the folder unchanged.
// Left out: windows that grow with depth or are dilated in some heads. Every layer and head has the same window. After L layers a
// token receives information from the L * left tokens before it.
#pragma once
#include "attention/kernel/layer.h"

struct sliding_window : Policy {
    static constexpr const char* name = "sliding_window";
    int left;

    sliding_window(const Config& config, int layer) : Policy(config, layer), left(int(config.setting("attention_window"))) {}

    static std::vector<Setting> settings() {
        return {{"--window", "attention_window", 256, 0, 1e9, WHOLE, "left reach in tokens: query i sees keys i-N..i", true}};
    }

    constexpr Tile tile(int, int i0, int i1, int j0, int j1) const { return window_tile(left, i0, i1, j0, j1); }
    constexpr bool visible(int, int i, int j) const { return j <= i && i - j <= left; }
    constexpr KeptKeys kept_keys() const { return {0, left + 1}; }

    template <class X>
    void naive(const LayerInputs<X>& in, const X* /*weights*/, X* out) const {
        dense_softmax(in, out, [&](int, int i, int j) { return j <= i && j >= i - left; });
    }
};
