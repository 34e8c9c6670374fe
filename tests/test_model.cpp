// The whole model in all its forms, with plain causal attention; tests/variant/ repeats the essence for every variant.
#include <deque>

#include "model/run/summary.h"
#include "tests/whole_model.h"

// Threads one(1) where a case takes many small steps: sharing them costs more than it saves, on a busy machine a hundred times.

namespace {

using Double = CausalTrial<double>;
using Float = CausalTrial<float>;

/// The final activations of a trial's whole batch.
template <class X>
std::vector<X> activations(Trial<X>& trial) {
    trial.loss();
    return {trial.gpt.final_normed, trial.gpt.final_normed + size_t(trial.B) * trial.T * trial.gpt.net.config.C};
}

/// Bytes of a piece of an Arena.
size_t piece(size_t numbers) { return (numbers * sizeof(float) + 255) / 256 * 256; }

}   // namespace

TEST_CASE("gradients of every tensor: all forms, tied and untied, head groups of 1, 2 and 4, tiles whole and partial", "[model]") {
    std::vector<ModelShape> shapes;
    for (bool qwen2 : {false, true})
        for (bool tied : {true, false})
            for (int NKV : {4, 2, 1}) shapes.push_back({qwen2, tied, 4, NKV, 2, 13});
    for (int T : {1, 64, 65, 130}) shapes.push_back({false, true, 2, 1, 1, T});
    for (const ModelShape& shape : shapes) {
        INFO((shape.qwen2 ? "Qwen2" : "Qwen3") << (shape.tied ? ", tied" : ", untied") << ", NKV " << shape.NKV << ", T " << shape.T);
        Double trial(shape);
        CHECK(model_gradient_difference(trial) == "");
    }
}

TEST_CASE("gradients of every tensor: neither biases nor QK-norm, and targets that are ignored", "[model]") {
    Config config = config_of({});
    config.qk_norm = false;
    Double trial(config, 2, 13, 2, 13);
    for (const Tensor& t : trial.gpt.net.tensors) CHECK((!t.name.ends_with("bias") && t.name.find("self_attn.q_norm") == std::string::npos));
    for (size_t n = 0; n < trial.targets.size(); n += 2) trial.targets[n] = -1;
    CHECK(model_gradient_difference(trial) == "");
}

TEST_CASE("2, 3 and 8 shards of the optimiser together make the whole update, bit for bit, in one bucket and in many", "[model]") {
    const Threads one(1);
    const Config config = config_of({});
    AdamW clipped;
    clipped.grad_clip = 0.1;   // below the norm, so that it takes part
    for (const auto& [count, bucket] : {std::pair(2, Shards::BUCKET), {2, size_t(500)}, {3, size_t(500)}, {8, size_t(1000)}}) {
        Float whole(config, 2, 13, 2, 13);
        std::deque<Float> shards;
        std::vector<Trial<float>*> all;
        for (int s = 0; s < count; s++)
            all.push_back(&shards.emplace_back(config, 2, 13, 2, 13, Recompute::nothing, s, count, Mode::training, bucket));
        const size_t n = whole.gpt.net.tensors.size(), padded = all[0]->gpt.shards.size();
        CHECK((n % size_t(16 * count) != 0 || count == 2));   // what cannot be shared out evenly is padded
        CHECK((padded >= n && padded % size_t(16 * count) == 0));
        CHECK((all[0]->gpt.shards.buckets() > 2) == (bucket < n));
        for (int step = 1; step <= 3; step++) {
            INFO(count << " shards, buckets of " << bucket << ", step " << step);
            whole.loss_and_gradients(), whole.update(clipped, step);
            for (Trial<float>* trial : all) trial->loss_and_gradients();
            update_shards(all, clipped, step);
            for (Trial<float>* trial : all) {
                CHECK(trial->gpt.totals->squares == Approx(whole.gpt.totals->squares).epsilon(1e-12));
                CHECK(trial->gpt.totals->squares == all[0]->gpt.totals->squares);
                CHECK(bit_difference(trial->all(trial->gpt.weights), whole.all(whole.gpt.weights)) == "");
            }
        }
    }
}

TEST_CASE("a gradient that is not finite is found by the shard that owns it, and by no other", "[model]") {
    const Threads one(1);
    const Config config = config_of({});
    std::deque<Float> shards;
    for (int s : {0, 1, 2}) shards.emplace_back(config, 2, 13, 2, 13, Recompute::nothing, s, 3, Mode::training, size_t(500));
    const Tensor& tensor = *std::max_element(shards[0].gpt.net.tensors.begin(), shards[0].gpt.net.tensors.end(),
                                             [](const Tensor& a, const Tensor& b) { return a.slot.size < b.slot.size; });
    for (size_t at : {tensor.slot.offset, tensor.slot.offset + tensor.slot.size / 2, tensor.slot.offset + tensor.slot.size - 1}) {
        int found = 0;
        for (Float& shard : shards) {
            auto& gpt = shard.gpt;
            shard.loss_and_gradients();
            CHECK(gpt.gradient_is_finite(CPU{}, tensor.slot));
            gpt.gradients[at] = INFINITY;
            bool owns = false;
            for (size_t k = 0; k < gpt.shards.buckets(); k++) owns |= at >= gpt.shards.own(k).begin && at < gpt.shards.own(k).end;
            CHECK(gpt.gradient_is_finite(CPU{}, tensor.slot) == !owns);
            for (const Tensor& other : gpt.net.tensors)
                if (other.slot.offset != tensor.slot.offset) CHECK(gpt.gradient_is_finite(CPU{}, other.slot));
            found += owns;
        }
        CHECK(found == 1);
    }
}

TEST_CASE("gradients are handed on from the buffer's end to its beginning, when they are complete", "[model]") {
    const Threads one(1);
    for (bool tied : {true, false}) {
        Float trial(ModelShape{false, tied, 4, 2, 2, 13});
        auto& gpt = trial.gpt;
        const Batch batch = trial.feed.put(CPU{}, trial.tokens.data(), trial.targets.data(), trial.B, trial.T);
        gpt.forward(CPU{}, batch);
        gpt.loss(CPU{}, batch, Write::overwrite, 1.0f / 26);
        std::vector<float> handed_on(gpt.net.tensors.size(), NAN);
        size_t reached = handed_on.size();
        gpt.backward(CPU{}, batch, Write::overwrite, [&](size_t begin, size_t end) {
            CHECK((end == reached && begin < end));
            std::copy(gpt.gradients + begin, gpt.gradients + end, handed_on.begin() + long(begin));
            reached = begin;
        });
        CHECK(reached == 0);
        CHECK(bit_difference(handed_on, trial.gradients()) == "");
    }
}

TEST_CASE("an update changes every tensor and keeps the padding between them zero", "[model]") {
    Float trial(ModelShape{true, false, 4, 2, 2, 13});
    const std::vector<float> before = trial.all(trial.gpt.weights);
    trial.loss_and_gradients();
    trial.update({}, 1);
    size_t at = 0;
    for (const Tensor& t : trial.gpt.net.tensors) {
        INFO(t.name);
        CHECK(bit_difference(trial.of(trial.gpt.weights, t), trial.of(before.data(), t)) != "");
        for (; at < t.slot.offset; at++) CHECK((trial.gpt.weights[at] == 0 && trial.gpt.gradients[at] == 0));
        at = t.slot.offset + t.slot.size;
    }
}

TEST_CASE("a shorter and a smaller batch in a larger model are those of a model made for them", "[model]") {
    const Config config = config_of({});
    for (int T : {1, 33, 64, 70}) {
        Double exact(config, 1, T, 1, T), roomy(config, 1, T, 3, 140);
        Double other(config, 3, 140, 3, 140);   // its tokens fill the larger model before
        roomy.gpt.forward(CPU{}, roomy.feed.put(CPU{}, other.tokens.data(), nullptr, 3, 140));
        const Threads one(1);   // the BLAS library may split sums by threads
        INFO("T " << T);
        CHECK(bit_difference(activations(roomy), activations(exact)) == "");
        CHECK(roomy.loss_and_gradients() == exact.loss_and_gradients());
        CHECK(difference(roomy.gradients(), exact.gradients(), Tolerance{1e-13, 0}) == "");
    }
}

TEST_CASE("a large vocabulary: the head works on several chunks of rows, the last a partial one", "[model]") {
    Config config = config_of({});
    config.V = 1 << 17, config.C = 4, config.L = 1;
    const int B = 3, T = 50;
    Float whole(config, B, T, B, T), micro(config, B, T, B, T);
    REQUIRE(whole.gpt.logit_rows < B * T);
    REQUIRE(B * T % whole.gpt.logit_rows != 0);
    REQUIRE(micro.gpt.logit_rows >= T);
    const double expected = whole.loss_and_gradients();
    double loss = 0;
    for (int b = 0; b < B; b++) loss += micro.loss_and_gradients(b, 1, b ? Write::add : Write::overwrite);
    CHECK(std::abs(loss - expected) <= rounding<float>(1).relative * expected);
    CHECK(gradient_difference(micro.gradients(), whole, {rounding<float>(B * T).relative, 1e-9}) == "");
}

TEST_CASE("FLOPs and the cache count a teacher's dense pass, gate keys and what scores read per key", "[model]") {
    const Config c = config_of({});
    const int T = 200;
    const double triangle = T * (T + 1) / 2.0;
    const Flops dense = count_flops(Qwen(named("causal"), c), T);
    const double expected = 6 * Qwen(named("causal"), c).matmul_parameters() + 12.0 * c.HS * c.L * c.NH * triangle / T;
    CHECK(dense.per_token == Approx(expected));
    CHECK((dense.cached_keys == c.L * T && dense.cached_features == 0));
    CHECK(count_flops(Qwen(named("asga"), c), T).cached_features == c.L * c.NH * T * 5);   // asga_hidden
    Config alone = c;
    alone.settings["seer_distil"] = 0;
    const double teacher = count_flops(Qwen(named("seer"), c), T).per_token - count_flops(Qwen(named("seer"), alone), T).per_token;
    CHECK(teacher == Approx(4.0 * c.HS * c.L * c.NH * triangle / T));
}

TEST_CASE("the memory plan is what is allocated, and recomputation lowers it", "[model]") {
    size_t before = SIZE_MAX;   // bytes of the level before in training
    for (Recompute recompute : {Recompute::nothing, Recompute::cheap, Recompute::layers})
        for (Mode mode : {Mode::training, Mode::inference}) {
            const Config config = config_of({});
            const int B = 3, T = 70;
            GPT<CPU, float> gpt(named("causal"), config, B, T, mode, recompute, 0, 2);
            const std::vector<MemoryUse> plan = gpt.memory_plan();
            gpt.allocate(CPU{});
            const std::vector<MemoryUse> taken = gpt.memory_plan();
            REQUIRE(plan.size() == taken.size());
            for (size_t k = 0; k < plan.size(); k++) CHECK((plan[k].what == taken[k].what && plan[k].bytes == taken[k].bytes));
            const size_t n = gpt.shards.size();
            const bool training = mode == Mode::training;
            CHECK(gpt.weight_memory.bytes() == piece(n));
            CHECK(gpt.gradient_memory.bytes() == (training ? piece(n) : 0));
            CHECK(gpt.moment_memory.bytes() == (training ? 2 * piece(n / 2) : 0));
            const size_t keys = size_t(omp_get_max_threads()) * (training ? 3 : 2) * 128 * config.HS * sizeof(float);   // two tiles
            CHECK(total_bytes(plan) == gpt.weight_memory.bytes() + gpt.gradient_memory.bytes() + gpt.moment_memory.bytes() +
                                        gpt.activation_memory.bytes() + gpt.scratch_memory.bytes() + keys);
            for (const Arena<CPU>* arena : {&gpt.weight_memory, &gpt.gradient_memory, &gpt.moment_memory, &gpt.activation_memory}) CHECK(arena->used() == arena->bytes());
            CHECK(gpt.activation_memory.bytes() > piece(size_t(config.L + 1) * B * T * config.C));
            CHECK(gpt.scratch_memory.bytes() >= piece(size_t(gpt.logit_rows) * config.V));
            CHECK((!training || gpt.scratch.logits == gpt.scratch.dresidual));
            CHECK((gpt.layers[0].qkv == gpt.layers[1].qkv) == !(training && recompute != Recompute::layers));
            if (training) CHECK(total_bytes(plan) < std::exchange(before, total_bytes(plan)));
        }
}

namespace {

// Features before RoPE, a gate from the layer's input, no RoPE, several softmaxes, and none of these.
constexpr const char* FIVE[] = {"asga", "dsa", "shaw", "nsa", "causal"};
constexpr const char* SOME_WITH_LOSS[] = {"moh", "causal"};

}   // namespace

TEST_CASE("layers of different mechanisms: gradients, recomputation to the bit, inference", "[model]") {
    const Variant mixed = in_turn<FIVE>();
    Config config = config_of({});
    config.L = 5;
    Trial<double> trial(mixed, config, 1, 67, 1, 67);
    CHECK(model_gradient_difference(trial) == "");

    const Threads one(1);
    Trial<float> keeping(mixed, config, 2, 67, 2, 67);
    const double loss = keeping.loss_and_gradients();
    for (Recompute what : {Recompute::cheap, Recompute::layers}) {
        Trial<float> recomputing(mixed, config, 2, 67, 2, 67, what);
        CHECK(recomputing.loss_and_gradients() == loss);
        CHECK(bit_difference(recomputing.gradients(), keeping.gradients()) == "");
    }
    Trial<float> inference(mixed, config, 2, 67, 2, 67, Recompute::nothing, 0, 1, Mode::inference);
    CHECK(inference.loss() == loss);
}

TEST_CASE("layers of which some add a loss of their own: the others add none, whatever batch came before", "[model]") {
    const Threads one(1);
    const Variant variant = in_turn<SOME_WITH_LOSS>();
    Config config = config_of({});
    config.L = 3;
    Trial<double> trial(variant, config, 2, 67, 2, 67);
    trial.loss();
    const double own = trial.gpt.totals->auxiliary;
    CHECK(own > 0);
    trial.loss_and_gradients(0, 1, Write::overwrite);   // one sequence: the layers' parts lie closer together
    trial.loss();
    CHECK(trial.gpt.totals->auxiliary == own);
}
