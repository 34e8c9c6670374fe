// The mechanisms for inference (attention/inference/) as GpuDecoder reads by them. A file of its own, so that trainers, whose samples are
// by the layers' own attention, need not compile their kernels.
#pragma once
#include <optional>

#include "model/generate/gpu_decoder.cuh"

#ifdef WITH_GPU
#include "attention/inference/adaspa_gpu.cuh"
#include "attention/inference/psa_rows.cuh"

/// A causal layer whose next rows read by PSA: PsaText (decode.cuh) of several texts. `step` is the mechanism's and shared by all layers.
template <class X>
class PsaTexts final : public LayerTexts<X> {
public:
    PsaTexts(const PsaOptions& how, const LayerShape& room, const PsaStep& step) : how_(how), room_(room), step_(step) { lay_out(); }

    void begin(GPU device, int text, const LayerInputs<X>& in, const X*, const LayerState<X>& state) override {
        const AttentionForward<X> a = kernel_arguments(in, state, Statistics<X>{});
        keep_prompt(device, *keys_, a, text);
        psa_begin(device, blocks_, a, text);
    }
    void next(GPU device, const TextRows& rows, const LayerInputs<X>& in, const X*, LayerState<X>& state) override {
        const AttentionForward<X> a = kernel_arguments(in, state, Statistics<X>{});
        psa_next(device, causal_, *keys_, blocks_, step_, rows, a, how_.eps);
    }

private:
    void lay_out() override {
        keys_.emplace(this->memory_, room_, 0, KeptKeys{});
        blocks_ = PsaTextBlocks::take(this->memory_, how_, room_);
    }

    PsaOptions how_;
    LayerShape room_;
    const PsaStep& step_;
    Policy causal_{Config{}, 0};
    std::optional<TextKeys<X>> keys_;
    PsaTextBlocks blocks_{};
};

/// Prompts are dense, and what is written behind them reads by PSA.
template <class X>
class PsaOnGpu final : public GpuMechanism<X> {
public:
    PsaOnGpu(const PsaOptions& how, const LayerShape& room) : how_(how), room_(room) {}

    void lay_out(BumpAllocator& memory) override { step_ = PsaStep::take(memory, how_, room_); }
    void start(GPU device) override { to_device(device, step_.counts, std::vector<PsaCount>(counts()).data(), counts()); }
    bool read_prompt(GPU, const AttentionForward<X>&) override { return false; }
    std::unique_ptr<LayerTexts<X>> start_texts() override { return std::make_unique<PsaTexts<X>>(how_, room_, step_); }
    InferenceCount read(GPU device) const override {
        std::vector<PsaCount> of_rows(counts());
        to_host(device, of_rows.data(), step_.counts, of_rows.size());
        InferenceCount all;
        for (const PsaCount& count : of_rows) all.psa.add(count);
        return all;
    }

private:
    size_t counts() const { return size_t(room_.B) * room_.NKV; }

    PsaOptions how_;
    LayerShape room_;
    PsaStep step_{};
};

/// Prompts are read by AdaSpa, and what is written behind them is dense.
template <class X>
class AdaSpaOnGpu final : public GpuMechanism<X> {
public:
    AdaSpaOnGpu(const AdaSpaOptions& how, const LayerShape& room) : how_(how), room_(room) {}

    void lay_out(BumpAllocator& memory) override { memory_ = AdaSpaMemory::take(memory, how_, room_.NH, room_.T); }
    void start(GPU) override {}
    bool read_prompt(GPU device, const AttentionForward<X>& a) override {
        count_.add(adaspa_forward(device, causal_, a, how_, memory_));
        return true;
    }
    std::unique_ptr<LayerTexts<X>> start_texts() override { return nullptr; }
    InferenceCount read(GPU) const override { return {{}, count_}; }

private:
    AdaSpaOptions how_;
    LayerShape room_;
    Policy causal_{Config{}, 0};
    AdaSpaMemory memory_{};
    AdaSpaCount count_;
};

/// For `places` texts of at most T tokens; null for the checkpoint's own attention. Precondition: all layers are plain causal ones.
template <class X>
std::unique_ptr<GpuMechanism<X>> mechanism_on_gpu(const Inference& how, const Config& c, int places, int T) {
    const LayerShape room{places, T, c.C, c.NH, c.NKV, c.HS};
    if (how.attention == InferenceAttention::psa) return std::make_unique<PsaOnGpu<X>>(how.psa, room);
    if (how.attention == InferenceAttention::adaspa) return std::make_unique<AdaSpaOnGpu<X>>(how.adaspa, room);
    return nullptr;
}

#endif
