// Decode on the CPU: one pass over each prompt (prefill), then one pass per new token over a row of each text, which reads the weights once
// for all of them. A row attends to each layer's KV cache (attention/variant.h: LayerText). Variants with a layer that cannot decode row by
// row (LayerFacts::writes_row_by_row) read the whole text again for every token, and so do all variants once the text is longer than the
// model's positions.
#pragma once
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "attention/inference/reader.h"
#include "model/generate/write_texts.h"
#include "model/gpt.h"
#include "model/run/feed.cuh"

/// A causal layer whose next tokens read by PSA.
template <class X>
class PsaText final : public LayerText<X> {
public:
    PsaText(const PsaOptions& how, const LayerShape& room, PsaCount& count) : how_(how), room_(room), count_(count) { lay_out(); }

    void begin(const LayerInputs<X>& in, const X*, const LayerState<X>& state) override {
        this->forget();
        keep(kernel_arguments(in, state, Statistics<X>{}));
    }
    void next(const LayerInputs<X>& in, const X*, LayerState<X>& state) override {
        AttentionForward<X> a = kernel_arguments(in, state, Statistics<X>{});
        keep(a);
        const KeySpan<X> all = keys_->span(0, 0, keys_->tokens());
        a.S = keys_->tokens(), a.k = all.k, a.v = all.v;
        count_.add(psa_attention(causal_, a, *blocks_, how_.eps));
    }

private:
    void lay_out() override {
        keys_.emplace(this->memory_, TextRoom{room_}, 0, KeptKeys{});
        blocks_.emplace(how_, room_.NKV, room_.HS);
    }
    void keep(const AttentionForward<X>& a) {
        keys_->append(a);
        for (int t = 0; t < a.S; t++) blocks_->append(a.k.data + t * a.k.row);
    }

    PsaOptions how_;
    LayerShape room_;
    PsaCount& count_;
    Policy causal_{Config{}, 0};
    std::optional<KeyCache<X>> keys_;
    std::optional<PsaBlocks<X>> blocks_;
};

/// Row r of `in`, as the next token of a text.
template <class X>
LayerInputs<X> row_of(LayerInputs<X> in, int r) {
    in.B = in.T = 1;
    in.x += size_t(r) * in.C;
    if (in.q_pre) in.q_pre += r * in.qk_row, in.k_pre += r * in.qk_row;
    in.q += r * in.qk_row, in.k += r * in.qk_row, in.v += r * in.v_row;
    return in;
}

/// `state` for that row: its output is in its place, all else is scratch memory.
template <class X>
LayerState<X> row_of(LayerState<X> state, const LayerShape& s, int r) {
    const size_t at = size_t(r) * s.NH * s.HS;
    state.out += at, state.gated_out += at;
    return state;
}

/// A model that continues a batch of texts. Each text has a place of its own, which is free for the next one when it has ended.
template <class X>
class Decoder {
public:
    /// Precondition: places <= gpt.T, since a row of each is computed at once. allocate() comes next.
    Decoder(GPT<CPU, X>& gpt, const Inference& how, int places = 1)
        : gpt_(gpt), how_(how), reader_(gpt.net.config, how), feed_(1, gpt.T, gpt.net.config.V), places_(places), origin_(places),
          logits_(size_t(places) * gpt.net.config.V) {
        for (Layers& layers : places_) layers = text_of_layers();
    }

    /// Bytes of what the layers keep of texts of gpt.T tokens in all places; PSA's metadata, up to two more rows for each of its
    /// blocks, among them.
    size_t cache_bytes() const {
        const Config& c = gpt_.net.config;
        size_t bytes = how_.attention == InferenceAttention::psa ? c.L * reader_.bytes(c, gpt_.T, how_) : 0;
        for (const auto& layer : places_.front()) bytes += layer->bytes();
        return bytes * places_.size();
    }

    /// Besides these.
    size_t row_bytes() const { return feed_.bytes(); }

    void allocate() {
        feed_.allocate(CPU{});
        for (const Layers& layers : places_)
            for (const auto& layer : layers) layer->allocate();
    }

    /// Prefill: begins a text in `place`, in place of the one before. Precondition: `ids` is not empty. Returns the logits (V) of the next
    /// token, valid until the next call.
    const X* begin(int place, const std::vector<int32_t>& ids) {
        if (ids.size() > size_t(gpt_.T)) return whole_pass(ids);
        const Layers& layers = places_[place];
        const RowsOfTexts prompt{nullptr, [&](int l) { return read_prompt(l, int(ids.size()), layers), int(ids.size()); }};
        gpt_forward(CPU{}, gpt_, feed_.put(CPU{}, ids.data(), nullptr, 1, int(ids.size())), nullptr, layers.empty() ? nullptr : &prompt);
        return gpt_logits(CPU{}, gpt_, int(ids.size()) - 1, 1);
    }

    /// Decode: precondition: each text is the one in its place and one token longer than in the last call. Returns the logits (texts, V) of
    /// the next tokens, valid until the next call.
    const X* next(const std::vector<PlacedText>& texts) {
        const int V = gpt_.net.config.V;
        std::vector<PlacedText> rows;
        std::vector<int> index;   // in `texts`
        for (size_t n = 0; n < texts.size(); n++) {
            const std::vector<int32_t>& ids = *texts[n].ids;
            if (!places_.front().empty() && ids.size() <= size_t(gpt_.T)) rows.push_back(texts[n]), index.push_back(int(n));
            else std::copy_n(whole_pass(ids), V, &logits_[n * V]);
        }
        const X* const logits = rows.empty() ? nullptr : pass_over_rows(rows);
        for (size_t r = 0; r < rows.size(); r++) std::copy_n(logits + r * V, V, &logits_[size_t(index[r]) * V]);
        return logits_.data();
    }

    int places() const { return int(places_.size()); }
    int vocabulary() const { return gpt_.net.config.V; }

    /// Counts of an inference-only mechanism so far.
    const InferenceCount& read() const { return read_; }

private:
    using Layers = std::vector<std::unique_ptr<LayerText<X>>>;   // one for each layer; none: whole passes

    /// One place's.
    Layers text_of_layers() {
        const Config& c = gpt_.net.config;
        const TextRoom room{{1, gpt_.T, c.C, c.NH, c.NKV, c.HS}, gpt_.net.tensors.matrices()};
        Layers layers;
        for (int l = 0; l < c.L && gpt_.net.all(&LayerFacts::writes_row_by_row); l++)
            if (how_.attention == InferenceAttention::psa) layers.push_back(std::make_unique<PsaText<X>>(how_.psa, room, read_.psa));
            else layers.push_back(cpu_passes_of<X>(*gpt_.net.layers[l].attention).start_text(room));
        return layers;
    }

    /// The last gpt.T tokens of a text, without anything kept of it.
    const X* whole_pass(const std::vector<int32_t>& ids) {
        const int T = int(std::min<size_t>(ids.size(), gpt_.T));
        gpt_forward(CPU{}, gpt_, feed_.put(CPU{}, ids.data() + ids.size() - T, nullptr, 1, T));
        return gpt_logits(CPU{}, gpt_, T - 1, 1);
    }

    void read_prompt(int l, int T, const Layers& layers) {
        LayerState<X>& state = gpt_.layers[l].attention;
        const LayerInputs<X> in = attention_inputs(gpt_, l, 1, T);
        if (how_.attention == InferenceAttention::adaspa) read_.add(reader_.prompt(kernel_arguments(in, state, Statistics<X>{})));
        else gpt_.attention(l).forward(CPU{}, in, gpt_.weights, state, gpt_.scratch.attention, {});
        layers[l]->begin(in, gpt_.weights, state);
    }

    /// Logits (texts, V): one pass over the last tokens of all of them.
    const X* pass_over_rows(const std::vector<PlacedText>& texts) {
        const int rows = int(texts.size());
        std::vector<int32_t> tokens;
        for (int r = 0; r < rows; r++) {
            tokens.push_back(texts[r].ids->back());
            origin_[r] = r - (int(texts[r].ids->size()) - 1);
        }
        const RowsOfTexts these{origin_.data(), [&](int l) {
                                    const LayerInputs<X> in = attention_inputs(gpt_, l, 1, rows);
                                    for (int r = 0; r < rows; r++) {
                                        LayerState<X> state = row_of(gpt_.layers[l].attention, in, r);
                                        places_[texts[r].place][l]->next(row_of(in, r), gpt_.weights, state);
                                    }
                                    return rows;
                                }};
        gpt_forward(CPU{}, gpt_, feed_.put(CPU{}, tokens.data(), nullptr, 1, rows), nullptr, &these);
        return gpt_logits(CPU{}, gpt_, 0, rows);
    }

    GPT<CPU, X>& gpt_;
    Inference how_;
    InferenceReader<X> reader_;
    BatchFeed<CPU> feed_;
    std::vector<Layers> places_;
    std::vector<int32_t> origin_;   // (rows) RowsOfTexts::origin
    std::vector<X> logits_;         // (places, V)
    InferenceCount read_;
};
