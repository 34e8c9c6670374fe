// A Decoder's inference-only mechanisms (attention/inference/). They have a file of their own because trainers, which sample with the
// layers' own attention, need not compile them. A unit has the mechanisms of one device: nvcc cannot compile the CPU's.
#pragma once
#include <optional>

#include "model/generate/decode.cuh"

/// Dense prefill, decode by PSA.
template <class Device, class X>
class Psa;
/// Prefill by AdaSpa, dense decode.
template <class Device, class X>
class AdaSpa;
/// A causal layer that decodes by PSA.
template <class Device, class X>
class PsaCache;

#ifdef WITH_GPU
#include "attention/inference/adaspa_gpu.cuh"
#include "attention/inference/psa_rows.cuh"

/// `step` belongs to the mechanism; all layers share it.
template <class X>
class PsaCache<GPU, X> final : public CacheInBlock<GPU, X> {
public:
    PsaCache(const PsaOptions& how, const LayerShape& room, const PsaStep& step) : how_(how), room_(room), step_(step) { lay_out(); }

    void prefill(GPU device, int sequence, const LayerInputs<X>& in, const X*, const LayerState<X>& state) override {
        const AttentionForward<X> a = kernel_arguments(in, state, Statistics<X>{});
        append_prompt(device, *keys_, a, sequence);
        psa_prefill(device, blocks_, a, sequence);
    }
    void decode(GPU device, const DecodeRows& rows, const LayerInputs<X>& in, const X*, LayerState<X>& state) override {
        const AttentionForward<X> a = kernel_arguments(in, state, Statistics<X>{});
        psa_decode(device, causal_, *keys_, blocks_, step_, rows, a, how_.eps);
    }

private:
    void lay_out() override {
        keys_.emplace(this->memory_, room_, 0, KeptKeys{});
        blocks_ = PsaCachedBlocks::take(this->memory_, how_, room_);
    }

    PsaOptions how_;
    LayerShape room_;
    const PsaStep& step_;
    Policy causal_{Config{}, 0};
    std::optional<KVCache<GPU, X>> keys_;
    PsaCachedBlocks blocks_{};
};

template <class X>
class Psa<GPU, X> final : public InferenceMechanism<GPU, X> {
public:
    Psa(const PsaOptions& how, const LayerShape& room) : how_(how), room_(room) {}

    void lay_out(BumpAllocator& memory) override { step_ = PsaStep::take(memory, how_, room_); }
    void start(GPU device) override { to_device(device, step_.counts, std::vector<PsaCount>(counts()).data(), counts()); }
    std::unique_ptr<LayerCache<GPU, X>> make_cache(const CacheRoom& room) override {
        return std::make_unique<PsaCache<GPU, X>>(how_, room, step_);
    }
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

template <class X>
class AdaSpa<GPU, X> final : public InferenceMechanism<GPU, X> {
public:
    AdaSpa(const AdaSpaOptions& how, const LayerShape& room) : how_(how), room_(room) {}

    void lay_out(BumpAllocator& memory) override { memory_ = AdaSpaMemory::take(memory, how_, room_.NH, room_.T); }
    bool read_prompt(GPU device, const AttentionForward<X>& a) override {
        count_.add(adaspa_forward(device, causal_, a, how_, memory_));
        return true;
    }
    InferenceCount read(GPU) const override { return {{}, count_}; }

private:
    AdaSpaOptions how_;
    LayerShape room_;
    Policy causal_{Config{}, 0};
    AdaSpaMemory memory_{};
    AdaSpaCount count_;
};

#else

/// A sequence's keys and their blocks.
template <class X>
struct PsaSequence {
    KVCache<CPU, X> keys;
    PsaBlocks<X> blocks;

    PsaSequence(const PsaOptions& how, BumpAllocator& memory, const CacheRoom& room)
        : keys(memory, room, 0, KeptKeys{}), blocks(how, room.NKV, room.HS) {}

    void append(const AttentionForward<X>& a) {
        keys.append(a);
        for (int t = 0; t < a.S; t++) blocks.append(a.k.data + t * a.k.row);
    }
};

template <class X>
class PsaCache<CPU, X> final : public CachesOfSequences<X, PsaOptions, PsaSequence<X>> {
    using Sequences = CachesOfSequences<X, PsaOptions, PsaSequence<X>>;

public:
    PsaCache(const PsaOptions& how, const LayerShape& room, PsaCount& count)
        : Sequences(how, {room}), count_(count), blocks_bytes_(room.B * PsaBlocks<X>::bytes(how, room.NKV, room.HS, room.T)) {}

    size_t bytes() const override { return Sequences::bytes() + blocks_bytes_; }
    void prefill(CPU, int sequence, const LayerInputs<X>& in, const X*, const LayerState<X>& state) override {
        this->restart(sequence).append(kernel_arguments(in, state, Statistics<X>{}));
    }
    void decode(CPU, const DecodeRows& rows, const LayerInputs<X>& in, const X*, LayerState<X>& state) override {
        for (int b = 0; b < in.B; b++) {
            PsaSequence<X>& one = this->at(rows.sequence[b]);
            AttentionForward<X> a = kernel_arguments(row_of(in, b), row_of(state, in, b), Statistics<X>{});
            one.append(a);
            const KeySpan<X> all = one.keys.span(0, 0, one.keys.tokens());
            a.S = one.keys.tokens(), a.k = all.k, a.v = all.v;
            count_.add(psa_attention(causal_, a, one.blocks, this->how_.eps));
        }
    }

private:
    PsaCount& count_;
    size_t blocks_bytes_;   // of the metadata of all sequences
    Policy causal_{Config{}, 0};
};

template <class X>
class Psa<CPU, X> final : public InferenceMechanism<CPU, X> {
public:
    Psa(const PsaOptions& how, const LayerShape&) : how_(how) {}
    std::unique_ptr<LayerCache<CPU, X>> make_cache(const CacheRoom& room) override {
        return std::make_unique<PsaCache<CPU, X>>(how_, room, count_.psa);
    }
    InferenceCount read(CPU) const override { return count_; }

private:
    PsaOptions how_;
    InferenceCount count_;
};

template <class X>
class AdaSpa<CPU, X> final : public InferenceMechanism<CPU, X> {
public:
    AdaSpa(const AdaSpaOptions& how, const LayerShape&) : how_(how) {}
    bool read_prompt(CPU device, const AttentionForward<X>& a) override {
        count_.add(adaspa_forward(device, causal_, a, how_));
        return true;
    }
    InferenceCount read(CPU) const override { return {{}, count_}; }

private:
    AdaSpaOptions how_;
    Policy causal_{Config{}, 0};
    AdaSpaCount count_;
};

#endif

/// For `places` texts; null for the checkpoint's own attention. Precondition: all layers are plain causal ones.
template <class Device, class X>
std::unique_ptr<InferenceMechanism<Device, X>> mechanism_of(const Inference& how, const GPT<Device, X>& gpt, int places = 1) {
    const Config& c = gpt.net.config;
    const LayerShape room{places, gpt.T, c.C, c.NH, c.NKV, c.HS};
    if (how.attention == InferenceAttention::psa) return std::make_unique<Psa<Device, X>>(how.psa, room);
    if (how.attention == InferenceAttention::adaspa) return std::make_unique<AdaSpa<Device, X>>(how.adaspa, room);
    return nullptr;
}
