// The transformer: a model in memory and its passes, the same for every device and every attention variant.
//   gpt_forward    tokens -> normed final activations          gpt_loss      those -> summed cross-entropy, and its gradient
//   gpt_backward   that gradient -> gradients of all tensors   gpt_update    AdamW
// The passes never block on the device: they leave the step's results in gpt.totals, in device memory.
// X is the type of weights and activations; W = Wide<X> that of sums, statistics, weight gradients and moments. gpt.cu has the
// passes and gpt_memory.cu the memory layout, each compiled once per device for all its types.
#pragma once
#include <algorithm>
#include <functional>
#include <vector>

#include "model/batch.h"
#include "model/device/memory.cuh"
#include "model/monitor.cuh"
#include "model/operations/adamw.cuh"
#include "model/operations/matrix.h"
#include "model/operations/qk_rope.cuh"
#include "model/operations/sigma_reparam.cuh"
#include "model/qwen.h"

/// What one layer's forward pass saves for its backward pass.
template <class X>
struct LayerActivations {
    X* normed1;                // (B, T, C)
    Wide<X>* rstd1;            // (B, T)
    X* qkv;                    // (B, T, NH + 2 NKV, HS) as projected
    X* qk;                     // (B, T, NH + NKV, HS) normed and rotated
    Wide<X>* qk_rstd;          // (B, T, NH + NKV)
    LayerState<X> attention;   // out (B, T, NH, HS), log-sum-exp (B, NH, T), the variant's features
    X* middle;                 // (B, T, C) residual stream between attention and feed-forward
    X* normed2;                // (B, T, C)
    Wide<X>* rstd2;            // (B, T)
    X* gate_up;                // (B, T, 2 F)
    X* activated;              // (B, T, F)
};

/// Temporaries of one operation, or passed from one to the next. Gradients of the feed-forward and attention half share memory.
template <class X>
struct Scratch {
    X* qk_pre;                  // (B, T, NH + NKV, HS) q and k before RoPE; null unless the variant reads them
    X* logits;                  // (chunk, V)
    Wide<X>* losses;            // (B, T)
    X* dresidual;               // (B, T, C) gradient of the residual stream
    X* dnormed;                 // (B, T, C)
    X *dactivated, *dgate_up;   // (B, T, F), (B, T, 2 F)
    X *dout, *dqkv;             // (B, T, NH, HS), (B, T, NH + 2 NKV, HS)
    Wide<X>*dqk, *dqk_pre;      // (B, T, NH + NKV, HS) gradients of qk and of qk_pre
    std::vector<ScoreInputs<X>> dscore_inputs;   // (L), all in the same memory
    std::byte* attention;       // workspace of one attention pass
};

enum class Mode { inference, training };

/// What the backward pass recomputes instead of keeping it in memory.
enum class Recompute {
    nothing,
    cheap,    // outputs of the norms and of SwiGLU: saves 2 C + F values per token and layer, costs no matrix product
    layers,   // everything but each layer's input: costs a second forward pass
};

/// Elements in a chunk of logits: a few rows that fit the CPU's caches, or enough rows to fill a GPU.
template <class Device>
inline constexpr int LOGITS = 1 << 28;
template <>
inline constexpr int LOGITS<CPU> = 1 << 24;

/// A model with memory for batches of up to B x T tokens.
template <class Device, class X>
struct GPT {
    using W = Wide<X>;
    static constexpr bool rounds = !std::is_same_v<X, W>;   // weights are a rounded copy of the master weights

    Qwen net;
    int B, T;
    Mode mode;
    Recompute recompute;

    Shards shards;                                   // which elements this rank updates: all, or its own parts under ZeRO-1
    X* weights = nullptr;                            // (shards.size())
    StoredBf16* bf16_matrices = nullptr;             // (net.tensors.bf16_size()), for inference on the CPU: see matrix()
    W* gradients = nullptr;                          // (shards.size())
    W *m = nullptr, *v = nullptr;                    // (shards.owned()) AdamW's moments
    W* master = nullptr;                             // what AdamW updates: (shards.owned()) if X is rounded, else (shards.size())
    StepTotals* totals;                              // sums over the step, in device memory
    double* shard_squares;                           // (shards.count()) each shard's part of the squared norm; null if unsharded
    UpdateRange* ranges;                             // (range_count) what the update changes
    NormSpan* spans;                                 // (span_count) what the gradient norm runs over
    int range_count, span_count;
    W dloss = 0;                                     // as passed to gpt_loss()
    W* target_weight;                                // (1) in device memory, see gpt_weigh_targets(); null in inference
    bool weighs_targets = false;
    W *cosine[2] = {}, *sine[2] = {};                // (T, HS / 2) [0] RoPE's table, [1] angles of 0 for layers without RoPE; null
                                                     // if no layer needs it
    W* auxiliary;                                    // (L, B, NH) terms of the policy's auxiliary loss; null if it has none
    X* residual;                                     // (L + 1, B, T, C) input of every layer and of the final norm
    X* final_normed;                                 // (B, T, C)
    W* final_rstd;                                   // (B, T)
    std::vector<size_t> attention_bytes;             // (L) of what each layer's attention keeps
    std::vector<LayerActivations<X>> layers;         // all in the same memory unless kept for a backward pass
    Scratch<X> scratch;
    Sigma<W> sigma;                                  // empty unless the linear layers are reparametrised

    Arena<Device> weight_memory, gradient_memory, moment_memory, activation_memory, scratch_memory;

    GPT(const Variants& variants, const Config& config, int B, int T, Mode mode, Recompute recompute = Recompute::nothing,
        int shard = 0, int shards = 1, size_t bucket = Shards::BUCKET, Stored matrices = Stored::as_computed);

    /// A model for inference whose matrices are stored in such a way; as bf16 on the CPU only.
    GPT(const Variants& variants, const Config& config, int B, int T, Stored matrices)
        : GPT(variants, config, B, T, Mode::inference, Recompute::nothing, 0, 1, Shards::BUCKET, matrices) {}

    /// What allocate() will allocate, class by class.
    std::vector<MemoryUse> memory_plan() const;
    void allocate(Device device);

    /// Whether AdamW updates `master` and `weights` is a rounded or reparametrised copy of it.
    bool keeps_master() const { return mode == Mode::training && (rounds || !net.sigma.empty()); }
    bool sharded() const { return shards.count() > 1; }
    int logit_rows() const { return std::clamp(LOGITS<Device> / net.config.V / 128 * 128, 128, std::max(128, B * T)); }
    const LayerPasses<Device, X>& attention(int l) const { return passes_of<Device, X>(*net.layers[l].attention); }
    /// A matrix of the embedding or of one of the model's linear layers; of bf16 if they are stored so.
    auto matrix(const Slot& slot) const {
        if constexpr (!std::is_same_v<Device, CPU>) return static_cast<const X*>(weights + slot.offset);
        else return net.tensors.matrices() == Stored::as_bf16 ? Matrix<X>(bf16_matrices + slot.offset) : Matrix<X>(weights + slot.offset);
    }
    /// (B, T, C) buffer for gathered rows of final_normed. It overwrites activations that only a backward pass would read.
    X* gathered() const { return layers[0].middle; }
    Angles<W> angles(int l) const {
        const int table = net.layers[l].attention->facts.rotates ? 0 : 1;
        return {cosine[table], sine[table]};
    }
    QkShape<X> qk_shape(int l, int B, int T, const Documents& documents = {}) const {
        const Config& c = net.config;
        const Layer& layer = net.layers[l];
        const X *q = layer.q_norm ? weights + layer.q_norm.offset : nullptr, *k = q ? weights + layer.k_norm.offset : nullptr;
        return {B, T, c.NH, c.NKV, c.HS, q, k, angles(l), documents.restart_positions ? documents.start : nullptr};
    }

private:
    LayerShape shape() const { return {B, T, net.config.C, net.config.NH, net.config.NKV, net.config.HS}; }
    std::vector<UpdateRange> owned_ranges() const { return update_ranges(net.tensors, shards, 1 << 14); }
    void lay_out();
    void lay_out_activations();
    void lay_out_attention(int l);
    void lay_out_sigma();
    void lay_out_scratch();
};

/// The inputs of layer l's attention for B rows of T tokens.
template <class Device, class X>
LayerInputs<X> attention_inputs(const GPT<Device, X>& gpt, int l, int B, int T, const Documents& documents = {}) {
    const Config& c = gpt.net.config;
    const LayerActivations<X>& a = gpt.layers[l];
    const X* pre = gpt.scratch.qk_pre;
    const size_t k_at = size_t(c.NH) * c.HS, v_at = size_t(c.NH + c.NKV) * c.HS;
    const Angles<Wide<X>> angles = gpt.angles(l);
    return {{B, T, c.C, c.NH, c.NKV, c.HS}, a.normed1, pre, pre ? pre + k_at : nullptr, a.qk, a.qk + k_at, a.qkv + v_at, v_at,
            v_at + size_t(c.NKV) * c.HS, angles.cosine, angles.sine, documents};
}

/// Overrides for a forward pass whose rows are not whole texts: they go on with some, or are several packed together.
struct RowsOfTexts {
    const int32_t* origin;               // QkShape::origin: where in its row each token counts positions from, before the row if negative
    std::function<int(int l)> attend;    // replaces the attention of layer l; returns the rows left in gated_out and residual: B x T, or
                                         // fewer in the last layer
};

/// Preconditions: at most gpt.B x gpt.T tokens, each below V.
/// gpt.final_normed (B, T, C) from the batch's tokens. A monitor, if given, records every layer's attention, and makes this the one
/// pass that blocks on the device.
template <class Device, class X>
void gpt_forward(Device device, GPT<Device, X>& gpt, const Batch& batch,
                 std::type_identity_t<Monitor<Device, X>*> monitor = nullptr, const RowsOfTexts* texts = nullptr);

/// Precondition: gpt_forward() of the same batch.
/// gpt.totals->loss = or += the cross-entropy of the batch's targets in nats, and likewise ->auxiliary. The head runs over chunks
/// of rows, so the logits of the whole batch never exist at once. With dloss != 0 (1 / tokens of the step) it also computes
/// scratch.dnormed, the gradient of final_normed, and the head's weight gradient, and gpt_backward() uses the same dloss.
template <class Device, class X>
void gpt_loss(Device device, GPT<Device, X>& gpt, const Batch& batch, Write write, Wide<X> dloss = 0);

/// Call before the first micro-step. From now on a target's share in the gradient of the loss is dloss x weight: tokens of the step
/// / targets that count, if a loss mask hides some. A recorded micro-step takes each step's weight.
template <class Device, class X>
void gpt_weigh_targets(Device device, GPT<Device, X>& gpt, double weight) {
    gpt.weighs_targets = true;
    set_value(device, gpt.target_weight, Wide<X>(weight));
}

/// Called by gpt_backward() when elements [begin, end) of the gradient buffer are final: from the buffer's end to its beginning,
/// without gaps.
using GradientsReady = std::function<void(size_t begin, size_t end)>;

/// Precondition: gpt_loss() of the same batch with dloss != 0.
/// gpt.gradients = or += the gradients of all tensors. `ready` is called for the tensors after the layers, for each layer from the
/// last to the first, and for the rest, so that summing over ranks overlaps with the backward pass.
template <class Device, class X>
void gpt_backward(Device device, GPT<Device, X>& gpt, const Batch& batch, Write write, const GradientsReady& ready = {});

/// Call after loading weights into gpt.master, or into gpt.weights for inference: reparametrises them into what the layers read.
/// Exit::usage for a reparametrised model for inference whose weights are rounded.
template <class Device, class X>
void gpt_weights_loaded(Device device, GPT<Device, X>& gpt);

/// Precondition: gradients summed over micro-steps and ranks. Call once per step.
/// Completes the gradients and writes their squared norm to gpt.totals. A sharded model takes two calls: gpt_norm() writes this
/// shard's part to its element of gpt.shard_squares; once those are gathered, gpt_norm_of_shards() adds them up.
template <class Device, class X>
void gpt_norm(Device device, GPT<Device, X>& gpt);
template <class Device, class X>
void gpt_norm_of_shards(Device device, GPT<Device, X>& gpt);

/// Whether the part of a tensor's gradient that this shard owns is finite. Blocks on the device and overwrites gpt.totals.
template <class Device, class X>
bool gpt_gradient_is_finite(Device device, GPT<Device, X>& gpt, const Slot& tensor);

/// Precondition: gpt.totals complete, norm included.
/// One AdamW step over all tensors, or this rank's shard of them; `step` counts from 1. Does nothing if a total is not finite.
template <class Device, class X>
void gpt_update(Device device, GPT<Device, X>& gpt, const AdamW& options, int64_t step);

/// gpt.totals, copied to the host. Blocks on the device.
template <class Device, class X>
StepTotals read_totals(Device device, const GPT<Device, X>& gpt);

/// Precondition: rows <= logit_rows().
/// Logits (rows, V) of gpt.final_normed from row `first` on, in scratch.logits; for sampling and tests.
template <class Device, class X>
const X* gpt_logits(Device device, GPT<Device, X>& gpt, int first, int rows);

/// Preconditions: `rows` and `targets` in device memory, n <= gpt.B x gpt.T; no backward pass afterwards, since the gathered rows
/// overwrite activations.
/// Gathers `rows` (n) of gpt.final_normed; then writes the cross-entropy of `targets` (n) after them, in nats, to scratch.losses.
/// The head is applied to these rows only.
template <class Device, class X>
void gpt_gather_rows(Device device, GPT<Device, X>& gpt, const int32_t* rows, int n);
template <class Device, class X>
void gpt_gathered_losses(Device device, GPT<Device, X>& gpt, const int32_t* targets, int n);
