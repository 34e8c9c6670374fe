// Models of Gemma 3's form on the GPU against the CPU in double: gradients, recomputed ones, texts. On a machine without a GPU it runs
// on the emulator.
#include "model/generate/gpu_decoder.cuh"
#include "tests/gemma.h"
#include "tests/gpu/gpu_trial.h"

namespace {

/// Of the GPU; programs of other variants (make test-NAME) lack sliding_window.
const Variant* sliding_window_on_gpu() {
    for (const Variant* variant : all_variants_on_gpu())
        if (variant->name == std::string("sliding_window")) return variant;
    return nullptr;
}

Config small() { return gemma_of(small_config(false)); }

template <class X>
void check_gradients(const Variant& sliding, int B, int T, Tolerance tolerance) {
    INFO("B " << B << ", T " << T << ", " << sizeof(X) << " bytes");
    Trial<double> exact(gemma_variants(), small(), B, T, B, T);
    GpuTrial<X> gpu({sliding, {&on_gpu::causal}}, small(), B, T);
    gpu.set_weights(round_weights<X>(exact));
    const double expected = exact.loss_and_gradients();
    CHECK(std::abs(gpu.loss_and_gradients(exact) - expected) <= (std::is_same_v<X, float> ? 1e-5 : 1e-2) * expected);
    CHECK(gradient_difference(gpu.gradients(), exact, tolerance) == "");
}

}   // namespace

TEST_CASE("Gemma on the GPU: what embeddings are multiplied with is rounded as they are", "[gpu][gemma]") {
    Config c = small();
    c.C = 1152;
    CHECK(embedding_scale<float>(c) == std::sqrt(1152.0f));
    CHECK(embedding_scale<bf16>(c) == 34);   // 33.94 has more bits
    c.gemma.reset();
    CHECK(embedding_scale<bf16>(c) == 1);
}

TEST_CASE("Gemma on the GPU: gradients are those of the CPU", "[gpu][gemma]") {
    const Variant* const sliding = sliding_window_on_gpu();
    if (!sliding) return;
    check_gradients<float>(*sliding, 2, 67, {2e-4, 1e-6});
    check_gradients<bf16>(*sliding, 1, 67, {1.5e-1, 5e-4});
}

TEST_CASE("Gemma on the GPU: recomputed and repeated steps agree to the bit", "[gpu][gemma]") {
    const Variant* const sliding = sliding_window_on_gpu();
    if (!sliding) return;
    Trial<double> exact(gemma_variants(), small(), 1, 67, 1, 67);
    const std::vector<float> weights = round_weights<bf16>(exact);
    const Variants variants(*sliding, {&on_gpu::causal});
    GpuTrial<bf16> keeping(variants, small(), 1, 67), cheap(variants, small(), 1, 67, Recompute::cheap),
        layers(variants, small(), 1, 67, Recompute::layers);
    for (auto* gpu : {&keeping, &cheap, &layers}) gpu->set_weights(weights);
    const double loss = keeping.loss_and_gradients(exact);
    const std::vector<float> once = keeping.gradients();
    for (auto* again : {&keeping, &cheap, &layers}) {
        CHECK(again->loss_and_gradients(exact) == loss);
        CHECK(bit_difference(again->gradients(), once) == "");
    }
}

TEST_CASE("Gemma on the GPU: rows of texts that are written are those of whole passes of the CPU", "[gpu][gemma][decode]") {
    const Variant* const sliding = sliding_window_on_gpu();
    if (!sliding) return;
    constexpr int ROOM = 40, PROMPT = 17;
    Trial<double> exact(gemma_variants(), small(), 1, ROOM, 1, ROOM);
    GPT<GPU, float> gpt({*sliding, {&on_gpu::causal}}, small(), 1, ROOM, Mode::inference);
    GpuDecoder<float> decoder(test_gpu(), gpt, 1);
    gpt.allocate(test_gpu()), decoder.allocate();
    const std::vector<float> weights = round_weights<float>(exact);
    to_device(test_gpu(), gpt.weights, weights.data(), weights.size());
    gpt_forward(CPU{}, exact.gpt, exact.feed.put(CPU{}, exact.tokens.data(), nullptr, 1, ROOM));
    const int V = small().V;
    const double* const should = gpt_logits(CPU{}, exact.gpt, 0, ROOM);
    for (int length = PROMPT; length <= ROOM; length++) {
        INFO("text of " << length);
        const std::vector<int32_t> ids(exact.tokens.begin(), exact.tokens.begin() + length);
        const float* const logits = length == PROMPT ? decoder.begin(0, ids) : decoder.next({{0, &ids}});
        const double* const row = should + size_t(length - 1) * V;
        REQUIRE(difference(std::vector<float>(logits, logits + V), std::vector<double>(row, row + V), {1e-4}) == "");
    }
}
