// The model that benchmarks of a training step train, and the step.
#pragma once
#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_set>
#include <vector>

#include "model/base/command_line.h"
#include "model/checkpoint/checkpoint.h"
#include "model/device/graphs.cuh"
#include "model/gpt.h"
#include "model/run/feed.cuh"

/// Tokens as text has them: token k turns up about 1 / (k + 1) as often as token 0 (Zipf).
inline std::vector<int32_t> random_tokens(size_t n, int V, uint64_t seed) {
    std::vector<int32_t> tokens(n);
    uint64_t state = seed;
    for (int32_t& token : tokens) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        token = std::min(V - 1, int(std::pow(double(V) + 1, double(state >> 11) * 0x1p-53)) - 1);
    }
    return tokens;
}

/// How many different ones there are.
inline size_t count_different(const std::vector<int32_t>& tokens) {
    return std::unordered_set<int32_t>(tokens.begin(), tokens.end()).size();
}

/// "124m", a preset, or a Hugging Face folder with a config.json.
inline Config config_of(const std::string& model) {
    if (is_preset(model)) return preset(model);
    if (model != "124m") return load_config(model);
    Config c;
    c.V = 50304, c.C = 768, c.L = 12, c.NH = 12, c.NKV = 12, c.HS = 64, c.F = 2048;
    return c;
}

/// Options that say which model takes which step.
struct StepOptions {
    std::string model = "124m";
    int B = 64, T = 1024;

    void add_to(CLI::App& app) {
        const auto positive = whole_number_from(1, 1 << 28);
        app.add_option("--model", model, "124m, a preset, or a Hugging Face folder with a config.json");
        app.add_option("--batch-size", B, "sequences of a micro-step")->transform(positive);
        app.add_option("--seq-len", T, "tokens per sequence, T")->transform(positive);
    }
};

/// A model in training on random tokens.
struct Trainee {
    GPU device;
    GPT<GPU, bf16> gpt;
    BatchFeed<GPU> feed;
    StepGraphs<GPU> graphs;
    Batch batch;
    size_t different;   // tokens of the batch
    int64_t step = 0;

    Trainee(GPU device_, const Variant& variant, const Config& config, int B, int T)
        : device(device_), gpt(variant, config, B, T, Mode::training), feed(B, T, config.V) {
        gpt.allocate(device);
        feed.allocate(device);
        const size_t n = gpt.net.tensors.size();
        HostView<GPU> weights(device, gpt.gradients, n);
        initialise(gpt.net.tensors, 1, weights.data());
        weights.push();
        convert(device, gpt.master, gpt.gradients, n);
        convert(device, gpt.weights, gpt.gradients, n);
        const auto tokens = random_tokens(size_t(B) * T, config.V, 1), targets = random_tokens(tokens.size(), config.V, 2);
        different = count_different(tokens);
        batch = feed.put(device, tokens.data(), targets.data(), B, T);
    }

    /// What the loop of train_gpt.cu gives the device to do.
    void train_step() {
        graphs.run(device, batch.tokens, Write::overwrite, [this] { launch_gradients(); });
        launch_update();
    }

    /// The same without a graph of its own, which may be part of another.
    void launch_step() {
        launch_gradients();
        launch_update();
    }

    void require_finite() {
        const StepTotals numbers = read_totals(device, gpt);
        if (!std::isfinite(numbers.loss) || !std::isfinite(numbers.squares))
            fail(Exit::not_finite, gpt.net.variant.name, ": loss ", numbers.loss, ", squares of the gradient ", numbers.squares,
                 ": the update leaves the weights alone, so these times mean nothing");
    }

    /// Of one micro-step.
    void launch_gradients() {
        gpt_forward(device, gpt, batch);
        gpt_loss(device, gpt, batch, Write::overwrite, 1.0f / float(batch.B * batch.T));
        gpt_backward(device, gpt, batch, Write::overwrite);
    }

private:
    void launch_update() {
        gpt_norm(device, gpt);
        gpt_update(device, gpt, AdamW{}, ++step);
    }
};
