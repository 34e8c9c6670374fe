// The seam between policies and the engine (attention/layer_of.h, model/qwen.h): each fact of a layer is its policy's and no
// other's, and calls reach the policy as they are.
#include "tests/check.h"
#include "tests/whole_model.h"

namespace {

/// A policy of which exactly one answer, number n, is not the default.
template <int n>
struct Odd : Policy {
    using Policy::Policy;
    static constexpr const char* name = "odd";
    static constexpr Traits traits{.own_passes = n == 6, .reads_x = n == 2, .reads_qk_pre = n == 3, .has_auxiliary_loss = n == 4,
                                   .gates_output = n == 0, .gates_pairs = n == 5, .tokens_choose = n == 13, .sorts_tokens = n == 12};
    Form form() const {
        return {.is_causal = n != 7, .rotates = n != 1, .has_exact_gradients = n != 10, .has_teacher = n == 11,
                .needs_known_text = n == 8};
    }
    bool expects_at_most() const { return n == 9; }
};

/// The facts in the order of their numbers above.
std::vector<bool> facts_in_order(const LayerFacts& f) {
    return {f.gated, f.rotates, f.reads_x, f.reads_qk_pre, f.has_auxiliary_loss, f.gates_pairs, f.own_passes, f.is_causal,
            f.needs_known_text, f.expects_at_most, f.has_exact_gradients, f.has_teacher, f.sorts_tokens, f.tokens_choose};
}

template <int n>
void check_odd_fact() {
    INFO("fact " << n);
    const LayerFacts facts = facts_of(Odd<n>(Config{}, 0));
    std::vector<bool> expected = facts_in_order(facts_of(Odd<-1>(Config{}, 0)));
    expected[n] = !expected[n];
    CHECK(facts_in_order(facts) == expected);
    CHECK(facts.branch_names == std::vector<std::string>{""});
    CHECK(facts.reads_keys_only == (n != 0 && n != 1 && n != 2 && n != 3 && n != 6));
    CHECK(facts.decodes == (n != 6 && n != 7));
    CHECK_FALSE(facts.reports_pairs);
}

/// Answers that tell their arguments.
struct Telling : Policy {
    using Policy::Policy;
    static constexpr const char* name = "telling";
    constexpr Features features() const { return {1, 2, 3, true}; }
    constexpr Tile tile(int h, int i0, int i1, int j0, int j1) const {
        return h * 10000 + i0 * 1000 + i1 * 100 + j0 * 10 + j1 == 12345 ? Tile::full : Tile::hidden;
    }
    constexpr bool visible(int h, int i, int j) const { return h * 100 + i * 10 + j == 123; }
    PairCount expected_pairs(int NH, int T) const { return {10.0 * NH + T, 1}; }
    double further_pairs(int NH, int T) const { return 100.0 * NH + T; }
    double cached_keys(int T) const { return 0.5 * T; }
    bool trains(const std::string& tensor) const { return tensor == "this"; }
    template <class X>
    void naive(const LayerInputs<X>&, const X*, X*) const {}
    std::vector<std::string> branch_names() const { return {"near", "far"}; }
    template <class X>
    bool sees(const LayerInputs<X>&, const LayerState<X>&, int h, int i, int j) const { return h * 100 + i * 10 + j == 123; }
};

/// A variant that keeps its tensor as it is: what one layer freezes is frozen whatever the others say.
struct Freezing : Policy {
    using Policy::Policy;
    static constexpr const char* name = "freezing";
    template <class X>
    void naive(const LayerInputs<X>&, const X*, X*) const {}
    void declare(TensorList& list, const std::string& prefix) { list.add(prefix + "kept.weight", {3}, ones(), Decay::no); }
    bool trains(const std::string& tensor) const { return !tensor.ends_with("kept.weight"); }
};

}   // namespace

TEST_CASE("layers: each fact is its policy's", "[layers]") {
    [&]<int... n>(std::integer_sequence<int, n...>) { (check_odd_fact<n>(), ...); }(std::make_integer_sequence<int, 14>());
}

TEST_CASE("layers: questions and answers pass as they are", "[layers]") {
    const CpuLayer<Telling> layer(Config{}, 0);
    const AttentionLayer& asked = layer;
    CHECK((asked.tile(1, 2, 3, 4, 5) == Tile::full && asked.tile(1, 4, 5, 2, 3) == Tile::hidden));
    CHECK((asked.visible(1, 2, 3) && !asked.visible(1, 3, 2)));
    CHECK((asked.expected_pairs(4, 7).pairs == 47 && asked.further_pairs(4, 7) == 407 && asked.cached_keys(7) == 3.5));
    CHECK((asked.trains("this") && !asked.trains("that")));
    CHECK((asked.facts.reports_pairs && asked.facts.features.head == 1 && asked.facts.features.row == 2));
    CHECK(asked.facts.branch_names == std::vector<std::string>{"near", "far"});
    CHECK((asked.facts.features.column == 3 && asked.facts.features.tile && !asked.facts.reads_keys_only));
    const CpuPasses<float>& passes = cpu_passes_of<float>(asked);
    CHECK((passes.sees({}, {}, 1, 2, 3) && !passes.sees({}, {}, 1, 3, 2)));
}

TEST_CASE("layers: a tensor that its layer freezes is frozen in a model whose other layers freeze nothing", "[layers]") {
    Variant variant = variant_of<CpuLayer, Freezing>;
    variant.make_layer = [](const Config& config, int layer) -> std::unique_ptr<AttentionLayer> {
        if (layer == 0) return std::make_unique<CpuLayer<Freezing>>(config, layer);
        return named("causal").make_layer(config, layer);
    };
    const Qwen net(variant, config_of({}));
    for (const Tensor& t : net.tensors) CHECK((t.role == Role::frozen) == t.name.ends_with("kept.weight"));
}
