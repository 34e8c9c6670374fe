// A small whole model with a batch of random tokens, for any attention variant and number type.
#pragma once
#include <algorithm>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "model/gpt.h"
#include "model/monitor.cuh"
#include "model/run/feed.cuh"
#include "tests/finite_differences.h"
#include "tests/variants.h"

/// The sizes and switches that change the path through the model.
struct ModelShape {
    bool qwen2 = false;   // biases of q, k, v, no QK-norm and RoPE scaled by YaRN; otherwise QK-norm, no bias and plain RoPE
    bool tied = true;
    int NH = 4, NKV = 2;
    int B = 2, T = 67;    // T: one full tile and a partial one
};

inline Config config_of(const ModelShape& form) {
    Config c;
    c.V = 29, c.C = 12, c.L = 2, c.NH = form.NH, c.NKV = form.NKV, c.HS = 6, c.F = 20;
    c.qkv_bias = form.qwen2, c.qk_norm = !form.qwen2, c.tied = form.tied;
    c.rope_theta = 1e4, c.norm_eps = 1e-5;
    if (form.qwen2)   // the second of three pairs has a mixture of both frequencies
        c.rope_scaling = {RopeScaling::Type::yarn, 4, 1000, 32, 1, true, 1.2};
    c.settings = {{"attention_window", 9.0}, {"attention_dense_until", 5.0}, {"asga_hidden", 5.0}};   // small, so that they cut
    c.settings.insert({{"shaw_clip", 7.0}, {"sinks_tokens", 3.0}, {"longformer_globals", 5.0}, {"bigbird_block", 8.0}});
    c.settings.insert({{"strided_stride", 7.0}, {"longnet_segment", 6.0}, {"routing_clusters", 3.0}, {"mosa_rho", 2.0}});
    c.settings.insert({{"fixed_factorized_chunk", 16.0}, {"fixed_factorized_summary", 3.0}});
    c.settings.insert({{"deepspeed_fixed_block", 5.0}, {"deepspeed_fixed_local", 3.0}, {"deepspeed_fixed_per_head", 1.0}});
    c.settings.insert({{"nsa_block", 4.0}, {"nsa_stride", 2.0}});
    return c;
}

/// With settings with which 200 tokens have something to select, and keys that no later row sees.
inline Config with_choices(Config c) {
    for (auto [key, value] : {std::pair{"attention_dense_until", 30.0}, {"moba_block", 64.0}, {"moba_top_k", 2.0}, {"seer_top_k", 1.0},
                              {"seer_distil", 0.0}, {"seer_r_top_k", 1.0}, {"seer_r_distil", 0.0},
                              {"adaptive_sparse_top_k", 1.0}, {"nsa_selected", 4.0},
                              {"infllm_v2_kernel", 12.0}, {"infllm_v2_stride", 8.0}, {"infllm_v2_top_k", 2.0}, {"infllm_v2_local", 1.0},
                              {"deepseek_sparse_top_k", 20.0}, {"deepseek_sparse_dim", 32.0}})
        c.settings[key] = value;
    return c;
}

/// A made-up variant whose layer l is one of NAMES[l modulo their number] from the TABLE; it has the settings of all.
template <const auto& NAMES, const std::vector<const Variant*>& (*TABLE)() = all_variants>
Variant in_turn() {
    return {"in turn", "",
            [] {
                std::vector<Setting> all;
                for (const char* name : NAMES)
                    for (const Setting& one : named(name, TABLE()).settings())
                        if (std::none_of(all.begin(), all.end(), [&](const Setting& s) { return s.key == std::string(one.key); }))
                            all.push_back(one);
                return all;
            },
            [](const Config& config, int layer) {
                return named(NAMES[layer % std::size(NAMES)], TABLE()).make_layer(config, layer);
            }};
}

/// Large random weights for every tensor, norms and biases too, so that each term of each formula moves the loss; rows of matrices
/// no longer than 1 on average, so that numbers do not grow from one product to the next and bf16 can follow.
template <class X>
void randomise(const TensorList& list, X* weights) {
    uint64_t seed = 1;
    for (const Tensor& t : list) {
        const std::vector<X> numbers = random_numbers<X>(t.slot.size, seed++);
        const double size = t.shape.size() > 1 ? std::min(0.5, std::sqrt(3.0 / double(t.shape.back()))) : 0.5;
        for (size_t n = 0; n < t.slot.size; n++) weights[t.slot.offset + n] = X(t.init.start(n)) + X(size) * numbers[n];
    }
}

/// A model on the CPU with a batch of B x T; `gpt` may have room for more.
template <class X>
struct Trial {
    GPT<CPU, X> gpt;
    BatchFeed<CPU> feed;
    int B, T;
    std::vector<int32_t> tokens, targets;

    Trial(const Variants& variants, const Config& config, int B_, int T_, int room_B, int room_T,
          Recompute recompute = Recompute::nothing, int shard = 0, int shards = 1, Mode mode = Mode::training,
          size_t bucket = Shards::BUCKET, Optimizer optimizer = Optimizer::adamw)
        : gpt(variants, config, room_B, room_T, mode, recompute, shard, shards, bucket, Stored::as_computed, optimizer),
          feed(room_B, room_T, config.V), B(B_), T(T_), tokens(size_t(B) * T), targets(tokens.size()) {
        gpt.allocate(CPU{}), feed.allocate(CPU{});
        randomise(gpt.net.tensors, gpt.weights);
        converge_sigma();
        weights_set();
        std::mt19937 generator(3);
        for (size_t n = 0; n < tokens.size(); n++) tokens[n] = int32_t(generator() % config.V), targets[n] = int32_t(generator() % config.V);
    }
    explicit Trial(const Variant& variant, const ModelShape& form, Recompute recompute = Recompute::nothing)
        : Trial(variant, config_of(form), form.B, form.T, form.B, form.T, recompute) {}

    /// u where gradients are exact; gamma stays at random.
    void converge_sigma() {
        const Threads one(1);   // thousands of products too small to share
        start_sigma(gpt.net.sigma, gpt.net.sigma_names, gpt.weights, [](const std::string& tensor) { return tensor.ends_with("sigma_u"); }, 5000);
    }

    /// After gpt.weights have been given other numbers.
    void weights_set() {
        if (gpt.keeps_master()) std::copy_n(gpt.weights, gpt.net.tensors.size(), gpt.master);
        gpt.weights_loaded(CPU{});
    }

    /// What the optimiser updates.
    X* raw() { return gpt.keeps_master() ? gpt.master : gpt.weights; }

    /// What training minimises: the mean loss per token plus, unless it is left out, the policy's auxiliary loss.
    double loss(bool with_auxiliary = true) {
        const Batch batch = feed.put(CPU{}, tokens.data(), targets.data(), B, T);
        gpt.forward(CPU{}, batch);
        gpt.loss(CPU{}, batch, Write::overwrite);
        return (gpt.totals->loss + (with_auxiliary ? gpt.totals->auxiliary : 0)) / (B * T);
    }

    /// The same with the gradients of rows [first, first + count) of the batch, each token weighing 1 / (B T).
    double loss_and_gradients(int first, int count, Write write) {
        const size_t at = size_t(first) * T;
        const Batch batch = feed.put(CPU{}, &tokens[at], &targets[at], count, T);
        gpt.forward(CPU{}, batch);
        gpt.totals->loss = gpt.totals->auxiliary = 0;   // of this part alone, also where gradients are added
        gpt.loss(CPU{}, batch, write, X(1.0 / (B * T)));
        const double sum = gpt.totals->loss + gpt.totals->auxiliary;
        gpt.backward(CPU{}, batch, write);
        return sum / (B * T);
    }
    double loss_and_gradients() { return loss_and_gradients(0, B, Write::overwrite); }

    /// A step of the optimiser from the gradients, after loss_and_gradients().
    void update(const AdamW& adamw, int64_t step) {
        gpt.norm(CPU{});
        gpt.update(CPU{}, adamw, step);
    }

    std::vector<X> of(const X* flat, const Tensor& t) const { return {flat + t.slot.offset, flat + t.slot.offset + t.slot.size}; }
    std::vector<X> all(const X* flat) const { return {flat, flat + gpt.net.tensors.size()}; }
    std::vector<X> gradients() const { return all(gpt.gradients); }
};

/// The numbers of one tensor in a flat buffer.
template <class X>
std::vector<X> part_of(const std::vector<X>& flat, const Tensor& t) {
    return {flat.begin() + t.slot.offset, flat.begin() + t.slot.offset + t.slot.size};
}

/// What compare(tensor) finds, a sentence per wrong tensor.
template <class Compare>
std::string tensor_difference(const TensorList& list, Compare compare) {
    std::string wrong;
    for (const Tensor& t : list) {
        const std::string text = compare(t);
        if (!text.empty()) wrong += t.name + ": " + text + "\n";
    }
    return wrong;
}

/// "" when every tensor's gradient is that of the model `exact` up to `tolerance`.
template <class X, class Y>
std::string gradient_difference(const std::vector<X>& gradients, const Trial<Y>& exact, Tolerance tolerance) {
    return tensor_difference(exact.gpt.net.tensors, [&](const Tensor& t) {
        return difference(part_of(gradients, t), exact.of(exact.gpt.gradients, t), tolerance);
    });
}

/// "" when every tensor's gradient is that of the other model to the bit.
template <class X>
std::string gradient_bit_difference(const Trial<X>& is, const Trial<X>& should) {
    return tensor_difference(should.gpt.net.tensors, [&](const Tensor& t) {
        return bit_difference(is.of(is.gpt.gradients, t), should.of(should.gpt.gradients, t));
    });
}

/// An update by ZeRO-1, after loss_and_gradients() of each: `trials` are shard 0, 1, ... of as many, in one process. They have the
/// whole gradient; of what is another shard's part a rank has no sum, and here it has NaN.
template <class X>
void update_shards(const std::vector<Trial<X>*>& trials, const AdamW& adamw, int64_t step) {
    const Shards& cut = trials[0]->gpt.shards;
    auto for_others = [&](auto use) {   // use(trial, bucket, shard whose part it is)
        for (Trial<X>* trial : trials)
            for (size_t k = 0; k < cut.buckets(); k++)
                for (int s = 0; s < cut.count(); s++)
                    if (s != trial->gpt.shards.shard()) use(trial->gpt, k, s);
    };
    for_others([&](auto& gpt, size_t k, int s) { fill(CPU{}, gpt.gradients + cut.part(k, s).begin, cut.part_size(k), X(NAN)); });
    for (Trial<X>* trial : trials) trial->gpt.norm(CPU{});
    for_others([&](auto& gpt, size_t, int s) { gpt.shard_squares[s] = trials[size_t(s)]->gpt.shard_squares[s]; });
    for (Trial<X>* trial : trials) {
        trial->gpt.norm_of_shards(CPU{});
        trial->gpt.update(CPU{}, adamw, step);
    }
    const auto gather = [&](auto flat) {   // flat(gpt): the buffer of which each shard has its parts
        for_others([&](auto& gpt, size_t k, int s) {
            std::copy_n(flat(trials[size_t(s)]->gpt) + cut.part(k, s).begin, cut.part_size(k), flat(gpt) + cut.part(k, s).begin);
        });
    };
    gather([](auto& gpt) { return gpt.gradients; });
    for (Trial<X>* trial : trials) trial->gpt.update_matrices(CPU{}, adamw, step);
    gather([](auto& gpt) { return gpt.weights; });
}

/// The same of the variant causal.
template <class X>
struct CausalTrial : Trial<X> {
    template <class... Arguments>
    explicit CausalTrial(const Arguments&... arguments) : Trial<X>(named("causal"), arguments...) {}
};

/// The same of a policy that a test has made for itself.
template <class X, class A>
struct TrialOf : Trial<X> {
    template <class... Arguments>
    explicit TrialOf(const Arguments&... arguments) : Trial<X>(variant_of<CpuLayer, A>, arguments...) {}
};

/// The layer that a tensor belongs to as its mechanism's own, or null.
inline const LayerFacts* owner_of(const Qwen& net, const Tensor& t) {
    for (const auto& layer : net.layers)
        if (t.slot.offset - layer.own.offset < layer.own.size) return &layer.attention->facts;
    return nullptr;
}

/// Derivative of the loss by differences over four points (error h^4) when the tensor moves along `direction`. What a mechanism
/// learns from a teacher reaches its own tensors only.
inline double slope_along(Trial<double>& trial, const Tensor& t, const std::vector<double>& direction) {
    const double step = 1e-5;
    const std::vector<double> here = trial.of(trial.raw(), t);
    auto move = [&](double distance) {
        for (size_t n = 0; n < t.slot.size; n++) trial.raw()[t.slot.offset + n] = here[n] + distance * direction[n];
        std::copy_n(trial.raw() + t.slot.offset, t.slot.size, trial.gpt.weights + t.slot.offset);
        trial.gpt.weights_loaded(CPU{});
    };
    const bool with_auxiliary = !trial.gpt.net.any(&LayerFacts::has_teacher) || owner_of(trial.gpt.net, t);
    auto loss_at = [&](double distance) {
        move(distance);
        return trial.loss(with_auxiliary);
    };
    const double near = loss_at(step) - loss_at(-step), far = loss_at(2 * step) - loss_at(-2 * step);
    move(0);
    return (8 * near - far) / (12 * step);
}

/// Checks the gradient of every tensor whose name has `of` in it, unless a mechanism says that differences do not have it: a few single
/// elements, and one random direction through all elements. Returns a sentence per wrong tensor.
inline std::string model_gradient_difference(Trial<double>& trial, const std::string& of = "") {
    const Threads one(1);   // hundreds of passes too small for several threads
    trial.loss_and_gradients();
    trial.gpt.norm(CPU{});
    const std::vector<double> gradients = trial.gradients();
    std::mt19937 generator(7);
    return tensor_difference(trial.gpt.net.tensors, [&](const Tensor& t) -> std::string {
        if (!t.has_gradient() || t.name.find(of) == std::string::npos) return "";
        if (const LayerFacts* owner = owner_of(trial.gpt.net, t); owner && !owner->has_exact_gradients) return "";
        std::vector<std::vector<double>> directions(1, random_numbers<double>(t.slot.size, 23));
        for (int k = 0; k < 3; k++) {
            directions.emplace_back(t.slot.size);
            directions.back()[generator() % t.slot.size] = 1;
        }
        std::vector<double> expected, actual;
        for (const auto& direction : directions) {
            expected.push_back(slope_along(trial, t, direction));
            actual.push_back(weighted_sum(trial.of(gradients.data(), t), direction));
        }
        return difference(actual, expected, Tolerance{1e-6, 1e-9});
    });
}
