// StreamingLLM (Xiao et al. 2023, arXiv 2309.17453): a window plus the first few tokens. Trained models put much of their attention
// on the first tokens, whatever these are ("attention sinks", since a softmax must put its mass somewhere). With a window alone the
// model loses them and breaks down; with both it does not. The cache of a decoder then has a fixed size.
//     z_ij = q_i.k_j / sqrt(HS)   for j <= i and (j < s or i - j <= left)
// The source counts a recent window of w keys; here --window is the reach to the left, w = left + 1. Its s is 4.
// Positions are those of the text (mask only): RoPE sees the true distance to a sink.
#pragma once
#include "attention/kernel/layer.h"
#include "attention/masks/pattern.h"

struct sinks : LeadingAndWindow {   // the mask
    static constexpr const char* name = "sinks";

    sinks(const Config& config, int layer)   // s leading tokens
        : LeadingAndWindow(config, layer, int(config.setting("sinks_tokens")), int(config.setting("attention_window"))) {}

    static std::vector<Setting> settings() {
        return {{"--sinks", "sinks_tokens", 4, 0, 1e9, WHOLE, "sink tokens: leading tokens that every later token sees", true},
                {"--window", "attention_window", 256, 0, 1e9, WHOLE, "left reach in tokens: query i sees keys i-N..i", true}};
    }

    template <class X>
    void naive(const LayerInputs<X>& in, const X* /*weights*/, X* out) const {
        auto kept = [&](int, int i, int j) {
            const bool sink = j >= 0 && j < leading, recent = j >= i - left;
            return j <= i && (sink || recent);
        };
        dense_softmax(in, out, kept);
    }
};
