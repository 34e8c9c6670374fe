// A Decoder's inference-only mechanisms (attention/inference/). They have a file of their own because trainers, which sample with the
// layers' own attention, need not compile them. A unit has the mechanisms of one device: nvcc cannot compile the CPU's.
#pragma once
#include "attention/inference/adaspa_gpu.cuh"
#include "attention/inference/psa_rows.cuh"
#include "model/generate/decode.cuh"

/// Dense prefill, decode by PSA.
template <class Device, class X>
class Psa final : public InferenceMechanism<Device, X> {
public:
    Psa(const PsaOptions& how, const LayerShape& room) : layer_(how), room_(room) {}

    void lay_out(BumpAllocator& memory) override { layer_.step = PsaStep::take<Device>(memory, layer_.how, room_); }
    void start(Device device) override { to_device(device, layer_.step.counts, std::vector<PsaCount>(counts()).data(), counts()); }
    std::unique_ptr<LayerCache<Device, X>> make_cache(const CacheRoom& room) override {
        return std::make_unique<CacheOf<PsaLayer, Device, X>>(layer_, CacheRoom{static_cast<const LayerShape&>(room)});   // exact keys
    }
    InferenceCount read(Device device) const override {
        std::vector<PsaCount> of_rows(counts());
        to_host(device, of_rows.data(), layer_.step.counts, of_rows.size());
        InferenceCount all;
        for (const PsaCount& count : of_rows) all.psa.add(count);
        return all;
    }

private:
    size_t counts() const { return size_t(room_.B) * room_.NKV; }

    PsaLayer layer_;
    LayerShape room_;
};

/// Prefill by AdaSpa, dense decode.
template <class Device, class X>
class AdaSpa final : public InferenceMechanism<Device, X> {
public:
    AdaSpa(const AdaSpaOptions& how, const LayerShape& room) : how_(how), room_(room) {}

    void lay_out(BumpAllocator& memory) override { memory_.emplace(memory, how_, room_.NH, room_.T); }
    bool read_prompt(Device device, const AttentionForward<X>& a) override {
        count_.add(adaspa_forward(device, Policy(Config{}, 0), a, how_, *memory_));
        return true;
    }
    InferenceCount read(Device) const override { return {{}, count_}; }

private:
    AdaSpaOptions how_;
    LayerShape room_;
    std::optional<AdaSpaMemory<Device>> memory_;
    AdaSpaCount count_;
};

/// For `places` texts; null for the checkpoint's own attention. Precondition: all layers are plain causal ones.
template <class Device, class X>
std::unique_ptr<InferenceMechanism<Device, X>> mechanism_of(const Inference& how, const GPT<Device, X>& gpt, int places = 1) {
    const Config& c = gpt.net.config;
    const LayerShape room{places, gpt.T, c.C, c.NH, c.NKV, c.HS};
    if (how.attention == InferenceAttention::psa) return std::make_unique<Psa<Device, X>>(how.psa, room);
    if (how.attention == InferenceAttention::adaspa) return std::make_unique<AdaSpa<Device, X>>(how.adaspa, room);
    return nullptr;
}
