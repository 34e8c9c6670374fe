// Texts that a whole model writes on the GPU, token by token, against passes of the CPU, in double, over each text so far. On a machine
// without a GPU it runs on the emulator.
#include "model/generate/gpu_decoder.cuh"
#include "model/operations/matmul.cuh"
#include "model/generate/sample.h"
#include "tests/gpu/gpu_trial.h"
#include "tests/threads.h"

namespace {

/// A text of the trial's tokens from `first` on.
struct WrittenText {
    int place, first, length;
};

template <class X>
class DecoderTrial {
public:
    static constexpr int ROOM = 67;

    DecoderTrial(const Variant& variant, const Config& config)
        : exact_(Variants(named(variant.name), {&on_cpu::causal}), config, 1, 2 * ROOM, 1, 2 * ROOM),
          gpt_(Variants(variant, {&on_gpu::causal}), config, 1, ROOM, Mode::inference), decoder_(test_gpu(), gpt_, 3) {
        gpt_.allocate(test_gpu());
        const std::vector<float> weights = round_weights<X>(exact_);
        std::vector<X> narrow;
        for (float weight : weights) narrow.push_back(narrowed<X>(weight));
        to_device(test_gpu(), gpt_.weights, narrow.data(), narrow.size());
        decoder_.allocate();
    }

    void begin(const WrittenText& text, Tolerance tolerance) {
        INFO("prompt of " << text.length);
        check_logits(decoder_.begin(text.place, ids(text)), text, tolerance);
    }
    /// Each has become one token longer.
    void step(const std::vector<WrittenText>& texts, Tolerance tolerance) {
        std::vector<std::vector<int32_t>> all;
        for (const WrittenText& text : texts) all.push_back(ids(text));
        std::vector<PlacedText> placed;
        for (size_t n = 0; n < texts.size(); n++) placed.push_back({texts[n].place, &all[n]});
        const float* logits = decoder_.next(placed);
        for (size_t n = 0; n < texts.size(); n++) {
            INFO("text of " << texts[n].length << " tokens, one of " << texts.size());
            check_logits(logits + n * exact_.gpt.net.config.V, texts[n], tolerance);
        }
    }

private:
    std::vector<int32_t> ids(const WrittenText& text) const {
        return {exact_.tokens.begin() + text.first, exact_.tokens.begin() + text.first + text.length};
    }
    void check_logits(const float* logits, const WrittenText& text, Tolerance tolerance) {
        const int V = exact_.gpt.net.config.V, T = std::min(text.length, ROOM);
        const int32_t* const last = exact_.tokens.data() + text.first + text.length - T;
        gpt_forward(CPU{}, exact_.gpt, exact_.feed.put(CPU{}, last, nullptr, 1, T));
        const double* should = gpt_logits(CPU{}, exact_.gpt, T - 1, 1);
        CHECK(difference(std::vector<float>(logits, logits + V), std::vector<double>(should, should + V), tolerance) == "");
    }

    Trial<double> exact_;
    GPT<GPU, X> gpt_;
    GpuDecoder<X> decoder_;
};

template <class X>
void check_texts(const Variant& variant, const Config& config, Tolerance tolerance) {
    const Threads one(1);
    DecoderTrial<X> trial(variant, config);
    std::vector<WrittenText> texts{{2, 0, 1}, {0, 5, 63}, {1, 30, 20}};
    for (const WrittenText& text : texts) trial.begin(text, tolerance);
    for (int step = 0; step < 5; step++) {   // a graph is recorded in the second; in the last the longest text has outgrown the model
        for (WrittenText& text : texts) text.length++;
        trial.step(texts, tolerance);
    }
    texts = {{0, 40, 10}, texts[2]};   // the first two have ended, and another takes a place
    trial.begin(texts[0], tolerance);
    for (int step = 0; step < 3; step++) {
        for (WrittenText& text : texts) text.length++;
        trial.step(texts, tolerance);
    }
}

/// One with nothing but keys, one with features, one with a gate and an auxiliary loss, and three that keep
/// more than keys.
bool writes_here(const Variant& variant) {
    const auto names = {"causal", "asga", "moh", "sinks_cache", "seer", "nsa"};
    return std::any_of(names.begin(), names.end(), [&](const char* name) { return name == std::string(variant.name); });
}

/// What a model in training writes behind a step, greedily, against passes of the same model over the whole text.
void check_sample(const Variant& variant) {
    const int T = 40, count = 6;
    Trial<double> exact(Variants(named(variant.name)), small_config(false), 2, T, 2, T);
    GpuTrial<float> trial(Variants(variant), small_config(false), 2, T, Recompute::layers);
    trial.set_weights(round_weights<float>(exact));
    trial.loss_and_gradients(exact);
    std::vector<int32_t> text(exact.tokens.begin(), exact.tokens.begin() + 37), expected = text;   // becomes longer than T
    const Sampling greedy{0, 0, 1, 1};
    sample_text(trial.device, trial.gpt, text, count, greedy);
    const int V = trial.gpt.net.config.V;
    std::vector<float> logits(V);
    for (int n = 0; n < count; n++) {
        const int here = std::min(int(expected.size()), T);
        const Batch batch = trial.feed.put(trial.device, expected.data() + expected.size() - here, nullptr, 1, here);
        gpt_forward(trial.device, trial.gpt, batch);
        to_host(trial.device, logits.data(), gpt_logits(trial.device, trial.gpt, here - 1, 1), logits.size());
        expected.push_back(sample_token(logits.data(), V, greedy, n));
    }
    CHECK(text == expected);

    // A longer text has no products that a shorter one has not.
    const auto write = [&](int tokens) {
        std::vector<int32_t> ids(exact.tokens.begin(), exact.tokens.begin() + 30);
        sample_text(trial.device, trial.gpt, ids, tokens, greedy);
        return Matmuls::of_process().plans_made();
    };
    const size_t plans = write(2);
    CHECK(write(9) == plans);
}

}   // namespace

GPU_VARIANT_CASE(" decoder on the GPU: texts side by side have the logits of whole passes", "[gpu][decode][variant]") {
    if (!writes_here(variant)) return;
    check_texts<float>(variant, small_config(false), {2e-4, 1e-5});
}

GPU_VARIANT_CASE(" decoder on the GPU: bf16, and a hybrid with a causal layer", "[gpu][decode][variant][hybrid]") {
    if (std::string(variant.name) != "asga") return;
    Config config = small_config(true);
    config.layers.assign(size_t(config.L), {variant.name});
    config.layers.back().variant = "causal";
    check_texts<bf16>(variant, config, {5e-2, 1e-2});
}

GPU_VARIANT_CASE(" decoder on the GPU: samples during training", "[gpu][decode][variant]") {
    if (writes_here(variant)) check_sample(variant);
}
