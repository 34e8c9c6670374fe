// Dynamic Sparse Attention (aardXiv 2510.00061 and 2510.00093): a window, and a gate per token and head on the output.
//     O'_th = g_th O_th,   g_t = sigmoid(W x_t + b) in (0, 1)^NH,   x the block's normed input, as the query projection reads it
//     O attends to j <= i with i - j <= window; rows i < dense_until attend to every j <= i
// The papers leave open, and this file assumes:
// - The window's equation |i - j| <= 256 is two-sided; a language model uses its left half, 257 keys.
// - "Dense up to 512 tokens, windowed above" is a rule per row: row i is dense while i + 1 <= 512. As a rule per sequence it would
//   change the output at token 100 when token 513 arrives, and invalidate the KV cache.
// - "Output = sum_i g_i Attention_i" has the output projection inside Attention_i; otherwise heads would be summed.
// The papers claim global information flow through the gate, but a factor per token moves nothing between positions.
// Ablations (2510.00061) are flags: no gate; a window for every row; no window.
#pragma once
#include "attention/gates/token_linear.cuh"
#include "attention/kernel/layer.h"

enum class DsaWindow { late_rows, all_rows, none };

template <bool with_gate, DsaWindow window>
struct Dsa : Policy {
    static constexpr Traits traits{.reads_x = with_gate, .gates_output = with_gate};
    int left = 0;          // reach of the window
    int dense_until = 0;   // rows before this one are dense
    InputLinear gate;      // NH numbers
    int NH, C;

    Dsa(const Config& config, int layer) : Policy(config, layer), NH(config.NH), C(config.C) {
        if (window != DsaWindow::none) left = int(config.setting("attention_window"));
        if (window == DsaWindow::late_rows) dense_until = int(config.setting("attention_dense_until"));
    }

    static std::vector<Setting> settings() {
        std::vector<Setting> all;
        if (window != DsaWindow::none)
            all.push_back({"--window", "attention_window", 256, 0, 1e9, WHOLE, "left reach in tokens: query i sees keys i-N..i", true});
        if (window == DsaWindow::late_rows)
            all.push_back({"--dense-until", "attention_dense_until", 512, 0, 1e9, WHOLE,
                           "number N of leading dense rows: query i < N sees all keys up to i"});
        return all;
    }

    void declare(TensorList& list, const std::string& prefix) {
        if (!with_gate) return;
        gate = {list.add(prefix + "dsa.gate.weight", {NH, C}, normal(0.02), Decay::yes),
                list.add(prefix + "dsa.gate.bias", {NH}, zeros(), Decay::no), NH};
    }

    // ---- mask: rows before dense_until are causal, the others windowed

    constexpr bool dense(int i) const { return window == DsaWindow::none || i < dense_until; }

    constexpr Tile tile(int, int i0, int i1, int j0, int j1) const {
        if (dense(i1 - 1)) return causal_tile(i0, i1, j0, j1);
        if (!dense(i0)) return window_tile(left, i0, i1, j0, j1);
        const Tile early = causal_tile(i0, dense_until, j0, j1), late = window_tile(left, dense_until, i1, j0, j1);
        return early == late ? early : Tile::mixed;
    }
    constexpr bool visible(int, int i, int j) const { return j <= i && (dense(i) || i - j <= left); }

    constexpr KeptKeys kept_keys() const {
        return window == DsaWindow::none ? KeptKeys{} : KeptKeys{0, std::max(dense_until, left + 1)};
    }
    double cached_keys(int T) const { return dense(T - 1) ? T : std::min(T, left + 1); }

    // ---- output gate

    template <class Device, class X>
    void preprocess(Device device, const LayerInputs<X>& in, const X* weights, ScoreInputs<X>& score_inputs) const {
        if (!with_gate) return;
        token_linear_forward(device, score_inputs.gate, gate.of(in, weights));
        sigmoid_forward(device, score_inputs.gate, size_t(in.B) * in.T * NH);
    }
    template <class Device, class X>
    void preprocess_backward(Device device, const LayerInputs<X>& in, const X* weights, const ScoreInputs<X>& score_inputs,
                             ScoreInputGradients<X>& g) const {
        if (!with_gate) return;
        sigmoid_backward(device, g.of.gate, score_inputs.gate, size_t(in.B) * in.T * NH);
        gate.backward(device, g, g.of.gate, in, weights);
    }

    // ---- the paper's formula without the hooks

    template <class X>
    void naive(const LayerInputs<X>& in, const X* weights, X* out) const {
        dense_softmax(in, out, [&](int, int i, int j) {
            const bool windowed = window == DsaWindow::all_rows || (window == DsaWindow::late_rows && i + 1 > dense_until);
            return j <= i && !(windowed && j < i - left);
        });
        for (size_t t = 0; t < size_t(in.B) * in.T && with_gate; t++)
            for (int h = 0; h < NH; h++) {
                const X u = dot(weights + gate.weight.offset + size_t(h) * C, in.x + t * C, C) + weights[gate.bias.offset + h];
                for (int d = 0; d < in.HS; d++) out[(t * NH + h) * in.HS + d] *= 1 / (1 + std::exp(-u));
            }
    }
};

struct dsa : Dsa<true, DsaWindow::late_rows> {
    static constexpr const char* name = "dsa";
    using Dsa::Dsa;
};
