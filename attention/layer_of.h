// Wraps a policy in the engine's interface (attention/variant.h). LayerOf<A> is a layer; CpuLayer<A> and GpuLayer<A> also compute on
// their device. The virtual functions here forward to layer.h.
#pragma once
#include <memory>

#include "attention/decoding/decoding.cuh"
#include "attention/kernel/layer.h"
#include "attention/variant.h"
#include "model/base/error.h"

template <class A>
constexpr bool reports_pairs = requires(const A& policy, const LayerInputs<float>& in, const LayerState<float>& state) {
    policy.sees(in, state, 0, 0, 0);
};

/// Whether a query's output depends on its position, the rotated keys and the values only: one kernel call that reads nothing else.
template <class A>
constexpr bool may_read_keys_only = !A::own_passes && !A::reads_qk_pre && !A::reads_x;
template <class A>
bool reads_keys_only(const A& policy) {
    const Features f = policy.features();
    return may_read_keys_only<A> && policy.rotates() && !policy.gates_output() && f.head + f.row + f.column == 0;
}

template <class A>
LayerFacts facts_of(const A& policy) {
    LayerFacts f{};
    f.features = policy.features();
    f.gated = policy.gates_output(), f.rotates = policy.rotates();
    f.reads_x = A::reads_x, f.reads_qk_pre = A::reads_qk_pre;
    f.has_auxiliary_loss = A::has_auxiliary_loss, f.gates_pairs = A::gates_pairs, f.own_passes = A::own_passes;
    f.decodes = decodes<A, CPU, float> && policy.is_causal();
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
        if constexpr (decodes<A, CPU, float>) return std::make_unique<CacheOf<A, Device, X>>(policy, room);
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
