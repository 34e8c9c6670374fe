// The transformer: a model in memory and its passes, the same for every device and every attention variant.
//   forward    tokens -> normed final activations
//   loss       normed final activations -> summed cross-entropy and its gradient
//   backward   gradient of the loss -> gradients of all tensors
//   update     AdamW, and Muon for the layers' matrices if it is chosen
// The passes never block on the device: the step's results stay in `totals`, in device memory.
// Weights and activations have type X. Sums, statistics, weight gradients and moments have type W = Wide<X>. gpt.cu has the passes
// and gpt_memory.cuh the memory layout, compiled once per device for all types.
#pragma once
#include <algorithm>
#include <functional>
#include <vector>

#include "model/batch.h"
#include "model/device/memory.cuh"
#include "model/operations/adamw.cuh"
#include "model/operations/matrix.h"
#include "model/operations/muon.cuh"
#include "model/operations/qk_rope.cuh"
#include "model/operations/sigma_reparam.cuh"
#include "model/qwen.h"

/// Activations that one layer's forward pass saves for its backward pass.
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

/// Temporary buffers within an operation or between consecutive ones. Gradients of the feed-forward and attention halves share
/// memory; so do, in training, logits and all gradients but dnormed, which begin when the logits have been used.
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

/// Activations that the backward pass recomputes to save memory.
enum class Recompute {
    nothing,
    cheap,    // outputs of the norms and of SwiGLU: saves 2 C + F values per token and layer without extra matrix products
    layers,   // everything except each layer's input: costs a second forward pass
};

/// Elements per chunk of logits: few enough rows for the CPU's caches, enough to fill a GPU. In training a GPU's chunk may also take the
/// memory of the layers' gradients, up to MOST_LOGITS.
template <class Device>
inline constexpr int LOGITS = 1 << 28;
template <>
inline constexpr int LOGITS<CPU> = 1 << 24;
inline constexpr size_t MOST_LOGITS = size_t(1) << 30;

/// Replaces the layers' attention in a forward pass: for rows that are not complete sequences (decode, several sequences packed
/// together), for another mechanism, or under a monitor.
struct AttentionOverride {
    const int32_t* origin;             // QkShape::origin, the position 0 of each token in its row; null: from the batch's documents
    std::function<int(int l)> attend;  // fills layer l's gated_out; returns its number of rows: B x T, or fewer in the last layer
};

/// Callback of GPT::backward(): elements [begin, end) of the gradient buffer are final. Calls run from the end of the buffer to its
/// beginning, without gaps.
using GradientsReady = std::function<void(size_t begin, size_t end)>;

/// A model with memory for batches of up to B x T tokens.
template <class Device, class X>
struct GPT {
    using W = Wide<X>;
    static constexpr bool rounds = !std::is_same_v<X, W>;   // weights are a rounded copy of the master weights

    Qwen net;
    int B, T;
    Mode mode;
    Recompute recompute;

    Shards shards;                                   // the elements this rank updates: all, or its own parts under ZeRO-1
    X* weights = nullptr;                            // (shards.size())
    StoredBf16* bf16_matrices = nullptr;             // (net.tensors.bf16_size()), for inference on the CPU: see matrix()
    W* gradients = nullptr;                          // (shards.size())
    W* m = nullptr;                                  // (shards.owned()) first moments of AdamW, and Muon's momentum
    W* v = nullptr;                                  // second moments of AdamW, in the places of second_moments()
    W* master = nullptr;                             // fp32 weights: (shards.owned()) if X is rounded, else (shards.size())
    StepTotals* totals;                              // sums over the step, in device memory
    double* shard_squares;                           // (shards.count()) each shard's part of the squared norm; null if unsharded
    UpdateRange* ranges;                             // (range_count) elements that the update changes
    NormSpan* spans;                                 // (span_count) elements in the gradient norm
    int range_count, span_count;
    W dloss = 0;                                     // as passed to loss()
    W* target_weight;                                // (1) in device memory, see weigh_targets(); null in inference
    bool weighs_targets = false;
    W *cosine[2] = {}, *sine[2] = {};                // (T, HS / 2) [0] RoPE's table, [1] angles of 0 for layers without RoPE; null
                                                     // if no layer needs it
    W* auxiliary;                                    // (L, B, NH) terms of the policy's auxiliary loss; null if it has none
    X* residual;                                     // (L + 1, B, T, C) input of every layer and of the final norm
    X* final_normed;                                 // (B, T, C)
    W* final_rstd;                                   // (B, T)
    std::vector<size_t> attention_bytes;             // (L) bytes that each layer's attention keeps
    std::vector<LayerActivations<X>> layers;         // all in the same memory unless kept for a backward pass
    Scratch<X> scratch;
    int logit_rows;                                  // rows of a chunk of logits, whatever the GPU: the chunks are an order of sums
    Sigma<W> sigma;                                  // empty unless the linear layers are reparametrised
    Muon<X> muon;                                    // no matrices unless Muon trains those of the layers

    Arena<Device> weight_memory, gradient_memory, moment_memory, activation_memory, scratch_memory;

    GPT(const Variants& variants, const Config& config, int B, int T, Mode mode, Recompute recompute = Recompute::nothing,
        int shard = 0, int shards = 1, size_t bucket = Shards::BUCKET, Stored matrices = Stored::as_computed,
        Optimizer optimizer = Optimizer::adamw);

    /// A model for inference with matrices of the given storage type. Stored::as_bf16 is for the CPU only.
    GPT(const Variants& variants, const Config& config, int B, int T, Stored matrices)
        : GPT(variants, config, B, T, Mode::inference, Recompute::nothing, 0, 1, Shards::BUCKET, matrices) {}

    /// The memory that allocate() will allocate, by class.
    std::vector<MemoryUse> memory_plan() const;
    void allocate(Device device);

    /// Whether the optimiser updates `master` and `weights` is a rounded or reparametrised copy of it.
    bool keeps_master() const { return mode == Mode::training && (rounds || !net.sigma.empty()); }
    bool sharded() const { return shards.count() > 1; }
    std::vector<HeldSpan> second_moments() const { return second_moment_spans(net.tensors, shards); }
    const LayerPasses<Device, X>& attention(int l) const { return passes_of<Device, X>(*net.layers[l].attention); }
    /// A matrix of the embedding or of a linear layer, in its storage type.
    auto matrix(const Slot& slot) const {
        if constexpr (!std::is_same_v<Device, CPU>) return static_cast<const X*>(weights + slot.offset);
        else return net.tensors.matrices() == Stored::as_bf16 ? Matrix<X>(bf16_matrices + slot.offset) : Matrix<X>(weights + slot.offset);
    }
    /// Buffer (B, T, C) for gathered rows of final_normed. It overwrites activations that only a backward pass reads.
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

    // ---- the passes

    /// The inputs of layer l's attention for B sequences of T tokens.
    LayerInputs<X> attention_inputs(int l, int B, int T, const Documents& documents = {}) const {
        const Config& c = net.config;
        const LayerActivations<X>& a = layers[l];
        const X* pre = scratch.qk_pre;
        const size_t k_at = size_t(c.NH) * c.HS, v_at = size_t(c.NH + c.NKV) * c.HS;
        const auto [cosine, sine] = angles(l);
        return {{B, T, c.C, c.NH, c.NKV, c.HS}, a.normed1, pre, pre ? pre + k_at : nullptr, a.qk, a.qk + k_at, a.qkv + v_at, v_at,
                v_at + size_t(c.NKV) * c.HS, cosine, sine, documents};
    }

    /// The attention of layer l as trained, from attention_inputs() to layers[l].attention.
    void layer_attention(Device device, int l, const Batch& batch, const Statistics<X>& statistics = {}) {
        attention(l).forward(device, attention_inputs(l, batch.B, batch.T, batch.documents), weights, layers[l].attention,
                             scratch.attention, statistics);
    }

    /// Precondition: at most B x T tokens, each below V.
    /// Computes final_normed (B, T, C) from the batch's tokens.
    void forward(Device device, const Batch& batch, const AttentionOverride* attention = nullptr);

    /// Precondition: forward() of the same batch.
    /// Writes or adds the cross-entropy of the batch's targets, in nats, to totals->loss, and the auxiliary loss to
    /// totals->auxiliary. The head runs over chunks of rows, so the logits of the whole batch never exist at once. With dloss != 0
    /// (1 / tokens of the step) it also computes scratch.dnormed, the gradient of final_normed, and the head's weight gradient;
    /// backward() then uses the same dloss.
    void loss(Device device, const Batch& batch, Write write, W dloss = 0);

    /// Call before the first micro-step. Scales every target's gradient by `weight`: with a loss mask, the tokens of the step divided by
    /// its unmasked targets. A captured graph reads the current weight in each step.
    void weigh_targets(Device device, double weight) {
        weighs_targets = true;
        fill(device, target_weight, 1, W(weight));
    }

    /// Precondition: loss() of the same batch with dloss != 0.
    /// Writes or adds the gradients of all tensors to `gradients`. Calls `ready` for the tensors after the layers, for each layer from
    /// the last to the first, and for the rest, so that sums over ranks overlap with the backward pass.
    void backward(Device device, const Batch& batch, Write write, const GradientsReady& ready = {});

    /// Call after loading weights into `master`, or into `weights` for inference. Applies the sigma reparametrisation, if any.
    /// Exit::usage for inference with reparametrised weights that are rounded.
    void weights_loaded(Device device);

    /// Precondition: gradients summed over micro-steps and ranks. Call once per step.
    /// Completes the gradients and writes their squared norm to `totals`. A sharded model needs two calls: norm() writes this
    /// shard's part to its element of shard_squares, and after an all-gather norm_of_shards() adds the parts.
    void norm(Device device);
    void norm_of_shards(Device device);

    /// Whether the part of a tensor's gradient that this shard owns is finite. Blocks on the device and overwrites `totals`.
    bool gradient_is_finite(Device device, const Slot& tensor);

    /// Precondition: `totals` complete, norm included.
    /// Takes one step of the optimiser on all tensors, or on this rank's shard; `step` counts from 1. Does nothing if a total is not
    /// finite. A sharded model with Muon's matrices needs two calls: update() leaves their updates in `gradients`, and after an all-gather
    /// of these update_matrices() moves them.
    void update(Device device, const AdamW& options, int64_t step);
    void update_matrices(Device device, const AdamW& options, int64_t step);

    /// Copies `totals` to the host. Blocks on the device.
    StepTotals read_totals(Device device) const;

    /// Precondition: rows <= logit_rows.
    /// Computes the logits (rows, V) of final_normed from row `first` on in scratch.logits; for sampling and tests.
    const X* logits(Device device, int first, int rows) { return logits_of(device, final_normed, first, rows); }

    /// Preconditions: `rows` and `targets` in device memory, n <= B x T; no backward pass afterwards, because the gathered rows
    /// overwrite activations.
    /// gather_rows() gathers `rows` (n) of final_normed. gathered_losses() applies the head to them alone and writes the
    /// cross-entropy of `targets` (n), in nats, to scratch.losses.
    void gather_rows(Device device, const int32_t* rows, int n);
    void gathered_losses(Device device, const int32_t* targets, int n);

private:
    LayerShape shape() const { return {B, T, net.config.C, net.config.NH, net.config.NKV, net.config.HS}; }
    std::vector<UpdateRange> owned_ranges() const { return update_ranges(net.tensors, shards, LONGEST_RANGE); }
    std::vector<UpdateRange> owned_muon_ranges() const { return muon_ranges(net.tensors, shards, LONGEST_RANGE); }
    void lay_out();
    void lay_out_activations();
    void lay_out_attention(int l);
    void lay_out_sigma();
    void lay_out_muon();
    void lay_out_scratch();
    void lay_out_logits(size_t spare);

    int layer_forward(Device device, int l, const Batch& batch, const AttentionOverride* attention = nullptr);
    void feed_forward_backward(Device device, int l, int BT, Write write);
    void attention_half_backward(Device device, int l, const Batch& batch, Write write);
    void recompute_layer(Device device, int l, const Batch& batch);
    const X* logits_of(Device device, const X* normed, int first, int rows);   // in scratch.logits, as logits()

    static constexpr size_t LONGEST_RANGE = size_t(1) << 14;   // elements of an update that one block or thread takes at a time
};
