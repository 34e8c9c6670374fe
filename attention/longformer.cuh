// Longformer (Beltagy, Peters and Cohan 2020, arXiv 2004.05150): a window, and a few global tokens that see and are seen by all.
//     z_ij = q_i.k_j / sqrt(HS)   for j <= i and (i - j <= left or j is global or i is global)
// The paper leaves the choice of global tokens to the task and uses none in its language models. Here they are the first g tokens:
// the set must depend on positions alone, or a row would depend on later tokens. Under the causal mask a global row i < g
// sees keys j <= i < g only, which are global themselves: global rows are dense without a rule of their own.
// Left out: the separate projections Wq_g, Wk_g and Wv_g for global rows. They need a second pass with other queries, keys and
// values, for the g rows that in a causal model have the shortest past; here all rows share the projections, and the pattern is
// only a mask. The paper counts w keys per window; --window is the reach to the left, w = left + 1.
#pragma once
#include "attention/kernel/layer.h"
#include "attention/masks/pattern.h"

struct longformer : LeadingAndWindow {   // the mask
    static constexpr const char* name = "longformer";

    longformer(const Config& config, int layer)   // g leading tokens
        : LeadingAndWindow(config, layer, int(config.setting("longformer_globals")), int(config.setting("attention_window"))) {}

    static std::vector<Setting> settings() {
        return {{"--global-tokens", "longformer_globals", 64, 0, 1e9, WHOLE, "leading tokens that every later token sees", true},
                {"--window", "attention_window", 256, 0, 1e9, WHOLE, "left reach in tokens: query i sees keys i-N..i", true}};
    }

    template <class X>
    void naive(const LayerInputs<X>& in, const X* /*weights*/, X* out) const {
        auto sees = [&](int, int i, int j) { return j <= i && (j >= i - left || j < leading || i < leading); };
        dense_softmax(in, out, sees);
    }
};
