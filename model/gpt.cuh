// The whole transformer, forward and backward, written once as calls of operations that are overloaded on the device.
//   gpt_forward    tokens -> normed final activations          gpt_loss      those -> mean cross-entropy, and its gradient
//   gpt_backward   that gradient -> gradients of all tensors   gpt_update    AdamW
// X is the number type of weights and activations, W = Wide<X> that of sums, statistics, gradients of weights and moments.
// Nothing here waits for the device: what the host wants to know is in gpt.numbers when the device gets there.
#pragma once
#include <algorithm>
#include <functional>

#include "attention/core/layer.h"
#include "model/adamw.cuh"
#include "model/batch.h"
#include "model/cross_entropy.cuh"
#include "model/embedding.cuh"
#include "model/linear.cuh"
#include "model/memory.cuh"
#include "model/monitor.cuh"
#include "model/qk_rope.cuh"
#include "model/qwen.h"
#include "model/rmsnorm.cuh"
#include "model/sigma_reparam.cuh"
#include "model/swiglu.cuh"

/// What one layer computes on the way forward and reads again on the way back.
template <class X>
struct LayerActivations {
    X* normed1;                // (B, T, C)
    Wide<X>* rstd1;            // (B, T)
    X* qkv;                    // (B, T, NH + 2 NKV, HS) as projected
    X* qk;                     // (B, T, NH + NKV, HS) normed and rotated
    Wide<X>* qk_rstd;          // (B, T, NH + NKV)
    LayerState<X> attention;   // out (B, T, NH, HS), log-sum-exp (B, NH, T), the variant's features
    X* middle;                 // (B, T, C) the residual stream between attention and feed-forward
    X* normed2;                // (B, T, C)
    Wide<X>* rstd2;            // (B, T)
    X* gate_up;                // (B, T, 2 F)
    X* activated;              // (B, T, F)
};

/// Buffers that live for one operation or for the hand-over between two. The gradients of the feed-forward half and of the
/// attention half share memory.
template <class X>
struct Scratch {
    X* branch;                  // (B, T, C) the output of a projection before it joins the residual stream
    X* qk_pre;                  // (B, T, NH + NKV, HS) q and k before RoPE; null unless the variant reads them
    X* logits;                  // (chunk, V)
    Wide<X>* losses;            // (B, T)
    X* dresidual;               // (B, T, C) the gradient of the residual stream
    X* dnormed;                 // (B, T, C)
    X *dactivated, *dgate_up;   // (B, T, F), (B, T, 2 F)
    X *dout, *dqkv;             // (B, T, NH, HS), (B, T, NH + 2 NKV, HS)
    Wide<X>*dqk, *dqk_pre;      // (B, T, NH + NKV, HS) of qk and of qk_pre
    Extras<X> dextras;
    std::byte* attention;       // what one of the layer's passes needs while it runs
};

enum class Mode { inference, training };

/// What the backward pass computes again instead of finding it in memory.
enum class Recompute {
    nothing,
    cheap,    // the norms' and SwiGLU's outputs: 2 C + F of the numbers that a layer keeps per token, for no matrix product
    layers,   // everything but each layer's input: a second forward pass
};

/// Numbers of a chunk of logits: a few rows in the CPU's caches, rows enough to fill a GPU.
template <class Device>
inline constexpr int LOGITS = 1 << 28;
template <>
inline constexpr int LOGITS<CPU> = 1 << 24;

/// A model of variant `Attention` with room for batches of up to B x T tokens.
template <class Device, class X, class Attention>
struct GPT {
    using W = Wide<X>;
    static constexpr bool rounds = !std::is_same_v<X, W>;   // weights are a rounded copy of master weights

    Qwen<Attention> net;
    int B, T;
    Mode mode;
    Recompute recompute;

    X* weights = nullptr;                            // (net.tensors.size())
    W* gradients = nullptr;                          // (net.tensors.size())
    W *master = nullptr, *m = nullptr, *v = nullptr; // weights and AdamW's moments of the numbers [owned_begin, owned_end)
    size_t owned_begin, owned_end;                   // all, or this rank's shard (ZeRO-1)
    StepNumbers* numbers;                            // what the step adds up, in the device's memory
    UpdateRange* ranges;                             // (range_count) what the update changes
    NormSpan* spans;                                 // (span_count) what the norm of the gradient runs over
    int range_count, span_count;
    W dloss = 0;                                     // as gpt_loss() was told
    W *cosine, *sine;                                // (T, HS / 2)
    W* auxiliary;                                    // (L, B, NH) parts of the policy's own loss; null where it has none
    X* residual;                                     // (L + 1, B, T, C) input of every layer and of the final norm
    X* final_normed;                                 // (B, T, C)
    W* final_rstd;                                   // (B, T)
    std::vector<LayerActivations<X>> layers;
    Scratch<X> scratch;
    Sigma<W> sigma;                                  // where the linear layers are reparametrised
    Angles<W> row_angles;                            // of RoPE for the rows of a sequence, where these do not begin their text
    std::function<void(int l, int T)> attend;        // what replaces the attention of layer l; null: nothing does (decode.cuh)

    Arena<Device> weight_memory, gradient_memory, moment_memory, activation_memory, scratch_memory;

    GPT(const Config& config, int B_, int T_, Mode mode_, Recompute recompute_ = Recompute::nothing, int shard = 0, int shards = 1)
        : net(config),
          B(B_),
          T(T_),
          mode(mode_),
          recompute(recompute_),
          owned_begin(shard_begin(net.tensors.size(), shard, shards)),
          owned_end(shard_begin(net.tensors.size(), shard + 1, shards)) {
        if (!net.sigma.empty() && sharded())
            fail(Exit::usage, "sigma_reparam needs every matrix whole on every rank; use --zero-stage 0");
        lay_out();
    }

    /// What allocate() will take, class by class.
    std::vector<MemoryUse> memory_plan() const {
        return {{"weights", weight_memory.bytes()},
                {"gradients", gradient_memory.bytes()},
                {keeps_master() ? "master weights and moments of AdamW" : "moments of AdamW", moment_memory.bytes()},
                {"activations", activation_memory.bytes()},
                {"scratch", scratch_memory.bytes()},
                {"keys that attention works on", kernel_memory<X>(Device{}, T, net.config.HS,
                                                                  mode == Mode::training ? Pass::backward : Pass::forward)}};
    }

    void allocate(Device device) {
        for (Arena<Device>* arena : {&weight_memory, &gradient_memory, &moment_memory, &activation_memory, &scratch_memory})
            arena->allocate();
        lay_out();
        rope_table(device, cosine, sine, T, net.config.HS, net.config.rope_theta, Attention::rotates);
        const StepNumbers none{};
        to_device(device, numbers, &none, 1);
        if (sigma.count) to_device(device, sigma.linears, net.sigma.data(), net.sigma.size());
        if (mode == Mode::inference) return;
        to_device(device, ranges, owned_ranges().data(), size_t(range_count));
        to_device(device, spans, norm_spans(net.tensors).data(), size_t(span_count));
        fill(device, gradients, net.tensors.size(), W{});   // the padding between tensors stays zero: norms run over it
        fill(device, m, owned_end - owned_begin, W{});
        fill(device, v, owned_end - owned_begin, W{});
    }

    /// Whether `weights` is a copy, rounded or reparametrised, of what AdamW updates.
    bool keeps_master() const { return mode == Mode::training && (rounds || !net.sigma.empty()); }
    bool sharded() const { return owned_end - owned_begin < net.tensors.size(); }
    int layer_index(int l) const { return layers.size() == 1 ? 0 : l; }
    int logit_rows() const { return std::clamp(LOGITS<Device> / net.config.V / 128 * 128, 128, std::max(128, B * T)); }
    QkShape<X> qk_shape(const Layer<Attention>& layer, int B, int T) const {
        const Config& c = net.config;
        const X *q = layer.q_norm ? weights + layer.q_norm.offset : nullptr, *k = q ? weights + layer.k_norm.offset : nullptr;
        return {B, T, c.NH, c.NKV, c.HS, q, k, row_angles ? row_angles : Angles<W>{cosine, sine}};
    }

private:
    LayerShape shape() const { return {B, T, net.config.C, net.config.NH, net.config.NKV, net.config.HS}; }
    std::vector<UpdateRange> owned_ranges() const { return update_ranges(net.tensors, owned_begin, owned_end, 1 << 14); }

    void lay_out() {
        const size_t n = net.tensors.size(), owned = owned_end - owned_begin;
        weights = weight_memory.template take<X>(n);
        if (mode == Mode::training) {
            gradients = gradient_memory.template take<W>(n);
            if (keeps_master()) master = moment_memory.template take<W>(owned);
            else if constexpr (!rounds) master = weights + owned_begin;
            m = moment_memory.template take<W>(owned);
            v = moment_memory.template take<W>(owned);
        }
        lay_out_activations();
        lay_out_scratch();
    }

    void lay_out_activations() {
        const Config& c = net.config;
        const size_t BT = size_t(B) * T, heads = c.NH + c.NKV;
        auto take = [this](size_t count) { return activation_memory.template take<X>(count); };
        auto take_wide = [this](size_t count) { return activation_memory.template take<W>(count); };
        cosine = take_wide(size_t(T) * c.HS / 2), sine = take_wide(size_t(T) * c.HS / 2);
        auxiliary = Attention::has_auxiliary_loss ? take_wide(size_t(c.L) * B * c.NH) : nullptr;
        residual = take((c.L + 1) * BT * c.C);
        final_normed = take(BT * c.C), final_rstd = take_wide(BT);
        layers.resize(mode == Mode::training && recompute != Recompute::layers ? c.L : 1);
        for (size_t l = 0; l < layers.size(); l++) {
            LayerActivations<X>& a = layers[l];
            const Attention& attention = net.layers[l].attention;
            if (l == 0 || recompute == Recompute::nothing)
                a.normed1 = take(BT * c.C), a.normed2 = take(BT * c.C), a.activated = take(BT * c.F);
            else
                a.normed1 = layers[0].normed1, a.normed2 = layers[0].normed2, a.activated = layers[0].activated;
            a.rstd1 = take_wide(BT), a.rstd2 = take_wide(BT);
            a.qkv = take(BT * (heads + c.NKV) * c.HS);
            a.qk = take(BT * heads * c.HS), a.qk_rstd = take_wide(BT * heads);
            a.attention.extras = take_extras<Device, X>(activation_memory, attention, B, T, c.NH, 1);
            a.attention.out = take(BT * c.NH * c.HS);
            a.attention.gated_out = attention.gated() ? take(BT * c.NH * c.HS) : a.attention.out;
            a.attention.lse = take_wide(BT * c.NH);
            a.attention.kept = activation_memory.template take<std::byte>(attention.template kept_bytes<X>(shape()));
            a.middle = take(BT * c.C);
            a.gate_up = take(BT * 2 * c.F);
        }
    }

    void lay_out_sigma() {
        if (net.sigma.empty()) return;
        size_t rows = 0, columns = 0;
        sigma.count = int(net.sigma.size());
        for (const SigmaLinear& s : net.sigma) {
            rows += s.OUT, columns += s.IN;
            sigma.rows = std::max(sigma.rows, s.OUT), sigma.columns = std::max(sigma.columns, s.IN);
        }
        auto take = [this](size_t count) { return scratch_memory.template take<W>(count); };
        sigma.linears = scratch_memory.template take<SigmaLinear>(sigma.count);
        sigma.v = take(rows), sigma.row_sums = take(rows), sigma.next_u = take(columns), sigma.norm = take(sigma.count);
    }

    void lay_out_scratch() {
        const Config& c = net.config;
        const size_t BT = size_t(B) * T, heads = c.NH + c.NKV;
        auto take = [this](size_t count) { return scratch_memory.template take<X>(count); };
        auto take_wide = [this](size_t count) { return scratch_memory.template take<W>(count); };
        Scratch<X>& s = scratch;
        s.branch = take(BT * c.C);
        s.losses = take_wide(BT);
        s.logits = take(size_t(logit_rows()) * c.V);
        s.qk_pre = Attention::reads_qk_pre ? take(BT * heads * c.HS) : nullptr;
        numbers = scratch_memory.template take<StepNumbers>(1);
        lay_out_sigma();
        const size_t workspace = layer_workspace<X>(Device{}, net.layers[0].attention, shape());
        s.attention = scratch_memory.template take<std::byte>(workspace);
        if (mode == Mode::inference) return;
        range_count = int(owned_ranges().size()), span_count = int(norm_spans(net.tensors).size());
        ranges = scratch_memory.template take<UpdateRange>(range_count);
        spans = scratch_memory.template take<NormSpan>(span_count);
        s.dresidual = take(BT * c.C), s.dnormed = take(BT * c.C);
        const size_t shared = scratch_memory.used();
        s.dactivated = take(BT * c.F), s.dgate_up = take(BT * 2 * c.F);
        scratch_memory.rewind(shared);
        s.dout = take(BT * c.NH * c.HS), s.dqkv = take(BT * (heads + c.NKV) * c.HS);
        s.dqk = take_wide(BT * heads * c.HS);
        s.dqk_pre = Attention::reads_qk_pre ? take_wide(BT * heads * c.HS) : nullptr;
        s.dextras = take_extras<Device, X>(scratch_memory, net.layers[0].attention, B, T, c.NH, B);
    }
};

/// The views that layer l's attention reads.
template <class Device, class X, class A>
LayerInputs<X> attention_inputs(const GPT<Device, X, A>& gpt, int l, int B, int T) {
    const Config& c = gpt.net.config;
    const LayerActivations<X>& a = gpt.layers[gpt.layer_index(l)];
    const X* pre = gpt.scratch.qk_pre;
    const size_t k_at = size_t(c.NH) * c.HS, v_at = size_t(c.NH + c.NKV) * c.HS;
    return {{B, T, c.C, c.NH, c.NKV, c.HS}, a.normed1, pre, pre ? pre + k_at : nullptr, a.qk, a.qk + k_at, a.qkv + v_at, v_at,
            v_at + size_t(c.NKV) * c.HS, gpt.cosine, gpt.sine};
}

/// Layer l from its normed input up to `activated`: everything that the backward pass reads again.
template <class Device, class X, class A>
void layer_forward(Device device, GPT<Device, X, A>& gpt, int l, int B, int T, Monitor<Device, X>* monitor = nullptr) {
    const Config& c = gpt.net.config;
    const auto& layer = gpt.net.layers[l];
    const X* w = gpt.weights;
    LayerActivations<X>& a = gpt.layers[gpt.layer_index(l)];
    const int BT = B * T, Q = c.NH * c.HS;
    linear_forward(device, a.qkv, a.normed1, w + layer.qkv.offset, layer.qkv_bias ? w + layer.qkv_bias.offset : nullptr, BT, c.C,
                   (c.NH + 2 * c.NKV) * c.HS);
    qk_norm_rope_forward(device, a.qk, gpt.scratch.qk_pre, a.qk_rstd, a.qkv, gpt.qk_shape(layer, B, T), c.norm_eps);
    if (A::has_auxiliary_loss) a.attention.extras.auxiliary = gpt.auxiliary + size_t(l) * B * c.NH;
    if (gpt.attend) gpt.attend(l, T);
    else
        attention_layer_forward(device, layer.attention, attention_inputs(gpt, l, B, T), w, a.attention, gpt.scratch.attention,
                                monitor ? monitor->start_layer(device) : Statistics<X>{});
    if (monitor) monitor->finish_layer(device, a.attention.extras.gate, B, T);
    linear_forward(device, gpt.scratch.branch, a.attention.gated_out, w + layer.o_proj.offset, static_cast<const X*>(nullptr), BT,
                   Q, c.C);
    residual_rmsnorm_forward(device, a.middle, a.normed2, a.rstd2, gpt.residual + size_t(l) * BT * c.C, gpt.scratch.branch,
                             w + layer.post_attention_norm.offset, BT, c.C, c.norm_eps);
    linear_forward(device, a.gate_up, a.normed2, w + layer.gate_up.offset, static_cast<const X*>(nullptr), BT, c.C, 2 * c.F);
    swiglu_forward(device, a.activated, a.gate_up, BT, c.F);
}

/// gpt.final_normed (B, T, C) from the batch's tokens. Preconditions: at most gpt.B x gpt.T of them, each below V. A monitor, where
/// there is one, sees every layer's attention, and makes this the one pass that waits for the device.
template <class Device, class X, class A>
void gpt_forward(Device device, GPT<Device, X, A>& gpt, const Batch& batch, Monitor<Device, X>* monitor = nullptr) {
    const Config& c = gpt.net.config;
    const X* w = gpt.weights;
    const int B = batch.B, T = batch.T, BT = B * T;
    const size_t stream = size_t(BT) * c.C;
    X* x = gpt.residual;
    LayerActivations<X>* a = &gpt.layers[0];
    embedding_forward(device, x, batch.tokens, w + gpt.net.embedding.offset, BT, c.C);
    rmsnorm_forward(device, a->normed1, a->rstd1, x, w + gpt.net.layers[0].input_norm.offset, BT, c.C, c.norm_eps);
    for (int l = 0; l < c.L; l++) {
        const auto& layer = gpt.net.layers[l];
        layer_forward(device, gpt, l, B, T, monitor);
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

/// gpt.numbers->loss = or += the losses of the batch's targets in nats, after gpt_forward(), and the policy's own loss likewise. The
/// head works on chunks of rows, so that the logits of the batch never exist at once. With dloss != 0 (1 / tokens of the step) it also leaves d final_normed in
/// scratch.dnormed and the head's weight gradient, and gpt_backward() works with the same dloss.
template <class Device, class X, class A>
void gpt_loss(Device device, GPT<Device, X, A>& gpt, const Batch& batch, Write write, Wide<X> dloss = 0) {
    const Config& c = gpt.net.config;
    const X* head = gpt.weights + gpt.net.head.offset;
    const int BT = batch.B * batch.T;
    if (dloss != 0) gpt.dloss = dloss;
    for (int row = 0; row < BT; row += gpt.logit_rows()) {
        const int rows = std::min(gpt.logit_rows(), BT - row);
        const X* normed = gpt.final_normed + size_t(row) * c.C;
        linear_forward(device, gpt.scratch.logits, normed, head, static_cast<const X*>(nullptr), rows, c.C, c.V);
        cross_entropy(device, gpt.scratch.losses + row, gpt.scratch.logits, batch.targets + row, rows, c.V, dloss);
        if (dloss == 0) continue;
        linear_backward_input(device, gpt.scratch.dnormed + size_t(row) * c.C, gpt.scratch.logits, head, rows, c.C, c.V,
                              Write::overwrite);
        linear_backward_weight(device, gpt.gradients + gpt.net.head.offset, static_cast<Wide<X>*>(nullptr), gpt.scratch.logits,
                               normed, rows, c.C, c.V, row ? Write::add : write);
    }
    sum_of_losses(device, &gpt.numbers->loss, gpt.scratch.losses, BT, write);
    if (A::has_auxiliary_loss) sum_of_losses(device, &gpt.numbers->auxiliary, gpt.auxiliary, c.L * batch.B * c.NH, write);
}

/// The feed-forward half of layer l: scratch.dresidual goes from the gradient of the layer's output to that of `middle`.
template <class Device, class X, class A>
void feed_forward_backward(Device device, GPT<Device, X, A>& gpt, int l, int BT, Write write) {
    const Config& c = gpt.net.config;
    const auto& layer = gpt.net.layers[l];
    const LayerActivations<X>& a = gpt.layers[gpt.layer_index(l)];
    const X* w = gpt.weights;
    Wide<X>*g = gpt.gradients, *const none = nullptr;
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
    Wide<X>*g = gpt.gradients, *const none = nullptr;
    Scratch<X>& s = gpt.scratch;
    const int BT = B * T, Q = c.NH * c.HS, heads = c.NH + c.NKV;
    const size_t k_at = Q, v_at = size_t(heads) * c.HS, qkv_row = v_at + size_t(c.NKV) * c.HS;

    linear_backward_input(device, s.dout, s.dresidual, w + layer.o_proj.offset, BT, Q, c.C, Write::overwrite);
    linear_backward_weight(device, g + layer.o_proj.offset, none, s.dresidual, a.attention.gated_out, BT, Q, c.C, write);

    const QkShape<X> shape = gpt.qk_shape(layer, B, T);
    const LayerInputs<X> in = attention_inputs(gpt, l, B, T);
    if (A::reads_qk_pre) qk_norm_rope_forward(device, static_cast<X*>(nullptr), s.qk_pre, a.qk_rstd, a.qkv, shape, c.norm_eps);
    if (write == Write::overwrite) fill(device, g + layer.own.offset, layer.own.size, Wide<X>{});
    if (A::reads_x) fill(device, s.dnormed, size_t(BT) * c.C, X{});
    ExtraGradients<X> more{s.dextras, s.dqk_pre, s.dqk_pre ? s.dqk_pre + k_at : nullptr, A::reads_x ? s.dnormed : nullptr, g,
                           gpt.dloss};
    const QkvGradients<X> to{{s.dqk, v_at}, {s.dqk + k_at, v_at}, {s.dqkv + v_at, qkv_row}};
    attention_layer_backward(device, layer.attention, in, w, a.attention, s.dout, to, more, s.attention);

    qk_norm_rope_backward(device, s.dqkv, g + layer.q_norm.offset, g + layer.k_norm.offset, s.dqk, s.dqk_pre, a.qkv, a.qk_rstd,
                          shape, write);
    linear_backward_input(device, s.dnormed, s.dqkv, w + layer.qkv.offset, BT, c.C, int(qkv_row),
                          A::reads_x ? Write::add : Write::overwrite);
    linear_backward_weight(device, g + layer.qkv.offset, layer.qkv_bias ? g + layer.qkv_bias.offset : none, s.dqkv, a.normed1, BT,
                           c.C, int(qkv_row), write);
    rmsnorm_backward(device, s.dresidual, g + layer.input_norm.offset, s.dnormed, gpt.residual + size_t(l) * BT * c.C,
                     w + layer.input_norm.offset, a.rstd1, BT, c.C, Write::add, write);
}

/// Brings back what layer l did not keep.
template <class Device, class X, class A>
void recompute_layer(Device device, GPT<Device, X, A>& gpt, int l, int B, int T) {
    if (gpt.recompute == Recompute::nothing) return;
    const Config& c = gpt.net.config;
    const auto& layer = gpt.net.layers[l];
    const int BT = B * T;
    LayerActivations<X>& a = gpt.layers[gpt.layer_index(l)];
    rmsnorm_forward(device, a.normed1, a.rstd1, gpt.residual + size_t(l) * BT * c.C, gpt.weights + layer.input_norm.offset, BT, c.C,
                    c.norm_eps);
    if (gpt.recompute == Recompute::layers) return layer_forward(device, gpt, l, B, T);
    rmsnorm_forward(device, a.normed2, a.rstd2, a.middle, gpt.weights + layer.post_attention_norm.offset, BT, c.C, c.norm_eps);
    swiglu_forward(device, a.activated, a.gate_up, BT, c.F);
}

/// What gpt_backward() calls when the gradients [begin, end) of the flat buffer will not change any more.
struct IgnoreReady {
    void operator()(size_t /*begin*/, size_t /*end*/) const {}
};

/// Gradients of all tensors, after gpt_loss() with a dloss. `write` says whether they replace or join what gpt.gradients holds.
/// ready(begin, end) is called for one layer after the other, from the last to the first, and then for the rest, so that their sum
/// over ranks can be taken while the backward pass goes on.
template <class Device, class X, class A, class Ready = IgnoreReady>
void gpt_backward(Device device, GPT<Device, X, A>& gpt, const Batch& batch, Write write, Ready ready = {}) {
    const Config& c = gpt.net.config;
    const int B = batch.B, T = batch.T, BT = B * T;
    const X* w = gpt.weights;
    Wide<X>* g = gpt.gradients;
    const size_t stream = size_t(BT) * c.C;
    rmsnorm_backward(device, gpt.scratch.dresidual, g + gpt.net.final_norm.offset, gpt.scratch.dnormed, gpt.residual + c.L * stream,
                     w + gpt.net.final_norm.offset, gpt.final_rstd, BT, c.C, Write::overwrite, write);
    for (int l = c.L - 1; l >= 0; l--) {
        recompute_layer(device, gpt, l, B, T);
        feed_forward_backward(device, gpt, l, BT, write);
        attention_half_backward(device, gpt, l, B, T, write);
        ready(gpt.net.layer_begin(l), gpt.net.layer_begin(l + 1));
    }
    if (!c.tied && write == Write::overwrite) fill(device, g + gpt.net.embedding.offset, gpt.net.embedding.size, Wide<X>{});
    embedding_backward(device, g + gpt.net.embedding.offset, gpt.scratch.dresidual, batch.by_token, c.C);
    ready(0, gpt.net.layer_begin(0));
    ready(gpt.net.layer_begin(c.L), gpt.net.tensors.size());
}

/// To be called when weights have come from outside, into gpt.master or, in a model for inference, into gpt.weights: makes of them
/// what the layers read.
template <class Device, class X, class A>
void gpt_weights_loaded(Device device, GPT<Device, X, A>& gpt) {
    if (!gpt.sigma.count) return;
    if (gpt.mode == Mode::training) return sigma_forward(device, gpt.weights, gpt.master, gpt.sigma);
    if constexpr (!gpt.rounds) sigma_forward(device, gpt.weights, gpt.weights, gpt.sigma);
    else fail(Exit::usage, "sigma_reparam needs float32 weights, or a model for training");
}

/// Completes the gradients, once per step, when the sums over micro-steps and ranks are there, and takes their norm, which it
/// leaves as its square in gpt.numbers.
template <class Device, class X, class A>
void gpt_norm(Device device, GPT<Device, X, A>& gpt) {
    if (gpt.sigma.count) sigma_backward(device, gpt.gradients, gpt.master, gpt.sigma);
    sum_of_squares(device, &gpt.numbers->squares, gpt.gradients, gpt.net.tensors.size(), gpt.spans, gpt.span_count);
}

/// One AdamW step over the list, or over this rank's shard of it; `step` counts from 1. Needs gpt.numbers, and does nothing when
/// the loss or the norm in it is not finite.
template <class Device, class X, class A>
void gpt_update(Device device, GPT<Device, X, A>& gpt, const AdamW& options, int64_t step) {
    adamw_update(device, gpt.weights, gpt.master, gpt.m, gpt.v, gpt.gradients, gpt.owned_begin, gpt.ranges, gpt.range_count,
                 gpt.numbers, options, step);
    if (!gpt.sigma.count) return;
    sigma_advance(device, gpt.master, gpt.sigma, gpt.numbers);
    gpt_weights_loaded(device, gpt);
}

/// gpt.numbers as the host sees them, once the device is there.
template <class Device, class X, class A>
StepNumbers read_numbers(Device device, const GPT<Device, X, A>& gpt) {
    StepNumbers numbers;
    to_host(device, &numbers, gpt.numbers, 1);
    return numbers;
}

/// Logits (rows, V) of the rows `first` .. of gpt.final_normed, for sampling and tests; in scratch.logits. rows <= logit_rows().
template <class Device, class X, class A>
const X* gpt_logits(Device device, GPT<Device, X, A>& gpt, int first, int rows) {
    const Config& c = gpt.net.config;
    linear_forward(device, gpt.scratch.logits, gpt.final_normed + size_t(first) * c.C, gpt.weights + gpt.net.head.offset,
                   static_cast<const X*>(nullptr), rows, c.C, c.V);
    return gpt.scratch.logits;
}
