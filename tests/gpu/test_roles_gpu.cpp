// Statistics, frozen tensors, Muon's matrices and linear layers divided by their spectral norms on the GPU against the CPU.
#include "tests/gpu/gpu_trial.h"
#include "tests/sigma_policy.h"
#include "tests/watching_policy.h"

namespace {

/// A model in double on the CPU, and its twins in float32 and bf16 on the GPU.
template <class A>
struct Twins {
    TrialOf<double, A> exact;
    GpuTrial<float> single;
    GpuTrial<bf16> half;

    explicit Twins(const Config& config, Optimizer optimizer = Optimizer::adamw)
        : exact(config, 1, 67, 1, 67, Recompute::nothing, 0, 1, Mode::training, Shards::BUCKET, optimizer),
          single(variant_of<GpuLayer, A>, config, 1, 67, Recompute::nothing, {}, optimizer),
          half(variant_of<GpuLayer, A>, config, 1, 67, Recompute::nothing, {}, optimizer) {}

    void step(const AdamW& adamw, int step) {
        INFO("step " << step);
        const double loss = exact.loss_and_gradients();
        CHECK(std::abs(single.loss_and_gradients(exact) - loss) <= 1e-4 * loss);
        CHECK(std::abs(half.loss_and_gradients(exact) - loss) <= 2e-2 * loss);
        exact.update(adamw, step), single.update(adamw, step), half.update(adamw, step);
    }
    void check_norm() {
        const double norm = std::sqrt(exact.gpt.totals->squares);
        CHECK(std::abs(std::sqrt(single.gpt.read_totals(single.device).squares) - norm) <= 1e-3 * norm);
    }
};

}   // namespace

TEST_CASE("GPU roles: a shard without anything to train adds nothing to the norm and updates nothing", "[gpu][roles]") {
    Config config = small_config(false);
    config.settings["watcher_only"] = true;
    const GPU device = test_gpu();
    GPT<GPU, float> gpt(variant_of<GpuLayer, Watcher>, config, 1, 67, Mode::training, Recompute::nothing, 0, 32);
    gpt.allocate(device);
    REQUIRE((gpt.range_count == 0 && gpt.span_count == 0));   // it owns a piece of the embedding, which is frozen
    const size_t n = gpt.shards.size();
    REQUIRE(n > gpt.net.tensors.size());
    std::vector<float> gradients(n, NAN);
    to_host(device, gradients.data(), gpt.gradients, n);
    CHECK(gradients == std::vector<float>(n));   // padding too, which is never written but summed by ranks
    fill(device, gpt.gradients, n, 1.0f);
    fill(device, gpt.weights, n, 2.0f);
    gpt.norm(device);
    double squares = NAN;
    to_host(device, &squares, gpt.shard_squares, 1);
    CHECK(squares == 0);
    gpt.update(device, AdamW{}, 1);
    std::vector<float> weights(n);
    to_host(device, weights.data(), gpt.weights, n);
    CHECK(weights == std::vector<float>(n, 2.0f));
}

TEST_CASE("GPU roles: statistics follow and frozen tensors stay as on the CPU", "[gpu][roles]") {
    const Threads one(1);
    for (bool only : {false, true}) {
        Config config = small_config(false);
        config.settings["watcher_only"] = only;
        Twins<Watcher> twins(config);
        auto& [exact, single, half] = twins;
        const std::vector<float> start = round_weights<bf16>(exact);
        single.set_weights(start), half.set_weights(start);
        AdamW adamw;
        adamw.grad_clip = 1e-2;
        for (int step = 1; step <= 3; step++) {
            twins.step(adamw, step);
            twins.check_norm();
            const double auxiliary = exact.gpt.totals->auxiliary;
            CHECK(std::abs(single.gpt.read_totals(single.device).auxiliary - auxiliary) <= 1e-4 * auxiliary);
            CHECK(gradient_difference(single.gradients(), exact, Tolerance{2e-4, 1e-6}) == "");
        }
        const std::vector<float> weights = single.all(single.gpt.master), rough = half.all(half.gpt.master);
        for (const Tensor& t : exact.gpt.net.tensors) {
            INFO(t.name);
            if (t.role == Role::frozen) CHECK(bit_difference(part_of(weights, t), part_of(start, t)) == "");
            if (t.role == Role::frozen) CHECK(bit_difference(part_of(rough, t), part_of(start, t)) == "");
            if (t.role != Role::statistic) continue;
            CHECK(difference(part_of(weights, t), exact.of(exact.gpt.weights, t), Tolerance{1e-4, 0}) == "");
            CHECK(difference(part_of(rough, t), exact.of(exact.gpt.weights, t), Tolerance{3e-2, 0}) == "");
            CHECK(bit_difference(part_of(weights, t), part_of(start, t)) != "");
        }
    }
}

TEST_CASE("GPU roles: Muon moves the layers' matrices as on the CPU, and keeps no second moments of them", "[gpu][roles]") {
    const Threads one(1);
    Twins<Watcher> twins(small_config(false), Optimizer::muon);
    auto& [exact, single, half] = twins;
    const std::vector<float> start = round_weights<bf16>(exact);
    single.set_weights(start), half.set_weights(start);
    AdamW adamw;
    adamw.lr = 1e-2;
    for (int step = 1; step <= 3; step++) twins.step(adamw, step);
    const std::vector<float> weights = single.all(single.gpt.master), rough = half.all(half.gpt.master);
    size_t of_muon = 0;
    for (const Tensor& t : exact.gpt.net.tensors) {
        INFO(t.name);
        if (t.role != Role::muon) continue;
        of_muon += t.slot.size;
        double error = 0, rough_error = 0, moved = 0;
        for (size_t i = t.slot.offset; i < t.slot.offset + t.slot.size; i++) {
            error += std::pow(weights[i] - exact.gpt.weights[i], 2), rough_error += std::pow(rough[i] - exact.gpt.weights[i], 2);
            moved += std::pow(exact.gpt.weights[i] - start[i], 2);
        }
        CHECK(moved > 0);
        CHECK(error <= 1e-4 * moved);
        CHECK(rough_error <= 0.1 * moved);
    }
    CHECK(of_muon > 0);
    CHECK(stored_size(half.gpt.second_moments()) <= half.gpt.net.tensors.size() - of_muon + 100);
}

TEST_CASE("GPU sigma: loss, gradients of W and gamma, and the next u are those of the CPU", "[gpu][sigma]") {
    const Threads one(1);
    for (bool qwen2 : {false, true}) {
        const Config config = reparametrised(small_config(qwen2));
        Twins<FreezesMlp> twins(config);
        auto& [exact, single, half] = twins;
        GpuTrial<float> again(variant_of<GpuLayer, FreezesMlp>, config, 1, 67);
        for (double& w : std::span(exact.gpt.master, exact.gpt.net.tensors.size())) w = float(w);
        exact.gpt.weights_loaded(CPU{});
        const std::vector<float> start(exact.gpt.master, exact.gpt.master + exact.gpt.net.tensors.size());
        single.set_weights(start), again.set_weights(start), half.set_weights(start);
        AdamW adamw;
        adamw.lr = 1e-4;
        for (int step = 1; step <= 3; step++) {
            twins.step(adamw, step);
            twins.check_norm();
            again.loss_and_gradients(exact), again.update(adamw, step);
            if (step == 1) CHECK(gradient_difference(single.gradients(), exact, Tolerance{5e-4, 1e-6}) == "");
        }
        const std::vector<float> raw = single.all(single.gpt.master), read = single.all(single.gpt.weights);
        CHECK(bit_difference(again.all(again.gpt.master), raw) == "");
        CHECK(bit_difference(again.all(again.gpt.weights), read) == "");
        for (const Tensor& t : exact.gpt.net.tensors) {
            INFO(t.name);
            CHECK(difference(part_of(raw, t), exact.of(exact.gpt.master, t), Tolerance{1e-3, 2e-4}) == "");
            CHECK(difference(part_of(read, t), exact.of(exact.gpt.weights, t), Tolerance{1e-3, 2e-4}) == "");
            if (t.role != Role::state) continue;
            const std::vector<double> u = exact.of(exact.gpt.master, t);
            CHECK(difference(part_of(raw, t), u, Tolerance{1e-4, 0}) == "");
            CHECK(difference(part_of(half.all(half.gpt.master), t), u, Tolerance{1e-2, 0}) == "");
        }
    }
}
