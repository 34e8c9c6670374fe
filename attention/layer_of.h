// Wraps a policy in the engine's interface (attention/variant.h). LayerOf<A> is a layer; CpuLayer<A> and GpuLayer<A> also compute on
// their device. The virtual functions here forward to layer.h.
#pragma once
#include <memory>
#include <optional>

#include "attention/kernel/decode.h"
#include "attention/kernel/layer.h"
#include "attention/kernel/next_rows.cuh"
#include "attention/variant.h"
#include "model/base/error.h"

template <class A>
constexpr bool reports_pairs = requires(const A& policy, const LayerInputs<float>& in, const LayerState<float>& state) {
    policy.sees(in, state, 0, 0, 0);
};

template <class A>
LayerFacts facts_of(const A& policy) {
    LayerFacts f{};
    f.features = policy.features();
    f.gated = policy.gates_output(), f.rotates = policy.rotates();
    f.reads_x = A::reads_x, f.reads_qk_pre = A::reads_qk_pre;
    f.has_auxiliary_loss = A::has_auxiliary_loss, f.gates_pairs = A::gates_pairs, f.own_passes = A::own_passes;
    f.writes_row_by_row = A::writes_row_by_row && policy.is_causal();
    f.reads_keys_only = reads_keys_only(policy);
    f.reports_pairs = reports_pairs<A>;
    f.is_causal = policy.is_causal(), f.needs_known_text = policy.needs_known_text();
    f.keeps_documents_apart = policy.is_causal() && policy.keeps_documents_apart();
    f.expects_at_most = policy.expects_at_most();
    f.has_exact_gradients = policy.has_exact_gradients(), f.has_teacher = policy.has_teacher();
    f.sorts_tokens = A::sorts_tokens, f.tokens_choose = A::tokens_choose;
    f.branch_names = policy.branch_names();
    return f;
}

template <class A>
struct LayerOf : AttentionLayer {
    A policy;

    LayerOf(const Config& config, int layer) : policy(config, layer) { facts = facts_of(policy); }
    void declare(TensorList& list, const std::string& prefix) override { policy.declare(list, prefix); }
    bool trains(const std::string& tensor) const override { return policy.trains(tensor); }
    Tile tile(int h, int i0, int i1, int j0, int j1) const override { return policy.tile(h, i0, i1, j0, j1); }
    bool visible(int h, int i, int j) const override { return policy.visible(h, i, j); }
    PairCount expected_pairs(int NH, int T) const override { return ::expected_pairs(policy, NH, T); }
    double further_pairs(int NH, int T) const override { return policy.further_pairs(NH, T); }
    double cached_keys(int T) const override { return policy.cached_keys(T); }
};

/// The policy of a layer of variant A, for callers that need more than the common interface.
template <class A>
const A& policy_of(const AttentionLayer& layer) {
    return dynamic_cast<const LayerOf<A>&>(layer).policy;
}

/// The decode state of A besides keys: A::Text<X> on the CPU and A::Texts<X> on a GPU, if defined.
template <class A, class Device, class X>
struct DecodeState {
    using type = NothingMore;
};
template <class A, class X>
    requires requires { typename A::template Text<X>; }
struct DecodeState<A, CPU, X> {
    using type = typename A::template Text<X>;
};

/// A sequence's keys and further decode state on the CPU.
template <class A, class X>
struct CachedSequence {
    KeyCache<X, SlotsOf<A>> keys;
    typename DecodeState<A, CPU, X>::type more;

    CachedSequence(const A& policy, BumpAllocator& memory, const CacheRoom& room)
        : keys(memory, room, policy.features().column, policy.kept_keys()), more(policy, memory, room) {}
};

/// KV caches of a layer of A, with the decode state of A besides keys.
template <class A, class Device, class X>
class CacheOf;

/// On the CPU the rows of a step are computed one after the other.
template <class A, class X>
class CacheOf<A, CPU, X> final : public CachesOfSequences<X, A, CachedSequence<A, X>> {
public:
    using CacheOf::CachesOfSequences::CachesOfSequences;

    void prefill(CPU, int sequence, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state) override {
        CachedSequence<A, X>& one = this->restart(sequence);
        one.keys.append(kernel_arguments(in, state, Statistics<X>{}));
        one.more.begin(this->how_, in, weights, state);
    }
    void decode(CPU, const DecodeRows& rows, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) override {
        std::byte* const no_workspace = nullptr;
        for (int b = 0; b < in.B; b++) {
            CachedSequence<A, X>& one = this->at(rows.sequence[b]);
            LayerState<X> row = row_of(state, in, b);
            const NextRow<X, decltype(one.more), SlotsOf<A>> on{{}, &one.keys, &one.more};
            attention_layer_forward(on, this->how_, row_of(in, b), weights, row, no_workspace);
        }
    }
};

#ifdef WITH_GPU
template <class A, class X>
    requires requires { typename A::template Texts<X>; }
struct DecodeState<A, GPU, X> {
    using type = typename A::template Texts<X>;
};

template <class A, class X>
class CacheOf<A, GPU, X> final : public CacheInBlock<GPU, X> {
    using More = typename DecodeState<A, GPU, X>::type;
    static_assert(!requires { typename A::template Text<X>; } || requires { typename A::template Texts<X>; },
                  "a mechanism with decode state besides keys, Text<X>, defines it for GPUs too: Texts<X>");

public:
    CacheOf(const A& policy, const CacheRoom& room) : policy_(policy), room_(room) { lay_out(); }

    void prefill(GPU device, int sequence, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state) override {
        keep_prompt(device, *keys_, kernel_arguments(in, state, Statistics<X>{}), sequence);
        more_->begin(device, sequence, policy_, in, weights, state);
    }
    void decode(GPU device, const DecodeRows& rows, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) override {
        std::byte* const no_workspace = nullptr;
        const NextRows<X, More, SlotsOf<A>> on{device, *keys_, rows, &*more_};
        attention_layer_forward(on, policy_, in, weights, state, no_workspace);
    }

private:
    void lay_out() override {
        keys_.emplace(this->memory_, room_, policy_.features().column, policy_.kept_keys());
        more_.emplace(policy_, this->memory_, room_);
    }

    const A& policy_;
    LayerShape room_;
    std::optional<TextKeys<X, SlotsOf<A>>> keys_;
    std::optional<More> more_;
};
#endif

/// `Passes` is LayerPasses<Device, X> or derived from it.
template <class A, class Device, class X, class Passes = LayerPasses<Device, X>>
struct PassesOf : Passes {
    const A& policy;   // of the enclosing layer

    explicit PassesOf(const A& of_layer) : policy(of_layer) {}
    size_t kept_bytes(const LayerShape& shape) const override { return policy.template kept_bytes<X>(shape); }
    size_t workspace_bytes(Device device, const LayerShape& shape) const override {
        return layer_workspace<X>(device, policy, shape);
    }
    void forward(Device device, const LayerInputs<X>& in, const X* weights, LayerState<X>& state, std::byte* workspace,
                 const Statistics<X>& statistics) const override {
        attention_layer_forward(device, policy, in, weights, state, workspace, statistics);
    }
    void backward(Device device, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state, const X* dout,
                  const QkvGradients<X>& to, ScoreInputGradients<X>& more, std::byte* workspace) const override {
        attention_layer_backward(device, policy, in, weights, state, dout, to, more, workspace);
    }
    std::unique_ptr<LayerCache<Device, X>> make_cache(const CacheRoom& room) const override {
        if constexpr (A::writes_row_by_row) return std::make_unique<CacheOf<A, Device, X>>(policy, room);
        else fail(Exit::usage, A::name, " has no token-by-token decoding");
    }
    std::vector<const Wide<X>*> branch_gates(const LayerShape& shape, const LayerState<X>& state) const override {
        return policy.branch_gates(shape, state);
    }
};

template <class A, class X>
struct CpuPassesOf : PassesOf<A, CPU, X, CpuPasses<X>> {
    using PassesOf<A, CPU, X, CpuPasses<X>>::PassesOf;

    void attend(const AttentionForward<X>& a) const override {
        if constexpr (may_read_keys_only<A>) attention_forward(CPU{}, this->policy, a);
        else fail(Exit::usage, A::name, " needs more than keys and values");
    }
    bool sees(const LayerInputs<X>& in, const LayerState<X>& state, int h, int i, int j) const override {
        if constexpr (reports_pairs<A>) return this->policy.sees(in, state, h, i, j);
        else fail(Exit::usage, A::name, " does not report its pairs");
    }
    void naive(const LayerInputs<X>& in, const X* weights, X* out) const override {
        if constexpr (requires { this->policy.naive(in, weights, out); }) this->policy.naive(in, weights, out);
        else fail(Exit::usage, A::name, " has no naive()");
    }
};

template <class A>
struct CpuLayer final : LayerOf<A>, CpuPassesOf<A, float>, CpuPassesOf<A, double> {
    CpuLayer(const Config& config, int layer)
        : LayerOf<A>(config, layer), CpuPassesOf<A, float>(LayerOf<A>::policy), CpuPassesOf<A, double>(LayerOf<A>::policy) {}
};

#ifdef WITH_GPU
/// In bf16. The float32 kernels, which take as long again to compile, are for comparisons with the CPU: make FLOAT32=1.
#ifdef GPU_FLOAT32
template <class A>
struct GpuLayer final : LayerOf<A>, PassesOf<A, GPU, float>, PassesOf<A, GPU, bf16> {
    GpuLayer(const Config& config, int layer)
        : LayerOf<A>(config, layer), PassesOf<A, GPU, float>(LayerOf<A>::policy), PassesOf<A, GPU, bf16>(LayerOf<A>::policy) {}
};
#else
template <class A>
struct GpuLayer final : LayerOf<A>, PassesOf<A, GPU, bf16> {
    GpuLayer(const Config& config, int layer) : LayerOf<A>(config, layer), PassesOf<A, GPU, bf16>(LayerOf<A>::policy) {}
};
#endif
#endif

/// The variant with layers of class Layer: variant_of<CpuLayer, asga>.
template <template <class> class Layer, class A>
inline constexpr Variant variant_of = {A::name, A::options_to_train, A::settings,
                                       [](const Config& config, int layer) -> std::unique_ptr<AttentionLayer> {
                                           return std::make_unique<Layer<A>>(config, layer);
                                       }};
