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

/// Whether a GPU can decode A row by row: its state is keys and gates only, or A defines further state as A::Texts<X>.
template <class A>
constexpr bool writes_rows_on_gpu =
    A::writes_row_by_row && (!requires { typename A::template Text<float>; } || requires { typename A::template Texts<float>; });

template <class A>
LayerFacts facts_of(const A& policy) {
    LayerFacts f{};
    f.features = policy.features();
    f.gated = policy.gates_output(), f.rotates = policy.rotates();
    f.reads_x = A::reads_x, f.reads_qk_pre = A::reads_qk_pre;
    f.has_auxiliary_loss = A::has_auxiliary_loss, f.gates_pairs = A::gates_pairs, f.own_passes = A::own_passes;
    f.writes_row_by_row = A::writes_row_by_row && policy.is_causal();
    f.writes_rows_on_gpu = f.writes_row_by_row && writes_rows_on_gpu<A>, f.reads_keys_only = reads_keys_only(policy);
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
    std::vector<const Wide<X>*> branch_gates(const LayerShape& shape, const LayerState<X>& state) const override {
        return policy.branch_gates(shape, state);
    }
};

/// The decode state of A besides keys: A::Text<X> if defined.
template <class A, class X>
struct TextOf {
    using type = NothingMore;
};
template <class A, class X>
    requires requires { typename A::template Text<X>; }
struct TextOf<A, X> {
    using type = typename A::template Text<X>;
};

/// A Base (LayerText or LayerTexts) with a KV cache `Keys` and further state `More`.
template <class Base, class A, class Room, class Keys, class More>
class KeysAndMore : public Base {
public:
    KeysAndMore(const A& policy, const Room& room) : policy_(policy), room_(room) { lay_out(); }

protected:
    void lay_out() final {
        keys_.emplace(this->memory_, room_, policy_.features().column, policy_.kept_keys());
        more_.emplace(policy_, this->memory_, room_);
    }

    const A& policy_;
    Room room_;
    std::optional<Keys> keys_;
    std::optional<More> more_;
};

template <class A, class X, class More = typename TextOf<A, X>::type>
class LayerTextOf final : public KeysAndMore<LayerText<X>, A, TextRoom, KeyCache<X, SlotsOf<A>>, More> {
public:
    using LayerTextOf::KeysAndMore::KeysAndMore;

    void begin(const LayerInputs<X>& in, const X* weights, const LayerState<X>& state) override {
        this->forget();
        this->keys_->append(kernel_arguments(in, state, Statistics<X>{}));
        this->more_->begin(this->policy_, in, weights, state);
    }
    void next(const LayerInputs<X>& in, const X* weights, LayerState<X>& state) override {
        std::byte* const no_workspace = nullptr;
        attention_layer_forward(NextRow<X, More, SlotsOf<A>>{{}, &*this->keys_, &*this->more_}, this->policy_, in, weights, state,
                                no_workspace);
    }
};

template <class A, class X>
struct CpuPassesOf : PassesOf<A, CPU, X, CpuPasses<X>> {
    using PassesOf<A, CPU, X, CpuPasses<X>>::PassesOf;

    void attend(const AttentionForward<X>& a) const override {
        if constexpr (may_read_keys_only<A>) attention_forward(CPU{}, this->policy, a);
        else fail(Exit::usage, A::name, " needs more than keys and values");
    }
    std::unique_ptr<LayerText<X>> start_text(const TextRoom& room) const override {
        if constexpr (A::writes_row_by_row) return std::make_unique<LayerTextOf<A, X>>(this->policy, room);
        else fail(Exit::usage, A::name, " has no token-by-token decoding");
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
/// The decode state of A on a GPU besides keys: A::Texts<X> if defined.
template <class A, class X>
struct TextsOf {
    using type = NothingMore;
};
template <class A, class X>
    requires requires { typename A::template Texts<X>; }
struct TextsOf<A, X> {
    using type = typename A::template Texts<X>;
};

template <class A, class X, class More = typename TextsOf<A, X>::type>
class LayerTextsOf final : public KeysAndMore<LayerTexts<X>, A, LayerShape, TextKeys<X, SlotsOf<A>>, More> {
public:
    using LayerTextsOf::KeysAndMore::KeysAndMore;

    void begin(GPU device, int text, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state) override {
        keep_prompt(device, *this->keys_, kernel_arguments(in, state, Statistics<X>{}), text);
        this->more_->begin(device, text, this->policy_, in, weights, state);
    }
    void next(GPU device, const TextRows& rows, const LayerInputs<X>& in, const X* weights, LayerState<X>& state) override {
        std::byte* const no_workspace = nullptr;
        const NextRows<X, More, SlotsOf<A>> on{device, *this->keys_, rows, &*this->more_};
        attention_layer_forward(on, this->policy_, in, weights, state, no_workspace);
    }
};

template <class A, class X>
struct GpuPassesOf : PassesOf<A, GPU, X, GpuPasses<X>> {
    using PassesOf<A, GPU, X, GpuPasses<X>>::PassesOf;

    std::unique_ptr<LayerTexts<X>> start_texts(const LayerShape& room) const override {
        if constexpr (writes_rows_on_gpu<A>) return std::make_unique<LayerTextsOf<A, X>>(this->policy, room);
        else fail(Exit::usage, A::name, " has no token-by-token decoding on a GPU");
    }
};

/// In bf16. The float32 kernels, which take as long again to compile, are for comparisons with the CPU: make FLOAT32=1.
#ifdef GPU_FLOAT32
template <class A>
struct GpuLayer final : LayerOf<A>, GpuPassesOf<A, float>, GpuPassesOf<A, bf16> {
    GpuLayer(const Config& config, int layer)
        : LayerOf<A>(config, layer), GpuPassesOf<A, float>(LayerOf<A>::policy), GpuPassesOf<A, bf16>(LayerOf<A>::policy) {}
};
#else
template <class A>
struct GpuLayer final : LayerOf<A>, GpuPassesOf<A, bf16> {
    GpuLayer(const Config& config, int layer) : LayerOf<A>(config, layer), GpuPassesOf<A, bf16>(LayerOf<A>::policy) {}
};
#endif
#endif

/// The variant with layers of class Layer: variant_of<CpuLayer, asga>.
template <template <class> class Layer, class A>
inline constexpr Variant variant_of = {A::name, A::options_to_train, A::settings,
                                       [](const Config& config, int layer) -> std::unique_ptr<AttentionLayer> {
                                           return std::make_unique<Layer<A>>(config, layer);
                                       }};
