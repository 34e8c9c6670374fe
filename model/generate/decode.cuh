// Decode: one pass over each prompt (prefill), then one pass per new token over a row of each text, which reads the weights once for all of
// them. Rows attend to each layer's KV caches (attention/decoding/layer_cache.h). On a GPU a step is a CUDA graph with constant launches:
// the sequences of its rows and their positions are in device memory. Variants with a layer that has no decoding
// (LayerFacts::decodes) read the whole text again for every token, and so do all variants once the text is longer than the
// model's positions.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "attention/inference/reader.h"
#include "model/device/graphs.cuh"
#include "model/device/memory.cuh"
#include "model/generate/write_texts.h"
#include "model/gpt.h"
#include "model/run/feed.cuh"

/// An inference-only mechanism (attention/inference/) in place of the layers' own attention: mechanisms.cuh.
template <class Device, class X>
struct InferenceMechanism {
    virtual ~InferenceMechanism() = default;

    /// Takes memory besides KV caches. Called twice: to count the bytes, and to assign them.
    virtual void lay_out(BumpAllocator& /*memory*/) {}
    /// Resets the counts. Precondition: the memory is assigned.
    virtual void start(Device) {}

    /// Computes out and lse of a prompt; false leaves both to the layer.
    virtual bool read_prompt(Device, const AttentionForward<X>&) { return false; }

    /// The cache of a layer; null: the layer's own.
    virtual std::unique_ptr<LayerCache<Device, X>> make_cache(const CacheRoom&) { return nullptr; }

    /// Counts so far.
    virtual InferenceCount read(Device) const = 0;
};

/// A model that continues a batch of texts. Each text has a place, which is free for another text when it ends.
template <class Device, class X>
class Decoder {
public:
    /// Precondition: places <= gpt.T, since a row of each is computed at once. allocate() comes next, once the model has its memory.
    Decoder(Device device, GPT<Device, X>& gpt, int places = 1, std::unique_ptr<InferenceMechanism<Device, X>> mechanism = nullptr)
        : device_(device), gpt_(gpt), feed_(1, gpt.T, gpt.net.config.V), places_(places), mechanism_(std::move(mechanism)),
          caches_(make_caches()), logits_(size_t(places) * vocabulary()) {
        lay_out();
    }

    /// Bytes of the KV caches, for texts of gpt.T tokens in all places.
    size_t cache_bytes() const {
        size_t bytes = 0;
        for (const auto& cache : caches_) bytes += cache->bytes();
        return bytes;
    }
    /// Bytes besides the KV caches.
    size_t row_bytes() const { return memory_.bytes() + feed_.bytes(); }

    void allocate() {
        feed_.allocate(device_);
        for (const auto& cache : caches_) cache->allocate();
        memory_.allocate();
        lay_out();
        if (mechanism_) mechanism_->start(device_);
    }

    /// Prefill: begins a text in `place`, replacing the previous one. Precondition: `ids` is not empty. Returns the logits (V) of the next
    /// token, valid until the next call.
    const Wide<X>* begin(int place, const std::vector<int32_t>& ids) {
        if (caches_.empty() || ids.size() > size_t(gpt_.T)) return whole_pass(ids, logits_.data());
        const int T = int(ids.size());
        const AttentionOverride prompt{nullptr, [&](int l) { return read_prompt(l, place, T), T; }};
        gpt_.forward(device_, feed_.put(device_, ids.data(), nullptr, 1, T), &prompt);
        return widen(on_host(gpt_.logits(device_, T - 1, 1), 1), logits_.data());
    }

    /// Decode. Precondition: each text is the one in its place and one token longer than in the last call. Returns the logits (texts, V) of
    /// the next tokens, valid until the next call.
    const Wide<X>* next(const std::vector<PlacedText>& texts) {
        std::vector<PlacedText> rows;
        std::vector<int> index;   // indices in `texts`
        for (size_t n = 0; n < texts.size(); n++)
            if (caches_.empty() || texts[n].ids->size() > size_t(gpt_.T)) whole_pass(*texts[n].ids, &logits_[n * vocabulary()]);
            else rows.push_back(texts[n]), index.push_back(int(n));
        if (rows.empty()) return logits_.data();
        const X* const logits = on_host(pass_over_rows(rows), int(rows.size()));
        for (size_t r = 0; r < rows.size(); r++) widen(logits + r * vocabulary(), &logits_[size_t(index[r]) * vocabulary()]);
        return logits_.data();
    }

    int places() const { return places_; }
    int vocabulary() const { return gpt_.net.config.V; }
    /// Counts of an inference-only mechanism so far.
    InferenceCount read() const { return mechanism_ ? mechanism_->read(device_) : InferenceCount{}; }

private:
    using Caches = std::vector<std::unique_ptr<LayerCache<Device, X>>>;   // of each layer; none: whole passes

    Caches make_caches() const {
        const Config& c = gpt_.net.config;
        const CacheRoom room{{places_, gpt_.T, c.C, c.NH, c.NKV, c.HS}, gpt_.net.tensors.matrices()};
        Caches caches;
        for (int l = 0; l < c.L && gpt_.net.all(&LayerFacts::decodes); l++) {
            std::unique_ptr<LayerCache<Device, X>> cache = mechanism_ ? mechanism_->make_cache(room) : nullptr;
            caches.push_back(cache ? std::move(cache) : gpt_.attention(l).make_cache(room));
        }
        return caches;
    }

    void lay_out() {
        tokens_ = memory_.template take<int32_t>(4 * size_t(places_));
        if (mechanism_) mechanism_->lay_out(memory_);
        const size_t used = memory_.used();
        rows_.clear();
        for (size_t l = 0; l < caches_.size(); l++) {
            memory_.rewind(used);   // all layers share the memory
            rows_.push_back(take_row_state(int(l)));
        }
    }

    /// The state of layer l in a step: the model's outputs, and memory for what else its forward() keeps.
    LayerState<X> take_row_state(int l) {
        const Config& c = gpt_.net.config;
        const LayerFacts& facts = gpt_.net.layers[l].attention->facts;
        LayerState<X> state = gpt_.layers[l].attention;
        state.score_inputs = take_score_inputs<X>(memory_, facts.features, facts.gated, places_, 1, c.NH, 1);
        if (facts.has_auxiliary_loss) state.score_inputs.auxiliary = memory_.template take<Wide<X>>(size_t(places_) * c.NH);
        state.kept = memory_.template take<std::byte>(gpt_.attention(l).kept_bytes({places_, 1, c.C, c.NH, c.NKV, c.HS}));
        return state;
    }

    /// Logits (rows, V) in host memory, valid until the next pass.
    const X* on_host(const X* logits, int rows) {
        if constexpr (std::is_same_v<Device, CPU>) return logits;
        on_host_.resize(size_t(rows) * vocabulary());
        to_host(device_, on_host_.data(), logits, on_host_.size());
        return on_host_.data();
    }
    /// Widens a row of logits to `to` (V).
    const Wide<X>* widen(const X* row, Wide<X>* to) const {
        std::transform(row, row + vocabulary(), to, widened<X>);
        return to;
    }

    /// A pass over the last gpt.T tokens of a text, without a cache.
    const Wide<X>* whole_pass(const std::vector<int32_t>& ids, Wide<X>* to) {
        const int T = int(std::min<size_t>(ids.size(), gpt_.T));
        gpt_.forward(device_, feed_.put(device_, ids.data() + ids.size() - T, nullptr, 1, T));
        return widen(on_host(gpt_.logits(device_, T - 1, 1), 1), to);
    }

    void read_prompt(int l, int place, int T) {
        LayerState<X>& state = gpt_.layers[l].attention;
        const LayerInputs<X> in = gpt_.attention_inputs(l, 1, T);
        if (!mechanism_ || !mechanism_->read_prompt(device_, kernel_arguments(in, state, Statistics<X>{})))
            gpt_.attention(l).forward(device_, in, gpt_.weights, state, gpt_.scratch.attention, {});
        caches_[l]->prefill(device_, place, in, gpt_.weights, state);
    }

    /// Logits (texts, V) on the device, from one pass over the texts' last tokens; on a GPU one graph per number of texts.
    const X* pass_over_rows(const std::vector<PlacedText>& texts) {
        const int rows = int(texts.size());
        std::vector<int32_t> numbers(4 * size_t(places_));   // tokens, places, positions and origins
        for (int r = 0; r < rows; r++) {
            const int position = int(texts[r].ids->size()) - 1;
            numbers[r] = texts[r].ids->back(), numbers[places_ + r] = texts[r].place;
            numbers[2 * places_ + r] = position, numbers[3 * places_ + r] = r - position;
        }
        to_device(device_, tokens_, numbers.data(), numbers.size());
        const X* logits = gpt_.scratch.logits;
        graphs_[rows].run(device_, tokens_, Write::overwrite, [&] {
            const DecodeRows where{tokens_ + places_, tokens_ + 2 * places_};
            const auto attend = [&](int l) {
                caches_[l]->decode(device_, where, gpt_.attention_inputs(l, rows, 1), gpt_.weights, rows_[l]);
                return rows;
            };
            const AttentionOverride these{tokens_ + 3 * places_, attend};
            gpt_.forward(device_, Batch{1, rows, tokens_}, &these);
            logits = gpt_.logits(device_, 0, rows);
        });
        return logits;
    }

    Device device_;
    GPT<Device, X>& gpt_;
    BatchFeed<Device> feed_;
    int places_;
    std::unique_ptr<InferenceMechanism<Device, X>> mechanism_;
    Caches caches_;
    Arena<Device> memory_;
    int32_t* tokens_;                // (4, places) of a step's rows: token, place, position, and AttentionOverride::origin
    std::vector<LayerState<X>> rows_;   // of each layer
    std::map<int, StepGraphs<Device>> graphs_;   // by the number of rows
    std::vector<X> on_host_;         // (rows, V), a GPU's logits of the last pass
    std::vector<Wide<X>> logits_;    // (places, V)
};
