// The transformer's passes, as calls of operations that are overloaded on the device. gpt.h documents the functions.
#include "model/gpt.h"

#include "model/operations/cross_entropy.cuh"
#include "model/operations/embedding.cuh"
#include "model/operations/linear.cuh"
#include "model/operations/residual.cuh"
#include "model/operations/rmsnorm.cuh"
#include "model/operations/swiglu.cuh"

/// Computes layer l from its normed input to `activated`, all that the backward pass reads. Returns the number of rows: B * T, unless
/// attention->attend() dropped some.
template <class Device, class X>
static int layer_forward(Device device, GPT<Device, X>& gpt, int l, const Batch& batch, const AttentionOverride* attention = nullptr) {
    const Config& c = gpt.net.config;
    const auto& layer = gpt.net.layers[l];
    const X* w = gpt.weights;
    LayerActivations<X>& a = gpt.layers[l];
    const int B = batch.B, T = batch.T, BT = B * T, Q = c.NH * c.HS;
    int rows = BT;
    linear_forward(device, a.qkv, a.normed1, gpt.matrix(layer.qkv), layer.qkv_bias ? w + layer.qkv_bias.offset : nullptr, BT, c.C,
                   (c.NH + 2 * c.NKV) * c.HS);
    QkShape<X> shape = gpt.qk_shape(l, B, T, batch.documents);
    if (attention && attention->origin) shape.origin = attention->origin;
    qk_norm_rope_forward(device, a.qk, gpt.scratch.qk_pre, a.qk_rstd, a.qkv, shape, c.norm_eps);
    if (gpt.auxiliary) {
        Wide<X>* const auxiliary = gpt.auxiliary + size_t(l) * B * c.NH;
        if (layer.attention->facts.has_auxiliary_loss) a.attention.score_inputs.auxiliary = auxiliary;
        else fill(device, auxiliary, size_t(B) * c.NH, Wide<X>{});
    }
    if (attention) rows = attention->attend(l);
    else layer_attention(device, gpt, l, batch);
    residual_forward(device, a.middle, a.normed2, a.rstd2, gpt.residual + size_t(l) * BT * c.C, a.attention.gated_out,
                     gpt.matrix(layer.o_proj), w + layer.post_attention_norm.offset, rows, Q, c.C, c.norm_eps);
    linear_forward(device, a.gate_up, a.normed2, gpt.matrix(layer.gate_up), static_cast<const X*>(nullptr), rows, c.C, 2 * c.F);
    swiglu_forward(device, a.activated, a.gate_up, rows, c.F);
    return rows;
}

template <class Device, class X>
void gpt_forward(Device device, GPT<Device, X>& gpt, const Batch& batch, const AttentionOverride* attention) {
    const Config& c = gpt.net.config;
    const X* w = gpt.weights;
    const int B = batch.B, T = batch.T, BT = B * T;
    const size_t stream = size_t(BT) * c.C;
    X* x = gpt.residual;
    LayerActivations<X>* a = &gpt.layers[0];
    embedding_forward(device, x, batch.tokens, gpt.matrix(gpt.net.embedding), BT, c.C);
    rmsnorm_forward(device, a->normed1, a->rstd1, x, w + gpt.net.layers[0].input_norm.offset, BT, c.C, c.norm_eps);
    for (int l = 0; l < c.L; l++) {
        const auto& layer = gpt.net.layers[l];
        const int rows = layer_forward(device, gpt, l, batch, attention);
        const bool last = l + 1 == c.L;
        LayerActivations<X>* next = &gpt.layers[last ? l : l + 1];
        const Slot norm = last ? gpt.net.final_norm : gpt.net.layers[l + 1].input_norm;   // fused with the residual addition
        x += stream;
        residual_forward(device, x, last ? gpt.final_normed : next->normed1, last ? gpt.final_rstd : next->rstd1, a->middle,
                         a->activated, gpt.matrix(layer.down_proj), w + norm.offset, rows, c.F, c.C, c.norm_eps);
        a = next;
    }
}

template <class Device, class X>
void gpt_loss(Device device, GPT<Device, X>& gpt, const Batch& batch, Write write, Wide<X> dloss) {
    const Config& c = gpt.net.config;
    const auto head = gpt.matrix(gpt.net.head);
    const int BT = batch.B * batch.T;
    if (dloss != 0) gpt.dloss = dloss;
    for (int row = 0; row < BT; row += gpt.logit_rows()) {
        const int rows = std::min(gpt.logit_rows(), BT - row);
        const X* normed = gpt.final_normed + size_t(row) * c.C;
        linear_forward(device, gpt.scratch.logits, normed, head, static_cast<const X*>(nullptr), rows, c.C, c.V);
        cross_entropy(device, gpt.scratch.losses + row, gpt.scratch.logits, batch.targets + row, rows, c.V, dloss,
                      gpt.weighs_targets && dloss != 0 ? gpt.target_weight : nullptr);
        if (dloss == 0) continue;
        linear_backward_input(device, gpt.scratch.dnormed + size_t(row) * c.C, gpt.scratch.logits, gpt.weights + gpt.net.head.offset, rows, c.C,
                              c.V, Write::overwrite);
        linear_backward_weight(device, gpt.gradients + gpt.net.head.offset, static_cast<Wide<X>*>(nullptr), gpt.scratch.logits,
                               normed, rows, c.C, c.V, row ? Write::add : write);
    }
    sum_of_losses(device, &gpt.totals->loss, gpt.scratch.losses, BT, write);
    if (gpt.auxiliary) sum_of_losses(device, &gpt.totals->auxiliary, gpt.auxiliary, c.L * batch.B * c.NH, write);
}

/// Feed-forward half of layer l: turns scratch.dresidual, the gradient of the layer's output, into the gradient of `middle`.
template <class Device, class X>
static void feed_forward_backward(Device device, GPT<Device, X>& gpt, int l, int BT, Write write) {
    const Config& c = gpt.net.config;
    const auto& layer = gpt.net.layers[l];
    const LayerActivations<X>& a = gpt.layers[l];
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

/// Attention half of layer l: turns scratch.dresidual, the gradient of `middle`, into the gradient of the layer's input.
template <class Device, class X>
static void attention_half_backward(Device device, GPT<Device, X>& gpt, int l, const Batch& batch, Write write) {
    const Config& c = gpt.net.config;
    const auto& layer = gpt.net.layers[l];
    const LayerFacts& facts = layer.attention->facts;
    const LayerActivations<X>& a = gpt.layers[l];
    const X* w = gpt.weights;
    Wide<X>*g = gpt.gradients, *const none = nullptr;
    Scratch<X>& s = gpt.scratch;
    const int B = batch.B, T = batch.T, BT = B * T, Q = c.NH * c.HS, heads = c.NH + c.NKV;
    const size_t k_at = Q, v_at = size_t(heads) * c.HS, qkv_row = v_at + size_t(c.NKV) * c.HS;

    linear_backward_input(device, s.dout, s.dresidual, w + layer.o_proj.offset, BT, Q, c.C, Write::overwrite);
    linear_backward_weight(device, g + layer.o_proj.offset, none, s.dresidual, a.attention.gated_out, BT, Q, c.C, write);

    const QkShape<X> shape = gpt.qk_shape(l, B, T, batch.documents);
    const LayerInputs<X> in = attention_inputs(gpt, l, B, T, batch.documents);
    if (facts.reads_qk_pre) qk_norm_rope_forward(device, static_cast<X*>(nullptr), s.qk_pre, a.qk_rstd, a.qkv, shape, c.norm_eps);
    if (write == Write::overwrite) fill(device, g + layer.own.offset, layer.own.size, Wide<X>{});
    if (facts.reads_x) fill(device, s.dnormed, size_t(BT) * c.C, X{});
    Wide<X>* const dqk_pre = facts.reads_qk_pre ? s.dqk_pre : nullptr;
    ScoreInputGradients<X> more{s.dscore_inputs[l], dqk_pre, dqk_pre ? dqk_pre + k_at : nullptr,
                                facts.reads_x ? s.dnormed : nullptr, g, gpt.dloss};
    const QkvGradients<X> to{{s.dqk, v_at}, {s.dqk + k_at, v_at}, {s.dqkv + v_at, qkv_row}};
    gpt.attention(l).backward(device, in, w, a.attention, s.dout, to, more, s.attention);

    qk_norm_rope_backward(device, s.dqkv, g + layer.q_norm.offset, g + layer.k_norm.offset, s.dqk, dqk_pre, a.qkv, a.qk_rstd,
                          shape, write);
    linear_backward_input(device, s.dnormed, s.dqkv, w + layer.qkv.offset, BT, c.C, int(qkv_row),
                          facts.reads_x ? Write::add : Write::overwrite);
    linear_backward_weight(device, g + layer.qkv.offset, layer.qkv_bias ? g + layer.qkv_bias.offset : none, s.dqkv, a.normed1, BT,
                           c.C, int(qkv_row), write);
    rmsnorm_backward(device, s.dresidual, g + layer.input_norm.offset, s.dnormed, gpt.residual + size_t(l) * BT * c.C,
                     w + layer.input_norm.offset, a.rstd1, BT, c.C, Write::add, write);
}

/// Recomputes the activations that layer l did not keep.
template <class Device, class X>
static void recompute_layer(Device device, GPT<Device, X>& gpt, int l, const Batch& batch) {
    if (gpt.recompute == Recompute::nothing) return;
    const Config& c = gpt.net.config;
    const auto& layer = gpt.net.layers[l];
    const int BT = batch.B * batch.T;
    LayerActivations<X>& a = gpt.layers[l];
    rmsnorm_forward(device, a.normed1, a.rstd1, gpt.residual + size_t(l) * BT * c.C, gpt.weights + layer.input_norm.offset, BT, c.C,
                    c.norm_eps);
    if (gpt.recompute == Recompute::layers) {
        layer_forward(device, gpt, l, batch);
        return;
    }
    rmsnorm_forward(device, a.normed2, a.rstd2, a.middle, gpt.weights + layer.post_attention_norm.offset, BT, c.C, c.norm_eps);
    swiglu_forward(device, a.activated, a.gate_up, BT, c.F);
}

template <class Device, class X>
void gpt_backward(Device device, GPT<Device, X>& gpt, const Batch& batch, Write write, const GradientsReady& ready) {
    const Config& c = gpt.net.config;
    const int BT = batch.B * batch.T;
    const X* w = gpt.weights;
    Wide<X>* g = gpt.gradients;
    const size_t stream = size_t(BT) * c.C;
    rmsnorm_backward(device, gpt.scratch.dresidual, g + gpt.net.final_norm.offset, gpt.scratch.dnormed, gpt.residual + c.L * stream,
                     w + gpt.net.final_norm.offset, gpt.final_rstd, BT, c.C, Write::overwrite, write);
    if (ready) ready(gpt.net.layer_begin(c.L), gpt.net.tensors.size());
    for (int l = c.L - 1; l >= 0; l--) {
        recompute_layer(device, gpt, l, batch);
        feed_forward_backward(device, gpt, l, BT, write);
        attention_half_backward(device, gpt, l, batch, write);
        if (ready) ready(gpt.net.layer_begin(l), gpt.net.layer_begin(l + 1));
    }
    if (!c.tied && write == Write::overwrite) fill(device, g + gpt.net.embedding.offset, gpt.net.embedding.size, Wide<X>{});
    embedding_backward(device, g + gpt.net.embedding.offset, gpt.scratch.dresidual, batch.by_token, c.C);
    if (ready) ready(0, gpt.net.layer_begin(0));
}

template <class Device, class X>
void gpt_weights_loaded(Device device, GPT<Device, X>& gpt) {
    if (!gpt.sigma.count) return;
    if (gpt.mode == Mode::training) return sigma_forward(device, gpt.weights, gpt.master, gpt.sigma);
    if constexpr (!GPT<Device, X>::rounds) sigma_forward(device, gpt.weights, gpt.weights, gpt.sigma);
    else fail(Exit::usage, "inference with sigma_reparam needs fp32 weights; give --precision fp32");
}

template <class Device, class X>
void gpt_norm(Device device, GPT<Device, X>& gpt) {
    if (gpt.sigma.count) sigma_backward(device, gpt.gradients, gpt.master, gpt.sigma);
    double* const squares = gpt.sharded() ? gpt.shard_squares + gpt.shards.shard() : &gpt.totals->squares;
    sum_of_squares(device, squares, gpt.gradients, gpt.shards.owned(), gpt.spans, gpt.span_count);
}

template <class Device, class X>
void gpt_norm_of_shards(Device device, GPT<Device, X>& gpt) {
    sum_of_parts(device, &gpt.totals->squares, gpt.shard_squares, gpt.shards.count());
}

template <class Device, class X>
bool gpt_gradient_is_finite(Device device, GPT<Device, X>& gpt, const Slot& tensor) {
    for (size_t k = 0; k < gpt.shards.buckets(); k++) {
        const Span own = gpt.shards.own(k);
        const size_t begin = std::max(own.begin, tensor.offset), end = std::min(own.end, tensor.offset + tensor.size);
        if (begin >= end) continue;
        sum_of_squares(device, &gpt.totals->squares, gpt.gradients + begin, end - begin);
        if (!std::isfinite(read_totals(device, gpt).squares)) return false;
    }
    return true;
}

template <class Device, class X>
void gpt_update_matrices(Device device, GPT<Device, X>& gpt, const AdamW& options, int64_t step) {
    muon_update(device, gpt.weights, gpt.master, gpt.gradients, gpt.muon, gpt.totals, options, step);
}

template <class Device, class X>
void gpt_update(Device device, GPT<Device, X>& gpt, const AdamW& options, int64_t step) {
    adamw_update(device, gpt.weights, gpt.master, gpt.m, gpt.v, gpt.gradients, gpt.ranges, gpt.range_count, gpt.totals, options,
                 step);
    muon_momentum(device, gpt.m, gpt.gradients, gpt.muon, gpt.totals, options);
    if (!gpt.sharded()) gpt_update_matrices(device, gpt, options, step);
    if (!gpt.sigma.count) return;
    sigma_advance(device, gpt.master, gpt.sigma, gpt.totals);
    gpt_weights_loaded(device, gpt);
}

template <class Device, class X>
StepTotals read_totals(Device device, const GPT<Device, X>& gpt) {
    StepTotals totals;
    to_host(device, &totals, gpt.totals, 1);
    return totals;
}

template <class Device, class X>
const X* gpt_logits(Device device, GPT<Device, X>& gpt, int first, int rows) {
    const Config& c = gpt.net.config;
    linear_forward(device, gpt.scratch.logits, gpt.final_normed + size_t(first) * c.C, gpt.matrix(gpt.net.head),
                   static_cast<const X*>(nullptr), rows, c.C, c.V);
    return gpt.scratch.logits;
}

template <class Device, class X>
void gpt_gather_rows(Device device, GPT<Device, X>& gpt, const int32_t* rows, int n) {
    embedding_forward(device, gpt.gathered(), rows, gpt.final_normed, n, gpt.net.config.C);
}

template <class Device, class X>
void gpt_gathered_losses(Device device, GPT<Device, X>& gpt, const int32_t* targets, int n) {
    const Config& c = gpt.net.config;
    for (int row = 0; row < n; row += gpt.logit_rows()) {
        const int here = std::min(gpt.logit_rows(), n - row);
        linear_forward(device, gpt.scratch.logits, gpt.gathered() + size_t(row) * c.C, gpt.matrix(gpt.net.head),
                       static_cast<const X*>(nullptr), here, c.C, c.V);
        cross_entropy(device, gpt.scratch.losses + row, gpt.scratch.logits, targets + row, here, c.V, Wide<X>(0));
    }
}

// --------------------------------------------------------------------------------------------------- explicit instantiations

#define INSTANTIATE(Device, X)                                                                                          \
    template void gpt_forward(Device, GPT<Device, X>&, const Batch&, const AttentionOverride*);                          \
    template void gpt_loss(Device, GPT<Device, X>&, const Batch&, Write, Wide<X>);                                      \
    template void gpt_backward(Device, GPT<Device, X>&, const Batch&, Write, const GradientsReady&);                    \
    template void gpt_weights_loaded(Device, GPT<Device, X>&);                                                          \
    template void gpt_norm(Device, GPT<Device, X>&);                                                                    \
    template void gpt_norm_of_shards(Device, GPT<Device, X>&);                                                          \
    template bool gpt_gradient_is_finite(Device, GPT<Device, X>&, const Slot&);                                         \
    template void gpt_update(Device, GPT<Device, X>&, const AdamW&, int64_t);                                           \
    template void gpt_update_matrices(Device, GPT<Device, X>&, const AdamW&, int64_t);                                  \
    template StepTotals read_totals(Device, const GPT<Device, X>&);                                                   \
    template const X* gpt_logits(Device, GPT<Device, X>&, int, int);                                                    \
    template void gpt_gather_rows(Device, GPT<Device, X>&, const int32_t*, int);                                        \
    template void gpt_gathered_losses(Device, GPT<Device, X>&, const int32_t*, int);
#ifdef WITH_GPU
#ifdef GPU_FLOAT32
INSTANTIATE(GPU, float)
#endif
INSTANTIATE(GPU, bf16)
#else
INSTANTIATE(CPU, float)
INSTANTIATE(CPU, double)
#endif
