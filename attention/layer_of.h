// Wraps a policy in the engine's interface (attention/variant.h). LayerOf<A> is a layer; CpuLayer<A> and GpuLayer<A> also compute
// on their device. The virtual functions here forward to layer.h.
#pragma once
#include <concepts>
#include <memory>

#include "attention/decoding/decoding.cuh"
#include "attention/kernel/layer.h"
#include "attention/variant.h"
#include "model/base/error.h"

// Optional members of a mechanism for monitors:
//     branch_names() -> std::vector<std::string>      of the gated softmaxes that it sums, each with its statistics of_branch(n)
//     branch_gates(shape, state)                      their factors (B, T, NH) in the last forward pass; null for one without
//     sees(in, state, h, i, j) -> bool                whether query i of head h read key j in the last forward pass: for one that
//                                                     attends to something other than the model's own keys and values

template <class A>
constexpr bool reports_pairs = requires(const A& policy, const LayerInputs<float>& in, const LayerState<float>& state) {
    policy.sees(in, state, 0, 0, 0);
};
template <class A>
std::vector<std::string> branch_names(const A& policy) {
    if constexpr (requires { policy.branch_names(); }) return policy.branch_names();
    else return {""};
}
template <class A, class X>
std::vector<const Wide<X>*> branch_gates(const A& policy, const LayerShape& shape, const LayerState<X>& state) {
    if constexpr (requires { policy.branch_gates(shape, state); }) return policy.branch_gates(shape, state);
    else return {state.score_inputs.gate};
}

/// Whether decode needs only the rotated keys and the values: the mechanism reads nothing else and makes one kernel call.
template <class A>
constexpr bool may_read_keys_only = !A::traits.own_passes && !A::traits.reads_qk_pre && !A::traits.reads_x;

template <class A>
LayerFacts facts_of(const A& policy) {
    LayerFacts f{A::traits, policy.form()};
    f.features = policy.features();
    f.gated = f.gated && f.gates_output;
    f.keeps_documents_apart = f.is_causal && f.keeps_documents_apart;
    f.decodes = decodes<A, CPU, float> && f.is_causal;
    f.reads_keys_only = may_read_keys_only<A> && f.rotates && !f.gated && f.features.head + f.features.row + f.features.column == 0;
    f.reports_pairs = reports_pairs<A>;
    f.expects_at_most = expects_at_most(policy);
    f.branch_names = branch_names(policy);
    return f;
}

/// Parts of the contract (attention/mechanism.h) that a mechanism may forget.
template <class A>
constexpr bool keeps_contract() {
    using Loss = float (*)(float);
    constexpr bool scores = !std::is_same_v<decltype(&A::template score<float>), decltype(&Policy::score<float>)>;
    constexpr bool differentiates =
        !std::is_same_v<decltype(&A::template score_backward<float, Loss>), decltype(&Policy::score_backward<float, Loss>)>;
    constexpr bool has_pair_gate = !std::is_same_v<decltype(&A::template pair_gate<float>), decltype(&Policy::pair_gate<float>)>;
    static_assert(std::derived_from<A, Policy>, "a mechanism derives from Policy (attention/mechanism.h)");
    static_assert(requires { A::name; }, "give the mechanism its name: static constexpr const char* name = \"...\";");
    static_assert(std::constructible_from<A, const Config&, int>, "a mechanism's constructor takes (const Config&, int layer)");
    static_assert(!scores || differentiates, "score() without score_backward(): write the derivative of score()");
    static_assert(!A::traits.gates_pairs || has_pair_gate, "traits.gates_pairs without pair_gate(): write the gate of a pair");
    constexpr bool default_preprocess = requires { &A::template preprocess<CPU, LayerInputs<float>, float, ScoreInputs<float>>; };
    static_assert(!default_preprocess || A::traits.own_passes || !(A::traits.reads_x || A::traits.reads_qk_pre ||
                                                                   A::traits.gates_output || A::traits.has_auxiliary_loss),
                  "these traits need preprocess(): it reads x or q and k, fills the gate or computes the loss");
    static_assert(
        !A::traits.own_passes ||
            requires(const A& a, LayerInputs<float> in, LayerState<float> state, QkvGradients<float> to,
                     ScoreInputGradients<float> more, const float* x, std::byte* workspace) {
                a.forward(CPU{}, in, x, state, workspace, Statistics<float>{});
                a.backward(CPU{}, in, x, state, x, to, more, workspace);
            },
        "traits.own_passes needs forward() and backward() with the arguments of attention/kernel/layer.h");
    return true;
}

template <class A>
struct LayerOf : AttentionLayer {
    A policy;

    static_assert(keeps_contract<A>());

    LayerOf(const Config& config, int layer) : policy(config, layer) { facts = facts_of(policy); }
    void declare(TensorList& list, const std::string& prefix) override { policy.declare(list, prefix); }
    bool trains(const std::string& tensor) const override { return policy.trains(tensor); }
    Tile tile(int h, int i0, int i1, int j0, int j1) const override { return policy.tile(h, i0, i1, j0, j1); }
    bool visible(int h, int i, int j) const override { return policy.visible(h, i, j); }
    PairCount expected_pairs(int NH, int T) const override { return ::expected_pairs(policy, NH, T); }
    double further_pairs(int NH, int T) const override { return ::further_pairs(policy, NH, T); }
    double cached_keys(int T) const override { return ::cached_keys(policy, T); }
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
        return ::branch_gates(policy, shape, state);
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
        static_assert(requires { this->policy.naive(in, weights, out); },
                      "write naive(in, weights, out): the formula in dense loops, which the tests compare with");
        this->policy.naive(in, weights, out);
    }
};

/// A layer with its passes on one device.
template <class A, class... PassesInTypes>
struct LayerWith final : LayerOf<A>, PassesInTypes... {
    LayerWith(const Config& config, int layer) : LayerOf<A>(config, layer), PassesInTypes(LayerOf<A>::policy)... {}
};
template <class A>
using CpuLayer = LayerWith<A, CpuPassesOf<A, float>, CpuPassesOf<A, double>>;

#ifdef WITH_GPU
/// In bf16. The float32 kernels, which take as long again to compile, are for comparisons with the CPU: make FLOAT32=1.
template <class A>
#ifdef GPU_FLOAT32
using GpuLayer = LayerWith<A, PassesOf<A, GPU, float>, PassesOf<A, GPU, bf16>>;
#else
using GpuLayer = LayerWith<A, PassesOf<A, GPU, bf16>>;
#endif
#endif

/// The variant with layers of class Layer: variant_of<CpuLayer, asga>.
template <template <class> class Layer, class A>
inline constexpr Variant variant_of = {A::name, A::options_to_train, A::settings,
                                       [](const Config& config, int layer) -> std::unique_ptr<AttentionLayer> {
                                           return std::make_unique<Layer<A>>(config, layer);
                                       }};
