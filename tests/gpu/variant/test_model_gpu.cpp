// The whole model on the GPU with each attention variant, against the CPU in double: loss, gradients, training curves, repeatability.
// Compiled once per file of attention/; on a machine without a GPU it runs on the emulator.
#include "tests/catch.h"

#include "attention/attention.h"
#include "model/graphs.cuh"
#include "tests/check.h"
#include "tests/gpu/device_array.h"
#include "tests/threads.h"
#include "tests/whole_model.h"

#define VARIANT_NAME(variant) ATTENTION_QUOTED(variant)
#define VARIANT_CASE(what) TEST_CASE(VARIANT_NAME(ATTENTION) " model on the GPU: " what, "[gpu][model][variant]")

namespace {

/// What the GPU's kernels take: heads of 32, channels in multiples of 8.
Config small_config(bool qwen2) {
    Config c = config_of({});
    c.V = 72, c.C = 32, c.L = 2, c.NH = 4, c.NKV = 2, c.HS = 32, c.F = 40;
    c.qkv_bias = qwen2, c.qk_norm = !qwen2, c.tied = !qwen2;
    return c;
}

/// A model on the GPU with the weights, rounded to X, and the tokens of a Trial in double.
template <class X>
struct GpuTrial {
    GPU device = test_gpu();
    GPT<GPU, X, Attention> gpt;
    Feed<GPU> feed;
    int B, T;

    GpuTrial(const Config& config, int B_, int T_, Recompute recompute = Recompute::nothing)
        : gpt(config, B_, T_, Mode::training, recompute), feed(B_, T_, config.V), B(B_), T(T_) {
        gpt.allocate(device);
        feed.allocate(device);
    }

    void set_weights(const std::vector<float>& weights) {
        to_device(device, gpt.gradients, weights.data(), weights.size());
        convert(device, gpt.master, gpt.gradients, weights.size());
        convert(device, gpt.weights, gpt.gradients, weights.size());
    }

    double loss_and_gradients(const Trial<double, Attention>& of, int first, int count, Write write) {
        const size_t at = size_t(first) * T;
        const Batch batch = feed.put(device, &of.tokens[at], &of.targets[at], count, T);
        gpt_forward(device, gpt, batch);
        gpt_loss(device, gpt, batch, write, 1.0f / float(B * T));
        gpt_backward(device, gpt, batch, write);
        return read_numbers(device, gpt).loss / (B * T);
    }
    double loss_and_gradients(const Trial<double, Attention>& of) { return loss_and_gradients(of, 0, B, Write::overwrite); }

    void update(const AdamW& adamw, int64_t step) {
        sum_of_squares(device, &gpt.numbers->squares, gpt.gradients, gpt.net.tensors.size());
        gpt_update(device, gpt, adamw, step);
    }

    std::vector<float> gradients() {
        std::vector<float> host(gpt.net.tensors.size());
        to_host(device, host.data(), gpt.gradients, host.size());
        return host;
    }
};

/// The Trial's weights after rounding to X, which both then compute with.
template <class X>
std::vector<float> round_weights(Trial<double, Attention>& exact) {
    std::vector<float> rounded(exact.gpt.net.tensors.size());
    for (size_t n = 0; n < rounded.size(); n++) {
        rounded[n] = to_float(from_float<X>(float(exact.gpt.weights[n])));
        exact.gpt.weights[n] = rounded[n];
    }
    return rounded;
}

/// "" when every tensor's gradient is the exact one up to `tolerance`.
std::string gradient_difference(const std::vector<float>& gpu, const Trial<double, Attention>& exact, Tolerance tolerance) {
    std::string wrong;
    for (const Tensor& t : exact.gpt.net.tensors) {
        const std::vector<float> mine(gpu.begin() + t.slot.offset, gpu.begin() + t.slot.offset + t.slot.size);
        const std::string text = difference(mine, exact.of(exact.gpt.gradients, t), tolerance);
        if (!text.empty()) wrong += t.name + ": " + text + "\n";
    }
    return wrong;
}

/// Sums of up to a hundred terms through two layers of large random weights. bf16 rounds every activation and every gradient to
/// 2^-8, which single numbers of a gradient show up to a tenth of its largest: it is float32 that tells a wrong term.
template <class X>
constexpr Tolerance of_gradients = {std::is_same_v<X, float> ? 2e-4 : 1.5e-1, std::is_same_v<X, float> ? 1e-6 : 2e-4};

template <class X>
void check_gradients(bool qwen2, int B, int T) {
    INFO((qwen2 ? "Qwen2" : "Qwen3") << " form, B " << B << ", T " << T << ", " << sizeof(X) << " bytes");
    const Config config = small_config(qwen2);
    Trial<double, Attention> exact(config, B, T, B, T);
    GpuTrial<X> gpu(config, B, T);
    gpu.set_weights(round_weights<X>(exact));
    const double expected = exact.loss_and_gradients();
    CHECK(std::abs(gpu.loss_and_gradients(exact) - expected) <= (std::is_same_v<X, float> ? 1e-5 : 1e-2) * expected);
    CHECK(gradient_difference(gpu.gradients(), exact, of_gradients<X>) == "");
}

}   // namespace

VARIANT_CASE("float32 gradients are those of the CPU, both forms, one tile and a partial one") {
    check_gradients<float>(false, 2, 67);
    check_gradients<float>(true, 1, 40);
}

VARIANT_CASE("bf16 gradients are those of the CPU within their rounding") {
    check_gradients<bf16>(false, 2, 67);
    check_gradients<bf16>(true, 1, 130);
}

VARIANT_CASE("recomputed, accumulated and repeated steps agree to the bit") {
    const Config config = small_config(false);
    Trial<double, Attention> exact(config, 2, 67, 2, 67);
    const std::vector<float> weights = round_weights<bf16>(exact);
    GpuTrial<bf16> keeping(config, 2, 67), cheap(config, 2, 67, Recompute::cheap), layers(config, 2, 67, Recompute::layers);
    for (auto* gpu : {&keeping, &cheap, &layers}) gpu->set_weights(weights);
    const double loss = keeping.loss_and_gradients(exact);
    const std::vector<float> once = keeping.gradients();
    for (auto* recomputing : {&cheap, &layers}) {
        CHECK(recomputing->loss_and_gradients(exact) == loss);
        CHECK(bit_difference(recomputing->gradients(), once) == "");
    }
    CHECK(keeping.loss_and_gradients(exact) == loss);
    CHECK(bit_difference(keeping.gradients(), once) == "");

    keeping.loss_and_gradients(exact, 0, 1, Write::overwrite);   // other shapes of products: a sum may round to the next bf16
    CHECK(std::abs(keeping.loss_and_gradients(exact, 1, 1, Write::add) - loss) <= 1e-4 * loss);
    exact.loss_and_gradients();
    CHECK(gradient_difference(keeping.gradients(), exact, of_gradients<bf16>) == "");
}

VARIANT_CASE("twenty steps of training, float32 follows the CPU to 1e-4 and bf16 to 2e-2") {
    const Threads one(1);
    const Config config = small_config(false);
    Trial<double, Attention> exact(config, 1, 67, 1, 67);
    GpuTrial<float> single(config, 1, 67);
    GpuTrial<bf16> half(config, 1, 67);
    const std::vector<float> weights = round_weights<bf16>(exact);
    single.set_weights(weights), half.set_weights(weights);
    AdamW adamw;
    adamw.lr = 2e-3;
    for (int step = 1; step <= 20; step++) {
        const double expected = exact.loss_and_gradients();
        INFO("step " << step << ", loss " << expected);
        CHECK(std::abs(single.loss_and_gradients(exact) - expected) <= 1e-4 * expected);
        CHECK(std::abs(half.loss_and_gradients(exact) - expected) <= 2e-2 * expected);
        exact.update(adamw, step), single.update(adamw, step), half.update(adamw, step);
    }
    CHECK(exact.loss() < 0.8 * std::log(config.V));
}

VARIANT_CASE("a recorded step is the step") {
    const Config config = small_config(false);
    Trial<double, Attention> exact(config, 1, 67, 1, 67);
    GpuTrial<bf16> plain(config, 1, 67), recorded(config, 1, 67);
    const std::vector<float> weights = round_weights<bf16>(exact);
    plain.set_weights(weights), recorded.set_weights(weights);
    StepGraphs<GPU> graphs;
    for (int step = 1; step <= 4; step++) {
        const double expected = plain.loss_and_gradients(exact);
        const Batch batch = recorded.feed.put(recorded.device, exact.tokens.data(), exact.targets.data(), 1, 67);
        graphs.run(recorded.device, batch.tokens, Write::overwrite, [&] {
            gpt_forward(recorded.device, recorded.gpt, batch);
            gpt_loss(recorded.device, recorded.gpt, batch, Write::overwrite, 1.0f / 67);
            gpt_backward(recorded.device, recorded.gpt, batch, Write::overwrite);
        });
        INFO("step " << step);
        CHECK(read_numbers(recorded.device, recorded.gpt).loss / 67 == expected);
        CHECK(bit_difference(recorded.gradients(), plain.gradients()) == "");
        plain.update({}, step), recorded.update({}, step);
    }
}
