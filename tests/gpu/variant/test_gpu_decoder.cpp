// Texts that a whole model of each variant writes on the GPU, token by token, against passes of the CPU, in double, over the texts. On
// a machine without a GPU it runs on the emulator.
#include <map>

#include "model/generate/sample.cuh"
#include "model/operations/matmul.cuh"
#include "tests/gpu/gpu_trial.h"
#include "tests/whole_text.h"

namespace {

const Tolerance FLOAT{5e-5, 1e-5};   // the emulator is within 3e-6

/// A decoder that remembers the logits (rows, V) behind what is now in each place; to write_texts() it is the decoder.
template <class X>
class Remembering {
public:
    explicit Remembering(Decoder<GPU, X>& decoder) : decoder_(decoder) {}

    const float* begin(int place, const std::vector<int32_t>& ids) {
        const float* const logits = decoder_.begin(place, ids);
        rows_[&ids].assign(logits, logits + vocabulary());
        return logits;
    }
    const float* next(const std::vector<PlacedText>& texts) {
        const float* const logits = decoder_.next(texts);
        for (size_t n = 0; n < texts.size(); n++) {
            std::vector<float>& rows = rows_[texts[n].ids];
            rows.insert(rows.end(), logits + n * vocabulary(), logits + (n + 1) * vocabulary());
        }
        return logits;
    }
    int places() const { return decoder_.places(); }
    int vocabulary() const { return decoder_.vocabulary(); }

    const std::vector<float>& rows(const Text& text) const { return rows_.at(&text.ids); }

private:
    Decoder<GPU, X>& decoder_;
    std::map<const std::vector<int32_t>*, std::vector<float>> rows_;   // by the tokens' place
};

/// A prompt of the trial's tokens from `first` on, and how many are to be written behind it.
struct Prompt {
    int first, length, count;
};

/// A model on the GPU that writes up to three texts side by side, and the same on the CPU.
template <class X>
class DecoderTrial {
public:
    DecoderTrial(const Variant& variant, const Config& config, int room)
        : room_(room), exact_(Variants(named(variant.name), {&on_cpu::causal}), config, 1, 2 * room, 1, room),
          gpt_(Variants(variant, {&on_gpu::causal}), config, 1, room, Mode::inference), decoder_(test_gpu(), gpt_, 3) {
        gpt_.allocate(test_gpu());
        load_rounded(test_gpu(), gpt_, round_weights<X>(exact_));
        decoder_.allocate();
    }

    /// Greedily, as ./generate would, and compares every row of logits with one pass over each finished text.
    void write(const std::vector<Prompt>& prompts, Tolerance tolerance) {
        Remembering<X> decoder(decoder_);
        std::vector<std::vector<int32_t>> ids;
        std::vector<int> counts;
        for (const Prompt& prompt : prompts) {
            const auto first = exact_.tokens.begin() + prompt.first;
            ids.emplace_back(first, first + prompt.length);
            counts.push_back(prompt.count);
        }
        write_greedily(decoder, ids, counts, [&](const Text& text) { check_text(text, decoder.rows(text), tolerance); });
    }

private:
    void check_text(const Text& text, const std::vector<float>& rows, Tolerance tolerance) {
        const int V = exact_.gpt.net.config.V, before = int(text.ids.size()) - 1, prompt = int(text.prompt);
        std::vector<double> should;
        if (before <= room_) {   // no row depends on what comes behind it
            exact_.gpt.forward(CPU{}, exact_.feed.put(CPU{}, text.ids.data(), nullptr, 1, before));
            const double* const logits = exact_.gpt.logits(CPU{}, prompt - 1, before - prompt + 1);
            should.assign(logits, logits + size_t(before - prompt + 1) * V);
        } else for (int n = prompt; n <= before; n++) {   // past the model's positions each is of a window of its own
            const int T = std::min(n, room_);
            exact_.gpt.forward(CPU{}, exact_.feed.put(CPU{}, text.ids.data() + n - T, nullptr, 1, T));
            const double* const logits = exact_.gpt.logits(CPU{}, T - 1, 1);
            should.insert(should.end(), logits, logits + V);
        }
        REQUIRE(rows.size() == should.size());
        for (int n = 0; n * V < int(should.size()); n++) {
            INFO("text " << text.number << ", row " << prompt + n);
            const std::vector<float> is(rows.begin() + n * V, rows.begin() + (n + 1) * V);
            const std::vector<double> row(should.begin() + n * V, should.begin() + (n + 1) * V);
            REQUIRE(difference(is, row, tolerance) == "");
            if (std::is_same_v<X, float>) REQUIRE(sample_token(row.data(), V, GREEDY, 0) == text.ids[prompt + n]);
        }
    }

    const Threads one_{1};
    int room_;
    Trial<double> exact_;
    GPT<GPU, X> gpt_;
    Decoder<GPU, X> decoder_;
};

}   // namespace

GPU_VARIANT_CASE(" decoder on the GPU: greedy texts side by side, past tiles and windows", "[gpu][decode][variant]") {
    DecoderTrial<float> trial(variant, with_choices(small_config(false)), 200);
    // Five texts in three places; a ring of 9 keys turns five times in the first, another ends where the model's positions do.
    trial.write({{0, 1, 46}, {3, 126, 5}, {40, 61, 6}, {7, 189, 12}, {90, 20, 12}}, FLOAT);
}

GPU_VARIANT_CASE(" decoder on the GPU: texts longer than the model's positions, heads of 128", "[gpu][decode][variant]") {
    DecoderTrial<float> trial(variant, with_heads(with_choices(small_config(true)), 2, 2, 128), 67);
    trial.write({{0, 1, 8}, {5, 63, 7}, {30, 20, 2}, {2, 70, 2}}, FLOAT);
}

GPU_VARIANT_CASE(" decoder on the GPU: one key head, with more query heads than a block takes at a time", "[gpu][decode][variant]") {
    DecoderTrial<float> trial(variant, with_heads(with_choices(small_config(false)), 6, 1, 64), 200);
    trial.write({{2, 62, 5}, {5, 126, 4}}, FLOAT);
}

GPU_VARIANT_CASE(" decoder on the GPU: bf16, and a hybrid with a causal layer", "[gpu][decode][variant][hybrid]") {
    Config config = with_choices(small_config(true));
    config.settings["deepseek_sparse_top_k"] = 150;   // all: rounding would change the choice
    config.layers.assign(size_t(config.L), {variant.name});
    config.layers.back().variant = "causal";
    DecoderTrial<bf16> trial(variant, config, 140);
    trial.write({{2, 1, 12}, {5, 126, 5}, {30, 61, 6}, {9, 20, 5}}, {5e-2, 1e-2});
}

GPU_VARIANT_CASE(" decoder on the GPU: forms of nsa, in texts of many blocks", "[gpu][decode][variant]") {
    if (variant.name != std::string("nsa")) return;
    for (const char* form : {"nsa_shared_kv", "nsa_choice"}) {
        Config config = with_choices(small_config(false));
        config.settings[form] = 1;
        DecoderTrial<float> trial(variant, config, 330);
        trial.write({{0, 318, 4}, {9, 261, 3}}, FLOAT);
    }
}

/// What a model in training writes behind a step, greedily, against passes of the same model over the whole text.
GPU_VARIANT_CASE(" decoder on the GPU: samples during training", "[gpu][decode][variant]") {
    const Threads one(1);
    const int T = 40, count = 6;
    const Config config = with_choices(small_config(false));
    Trial<double> exact(Variants(named(variant.name)), config, 2, T, 2, T);
    GpuTrial<float> trial(Variants(variant), config, 2, T, Recompute::layers);
    trial.set_weights(round_weights<float>(exact));
    trial.loss_and_gradients(exact);
    std::vector<int32_t> text(exact.tokens.begin(), exact.tokens.begin() + 37), expected = text;   // becomes longer than T
    sample_text(trial.device, trial.gpt, text, count, GREEDY);
    write_by_passes(trial.device, trial, expected, count, T);
    CHECK(text == expected);

    // A longer text has no products that a shorter one has not.
    const auto write = [&](int tokens) {
        std::vector<int32_t> ids(exact.tokens.begin(), exact.tokens.begin() + 30);
        sample_text(trial.device, trial.gpt, ids, tokens, GREEDY);
        return Matmuls::of_process().plans_made();
    };
    const size_t plans = write(2);
    CHECK(write(9) == plans);
}
