// Decode on a GPU: one pass of the training kernels over each prompt (prefill), then one pass per new token over a row of each text. Rows
// attend to each layer's KV caches (attention/variant.h: LayerTexts). A step is a CUDA graph with constant launches: the texts of its rows
// and their positions are in device memory.
#pragma once
#include "model/device/device.h"

#ifdef WITH_GPU
#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "attention/inference/reader.h"
#include "model/device/graphs.cuh"
#include "model/generate/write_texts.h"
#include "model/gpt.h"
#include "model/run/feed.cuh"

/// What the layers' forward() leaves of the rows of a step besides their output: all layers in the same memory.
template <class X>
class RowsMemory {
public:
    void take(BumpAllocator& memory, const GPT<GPU, X>& gpt, int rows) {
        const Config& c = gpt.net.config;
        const size_t used = memory.used();
        states_.assign(c.L, {});
        for (int l = 0; l < c.L; l++) {
            memory.rewind(used);
            const LayerFacts& facts = gpt.net.layers[l].attention->facts;
            LayerState<X>& state = states_[l];
            state.score_inputs = take_score_inputs<X>(memory, facts.features, facts.gated, rows, 1, c.NH, 1);
            if (facts.has_auxiliary_loss) state.score_inputs.auxiliary = memory.take<float>(size_t(rows) * c.NH);
            state.kept = memory.take<std::byte>(gpt.attention(l).kept_bytes({rows, 1, c.C, c.NH, c.NKV, c.HS}));
        }
    }

    /// For layer l; the output is where the model has it.
    LayerState<X> state(const GPT<GPU, X>& gpt, int l) const {
        LayerState<X> state = states_[l];
        const LayerState<X>& of_model = gpt.layers[l].attention;
        state.out = of_model.out, state.gated_out = of_model.gated_out, state.lse = of_model.lse;
        return state;
    }

private:
    std::vector<LayerState<X>> states_;
};

/// An inference-only mechanism (attention/inference/) in place of the layers' own attention: gpu_mechanisms.cuh.
template <class X>
struct GpuMechanism {
    virtual ~GpuMechanism() = default;

    /// Takes what it needs besides what layers keep: once from nothing and once from the memory.
    virtual void lay_out(BumpAllocator& memory) = 0;
    /// Nothing has been read. The memory is there.
    virtual void start(GPU device) = 0;

    /// out and lse of a prompt; false if it leaves that to the layer.
    virtual bool read_prompt(GPU device, const AttentionForward<X>& a) = 0;
    /// What a layer keeps of texts; null if it leaves that to the layer.
    virtual std::unique_ptr<LayerTexts<X>> start_texts() = 0;
    /// So far, of all layers.
    virtual InferenceCount read(GPU device) const = 0;
};

/// A model that continues a batch of texts on a GPU, the counterpart of Decoder (decode.cuh).
template <class X>
class GpuDecoder {
public:
    /// Precondition: places <= gpt.T; `mechanism` is for as many texts, or null for the layers' own attention. allocate() comes next.
    GpuDecoder(GPU device, GPT<GPU, X>& gpt, int places, std::unique_ptr<GpuMechanism<X>> mechanism = nullptr)
        : device_(device), gpt_(gpt), feed_(1, gpt.T, gpt.net.config.V), places_(places), mechanism_(std::move(mechanism)),
          layers_(make_layers()), logits_(size_t(places) * gpt.net.config.V) { lay_out(); }

    /// Bytes of what the layers keep of texts of gpt.T tokens in all places.
    size_t cache_bytes() const {
        size_t bytes = 0;
        for (const auto& layer : layers_) bytes += layer->bytes();
        return bytes;
    }
    /// Besides these, and on the GPU as well.
    size_t row_bytes() const { return memory_.bytes() + feed_.bytes(); }

    void allocate() {
        feed_.allocate(device_);
        for (const auto& layer : layers_) layer->allocate();
        memory_.allocate();
        lay_out();
        if (mechanism_) mechanism_->start(device_);
    }

    /// Decoder::begin().
    const float* begin(int place, const std::vector<int32_t>& ids) {
        if (layers_.empty() || ids.size() > size_t(gpt_.T)) return whole_pass(ids, logits_.data());
        const int T = int(ids.size());
        const RowsOfTexts prompt{nullptr, [&](int l) { return read_prompt(l, place, T), T; }};
        gpt_forward(device_, gpt_, feed_.put(device_, ids.data(), nullptr, 1, T), nullptr, &prompt);
        copy_logits(gpt_logits(device_, gpt_, T - 1, 1), 1);
        return widen_row(0, logits_.data());
    }

    /// Decoder::next().
    const float* next(const std::vector<PlacedText>& texts) {
        std::vector<PlacedText> rows;
        std::vector<int> index;   // in `texts`
        for (size_t n = 0; n < texts.size(); n++)
            if (layers_.empty() || texts[n].ids->size() > size_t(gpt_.T)) whole_pass(*texts[n].ids, &logits_[n * vocabulary()]);
            else rows.push_back(texts[n]), index.push_back(int(n));
        if (!rows.empty()) pass_over_rows(rows);
        for (size_t r = 0; r < rows.size(); r++) widen_row(int(r), &logits_[size_t(index[r]) * vocabulary()]);
        return logits_.data();
    }

    int places() const { return places_; }
    int vocabulary() const { return gpt_.net.config.V; }
    /// Counts of an inference-only mechanism so far.
    InferenceCount read() const { return mechanism_ ? mechanism_->read(device_) : InferenceCount{}; }

private:
    using Layers = std::vector<std::unique_ptr<LayerTexts<X>>>;   // none: whole passes

    Layers make_layers() const {
        const Config& c = gpt_.net.config;
        Layers layers;
        for (int l = 0; l < c.L && gpt_.net.all(&LayerFacts::writes_rows_on_gpu); l++) {
            std::unique_ptr<LayerTexts<X>> texts = mechanism_ ? mechanism_->start_texts() : nullptr;
            if (!texts) texts = gpu_passes_of<X>(*gpt_.net.layers[l].attention).start_texts({places_, gpt_.T, c.C, c.NH, c.NKV, c.HS});
            layers.push_back(std::move(texts));
        }
        return layers;
    }

    void lay_out() {
        tokens_ = memory_.take<int32_t>(4 * size_t(places_));
        if (!layers_.empty()) rows_.take(memory_, gpt_, places_);
        if (mechanism_) mechanism_->lay_out(memory_);
    }

    /// stored_ (rows, V) = logits, in the host's memory.
    void copy_logits(const X* logits, int rows) {
        stored_.resize(size_t(rows) * vocabulary());
        to_host(device_, stored_.data(), logits, stored_.size());
    }
    const float* widen_row(int row, float* to) const {
        std::transform(stored_.begin() + size_t(row) * vocabulary(), stored_.begin() + size_t(row + 1) * vocabulary(), to, widened<X>);
        return to;
    }

    /// The last gpt.T tokens of a text, without anything kept of it.
    const float* whole_pass(const std::vector<int32_t>& ids, float* to) {
        const int T = int(std::min<size_t>(ids.size(), gpt_.T));
        gpt_forward(device_, gpt_, feed_.put(device_, ids.data() + ids.size() - T, nullptr, 1, T));
        copy_logits(gpt_logits(device_, gpt_, T - 1, 1), 1);
        return widen_row(0, to);
    }

    void read_prompt(int l, int place, int T) {
        LayerState<X>& state = gpt_.layers[l].attention;
        const LayerInputs<X> in = attention_inputs(gpt_, l, 1, T);
        if (!mechanism_ || !mechanism_->read_prompt(device_, kernel_arguments(in, state, Statistics<X>{})))
            gpt_.attention(l).forward(device_, in, gpt_.weights, state, gpt_.scratch.attention, {});
        layers_[l]->begin(device_, place, in, gpt_.weights, state);
    }

    /// stored_ (texts, V): one pass over the last tokens of the texts, a graph for each number of them.
    void pass_over_rows(const std::vector<PlacedText>& texts) {
        const int rows = int(texts.size());
        std::vector<int32_t> numbers(4 * size_t(places_));   // tokens, texts, positions and origins
        for (int r = 0; r < rows; r++) {
            const int position = int(texts[r].ids->size()) - 1;
            numbers[r] = texts[r].ids->back(), numbers[places_ + r] = texts[r].place;
            numbers[2 * places_ + r] = position, numbers[3 * places_ + r] = r - position;
        }
        to_device(device_, tokens_, numbers.data(), numbers.size());
        const X* logits = gpt_.scratch.logits;
        graphs_[rows].run(device_, tokens_, Write::overwrite, [&] {
            const TextRows where{tokens_ + places_, tokens_ + 2 * places_};
            const RowsOfTexts these{tokens_ + 3 * places_, [&](int l) {
                                        LayerState<X> state = rows_.state(gpt_, l);
                                        layers_[l]->next(device_, where, attention_inputs(gpt_, l, rows, 1), gpt_.weights, state);
                                        return rows;
                                    }};
            gpt_forward(device_, gpt_, Batch{1, rows, tokens_}, nullptr, &these);
            logits = gpt_logits(device_, gpt_, 0, rows);
        });
        copy_logits(logits, rows);
    }

    GPU device_;
    GPT<GPU, X>& gpt_;
    BatchFeed<GPU> feed_;
    int places_;
    std::unique_ptr<GpuMechanism<X>> mechanism_;
    Layers layers_;
    Arena<GPU> memory_;
    int32_t* tokens_;           // (4, places) of a step's rows: token, place, position, and RowsOfTexts::origin
    RowsMemory<X> rows_;
    std::map<int, StepGraphs<GPU>> graphs_;   // by the number of rows
    std::vector<X> stored_;                   // (rows, V) of the last pass
    std::vector<float> logits_;               // (places, V)
};

#endif
