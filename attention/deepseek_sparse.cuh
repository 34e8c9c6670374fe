// DeepSeek Sparse Attention (DeepSeek-V3.2-Exp: DeepSeek-AI 2025, technical report and its released inference code): a small
// indexer scores every past token for every query, and attention sees the k tokens with the greatest scores.
//     I_ts = (heads dim)^-1/2 sum_h w_th ReLU(q_th.k_s)     q, k, w of the indexer: indexer/indexer.cuh
//     S_t = the top_k keys s <= t with the greatest I_ts, ties to the earlier     out_t = sum over s in S_t of P_ts v_s, for every head
//     L = lambda mean over t of KL(p_t || softmax over S_t of I_t)     p_t = 1 / NH sum_h P_ht     indexer/distil_index.cuh
// The choice has no gradient, and the indexer's input is cut off from the graph: it learns from L alone, the rest of the model from
// the task's loss alone. The published training has two stages. --deepseek-sparse-distil 2 is the warm-up: attention is dense, L is
// over all keys, and everything but the indexer is frozen. 1 (the default) trains everything, with attention and L over S_t. 0 freezes
// the indexer. The source warms up with a learning rate of 1e-3 and continues with 7.3e-6; --lr serves both stages here.
// Assumptions, and differences from the source:
// - The source has multi-head latent attention: all heads read one latent vector per key, so its kernel gathers a token's keys once
//   for all heads. Qwen's heads read NKV keys and values. All heads share S_t here too, and the tiled kernel reads it as one bit per
//   pair. A TILE OF 64 x 64 PAIRS IS COMPUTED WHEN ANY OF ITS QUERIES CHOSE ANY OF ITS KEYS: scattered choices cost as much as dense
//   attention, plus the indexer. --monitor-every reports what a text visits.
// - The source's indexer projects its queries from the latent vector of the main queries. Here they come from the normed input x, as
//   keys and weights do.
// - The source's indexer has 64 heads of 128 for 128 attention heads, and k = 2048 in texts of 131072. Defaults here: 4 heads of 64,
//   and k = 256, the default --window of other mechanisms.
// - RoPE rotates half of an indexer head (64 of 128 in the source), in the model's rotate-half layout. LayerNorm's eps is the code's 1e-6.
// - The code multiplies q and k by a Hadamard matrix, which changes no product, and rounds them to FP8. Here they have the activations'
//   type; in bf16, near ties can fall otherwise than in float32.
// - "Summed over heads and L1-normalised": with attention over S_t alone, every head's weights add up to 1, and p is their mean.
// - KL is in nats and covers every query, also the first ones with fewer than k keys. lambda (distil_weight) is 1 in the source.
// - Gradients are clipped by the norm over all trained tensors, so the indexer's gradient can scale down the others.
// - The indexer's matrices are initialised like the model's, LayerNorm with weight 1 and bias 0.
// Tokens of packed documents choose among their document's keys. Kept per token and layer: T / 8 bytes of bits, NH T / 1024 of tile
// lists; with distillation also the gradients of the indexer's projections, which the forward pass computes with the loss.
#pragma once
#include "attention/blocks/naive_choice.h"
#include "attention/indexer/choose_keys.cuh"
#include "attention/indexer/distil_index.cuh"
#include "attention/indexer/naive_index.h"
#include "attention/kernel/layer.h"
#include "attention/masks/gate_training.h"

/// The kernel's mask: rows with at most `top` past keys see all of them; the others see the keys whose bits are set.
struct ChosenPairs : Policy {
    int top;
    PairBits bits;
    static constexpr Traits traits{.reads_bits = true};
    constexpr Tile tile(int /*h*/, int i0, int i1, int j0, int j1) const {
        const Tile causal = causal_tile(i0, i1, j0, j1);
        return causal == Tile::full && i1 > top ? Tile::mixed : causal;
    }
};

struct deepseek_sparse : Policy {
    static constexpr const char* name = "deepseek_sparse";
    static constexpr Traits traits{.own_passes = true, .reads_x = true, .has_auxiliary_loss = true, .tokens_choose = true};
    int heads, dim, top, C, NH, NKV, HS;
    GateTraining distil;
    float lambda;
    IndexTensors tensors{};

    deepseek_sparse(const Config& config, int layer) : Policy(config, layer), C(config.C), NH(config.NH), NKV(config.NKV), HS(config.HS) {
        auto value = [&](const char* key) { return config.setting(std::string("deepseek_sparse_") + key); };
        heads = int(value("heads")), dim = int(value("dim")), top = int(value("top_k"));
        distil = GateTraining(int(value("distil"))), lambda = float(value("distil_weight"));
        if (dim == 96) fail(Exit::usage, "--deepseek-sparse-dim (deepseek_sparse_dim) is 96; give 32, 64 or 128");
    }

    static std::vector<Setting> settings() {
        return {{"--deepseek-sparse-heads", "deepseek_sparse_heads", 4, 1, 256, WHOLE, "heads of the indexer"},
                {"--deepseek-sparse-dim", "deepseek_sparse_dim", 64, 32, 128, 32, "size of each indexer head: 32, 64 or 128"},
                {"--deepseek-sparse-top-k", "deepseek_sparse_top_k", 256, 1, 1e9, WHOLE, "keys that each query sees", true},
                {"--deepseek-sparse-distil", "deepseek_sparse_distil", 1, 0, 2, WHOLE,
                 "indexer training on attention's weights: 0 off, 1 joint with the model, 2 indexer only, with dense attention"},
                {"--deepseek-sparse-distil-weight", "deepseek_sparse_distil_weight", 1, 0, 1e6, REAL, "weight of the distillation loss"}};
    }

    void declare(TensorList& list, const std::string& prefix) {
        const std::string own = prefix + "deepseek_sparse.";
        tensors.wqk = list.add(own + "wq", {heads * dim, C}, normal(0.02), Decay::yes).offset;
        list.add(own + "wk", {dim, C}, normal(0.02), Decay::yes);
        tensors.norm = list.add(own + "k_norm.weight", {dim}, ones(), Decay::no).offset;
        list.add(own + "k_norm.bias", {dim}, zeros(), Decay::no);
        tensors.ww = list.add(own + "weights_proj", {heads, C}, normal(0.02), Decay::yes).offset;
    }

    bool trains(const std::string& tensor) const {
        const bool own = tensor.find(".deepseek_sparse.") != std::string::npos;
        return own ? distils() : distil != GateTraining::gate_only;
    }
    bool distils() const { return distil != GateTraining::off; }

    /// The common tests' difference quotients step across kinks of ReLU; tests/test_deepseek_sparse.cpp checks these gradients.
    Form form() const { return {.has_exact_gradients = !distils(), .has_teacher = distils()}; }

    // ---- accounting

    /// Maximum number of keys that a query sees.
    int most() const { return distil == GateTraining::gate_only ? std::numeric_limits<int>::max() : top; }

    /// Pairs are exact. Tiles are an upper bound: queries that agree visit fewer.
    bool expects_at_most() const { return distil != GateTraining::gate_only; }
    PairCount expected_pairs(int of_heads, int T) const {
        const double all = std::min(T, most()), later = T - all, tiles = tiles_of(T);
        return {of_heads * (all * (all + 1) / 2 + later * all), of_heads * tiles * (tiles + 1) / 2};
    }

    /// The indexer's scores of all pairs; where it learns, also its scores of the chosen pairs and attention's scores once more, and the
    /// products of its backward pass. The unit is a pair of attention, which has two products of HS numbers.
    double further_pairs(int of_heads, int T) const {
        const double all = double(T) * (T + 1) / 2, chosen = expected_pairs(1, T).pairs, index = double(heads) * dim;
        const double learning = distils() ? chosen * (5 * index + double(of_heads) * HS) : 0;
        return (all * index + learning) / (2 * HS);
    }

    /// Keys, values, and the indexer's key, which all heads share.
    double cached_keys(int T) const { return T * (1 + double(dim) / (2.0 * HS * NKV)); }

    // ---- memory

    IndexShape index_shape(const LayerShape& s) const { return {s.B, s.T, heads, dim, s.HS}; }

    template <class X>
    struct Kept {
        BumpAllocator allocator;
        PairBits bits;
        int *count, *list;   // (B, NH, tiles), (B, NH, tiles, tiles)
        IndexGradients<X> gradients;

        Kept(const deepseek_sparse& p, std::byte* memory, const LayerShape& s)
            : allocator(memory), bits{allocator.take<uint64_t>(size_t(s.B) * s.T * tiles_of(s.T)), s.T},
              count(allocator.take<int>(size_t(s.B) * s.NH * tiles_of(s.T))),
              list(allocator.take<int>(size_t(s.B) * s.NH * tiles_of(s.T) * tiles_of(s.T))),
              gradients(allocator, p.distils() ? p.index_shape(s) : IndexShape{}) {}
    };
    template <class X>
    size_t kept_bytes(const LayerShape& s) const {
        return Kept<X>(*this, nullptr, s).allocator.bytes();
    }

    template <class X>
    struct ForwardScratch {
        BumpAllocator allocator;
        Index<X> index;
        int* touched;                                              // (B, tiles, tiles)
        Wide<X>*pairs, *lse, *divergences, *of_tokens, *dqk, *dw;   // laid out as in IndexPiece, ChosenKeys and IndexDistillation

        ForwardScratch(const deepseek_sparse& p, std::byte* memory, const LayerShape& s)
            : allocator(memory), index(allocator, p.index_shape(s)) {
            using W = Wide<X>;
            const size_t BT = size_t(s.B) * s.T, tiles = tiles_of(s.T), d = p.distils();
            const size_t rows = size_t(IndexPiece<W>::most(s.B, s.T)) * TILE;
            touched = allocator.take<int>(s.B * tiles * tiles);
            pairs = allocator.take<W>(rows * padded(s.T)), lse = allocator.take<W>(BT);
            divergences = allocator.take<W>(d * rows * tiles), of_tokens = allocator.take<W>(d * BT);
            dqk = allocator.take<W>(d * BT * index.s.row()), dw = allocator.take<W>(d * BT * index.s.heads);
        }
    };
    template <class X>
    struct BackwardScratch {
        BumpAllocator allocator;
        X* scaled;   // (B, T, heads + 1, dim)
        std::byte* kernel;

        template <class Device>
        BackwardScratch(Device device, const deepseek_sparse& p, std::byte* memory, const LayerShape& s)
            : allocator(memory), scaled(allocator.take<X>(p.distils() * p.index_shape(s).tokens() * p.index_shape(s).row())),
              kernel(allocator.take<std::byte>(attention_workspace(device, p.pairs({}), s.B, s.T, s.T, s.NH))) {}
    };
    template <class X, class Device>
    size_t workspace_bytes(Device device, const LayerShape& s) const {
        return std::max(ForwardScratch<X>(*this, nullptr, s).allocator.bytes(),
                        BackwardScratch<X>(device, *this, nullptr, s).allocator.bytes());
    }

    // ---- the layer

    ChosenPairs pairs(const PairBits& bits) const { return {*this, most(), bits}; }

    template <class Device, class X>
    void forward(Device device, const LayerInputs<X>& in, const X* weights, LayerState<X>& state, std::byte* workspace,
                 const Statistics<X>& statistics) const {
        using W = Wide<X>;
        const Kept<X> kept(*this, state.kept, in);
        const ForwardScratch<X> scratch(*this, workspace, in);
        const ChosenKeys<W> chosen{kept.bits, kept.count, kept.list, scratch.touched, scratch.lse};
        index_forward(device, scratch.index, in, weights, tensors);
        const int at_once = IndexPiece<W>::most(in.B, in.T);
        IndexPiece<W>::each(in.B, in.T, at_once, scratch.pairs, [&](const IndexPiece<W>& piece) {
            index_scores(device, piece, scratch.index, TouchedTiles{});
            choose_keys(device, chosen, piece, in.documents, most());
        });
        list_chosen_tiles(device, chosen, in.B, in.NH);
        attention_forward(device, pairs(kept.bits), arguments(in, state, kept, statistics));

        W* const auxiliary = state.score_inputs.auxiliary;
        if (!auxiliary) return;
        if (!distils()) return fill(device, auxiliary, size_t(in.B) * in.NH, W(0));
        const IndexDistillation<X> d{in, state.lse, scratch.index, chosen, lambda, scratch.index.scale(), scratch.divergences,
                                     scratch.of_tokens, scratch.dqk, scratch.dw};
        distil_index(device, auxiliary, d, at_once, scratch.pairs);
        index_gradients(device, kept.gradients, scratch.index, scratch.dqk, scratch.dw, in, weights, tensors);
    }

    template <class Device, class X>
    void backward(Device device, const LayerInputs<X>& in, const X* /*weights*/, const LayerState<X>& state, const X* dout,
                  const QkvGradients<X>& to, ScoreInputGradients<X>& more, std::byte* workspace) const {
        const Kept<X> kept(*this, state.kept, in);
        const BackwardScratch<X> scratch(device, *this, workspace, in);
        attention_backward(device, pairs(kept.bits), arguments(in, state, kept, Statistics<X>{}),
                           kernel_gradients(dout, to, scratch.kernel));
        if (distils())
            index_weight_gradients(device, more.dweights, kept.gradients, index_shape(in), in, tensors, more.dloss, scratch.scaled);
    }

    // ---- the source's formulas without the above

    template <class X>
    void naive(const LayerInputs<X>& in, const X* weights, X* out) const {
        const std::vector<X> scores = naive_index_scores(in, weights, tensors, index_shape(in));
        for (int b = 0; b < in.B; b++) {
            std::vector<std::vector<bool>> sees;   // from the document's first token on
            for (int t = 0; t < in.T; t++) {
                const int first = first_candidate(in.documents, b, t);
                sees.push_back(naive_choice(&scores[(size_t(b) * in.T + t) * in.T + first], {.top = most(), .local = 0}, t - first));
            }
            dense_softmax_of_sequence(in, b, out, [](int, int, int, int, X a) { return a; }, [&](int, int t, int s) {
                const int first = first_candidate(in.documents, b, t);
                return s >= first && s <= t && sees[t][s - first];
            });
        }
    }

private:
    template <class X>
    AttentionForward<X> arguments(const LayerInputs<X>& in, const LayerState<X>& state, const Kept<X>& kept,
                                  const Statistics<X>& statistics) const {
        AttentionForward<X> a = kernel_arguments(in, state, statistics);
        a.list = {kept.count, kept.list, tiles_of(in.T)};
        return a;
    }
};
