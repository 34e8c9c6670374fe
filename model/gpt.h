// The transformer: a model in memory, and its passes, which are the same for every device and every attention variant.
//   gpt_forward    tokens -> normed final activations          gpt_loss      those -> mean cross-entropy, and its gradient
//   gpt_backward   that gradient -> gradients of all tensors   gpt_update    AdamW
// Nothing here waits for the device: what the host wants to know is in gpt.numbers when the device gets there.
// X is the number type of weights and activations, W = Wide<X> that of sums, statistics, gradients of weights and moments. gpt.cu
// has the passes and gpt_memory.cu the memory, each compiled once for all number types of a device.
#pragma once
#include <algorithm>
#include <functional>
#include <vector>

#include "model/operations/adamw.cuh"
#include "model/batch.h"
#include "model/device/memory.cuh"
#include "model/monitor.cuh"
#include "model/operations/qk_rope.cuh"
#include "model/qwen.h"
#include "model/operations/sigma_reparam.cuh"

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
    std::vector<Extras<X>> dextras;   // of each layer, in the same memory
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

/// A model with room for batches of up to B x T tokens.
template <class Device, class X>
struct GPT {
    using W = Wide<X>;
    static constexpr bool rounds = !std::is_same_v<X, W>;   // weights are a rounded copy of master weights

    Qwen net;
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
    W *cosine[2] = {}, *sine[2] = {};                // (T, HS / 2) RoPE's table, and one of angles 0 for layers that do not
                                                     // rotate; null where there are no such layers
    W* auxiliary;                                    // (L, B, NH) parts of the policy's own loss; null where it has none
    X* residual;                                     // (L + 1, B, T, C) input of every layer and of the final norm
    X* final_normed;                                 // (B, T, C)
    W* final_rstd;                                   // (B, T)
    std::vector<LayerActivations<X>> layers;         // all in the same memory, where none is kept for a backward pass
    Scratch<X> scratch;
    Sigma<W> sigma;                                  // where the linear layers are reparametrised

    Arena<Device> weight_memory, gradient_memory, moment_memory, activation_memory, scratch_memory;

    GPT(const Variant& variant, const Config& config, int B, int T, Mode mode, Recompute recompute = Recompute::nothing,
        int shard = 0, int shards = 1);

    /// What allocate() will take, class by class.
    std::vector<MemoryUse> memory_plan() const;
    void allocate(Device device);

    /// Whether `weights` is a copy, rounded or reparametrised, of what AdamW updates.
    bool keeps_master() const { return mode == Mode::training && (rounds || !net.sigma.empty()); }
    bool sharded() const { return owned_end - owned_begin < net.tensors.size(); }
    int logit_rows() const { return std::clamp(LOGITS<Device> / net.config.V / 128 * 128, 128, std::max(128, B * T)); }
    const LayerPasses<Device, X>& attention(int l) const { return passes_of<Device, X>(*net.layers[l].attention); }
    Angles<W> angles(int l) const {
        const int table = net.layers[l].attention->facts.rotates ? 0 : 1;
        return {cosine[table], sine[table]};
    }
    QkShape<X> qk_shape(int l, int B, int T) const {
        const Config& c = net.config;
        const Layer& layer = net.layers[l];
        const X *q = layer.q_norm ? weights + layer.q_norm.offset : nullptr, *k = q ? weights + layer.k_norm.offset : nullptr;
        return {B, T, c.NH, c.NKV, c.HS, q, k, angles(l)};
    }

private:
    LayerShape shape() const { return {B, T, net.config.C, net.config.NH, net.config.NKV, net.config.HS}; }
    std::vector<UpdateRange> owned_ranges() const { return update_ranges(net.tensors, owned_begin, owned_end, 1 << 14); }
    void lay_out();
    void lay_out_activations();
    void lay_out_attention(int l);
    void lay_out_sigma();
    void lay_out_scratch();
};

/// The views that layer l's attention reads.
template <class Device, class X>
LayerInputs<X> attention_inputs(const GPT<Device, X>& gpt, int l, int B, int T) {
    const Config& c = gpt.net.config;
    const LayerActivations<X>& a = gpt.layers[l];
    const X* pre = gpt.scratch.qk_pre;
    const size_t k_at = size_t(c.NH) * c.HS, v_at = size_t(c.NH + c.NKV) * c.HS;
    const Angles<Wide<X>> angles = gpt.angles(l);
    return {{B, T, c.C, c.NH, c.NKV, c.HS}, a.normed1, pre, pre ? pre + k_at : nullptr, a.qk, a.qk + k_at, a.qkv + v_at, v_at,
            v_at + size_t(c.NKV) * c.HS, angles.cosine, angles.sine};
}

/// What one forward pass does differently when its rows are not one whole text: they go on from cached keys, or are several texts one
/// behind the other. For models whose layers all decode from a cache (LayerFacts).
template <class X>
struct RowsOfTexts {
    Angles<Wide<X>> angles;                  // of RoPE for the rows, in place of those of positions 0, 1, ...
    std::function<int(int l, int T)> attend; // in place of the attention of layer l; returns the rows left in gated_out and
                                             // residual: T, or less in the last layer
};

/// gpt.final_normed (B, T, C) from the batch's tokens. Preconditions: at most gpt.B x gpt.T of them, each below V. A monitor, where
/// there is one, sees every layer's attention, and makes this the one pass that waits for the device.
template <class Device, class X>
void gpt_forward(Device device, GPT<Device, X>& gpt, const Batch& batch, std::type_identity_t<Monitor<Device, X>*> monitor = nullptr,
                 const RowsOfTexts<X>* texts = nullptr);

/// gpt.numbers->loss = or += the losses of the batch's targets in nats, after gpt_forward(), and the policies' own loss likewise. The
/// head works on chunks of rows, so that the logits of the batch never exist at once. With dloss != 0 (1 / tokens of the step) it
/// also leaves d final_normed in scratch.dnormed and the head's weight gradient, and gpt_backward() works with the same dloss.
template <class Device, class X>
void gpt_loss(Device device, GPT<Device, X>& gpt, const Batch& batch, Write write, Wide<X> dloss = 0);

/// What gpt_backward() calls when the gradients [begin, end) of the flat buffer will not change any more.
using GradientsReady = std::function<void(size_t begin, size_t end)>;

/// Gradients of all tensors, after gpt_loss() with a dloss. `write` says whether they replace or join what gpt.gradients holds.
/// `ready` is called for one layer after the other, from the last to the first, and then for the rest, so that their sum over ranks
/// can be taken while the backward pass goes on.
template <class Device, class X>
void gpt_backward(Device device, GPT<Device, X>& gpt, const Batch& batch, Write write, const GradientsReady& ready = {});

/// To be called when weights have come from outside, into gpt.master or, in a model for inference, into gpt.weights: makes of them
/// what the layers read.
template <class Device, class X>
void gpt_weights_loaded(Device device, GPT<Device, X>& gpt);

/// Completes the gradients, once per step, when the sums over micro-steps and ranks are there, and takes their norm, which it
/// leaves as its square in gpt.numbers.
template <class Device, class X>
void gpt_norm(Device device, GPT<Device, X>& gpt);

/// One AdamW step over the list, or over this rank's shard of it; `step` counts from 1. Needs gpt.numbers, and does nothing when
/// the loss or the norm in it is not finite.
template <class Device, class X>
void gpt_update(Device device, GPT<Device, X>& gpt, const AdamW& options, int64_t step);

/// gpt.numbers as the host sees them, once the device is there.
template <class Device, class X>
StepNumbers read_numbers(Device device, const GPT<Device, X>& gpt);

/// Logits (rows, V) of the rows `first` .. of gpt.final_normed, for sampling and tests; in scratch.logits. rows <= logit_rows().
template <class Device, class X>
const X* gpt_logits(Device device, GPT<Device, X>& gpt, int first, int rows);

/// Picks `rows` (n) of gpt.final_normed, and then leaves the cross-entropy, in nats, of `targets` (n) after them in scratch.losses:
/// the head is applied to these rows alone. Both lists are in the device's memory; n <= gpt.B x gpt.T.
template <class Device, class X>
void gpt_gather_rows(Device device, GPT<Device, X>& gpt, const int32_t* rows, int n);
template <class Device, class X>
void gpt_gathered_losses(Device device, GPT<Device, X>& gpt, const int32_t* targets, int n);
