// The whole transformer, forward and backward, written once as calls of operations that are overloaded on the device.
//   gpt_forward    tokens -> normed final activations          gpt_loss      those -> mean cross-entropy, and its gradient
//   gpt_backward   that gradient -> gradients of all tensors   gpt_update    AdamW
// X is the number type of weights and activations.
#pragma once
#include <algorithm>

#include "attention/core/layer.h"
#include "model/adamw.cuh"
#include "model/cross_entropy.cuh"
#include "model/embedding.cuh"
#include "model/linear.cuh"
#include "model/memory.h"
#include "model/qk_rope.cuh"
#include "model/qwen.h"
#include "model/rmsnorm.cuh"
#include "model/swiglu.cuh"

/// What one layer computes on the way forward and reads again on the way back.
template <class X>
struct LayerActivations {
    X *normed1, *rstd1;        // (B, T, C), (B, T)
    X* qkv;                    // (B, T, NH + 2 NKV, HS) as projected
    X *qk, *qk_rstd;           // (B, T, NH + NKV, HS) normed and rotated, (B, T, NH + NKV)
    LayerState<X> attention;   // out (B, T, NH, HS), log-sum-exp (B, NH, T), the variant's features
    X* middle;                 // (B, T, C) the residual stream between attention and feed-forward
    X *normed2, *rstd2;        // (B, T, C), (B, T)
    X* gate_up;                // (B, T, 2 F)
    X* activated;              // (B, T, F)
};

/// Buffers that live for one operation or for the hand-over between two. The gradients of the feed-forward half and of the
/// attention half share memory.
template <class X>
struct Scratch {
    X* branch;                  // (B, T, C) the output of a projection before it joins the residual stream
    X* qk_pre;                  // (B, T, NH + NKV, HS) q and k before RoPE
    X* logits;                  // (chunk, V)
    X* losses;                  // (B, T)
    X* dresidual;               // (B, T, C) the gradient of the residual stream
    X* dnormed;                 // (B, T, C)
    X *dactivated, *dgate_up;   // (B, T, F), (B, T, 2 F)
    X *dout, *dqk, *dqkv;       // (B, T, NH, HS), (B, T, NH + NKV, HS), (B, T, NH + 2 NKV, HS)
    Extras<X> dextras;
};

enum class Mode { inference, training };

/// A model of variant `Attention` with room for batches of up to B x T tokens.
template <class Device, class X, class Attention>
struct GPT {
    Qwen<Attention> net;
    int B, T;
    Mode mode;
    bool recompute;   // keep only the residual stream of each layer and compute the rest again on the way back

    X *weights = nullptr, *gradients = nullptr;   // (net.tensors.size())
    X *m = nullptr, *v = nullptr;                 // AdamW's moments of the numbers [moments_begin, moments_end)
    size_t moments_begin, moments_end;            // all, or this rank's shard (ZeRO-1)
    X *cosine, *sine;                             // (T, HS / 2)
    X* residual;                                  // (L + 1, B, T, C) input of every layer and of the final norm
    X *final_normed, *final_rstd;                 // (B, T, C), (B, T)
    std::vector<LayerActivations<X>> layers;
    Scratch<X> scratch;

    Arena<Device> weight_memory, gradient_memory, moment_memory, activation_memory, scratch_memory;

    GPT(const Config& config, int B_, int T_, Mode mode_, bool recompute_ = false, int shard = 0, int shards = 1)
        : net(config),
          B(B_),
          T(T_),
          mode(mode_),
          recompute(recompute_),
          moments_begin(shard_begin(net.tensors.size(), shard, shards)),
          moments_end(shard_begin(net.tensors.size(), shard + 1, shards)) {
        lay_out();
    }

    /// What allocate() will take, class by class.
    std::vector<MemoryUse> memory_plan() const {
        return {{"weights", weight_memory.bytes()},
                {"gradients", gradient_memory.bytes()},
                {"moments of AdamW", moment_memory.bytes()},
                {"activations", activation_memory.bytes()},
                {"scratch", scratch_memory.bytes()}};
    }

    void allocate() {
        for (Arena<Device>* arena : {&weight_memory, &gradient_memory, &moment_memory, &activation_memory, &scratch_memory})
            arena->allocate();
        lay_out();
        rope_table(Device{}, cosine, sine, T, net.config.HS, net.config.rope_theta);
    }

    bool sharded() const { return moments_end - moments_begin < net.tensors.size(); }
    int layer_index(int l) const { return layers.size() == 1 ? 0 : l; }
    int logit_rows() const { return std::clamp((16 << 20) / net.config.V, 128, std::max(128, B * T)); }

private:
    void lay_out() {
        const size_t n = net.tensors.size();
        weights = weight_memory.template take<X>(n);
        if (mode == Mode::training) {
            gradients = gradient_memory.template take<X>(n);
            m = moment_memory.template take<X>(moments_end - moments_begin);
            v = moment_memory.template take<X>(moments_end - moments_begin);
        }
        lay_out_activations();
        lay_out_scratch();
    }

    void lay_out_activations() {
        const Config& c = net.config;
        const size_t BT = size_t(B) * T, heads = c.NH + c.NKV;
        auto take = [this](size_t count) { return activation_memory.template take<X>(count); };
        cosine = take(size_t(T) * c.HS / 2), sine = take(size_t(T) * c.HS / 2);
        residual = take((c.L + 1) * BT * c.C);
        final_normed = take(BT * c.C), final_rstd = take(BT);
        layers.resize(mode == Mode::training && !recompute ? c.L : 1);
        for (size_t l = 0; l < layers.size(); l++) {
            LayerActivations<X>& a = layers[l];
            const Attention& attention = net.layers[l].attention;
            a.normed1 = take(BT * c.C), a.rstd1 = take(BT);
            a.qkv = take(BT * (heads + c.NKV) * c.HS);
            a.qk = take(BT * heads * c.HS), a.qk_rstd = take(BT * heads);
            a.attention.extras = take_extras<Device, X>(activation_memory, attention, B, T, c.NH, 1);
            a.attention.out = take(BT * c.NH * c.HS);
            a.attention.gated_out = attention.gated() ? take(BT * c.NH * c.HS) : a.attention.out;
            a.attention.lse = take(BT * c.NH);
            a.middle = take(BT * c.C);
            a.normed2 = take(BT * c.C), a.rstd2 = take(BT);
            a.gate_up = take(BT * 2 * c.F), a.activated = take(BT * c.F);
        }
    }

    void lay_out_scratch() {
        const Config& c = net.config;
        const size_t BT = size_t(B) * T, heads = c.NH + c.NKV;
        auto take = [this](size_t count) { return scratch_memory.template take<X>(count); };
        Scratch<X>& s = scratch;
        s.branch = take(BT * c.C);
        s.losses = take(BT);
        s.logits = take(size_t(logit_rows()) * c.V);
        s.qk_pre = take(BT * heads * c.HS);
        if (mode == Mode::inference) return;
        s.dresidual = take(BT * c.C), s.dnormed = take(BT * c.C);
        const size_t shared = scratch_memory.used();
        s.dactivated = take(BT * c.F), s.dgate_up = take(BT * 2 * c.F);
        scratch_memory.rewind(shared);
        s.dout = take(BT * c.NH * c.HS), s.dqk = take(BT * heads * c.HS), s.dqkv = take(BT * (heads + c.NKV) * c.HS);
        s.dextras = take_extras<Device, X>(scratch_memory, net.layers[0].attention, B, T, c.NH, B);
    }
};

/// The views that layer l's attention reads; q_pre and k_pre are computed anew into scratch.qk_pre.
template <class Device, class X, class A>
LayerInputs<X> attention_inputs(Device device, GPT<Device, X, A>& gpt, int l, int B, int T) {
    const Config& c = gpt.net.config;
    const auto& layer = gpt.net.layers[l];
    LayerActivations<X>& a = gpt.layers[gpt.layer_index(l)];
    const X* q_norm = layer.q_norm ? gpt.weights + layer.q_norm.offset : nullptr;
    const X* k_norm = layer.k_norm ? gpt.weights + layer.k_norm.offset : nullptr;
    qk_norm_forward(device, gpt.scratch.qk_pre, a.qk_rstd, a.qkv, q_norm, k_norm, B * T, c.NH, c.NKV, c.HS, c.norm_eps);
    const size_t k_at = size_t(c.NH) * c.HS, v_at = size_t(c.NH + c.NKV) * c.HS;
    return {B,
            T,
            c.C,
            c.NH,
            c.NKV,
            c.HS,
            a.normed1,
            gpt.scratch.qk_pre,
            gpt.scratch.qk_pre + k_at,
            a.qk,
            a.qk + k_at,
            a.qkv + v_at,
            v_at,
            v_at + size_t(c.NKV) * c.HS};
}

/// Layer l from its normed input up to `activated`: everything that the backward pass reads again.
template <class Device, class X, class A>
void layer_forward(Device device, GPT<Device, X, A>& gpt, int l, int B, int T) {
    const Config& c = gpt.net.config;
    const auto& layer = gpt.net.layers[l];
    const X* w = gpt.weights;
    LayerActivations<X>& a = gpt.layers[gpt.layer_index(l)];
    const int BT = B * T, Q = c.NH * c.HS, heads = c.NH + c.NKV;
    linear_forward(device, a.qkv, a.normed1, w + layer.qkv.offset, layer.qkv_bias ? w + layer.qkv_bias.offset : nullptr, BT, c.C,
                   (heads + c.NKV) * c.HS);
    const LayerInputs<X> in = attention_inputs(device, gpt, l, B, T);
    rope_forward(device, a.qk, gpt.scratch.qk_pre, gpt.cosine, gpt.sine, B, T, heads, c.HS);
    attention_layer_forward(device, layer.attention, in, w, a.attention);
    linear_forward(device, gpt.scratch.branch, a.attention.gated_out, w + layer.o_proj.offset, static_cast<const X*>(nullptr), BT,
                   Q, c.C);
    residual_rmsnorm_forward(device, a.middle, a.normed2, a.rstd2, gpt.residual + size_t(l) * BT * c.C, gpt.scratch.branch,
                             w + layer.post_attention_norm.offset, BT, c.C, c.norm_eps);
    linear_forward(device, a.gate_up, a.normed2, w + layer.gate_up.offset, static_cast<const X*>(nullptr), BT, c.C, 2 * c.F);
    swiglu_forward(device, a.activated, a.gate_up, BT, c.F);
}

/// gpt.final_normed (B, T, C) from tokens (B, T). Preconditions: B <= gpt.B, T <= gpt.T, tokens below V.
template <class Device, class X, class A>
void gpt_forward(Device device, GPT<Device, X, A>& gpt, const int32_t* tokens, int B, int T) {
    const Config& c = gpt.net.config;
    const X* w = gpt.weights;
    const int BT = B * T;
    const size_t stream = size_t(BT) * c.C;
    X* x = gpt.residual;
    LayerActivations<X>* a = &gpt.layers[0];
    embedding_forward(device, x, tokens, w + gpt.net.embedding.offset, BT, c.C);
    rmsnorm_forward(device, a->normed1, a->rstd1, x, w + gpt.net.layers[0].input_norm.offset, BT, c.C, c.norm_eps);
    for (int l = 0; l < c.L; l++) {
        const auto& layer = gpt.net.layers[l];
        layer_forward(device, gpt, l, B, T);
        linear_forward(device, gpt.scratch.branch, a->activated, w + layer.down_proj.offset, static_cast<const X*>(nullptr), BT,
                       c.F, c.C);
        // The addition joins the next norm: that of the next layer, or the final one.
        const bool last = l + 1 == c.L;
        LayerActivations<X>* next = &gpt.layers[gpt.layer_index(last ? l : l + 1)];
        const Slot norm = last ? gpt.net.final_norm : gpt.net.layers[l + 1].input_norm;
        x += stream;
        residual_rmsnorm_forward(device, x, last ? gpt.final_normed : next->normed1, last ? gpt.final_rstd : next->rstd1, a->middle,
                                 gpt.scratch.branch, w + norm.offset, BT, c.C, c.norm_eps);
        a = next;
    }
}

/// Sum of the losses of `targets` (B, T) in nats, after gpt_forward(). The head works on chunks of rows, so that the logits of the
/// batch never exist at once. With dloss != 0 (1 / tokens of the step) it also leaves d final_normed in scratch.dnormed and the
/// head's weight gradient.
template <class Device, class X, class A>
double gpt_loss(Device device, GPT<Device, X, A>& gpt, const int32_t* targets, int B, int T, X dloss = X(0),
                Write write = Write::overwrite) {
    const Config& c = gpt.net.config;
    const X* head = gpt.weights + gpt.net.head.offset;
    for (int row = 0; row < B * T; row += gpt.logit_rows()) {
        const int rows = std::min(gpt.logit_rows(), B * T - row);
        const X* normed = gpt.final_normed + size_t(row) * c.C;
        linear_forward(device, gpt.scratch.logits, normed, head, static_cast<const X*>(nullptr), rows, c.C, c.V);
        cross_entropy(device, gpt.scratch.losses + row, gpt.scratch.logits, targets + row, rows, c.V, dloss);
        if (dloss == X(0)) continue;
        linear_backward_input(device, gpt.scratch.dnormed + size_t(row) * c.C, gpt.scratch.logits, head, rows, c.C, c.V,
                              Write::overwrite);
        linear_backward_weight(device, gpt.gradients + gpt.net.head.offset, static_cast<X*>(nullptr), gpt.scratch.logits, normed,
                               rows, c.C, c.V, row ? Write::add : write);
    }
    double total = 0;
    for (int row = 0; row < B * T; row++) total += gpt.scratch.losses[row];
    return total;
}

/// The feed-forward half of layer l: scratch.dresidual goes from the gradient of the layer's output to that of `middle`.
template <class Device, class X, class A>
void feed_forward_backward(Device device, GPT<Device, X, A>& gpt, int l, int BT, Write write) {
    const Config& c = gpt.net.config;
    const auto& layer = gpt.net.layers[l];
    const LayerActivations<X>& a = gpt.layers[gpt.layer_index(l)];
    const X* w = gpt.weights;
    X *g = gpt.gradients, *const none = nullptr;
    Scratch<X>& s = gpt.scratch;
    linear_backward_input(device, s.dactivated, s.dresidual, w + layer.down_proj.offset, BT, c.F, c.C, Write::overwrite);
    linear_backward_weight(device, g + layer.down_proj.offset, none, s.dresidual, a.activated, BT, c.F, c.C, write);
    swiglu_backward(device, s.dgate_up, s.dactivated, a.gate_up, BT, c.F);
    linear_backward_input(device, s.dnormed, s.dgate_up, w + layer.gate_up.offset, BT, c.C, 2 * c.F, Write::overwrite);
    linear_backward_weight(device, g + layer.gate_up.offset, none, s.dgate_up, a.normed2, BT, c.C, 2 * c.F, write);
    rmsnorm_backward(device, s.dresidual, g + layer.post_attention_norm.offset, s.dnormed, a.middle,
                     w + layer.post_attention_norm.offset, a.rstd2, BT, c.C, Write::add, write);
}

/// The attention half: scratch.dresidual goes from the gradient of `middle` to that of the layer's input.
template <class Device, class X, class A>
void attention_half_backward(Device device, GPT<Device, X, A>& gpt, int l, int B, int T, Write write) {
    const Config& c = gpt.net.config;
    const auto& layer = gpt.net.layers[l];
    const LayerActivations<X>& a = gpt.layers[gpt.layer_index(l)];
    const X* w = gpt.weights;
    X *g = gpt.gradients, *const none = nullptr;
    Scratch<X>& s = gpt.scratch;
    const int BT = B * T, Q = c.NH * c.HS, heads = c.NH + c.NKV;
    const size_t k_at = Q, v_at = size_t(heads) * c.HS, qkv_row = v_at + size_t(c.NKV) * c.HS;

    linear_backward_input(device, s.dout, s.dresidual, w + layer.o_proj.offset, BT, Q, c.C, Write::overwrite);
    linear_backward_weight(device, g + layer.o_proj.offset, none, s.dresidual, a.attention.gated_out, BT, Q, c.C, write);

    const LayerInputs<X> in = attention_inputs(device, gpt, l, B, T);
    attention_layer_backward(device, layer.attention, in, a.attention, s.dout, Heads<X>{s.dqk, v_at}, Heads<X>{s.dqk + k_at, v_at},
                             Heads<X>{s.dqkv + v_at, qkv_row}, s.dextras);
    rope_backward(device, s.dqk, gpt.cosine, gpt.sine, B, T, heads, c.HS);

    if (write == Write::overwrite) fill(device, g + layer.own.offset, layer.own.size, X(0));
    if (A::reads_x) fill(device, s.dnormed, size_t(BT) * c.C, X(0));
    ExtraGradients<X> extras{{s.dextras.head, s.dextras.row, s.dextras.column, s.dextras.gate},
                             s.dqk,
                             s.dqk + k_at,
                             A::reads_x ? s.dnormed : nullptr,
                             g};
    attention_extras_backward(device, layer.attention, in, w, a.attention, extras);

    const X* q_norm = layer.q_norm ? w + layer.q_norm.offset : nullptr;
    const X* k_norm = layer.k_norm ? w + layer.k_norm.offset : nullptr;
    qk_norm_backward(device, s.dqkv, g + layer.q_norm.offset, g + layer.k_norm.offset, s.dqk, a.qkv, q_norm, k_norm, a.qk_rstd, BT,
                     c.NH, c.NKV, c.HS, write);
    linear_backward_input(device, s.dnormed, s.dqkv, w + layer.qkv.offset, BT, c.C, int(qkv_row),
                          A::reads_x ? Write::add : Write::overwrite);
    linear_backward_weight(device, g + layer.qkv.offset, layer.qkv_bias ? g + layer.qkv_bias.offset : none, s.dqkv, a.normed1, BT,
                           c.C, int(qkv_row), write);
    rmsnorm_backward(device, s.dresidual, g + layer.input_norm.offset, s.dnormed, gpt.residual + size_t(l) * BT * c.C,
                     w + layer.input_norm.offset, a.rstd1, BT, c.C, Write::add, write);
}

/// Gradients of all tensors, after gpt_loss() with a dloss. `write` says whether they replace or join what gpt.gradients holds.
template <class Device, class X, class A>
void gpt_backward(Device device, GPT<Device, X, A>& gpt, const int32_t* tokens, int B, int T, Write write) {
    const Config& c = gpt.net.config;
    const int BT = B * T;
    const X* w = gpt.weights;
    X* g = gpt.gradients;
    const size_t stream = size_t(BT) * c.C;
    rmsnorm_backward(device, gpt.scratch.dresidual, g + gpt.net.final_norm.offset, gpt.scratch.dnormed, gpt.residual + c.L * stream,
                     w + gpt.net.final_norm.offset, gpt.final_rstd, BT, c.C, Write::overwrite, write);
    for (int l = c.L - 1; l >= 0; l--) {
        if (gpt.recompute) {
            LayerActivations<X>& a = gpt.layers[0];
            rmsnorm_forward(device, a.normed1, a.rstd1, gpt.residual + l * stream, w + gpt.net.layers[l].input_norm.offset, BT, c.C,
                            c.norm_eps);
            layer_forward(device, gpt, l, B, T);
        }
        feed_forward_backward(device, gpt, l, BT, write);
        attention_half_backward(device, gpt, l, B, T, write);
    }
    if (!c.tied && write == Write::overwrite) fill(device, g + gpt.net.embedding.offset, gpt.net.embedding.size, X(0));
    embedding_backward(device, g + gpt.net.embedding.offset, gpt.scratch.dresidual, tokens, BT, c.C);
}

/// One AdamW step over the list, or over this rank's shard of it; `step` counts from 1, `clip` multiplies the gradients.
template <class Device, class X, class A>
void gpt_update(Device device, GPT<Device, X, A>& gpt, const AdamW& options, double clip, int64_t step) {
    for (const Tensor& t : gpt.net.tensors) {
        const size_t begin = std::max(t.slot.offset, gpt.moments_begin),
                     end = std::min(t.slot.offset + t.slot.size, gpt.moments_end);
        if (begin >= end) continue;
        const double decay = t.decay == Decay::yes ? options.weight_decay : 0.0;
        adamw_update(device, gpt.weights + begin, gpt.m + (begin - gpt.moments_begin), gpt.v + (begin - gpt.moments_begin),
                     gpt.gradients + begin, end - begin, options, decay, clip, step);
    }
}

/// Logits (rows, V) of the rows `first` .. of gpt.final_normed, for sampling and tests; in scratch.logits. rows <= logit_rows().
template <class Device, class X, class A>
const X* gpt_logits(Device device, GPT<Device, X, A>& gpt, int first, int rows) {
    const Config& c = gpt.net.config;
    linear_forward(device, gpt.scratch.logits, gpt.final_normed + size_t(first) * c.C, gpt.weights + gpt.net.head.offset,
                   static_cast<const X*>(nullptr), rows, c.C, c.V);
    return gpt.scratch.logits;
}
