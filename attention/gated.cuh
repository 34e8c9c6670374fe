// Gated attention (Qiu et al. 2025, arXiv 2505.06708; code qiuzh20/gated_attention; in Qwen3-Next): a sigmoid gate on each head's
// output, before the output projection.
//     O'_t = O_t * sigmoid(w_theta x_t),   x the block's normed input, * element by element
//     --gated-form 1: a gate for every element of every head, w_theta (NH*HS, C)
//     --gated-form 0: one for each head, w_theta (NH, C)
// The paper compares five places. This is the first (G1, after softmax times V), its best. A gate per element, the default here, is best
// in its table 1 (perplexity 5.761, per head 5.792, without 6.026).
// Assumptions:
// - No bias, and w_theta starts like other projections, so that gates begin near 1/2. The released code interleaves the rows of
//   w_theta with those of the query projection, by groups of query heads; here w_theta is a tensor of its own.
// - Form 0 is the gate of dsa_no_window.cuh without its bias. The code shares the gate's parts.
// - A monitor shows the gate of each head: in form 1 the mean over its elements.
// - --read-window and --read-sinks are not of the paper: with them e16_sinks reads dense models.
#pragma once
#include "attention/gates/row_gate.cuh"
#include "attention/gates/token_linear.cuh"
#include "attention/kernel/layer.h"
#include "attention/masks/pattern.h"
#include "attention/scores/each_element.cuh"
#include "attention/scores/projection.cuh"

/// gated = out sigmoid(u), all (tokens, NH*HS).
template <class X>
struct GateElements {
    X* gated;
    const X *out, *u;
    size_t width;
    constexpr void operator()(unsigned token, int n) const {
        const size_t at = token * width + n;
        gated[at] = narrowed<X>(widened(out[at]) * sigmoid(widened(u[at])));
    }
};

/// The gradients of out and of u.
template <class X>
struct GateElementsBackward {
    X *dout, *du;
    const X *dgated, *out, *u;
    size_t width;
    constexpr void operator()(unsigned token, int n) const {
        const size_t at = token * width + n;
        const Wide<X> g = sigmoid(widened(u[at])), d = widened(dgated[at]);
        dout[at] = narrowed<X>(d * g);
        du[at] = narrowed<X>(d * widened(out[at]) * g * sigmoid(-widened(u[at])));   // 1 - g would lose digits
    }
};

/// mean (tokens, NH) of the gates of each head.
template <class X>
struct MeanGates {
    Wide<X>* mean;
    const X* u;
    int NH, HS;
    constexpr void operator()(unsigned token, int h) const {
        const size_t head = size_t(token) * NH + h;
        Wide<X> sum = 0;
        for (int d = 0; d < HS; d++) sum += sigmoid(widened(u[head * HS + d]));
        mean[head] = sum / Wide<X>(HS);
    }
};

struct gated : ReadThroughWindow {
    static constexpr const char* name = "gated";
    // Own passes, as the kernel's gate has one number per head.
    static constexpr Traits traits{.own_passes = true, .one_call = true, .reads_x = true, .gates_output = true};
    bool each;           // whether each element has a gate, rather than each head
    InputLinear gates;   // w_theta (NH*HS, C) or (NH, C)
    int NH, HS, C;

    gated(const Config& config, int layer)
        : ReadThroughWindow(config, layer), each(config.setting("gated_form") != 0), NH(config.NH), HS(config.HS), C(config.C) {}

    static std::vector<Setting> settings() {
        return with({"--gated-form", "gated_form", 1, 0, 1, WHOLE, "granularity of the gate: 0 per head, 1 per element of a head"});
    }

    void declare(TensorList& list, const std::string& prefix) {
        const int N = each ? NH * HS : NH;
        gates = {list.add(prefix + "gated.w_theta", {N, C}, normal(0.02), Decay::yes), {}, N};
    }

    // ---- the layer: one call of the kernel, then the gates

    /// Logits (B, T, NH*HS) of form 1.
    template <class X>
    size_t kept_bytes(const LayerShape& s) const {
        return each ? size_t(s.B) * s.T * NH * HS * sizeof(X) : 0;
    }
    template <class X>
    struct BackwardScratch {
        BumpAllocator allocator;
        LayerShape s;
        bool each;
        size_t kernel_bytes, numbers = size_t(s.B) * s.T * s.NH * s.HS;
        X* dout = allocator.take<X>(numbers);              // (B, T, NH, HS)
        X* du = allocator.take<X>(each ? numbers : 0);     // the same, of form 1
        std::byte* kernel = allocator.take<std::byte>(kernel_bytes);
    };
    template <class X, class Device>
    BackwardScratch<X> backward_scratch(Device device, std::byte* block, const LayerShape& s) const {
        return {BumpAllocator(block), s, each, attention_workspace(device, plain(), s.B, s.T, s.T, s.NH)};
    }
    template <class X, class Device>
    size_t workspace_bytes(Device device, const LayerShape& s) const {
        return backward_scratch<X>(device, nullptr, s).allocator.bytes();
    }

    template <class Device, class X>
    void forward(Device device, const LayerInputs<X>& in, const X* weights, LayerState<X>& state, std::byte* /*workspace*/,
                 const Statistics<X>& statistics) const {
        const size_t tokens = size_t(in.B) * in.T;
        Wide<X>* const gate = state.score_inputs.gate;
        attention_forward(device, plain(), ungated_arguments(in, state, statistics));
        if (!each) {
            token_linear_forward(device, gate, gates.of(in, weights));
            sigmoid_forward(device, gate, tokens * NH);
            return gate_rows_forward(device, state.gated_out, state.out, gate, tokens * NH, HS);
        }
        X* const u = reinterpret_cast<X*>(state.kept);
        projection_forward(device, u, in.x, weights + gates.weight.offset, nullptr, int(tokens), C, NH * HS);
        each_element(device, tokens, NH * HS, GateElements<X>{state.gated_out, state.out, u, size_t(NH) * HS});
        each_element(device, tokens, NH, MeanGates<X>{gate, u, NH, HS});
    }

    template <class Device, class X>
    void backward(Device device, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state, const X* dout,
                  const QkvGradients<X>& to, ScoreInputGradients<X>& more, std::byte* workspace) const {
        const auto scratch = backward_scratch<X>(device, workspace, in);
        const size_t tokens = size_t(in.B) * in.T, width = size_t(NH) * HS;
        if (each) {
            const X* const u = reinterpret_cast<const X*>(state.kept);
            each_element(device, tokens, int(width), GateElementsBackward<X>{scratch.dout, scratch.du, dout, state.out, u, width});
            input_projection_backward(device, more, scratch.du, gates.weight, int(width), in, weights);
        } else {
            Wide<X>* const du = more.of.gate;
            gate_rows_backward(device, scratch.dout, du, dout, state.out, state.score_inputs.gate, tokens * NH, HS);
            sigmoid_backward(device, du, state.score_inputs.gate, tokens * NH);
            gates.backward(device, more, du, in, weights);
        }
        attention_backward(device, plain(), ungated_arguments(in, state, Statistics<X>{}),
                           kernel_gradients<X>(scratch.dout, to, scratch.kernel));
    }

    // ---- the paper's formula without the above

    template <class X>
    void naive(const LayerInputs<X>& in, const X* weights, X* out) const {
        dense_softmax(in, out, [&](int, int i, int j) { return j <= i && (j < leading || j >= i - left); });
        for (size_t t = 0; t < size_t(in.B) * in.T; t++)
            for (int n = 0; n < NH * HS; n++) {
                const X u = dot(weights + gates.weight.offset + size_t(each ? n : n / HS) * C, in.x + t * C, C);
                out[t * NH * HS + n] *= 1 / (1 + std::exp(-u));
            }
    }

private:
    /// The kernel's policy, without the gates.
    const ReadThroughWindow& plain() const { return *this; }
};
