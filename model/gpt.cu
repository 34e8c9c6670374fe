// The transformer's passes, as calls of operations that are overloaded on the device. gpt.h documents the functions.
#include "model/gpt.h"

#include "model/gpt_memory.cuh"
#include "model/operations/cross_entropy.cuh"
#include "model/operations/embedding.cuh"
#include "model/operations/linear.cuh"
#include "model/operations/residual.cuh"
#include "model/operations/rmsnorm.cuh"
#include "model/operations/swiglu.cuh"

/// Computes layer l from its normed input to `activated`, all that the backward pass reads. Returns the number of rows: B * T, unless
/// attention->attend() dropped some.
template <class Device, class X>
int GPT<Device, X>::layer_forward(Device device, int l, const Batch& batch, const AttentionOverride* attention) {
    const Config& c = net.config;
    const auto& layer = net.layers[l];
    LayerActivations<X>& a = layers[l];
    const int B = batch.B, T = batch.T, BT = B * T, Q = c.NH * c.HS;
    int rows = BT;
    linear_forward(device, a.qkv, a.normed1, matrix(layer.qkv), layer.qkv_bias ? weights + layer.qkv_bias.offset : nullptr, BT, c.C,
                   (c.NH + 2 * c.NKV) * c.HS);
    QkShape<X> shape = qk_shape(l, B, T, batch.documents);
    if (attention && attention->origin) shape.origin = attention->origin;
    qk_norm_rope_forward(device, a.qk, scratch.qk_pre, a.qk_rstd, a.qkv, shape, c.norm_eps);
    if (auxiliary) {
        W* const of_layer = auxiliary + size_t(l) * B * c.NH;
        if (layer.attention->facts.has_auxiliary_loss) a.attention.score_inputs.auxiliary = of_layer;
        else fill(device, of_layer, size_t(B) * c.NH, W{});
    }
    if (attention) rows = attention->attend(l);
    else layer_attention(device, l, batch);
    residual_forward(device, a.middle, a.normed2, a.rstd2, residual + size_t(l) * BT * c.C, a.attention.gated_out,
                     matrix(layer.o_proj), weights + layer.post_attention_norm.offset, rows, Q, c.C, c.norm_eps);
    linear_forward(device, a.gate_up, a.normed2, matrix(layer.gate_up), static_cast<const X*>(nullptr), rows, c.C, 2 * c.F);
    swiglu_forward(device, a.activated, a.gate_up, rows, c.F);
    return rows;
}

template <class Device, class X>
void GPT<Device, X>::forward(Device device, const Batch& batch, const AttentionOverride* attention) {
    const Config& c = net.config;
    const int BT = batch.B * batch.T;
    const size_t stream = size_t(BT) * c.C;
    X* x = residual;
    LayerActivations<X>* a = &layers[0];
    embedding_forward(device, x, batch.tokens, matrix(net.embedding), BT, c.C);
    rmsnorm_forward(device, a->normed1, a->rstd1, x, weights + net.layers[0].input_norm.offset, BT, c.C, c.norm_eps);
    for (int l = 0; l < c.L; l++) {
        const auto& layer = net.layers[l];
        const int rows = layer_forward(device, l, batch, attention);
        const bool last = l + 1 == c.L;
        LayerActivations<X>* next = &layers[last ? l : l + 1];
        const Slot norm = last ? net.final_norm : net.layers[l + 1].input_norm;   // fused with the residual addition
        x += stream;
        residual_forward(device, x, last ? final_normed : next->normed1, last ? final_rstd : next->rstd1, a->middle,
                         a->activated, matrix(layer.down_proj), weights + norm.offset, rows, c.F, c.C, c.norm_eps);
        a = next;
    }
}

template <class Device, class X>
void GPT<Device, X>::loss(Device device, const Batch& batch, Write write, W dloss) {
    const Config& c = net.config;
    const int BT = batch.B * batch.T;
    if (dloss != 0) this->dloss = dloss;
    for (int row = 0; row < BT; row += logit_rows) {
        const int rows = std::min(logit_rows, BT - row);
        logits_of(device, final_normed, row, rows);
        cross_entropy(device, scratch.losses + row, scratch.logits, batch.targets + row, rows, c.V, dloss,
                      weighs_targets && dloss != 0 ? target_weight : nullptr);
        if (dloss == 0) continue;
        const size_t at = size_t(row) * c.C;
        linear_backward_input(device, scratch.dnormed + at, scratch.logits, weights + net.head.offset, rows, c.C, c.V, Write::overwrite);
        linear_backward_weight(device, gradients + net.head.offset, static_cast<W*>(nullptr), scratch.logits, final_normed + at, rows, c.C,
                               c.V, row ? Write::add : write);
    }
    sum_of_losses(device, &totals->loss, scratch.losses, BT, write);
    if (auxiliary) sum_of_losses(device, &totals->auxiliary, auxiliary, c.L * batch.B * c.NH, write);
}

/// Feed-forward half of layer l: turns scratch.dresidual, the gradient of the layer's output, into the gradient of `middle`.
template <class Device, class X>
void GPT<Device, X>::feed_forward_backward(Device device, int l, int BT, Write write) {
    const Config& c = net.config;
    const auto& layer = net.layers[l];
    const LayerActivations<X>& a = layers[l];
    const X* const w = weights;
    W *const g = gradients, *const none = nullptr;
    Scratch<X>& s = scratch;
    linear_backward_input(device, s.dactivated, s.dresidual, w + layer.down_proj.offset, BT, c.F, c.C, Write::overwrite);
    linear_backward_weight(device, g + layer.down_proj.offset, none, s.dresidual, a.activated, BT, c.F, c.C, write);
    swiglu_backward(device, s.dgate_up, s.dactivated, a.gate_up, BT, c.F);
    linear_backward_input(device, s.dnormed, s.dgate_up, w + layer.gate_up.offset, BT, c.C, 2 * c.F, Write::overwrite);
    linear_backward_weight(device, g + layer.gate_up.offset, none, s.dgate_up, a.normed2, BT, c.C, 2 * c.F, write);
    rmsnorm_backward(device, s.dresidual, g + layer.post_attention_norm.offset, s.dnormed, a.middle,
                     w + layer.post_attention_norm.offset, a.rstd2, BT, c.C, Write::add, write);
}

/// Attention half of layer l: turns scratch.dresidual, the gradient of `middle`, into the gradient of the layer's input.
template <class Device, class X>
void GPT<Device, X>::attention_half_backward(Device device, int l, const Batch& batch, Write write) {
    const Config& c = net.config;
    const auto& layer = net.layers[l];
    const LayerFacts& facts = layer.attention->facts;
    const LayerActivations<X>& a = layers[l];
    const X* const w = weights;
    W *const g = gradients, *const none = nullptr;
    Scratch<X>& s = scratch;
    const int B = batch.B, T = batch.T, BT = B * T, Q = c.NH * c.HS, heads = c.NH + c.NKV;
    const size_t k_at = Q, v_at = size_t(heads) * c.HS, qkv_row = v_at + size_t(c.NKV) * c.HS;

    linear_backward_input(device, s.dout, s.dresidual, w + layer.o_proj.offset, BT, Q, c.C, Write::overwrite);
    linear_backward_weight(device, g + layer.o_proj.offset, none, s.dresidual, a.attention.gated_out, BT, Q, c.C, write);

    const QkShape<X> shape = qk_shape(l, B, T, batch.documents);
    const LayerInputs<X> in = attention_inputs(l, B, T, batch.documents);
    if (facts.reads_qk_pre) qk_norm_rope_forward(device, static_cast<X*>(nullptr), s.qk_pre, a.qk_rstd, a.qkv, shape, c.norm_eps);
    if (write == Write::overwrite) fill(device, g + layer.own.offset, layer.own.size, W{});
    if (facts.reads_x) fill(device, s.dnormed, size_t(BT) * c.C, X{});
    W* const dqk_pre = facts.reads_qk_pre ? s.dqk_pre : nullptr;
    ScoreInputGradients<X> more{s.dscore_inputs[l], dqk_pre, dqk_pre ? dqk_pre + k_at : nullptr,
                                facts.reads_x ? s.dnormed : nullptr, g, dloss};
    const QkvGradients<X> to{{s.dqk, v_at}, {s.dqk + k_at, v_at}, {s.dqkv + v_at, qkv_row}};
    attention(l).backward(device, in, w, a.attention, s.dout, to, more, s.attention);

    qk_norm_rope_backward(device, s.dqkv, g + layer.q_norm.offset, g + layer.k_norm.offset, s.dqk, dqk_pre, a.qkv, a.qk_rstd,
                          shape, write);
    linear_backward_input(device, s.dnormed, s.dqkv, w + layer.qkv.offset, BT, c.C, int(qkv_row),
                          facts.reads_x ? Write::add : Write::overwrite);
    linear_backward_weight(device, g + layer.qkv.offset, layer.qkv_bias ? g + layer.qkv_bias.offset : none, s.dqkv, a.normed1, BT,
                           c.C, int(qkv_row), write);
    rmsnorm_backward(device, s.dresidual, g + layer.input_norm.offset, s.dnormed, residual + size_t(l) * BT * c.C,
                     w + layer.input_norm.offset, a.rstd1, BT, c.C, Write::add, write);
}

/// Recomputes the activations that layer l did not keep.
template <class Device, class X>
void GPT<Device, X>::recompute_layer(Device device, int l, const Batch& batch) {
    if (recompute == Recompute::nothing) return;
    const Config& c = net.config;
    const auto& layer = net.layers[l];
    const int BT = batch.B * batch.T;
    LayerActivations<X>& a = layers[l];
    rmsnorm_forward(device, a.normed1, a.rstd1, residual + size_t(l) * BT * c.C, weights + layer.input_norm.offset, BT, c.C, c.norm_eps);
    if (recompute == Recompute::layers) {
        layer_forward(device, l, batch);
        return;
    }
    rmsnorm_forward(device, a.normed2, a.rstd2, a.middle, weights + layer.post_attention_norm.offset, BT, c.C, c.norm_eps);
    swiglu_forward(device, a.activated, a.gate_up, BT, c.F);
}

template <class Device, class X>
void GPT<Device, X>::backward(Device device, const Batch& batch, Write write, const GradientsReady& ready) {
    const Config& c = net.config;
    const int BT = batch.B * batch.T;
    W* const g = gradients;
    rmsnorm_backward(device, scratch.dresidual, g + net.final_norm.offset, scratch.dnormed, residual + size_t(c.L) * BT * c.C,
                     weights + net.final_norm.offset, final_rstd, BT, c.C, Write::overwrite, write);
    if (ready) ready(net.layer_begin(c.L), net.tensors.size());
    for (int l = c.L - 1; l >= 0; l--) {
        recompute_layer(device, l, batch);
        feed_forward_backward(device, l, BT, write);
        attention_half_backward(device, l, batch, write);
        if (ready) ready(net.layer_begin(l), net.layer_begin(l + 1));
    }
    if (!c.tied && write == Write::overwrite) fill(device, g + net.embedding.offset, net.embedding.size, W{});
    embedding_backward(device, g + net.embedding.offset, scratch.dresidual, batch.by_token, c.C);
    if (ready) ready(0, net.layer_begin(0));
}

template <class Device, class X>
void GPT<Device, X>::weights_loaded(Device device) {
    if (!sigma.count) return;
    if (mode == Mode::training) return sigma_forward(device, weights, master, sigma);
    if constexpr (!rounds) sigma_forward(device, weights, weights, sigma);
    else fail(Exit::usage, "inference with sigma_reparam needs fp32 weights; give --precision fp32");
}

template <class Device, class X>
void GPT<Device, X>::norm(Device device) {
    if (sigma.count) sigma_backward(device, gradients, master, sigma);
    double* const squares = sharded() ? shard_squares + shards.shard() : &totals->squares;
    sum_of_squares(device, squares, gradients, shards.owned(), spans, span_count);
}

template <class Device, class X>
void GPT<Device, X>::norm_of_shards(Device device) {
    sum_of_parts(device, &totals->squares, shard_squares, shards.count());
}

template <class Device, class X>
bool GPT<Device, X>::gradient_is_finite(Device device, const Slot& tensor) {
    for (size_t k = 0; k < shards.buckets(); k++) {
        const Span own = shards.own(k);
        const size_t begin = std::max(own.begin, tensor.offset), end = std::min(own.end, tensor.offset + tensor.size);
        if (begin >= end) continue;
        sum_of_squares(device, &totals->squares, gradients + begin, end - begin);
        if (!std::isfinite(read_totals(device).squares)) return false;
    }
    return true;
}

template <class Device, class X>
void GPT<Device, X>::update_matrices(Device device, const AdamW& options, int64_t step) {
    muon_update(device, weights, master, gradients, muon, totals, options, step);
}

template <class Device, class X>
void GPT<Device, X>::update(Device device, const AdamW& options, int64_t step) {
    adamw_update(device, weights, master, m, v, gradients, ranges, range_count, totals, options, step);
    muon_momentum(device, m, gradients, muon, totals, options);
    if (!sharded()) update_matrices(device, options, step);
    if (!sigma.count) return;
    sigma_advance(device, master, sigma, totals);
    weights_loaded(device);
}

template <class Device, class X>
StepTotals GPT<Device, X>::read_totals(Device device) const {
    StepTotals on_host;
    to_host(device, &on_host, totals, 1);
    return on_host;
}

template <class Device, class X>
const X* GPT<Device, X>::logits_of(Device device, const X* normed, int first, int rows) {
    const Config& c = net.config;
    const X* const no_bias = nullptr;
    linear_forward(device, scratch.logits, normed + size_t(first) * c.C, matrix(net.head), no_bias, rows, c.C, c.V);
    return scratch.logits;
}

template <class Device, class X>
void GPT<Device, X>::gather_rows(Device device, const int32_t* rows, int n) {
    embedding_forward(device, gathered(), rows, final_normed, n, net.config.C);
}

template <class Device, class X>
void GPT<Device, X>::gathered_losses(Device device, const int32_t* targets, int n) {
    for (int row = 0; row < n; row += logit_rows) {
        const int here = std::min(logit_rows, n - row);
        logits_of(device, gathered(), row, here);
        cross_entropy(device, scratch.losses + row, scratch.logits, targets + row, here, net.config.V, W(0));
    }
}

#ifdef WITH_GPU
#ifdef GPU_FLOAT32
template struct GPT<GPU, float>;
#endif
template struct GPT<GPU, bf16>;
#else
template struct GPT<CPU, float>;
template struct GPT<CPU, double>;
#endif
