// The model that benchmarks train, its step, and the attention of its first layer.
#pragma once
#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>
#include <vector>

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

/// The backward pass of the first layer's attention, of a model that has gone forward and backward, so that its tensors hold what they
/// hold in training. layer_attention() is the forward pass.
template <class Device, class X>
void attention_backward_of_first_layer(Device device, GPT<Device, X>& gpt, const Batch& batch) {
    auto& s = gpt.scratch;
    const LayerInputs<X> in = gpt.attention_inputs(0, batch.B, batch.T);
    const size_t k_at = size_t(gpt.net.config.NH) * gpt.net.config.HS, v_at = in.qk_row;
    const QkvGradients<X> to{{s.dqk, v_at}, {s.dqk + k_at, v_at}, {s.dqkv + v_at, in.v_row}};
    ScoreInputGradients<X> score_inputs{s.dscore_inputs[0], s.dqk_pre, s.dqk_pre ? s.dqk_pre + k_at : nullptr,
                                        gpt.net.layers[0].attention->facts.reads_x ? s.dnormed : nullptr, gpt.gradients};
    gpt.attention(0).backward(device, in, gpt.weights, gpt.layers[0].attention, s.dout, to, score_inputs, s.attention);
}

/// A model in training on random tokens.
template <class Device, class X>
struct Trainee {
    Device device;
    GPT<Device, X> gpt;
    BatchFeed<Device> feed;
    StepGraphs<Device> graphs;
    Batch batch;
    size_t different;   // tokens of the batch
    int64_t step = 0;

    Trainee(Device device_, const Variant& variant, const Config& config, int B, int T)
        : device(device_), gpt(variant, config, B, T, Mode::training), feed(B, T, config.V) {
        gpt.allocate(device);
        feed.allocate(device);
        const size_t n = gpt.net.tensors.size();
        HostView<Device> weights(device, gpt.gradients, n);
        initialise(gpt.net.tensors, 1, weights.data());
        weights.push();
        convert(device, gpt.master, gpt.gradients, n);
        convert(device, gpt.weights, gpt.gradients, n);
        gpt.weights_loaded(device);
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
        const StepTotals numbers = gpt.read_totals(device);
        if (!std::isfinite(numbers.loss) || !std::isfinite(numbers.squares))
            fail(Exit::not_finite, gpt.net.variant.name, ": loss ", numbers.loss, ", squares of the gradient ", numbers.squares,
                 ": the update leaves the weights alone, so these times mean nothing");
    }

    /// Of one micro-step.
    void launch_gradients() {
        gpt.forward(device, batch);
        gpt.loss(device, batch, Write::overwrite, 1.0f / float(batch.B * batch.T));
        gpt.backward(device, batch, Write::overwrite);
    }

    /// Forward and backward pass of the first layer's attention, as `time` measures work. launch_gradients() must have run.
    template <class Time>
    auto time_attention(Time time) {
        const auto forward = time([this] { gpt.layer_attention(device, 0, batch); });
        return std::pair{forward, time([this] { attention_backward_of_first_layer(device, gpt, batch); })};
    }

private:
    void launch_update() {
        gpt.norm(device);
        gpt.update(device, AdamW{}, ++step);
    }
};
