// Linear layers by their spectral norm, on the GPU against the CPU.
#include "tests/catch.h"

#include "tests/gpu/gpu_trial.h"
#include "tests/sigma_policy.h"
#include "tests/threads.h"

namespace {

template <class X>
std::vector<float> host_copy(const GpuTrial<X>& gpu, const float* flat) {
    std::vector<float> host(gpu.gpt.net.tensors.size());
    to_host(gpu.device, host.data(), flat, host.size());
    return host;
}

std::vector<float> of(const std::vector<float>& flat, const Tensor& t) {
    return {flat.begin() + t.slot.offset, flat.begin() + t.slot.offset + t.slot.size};
}

/// Raw weights of the Trial and the GPU's, both starting at the same numbers.
std::vector<float> start_of(Trial<double>& exact) {
    for (double& w : std::span(exact.gpt.master, exact.gpt.net.tensors.size())) w = float(w);
    gpt_weights_loaded(CPU{}, exact.gpt);
    return {exact.gpt.master, exact.gpt.master + exact.gpt.net.tensors.size()};
}

}   // namespace

TEST_CASE("GPU sigma: loss, gradients of W and gamma, and the next u are those of the CPU", "[gpu][sigma]") {
    const Threads one(1);
    for (bool qwen2 : {false, true}) {
        const Config config = reparametrised(small_config(qwen2));
        TrialOf<double, FreezesMlp> exact(config, 1, 67, 1, 67);
        GpuTrialOf<float, FreezesMlp> single(config, 1, 67), again(config, 1, 67);
        GpuTrialOf<bf16, FreezesMlp> half(config, 1, 67);
        const std::vector<float> start = start_of(exact);
        single.set_weights(start), again.set_weights(start), half.set_weights(start);
        for (int step = 1; step <= 3; step++) {
            const double loss = exact.loss_and_gradients();
            INFO("step " << step);
            CHECK(std::abs(single.loss_and_gradients(exact) - loss) <= 1e-4 * loss);
            CHECK(std::abs(half.loss_and_gradients(exact) - loss) <= 2e-2 * loss);
            again.loss_and_gradients(exact);
            AdamW adamw;
            adamw.lr = 1e-4;
            exact.update(adamw, step), single.update(adamw, step), half.update(adamw, step), again.update(adamw, step);
            if (step == 1) CHECK(gradient_difference(single.gradients(), exact, Tolerance{5e-4, 1e-6}) == "");
            const double norm = std::sqrt(exact.gpt.totals->squares);
            CHECK(std::abs(std::sqrt(read_totals(single.device, single.gpt).squares) - norm) <= 1e-3 * norm);
        }
        const std::vector<float> raw = host_copy(single, single.gpt.master), read = host_copy(single, single.gpt.weights);
        CHECK(bit_difference(host_copy(again, again.gpt.master), raw) == "");
        CHECK(bit_difference(host_copy(again, again.gpt.weights), read) == "");
        for (const Tensor& t : exact.gpt.net.tensors) {
            INFO(t.name);
            CHECK(difference(of(raw, t), exact.of(exact.gpt.master, t), Tolerance{1e-3, 2e-4}) == "");
            CHECK(difference(of(read, t), exact.of(exact.gpt.weights, t), Tolerance{1e-3, 2e-4}) == "");
            if (t.role != Role::state) continue;
            const std::vector<double> u = exact.of(exact.gpt.master, t);
            CHECK(difference(of(raw, t), u, Tolerance{1e-4, 0}) == "");
            CHECK(difference(of(host_copy(half, half.gpt.master), t), u, Tolerance{1e-2, 0}) == "");
        }
    }
}
