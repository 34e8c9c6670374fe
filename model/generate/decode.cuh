// Decoding with a KV cache, on the CPU: one pass over the prompt, then one per new token, against the keys and values cached by
// each layer. Variants that cannot decode from a cache (LayerFacts::decodes_from_cache) recompute the whole text for every token,
// and so do all variants once the text is longer than the model's positions.
#pragma once
#include <algorithm>
#include <optional>
#include <vector>

#include "attention/inference/reader.h"
#include "model/generate/sampler.h"
#include "model/gpt.h"
#include "model/run/feed.cuh"

/// One layer's cache: keys after RoPE and values, (capacity, NKV, HS) each.
template <class X>
struct LayerCache {
    std::vector<X> k, v;
    std::optional<PsaBlocks<X>> blocks;   // with PSA
};

/// Bytes of the cache for T tokens; PSA's metadata takes up to two more rows per block.
template <class X>
size_t cache_bytes(const Config& c, int T, const Inference& how) {
    const size_t row = size_t(c.NKV) * c.HS * sizeof(X);
    const size_t blocks = how.attention == InferenceAttention::psa ? T / how.psa.block + 1 : 0;
    return c.L * row * (2 * size_t(T) + 2 * blocks);
}

/// A model that continues one text.
template <class X>
class Decoder {
public:
    Decoder(GPT<CPU, X>& gpt, const Inference& how)
        : gpt_(gpt),
          how_(how),
          feed_(1, gpt.T, gpt.net.config.V),
          cached_(gpt.net.all(&LayerFacts::decodes_from_cache)),
          causal_(gpt.net.config, 0),
          positions_(gpt.net.config.NH) {
        const Config& c = gpt.net.config;
        feed_.allocate(CPU{});
        if (!cached_) return;
        layers_.resize(c.L);
        for (LayerCache<X>& layer : layers_) {
            layer.k.resize(size_t(gpt.T) * c.NKV * c.HS), layer.v.resize(layer.k.size());
            if (how.attention == InferenceAttention::psa) layer.blocks.emplace(how.psa, c.NKV, c.HS);
        }
    }

    /// Precondition: `ids` extends the ids of the previous call. Logits (V) of the token after `ids`; valid until the next call.
    const X* logits_after(const std::vector<int32_t>& ids) {
        const int T = int(std::min<size_t>(ids.size(), gpt_.T));
        if (!cached_ || ids.size() > size_t(gpt_.T)) {
            gpt_forward(CPU{}, gpt_, feed_.put(CPU{}, ids.data() + ids.size() - T, nullptr, 1, T));
            return gpt_logits(CPU{}, gpt_, T - 1, 1);
        }
        if (cached_tokens_ == 0) append(ids.data(), T);
        while (cached_tokens_ < T) append(ids.data() + cached_tokens_, 1);
        return gpt_logits(CPU{}, gpt_, last_row_, 1);
    }

    /// What the mechanism has read so far.
    const InferenceCount& read() const { return read_; }

private:
    /// Appends T tokens to those in the cache: the whole prompt, or one.
    void append(const int32_t* tokens, int T) {
        const size_t angle = size_t(cached_tokens_) * (gpt_.net.config.HS / 2);
        const RowsOfTexts<X> text{{gpt_.cosine[0] + angle, gpt_.sine[0] + angle},
                                  [this](int l, int rows) { return attend(l, rows), rows; }};
        gpt_forward(CPU{}, gpt_, feed_.put(CPU{}, tokens, nullptr, 1, T), nullptr, &text);
        cached_tokens_ += T;
        last_row_ = T - 1;
    }

    void attend(int l, int T) {
        LayerState<X>& state = gpt_.layers[l].attention;
        const LayerInputs<X> in = attention_inputs(gpt_, l, 1, T);
        keep(layers_[l], in);
        AttentionForward<X> a = kernel_arguments(in, state, Statistics<X>{});
        if (cached_tokens_ == 0) return prefill(l, in, state, a);

        const size_t row = size_t(in.NKV) * in.HS;
        std::fill(positions_.begin(), positions_.end(), cached_tokens_);
        a.S = cached_tokens_ + 1;
        a.k = {layers_[l].k.data(), row}, a.v = {layers_[l].v.data(), row};
        a.q_position = positions_.data();
        if (layers_[l].blocks) read_.psa.add(psa_attention(causal_, a, *layers_[l].blocks, how_.psa.eps));
        else cpu_passes_of<X>(*gpt_.net.layers[l].attention).attend_row(a);
    }

    void prefill(int l, const LayerInputs<X>& in, LayerState<X>& state, const AttentionForward<X>& a) {
        if (how_.attention == InferenceAttention::adaspa) read_.adaspa.add(adaspa_forward(CPU{}, causal_, a, how_.adaspa));
        else gpt_.attention(l).forward(CPU{}, in, gpt_.weights, state, gpt_.scratch.attention, {});
    }

    /// Caches the keys and values of in.T tokens.
    void keep(LayerCache<X>& layer, const LayerInputs<X>& in) const {
        const size_t row = size_t(in.NKV) * in.HS;
        for (int t = 0; t < in.T; t++) {
            const size_t to = (cached_tokens_ + t) * row;
            std::copy_n(in.k + t * in.qk_row, row, &layer.k[to]);
            std::copy_n(in.v + t * in.v_row, row, &layer.v[to]);
            if (layer.blocks) layer.blocks->append(&layer.k[to]);
        }
    }

    GPT<CPU, X>& gpt_;
    Inference how_;
    BatchFeed<CPU> feed_;
    bool cached_;
    int cached_tokens_ = 0, last_row_ = 0;
    Policy causal_;   // what PSA and AdaSpa approximate
    std::vector<LayerCache<X>> layers_;
    std::vector<int> positions_;   // (NH) of the token being decoded
    InferenceCount read_;
};

/// Precondition: `ids` is not empty. Appends `count` tokens to it, the same as generate() would.
template <class X>
void generate_with_cache(Decoder<X>& decoder, int V, std::vector<int32_t>& ids, int count, const Sampling& how) {
    for (int n = 0; n < count; n++) ids.push_back(sample_token(decoder.logits_after(ids), V, how, n));
}
