// The whole model on a GPU, real or emulated, beside a Trial (whole_model.h) of the CPU in double.
#pragma once
#include "tests/gpu/device_array.h"
#include "tests/whole_model.h"

/// What the GPU's kernels take: heads of 32, channels in multiples of 8.
inline Config small_config(bool qwen2) {
    Config c = config_of({.qwen2 = qwen2, .tied = !qwen2});
    c.V = 72, c.C = 32, c.L = 2, c.NH = 4, c.NKV = 2, c.HS = 32, c.F = 40;
    return c;
}

inline Config with_heads(Config c, int NH, int NKV, int HS) {
    c.NH = NH, c.NKV = NKV, c.HS = HS;
    return c;
}

/// A model on the GPU with the weights, rounded to X, and the tokens of a Trial in double.
template <class X>
struct GpuTrial {
    GPU device = test_gpu();
    GPT<GPU, X> gpt;
    BatchFeed<GPU> feed;
    int B, T;

    GpuTrial(const Variants& variants, const Config& config, int B_, int T_, Recompute recompute = Recompute::nothing,
             DocumentBorders borders = {}, Optimizer optimizer = Optimizer::adamw)
        : gpt(variants, config, B_, T_, Mode::training, recompute, 0, 1, Shards::BUCKET, Stored::as_computed, optimizer),
          feed(B_, T_, config.V, borders), B(B_), T(T_) {
        gpt.allocate(device);
        feed.allocate(device);
    }

    void set_weights(const std::vector<float>& weights) {
        to_device(device, gpt.gradients, weights.data(), weights.size());
        convert(device, gpt.master, gpt.gradients, weights.size());
        convert(device, gpt.weights, gpt.gradients, weights.size());
        gpt.weights_loaded(device);
        fill(device, gpt.gradients, weights.size(), 0.0f);
    }

    double loss_and_gradients(const Trial<double>& of, int first, int count, Write write) {
        const size_t at = size_t(first) * T;
        const Batch batch = feed.put(device, &of.tokens[at], &of.targets[at], count, T);
        gpt.forward(device, batch);
        gpt.loss(device, batch, write, 1.0f / float(B * T));
        gpt.backward(device, batch, write);
        const StepTotals numbers = gpt.read_totals(device);
        return (numbers.loss + numbers.auxiliary) / (B * T);
    }
    double loss_and_gradients(const Trial<double>& of) { return loss_and_gradients(of, 0, B, Write::overwrite); }

    void update(const AdamW& adamw, int64_t step) {
        gpt.norm(device);
        gpt.update(device, adamw, step);
    }

    /// A flat buffer on the host.
    std::vector<float> all(const float* flat) const {
        std::vector<float> host(gpt.net.tensors.size());
        to_host(device, host.data(), flat, host.size());
        return host;
    }
    std::vector<float> gradients() const { return all(gpt.gradients); }
};

/// Gives a model for inference these weights, rounded to X.
template <class X>
void load_rounded(const GPU& device, const GPT<GPU, X>& gpt, const std::vector<float>& weights) {
    const std::vector<X> narrow = converted<X>(weights);
    to_device(device, gpt.weights, narrow.data(), narrow.size());
}

/// The Trial's weights after rounding to X, which both then compute with.
template <class X>
std::vector<float> round_weights(Trial<double>& exact) {
    const std::vector<float> weights = rounded<X>(converted<float>(exact.all(exact.gpt.weights)));
    std::copy(weights.begin(), weights.end(), exact.gpt.weights);
    return weights;
}
