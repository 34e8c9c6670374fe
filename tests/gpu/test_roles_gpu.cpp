// Statistics and frozen tensors on the GPU against the CPU.
#include "tests/catch.h"

#include "tests/gpu/gpu_trial.h"
#include "tests/threads.h"
#include "tests/watching_policy.h"

namespace {

template <class X>
std::vector<float> master_of(const GpuTrial<X>& gpu) {
    std::vector<float> host(gpu.gpt.net.tensors.size());
    to_host(gpu.device, host.data(), gpu.gpt.master, host.size());
    return host;
}

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
    gpt_norm(device, gpt);
    double squares = NAN;
    to_host(device, &squares, gpt.shard_squares, 1);
    CHECK(squares == 0);
    gpt_update(device, gpt, AdamW{}, 1);
    std::vector<float> weights(n);
    to_host(device, weights.data(), gpt.weights, n);
    CHECK(weights == std::vector<float>(n, 2.0f));
}

TEST_CASE("GPU roles: statistics follow and frozen tensors stay as on the CPU", "[gpu][roles]") {
    const Threads one(1);
    for (bool only : {false, true}) {
        Config config = small_config(false);
        config.settings["watcher_only"] = only;
        TrialOf<double, Watcher> exact(config, 1, 67, 1, 67);
        GpuTrialOf<float, Watcher> single(config, 1, 67);
        GpuTrialOf<bf16, Watcher> half(config, 1, 67);
        const std::vector<float> start = round_weights<bf16>(exact);
        single.set_weights(start), half.set_weights(start);
        AdamW adamw;
        adamw.grad_clip = 1e-2;
        for (int step = 1; step <= 3; step++) {
            const double loss = exact.loss_and_gradients(), auxiliary = exact.gpt.totals->auxiliary;
            CHECK(std::abs(single.loss_and_gradients(exact) - loss) <= 1e-4 * loss);
            CHECK(std::abs(half.loss_and_gradients(exact) - loss) <= 2e-2 * loss);
            CHECK(std::abs(read_totals(single.device, single.gpt).auxiliary - auxiliary) <= 1e-4 * auxiliary);
            CHECK(gradient_difference(single.gradients(), exact, Tolerance{2e-4, 1e-6}) == "");
            exact.update(adamw, step), single.update(adamw, step), half.update(adamw, step);
            const double norm = std::sqrt(exact.gpt.totals->squares);
            CHECK(std::abs(std::sqrt(read_totals(single.device, single.gpt).squares) - norm) <= 1e-3 * norm);
        }
        const std::vector<float> weights = master_of(single), rough = master_of(half);
        for (const Tensor& t : exact.gpt.net.tensors) {
            INFO(t.name);
            auto of = [&](const std::vector<float>& flat) {
                return std::vector<float>(flat.begin() + t.slot.offset, flat.begin() + t.slot.offset + t.slot.size);
            };
            if (t.role == Role::frozen) CHECK(bit_difference(of(weights), of(start)) == "");
            if (t.role == Role::frozen) CHECK(bit_difference(of(rough), of(start)) == "");
            if (t.role != Role::statistic) continue;
            CHECK(difference(of(weights), exact.of(exact.gpt.weights, t), Tolerance{1e-4, 0}) == "");
            CHECK(difference(of(rough), exact.of(exact.gpt.weights, t), Tolerance{3e-2, 0}) == "");
            CHECK(bit_difference(of(weights), of(start)) != "");
        }
    }
}
