// A model in memory: its weights and moments, what its passes keep for each other, and their scratch.
// X is the number type of weights and activations, W = Wide<X> that of sums, statistics, gradients of weights and moments.
#pragma once
#include <algorithm>
#include <functional>
#include <vector>

#include "attention/core/decode.h"
#include "attention/core/layer.h"
#include "model/adamw.cuh"
#include "model/memory.cuh"
#include "model/monitor.cuh"
#include "model/qk_rope.cuh"
#include "model/qwen.h"
#include "model/sigma_reparam.cuh"

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
    std::function<int(int l, int T)> attend;         // replaces the attention of layer l for one sequence; null: nothing does.
                                                     // Returns the rows left in gated_out and residual: T, or less in the last

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

/// Whether every layer can do with cached keys and values.
template <class Device, class X, class A>
bool can_decode_from_cache(const GPT<Device, X, A>& gpt) {
    const auto can = [](const Layer<A>& layer) { return can_decode_from_cache(layer.attention); };
    return std::all_of(gpt.net.layers.begin(), gpt.net.layers.end(), can);
}
