// Writing text on the CPU: one pass over the prompt, then one per new token, against what each layer keeps of the text
// (attention/variant.h: LayerText). Variants with a layer that keeps nothing of use (LayerFacts::writes_row_by_row) read the whole
// text again for every token, and so do all variants once the text is longer than the model's positions.
#pragma once
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "attention/inference/reader.h"
#include "model/base/text.h"
#include "model/generate/sampler.h"
#include "model/gpt.h"
#include "model/run/feed.cuh"

/// A causal layer whose next tokens read by PSA.
template <class X>
class PsaText final : public LayerText<X> {
public:
    PsaText(const PsaOptions& how, const LayerShape& room, PsaCount& count) : how_(how), room_(room), count_(count) { lay_out(); }

    void begin(const LayerInputs<X>& in, const X*, const LayerState<X>& state) override {
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

/// A model that continues one text.
template <class X>
class Decoder {
public:
    /// allocate() comes next.
    Decoder(GPT<CPU, X>& gpt, const Inference& how)
        : gpt_(gpt), how_(how), reader_(gpt.net.config, how), feed_(1, gpt.T, gpt.net.config.V) {
        const Config& c = gpt.net.config;
        const TextRoom room{{1, gpt.T, c.C, c.NH, c.NKV, c.HS}, gpt.net.tensors.matrices()};
        for (int l = 0; l < c.L && gpt.net.all(&LayerFacts::writes_row_by_row); l++)
            if (how.attention == InferenceAttention::psa) layers_.push_back(std::make_unique<PsaText<X>>(how.psa, room, read_.psa));
            else layers_.push_back(cpu_passes_of<X>(*gpt.net.layers[l].attention).start_text(room));
    }

    /// Bytes of what the layers keep of gpt.T tokens; PSA's metadata, up to two more rows for each of its blocks, among them.
    size_t cache_bytes() const {
        const Config& c = gpt_.net.config;
        size_t bytes = how_.attention == InferenceAttention::psa ? c.L * reader_.bytes(c, gpt_.T, how_) : 0;
        for (const auto& layer : layers_) bytes += layer->bytes();
        return bytes;
    }

    void allocate() {
        feed_.allocate(CPU{});
        for (const auto& layer : layers_) layer->allocate();
    }

    /// Precondition: `ids` extends the ids of the previous call. Logits (V) of the token after `ids`; valid until the next call.
    const X* logits_after(const std::vector<int32_t>& ids) {
        const int T = int(std::min<size_t>(ids.size(), gpt_.T));
        if (layers_.empty() || ids.size() > size_t(gpt_.T)) {
            gpt_forward(CPU{}, gpt_, feed_.put(CPU{}, ids.data() + ids.size() - T, nullptr, 1, T));
            return gpt_logits(CPU{}, gpt_, T - 1, 1);
        }
        if (tokens_ == 0) append(ids.data(), T);
        while (tokens_ < T) append(ids.data() + tokens_, 1);
        return gpt_logits(CPU{}, gpt_, last_row_, 1);
    }

    /// What a mechanism for inference has read so far.
    const InferenceCount& read() const { return read_; }

private:
    /// T tokens follow: the whole prompt, or one.
    void append(const int32_t* tokens, int T) {
        const auto angles = [&](int l) { return gpt_.angles(l).from(tokens_, gpt_.net.config.HS); };
        const RowsOfTexts<X> text{angles, [this](int l, int rows) { return attend(l, rows), rows; }};
        gpt_forward(CPU{}, gpt_, feed_.put(CPU{}, tokens, nullptr, 1, T), nullptr, &text);
        tokens_ += T;
        last_row_ = T - 1;
    }

    void attend(int l, int T) {
        LayerState<X>& state = gpt_.layers[l].attention;
        const LayerInputs<X> in = attention_inputs(gpt_, l, 1, T);
        if (tokens_ > 0) return layers_[l]->next(in, gpt_.weights, state);
        if (how_.attention == InferenceAttention::adaspa) read_.add(reader_.prompt(kernel_arguments(in, state, Statistics<X>{})));
        else gpt_.attention(l).forward(CPU{}, in, gpt_.weights, state, gpt_.scratch.attention, {});
        layers_[l]->begin(in, gpt_.weights, state);
    }

    GPT<CPU, X>& gpt_;
    Inference how_;
    InferenceReader<X> reader_;
    BatchFeed<CPU> feed_;
    int tokens_ = 0, last_row_ = 0;                        // of the text so far; of the last pass
    std::vector<std::unique_ptr<LayerText<X>>> layers_;   // none: whole passes
    InferenceCount read_;
};

/// What writing took.
struct WritingTimes {
    int prompt = 0, tokens = 0;           // tokens read at once, and written
    double first = 0, others = 0;         // seconds until the first was written, and for all others
};

/// Precondition: `ids` is not empty. Appends `count` tokens to it, the same as generate() would, or fewer if use(token) is false.
template <class X, class Use>
WritingTimes generate_with_cache(Decoder<X>& decoder, int V, std::vector<int32_t>& ids, int count, const Sampling& how, Use use) {
    WritingTimes times;
    times.prompt = int(ids.size());
    Stopwatch clock;
    for (bool more = true; more && times.tokens < count; times.tokens++) {
        ids.push_back(sample_token(decoder.logits_after(ids), V, how, times.tokens));
        (times.tokens ? times.others : times.first) += clock.lap();
        more = use(ids.back());
        clock.lap();   // whoever reads is not timed
    }
    return times;
}
