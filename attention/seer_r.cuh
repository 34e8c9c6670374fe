// SeerAttention-R (Gao et al. 2025, arXiv 2506.08889; code microsoft/SeerAttention): every token and key/value head chooses blocks of keys
// by a gate that learns from the model's own dense attention. It is the gate of seer for single tokens.
//     S_tc = softmax over past blocks c of qg_t.kg_c / sqrt(HS)               qg of a token, kg of a block: blocks/token_gate.cuh
//     out_t = sum_j P_tj v_j   over the keys j <= t of t's own block and of the top_k past blocks with the greatest S
//     L = lambda mean_t KL(R_t / sum_c R_tc || S_t)      R_tc = max over heads h of the group and keys j of block c of dense P_htj
// The query heads that share keys share the choice. Ties go to earlier blocks. The choice has no gradient, and the gate's input is cut off
// from the graph: Wq and Wk learn from L alone, the rest of the model from the task's loss alone.
// The source trains the gate alone, after the model: --seer-r-distil 2, in which attention is dense and everything but Wq and Wk is
// frozen. The checkpoint then runs sparse with seer_r_distil 0, which freezes the gate. From scratch (the default, 1) both are trained at
// once: attention is sparse, and an additional dense forward pass teaches the gate. No choice depends on later tokens, unlike in seer's
// published form.
// Assumptions, and differences from the source:
// - "Before RoPE" is after QK-norm, as in its code for Qwen3. The gate's size is HS, as there (128). It has no norm of its own, which is
//   the code's default.
// - Only complete blocks before the token's own have a score. The own block is always visible and is not one of the top_k.
// - A budget (top_k) and a threshold on S are two methods in the source. Here a threshold drops some of the top_k blocks, since memory
//   is planned for top_k of them. With a large top_k it decides alone.
// - The source chooses in decoding and keeps the prompt dense. Here every token chooses.
// - KL is in nats and a mean over all tokens and key/value heads. Tokens without a past block add 0. The code takes 10 times the mean over
//   all entries of S, of which there are N per token: learning rates differ by that factor. lambda is distil_weight.
// - Wq and Wk are initialised like the model's matrices, as in its code for Qwen3.
// A document of a packed row (varlen) has its own blocks, counted from its first token (blocks/document_blocks.h). It trains the gate as
// if it were alone in the row.
// Kept per layer: top_k integers per token and key/value head, and the gradients of Wq and Wk, (NH + 3 NKV) HS^2 numbers, which the forward
// pass computes with the loss.
#pragma once
#include "attention/blocks/dense_map.cuh"
#include "attention/blocks/naive_blocks.h"
#include "attention/blocks/token_blocks.cuh"
#include "attention/blocks/token_gate.cuh"
#include "attention/masks/gate_training.h"

struct seer_r : Policy {
    static constexpr const char* name = "seer_r";
    static constexpr Traits traits{.own_passes = true, .reads_qk_pre = true, .has_auxiliary_loss = true, .tokens_choose = true};
    int block, top, NH, NKV, HS;
    float threshold, lambda;   // threshold -1: none
    GateTraining gate_training;
    Slot wq, wk;   // (NKV, HS, g HS), (NKV, HS, 3 HS)

    seer_r(const Config& config, int layer) : Policy(config, layer), NH(config.NH), NKV(config.NKV), HS(config.HS) {
        auto value = [&](const char* key) { return config.setting(std::string("seer_r_") + key); };
        block = int(value("block")), top = int(value("top_k"));
        threshold = value("threshold") > 0 ? float(value("threshold")) : -1;
        gate_training = GateTraining(int(value("distil"))), lambda = float(value("distil_weight"));
    }

    static std::vector<Setting> settings() {
        return {{"--seer-r-block", "seer_r_block", 64, TILE, 4096, TILE, "tokens per block, a multiple of 64", true},
                {"--seer-r-top-k", "seer_r_top_k", 8, 0, 1e6, WHOLE, "past blocks that each token sees", true, 1, "seer_r_block"},
                {"--seer-r-threshold", "seer_r_threshold", 0, 0, 0.99, REAL,
                 "share of the gate above which a top-k block is selected; 0: no threshold"},
                {"--seer-r-distil", "seer_r_distil", 1, 0, 2, WHOLE,
                 "gate training on the dense map: 0 off, 1 joint with the model, 2 gate only, with dense attention"},
                {"--seer-r-distil-weight", "seer_r_distil_weight", 1, 0, 1e6, REAL, "weight of the distillation loss"}};
    }

    void declare(TensorList& list, const std::string& prefix) {
        wq = list.add(prefix + "seer_r.w_gq", {NKV, HS, NH / NKV * HS}, normal(0.02), Decay::yes);
        wk = list.add(prefix + "seer_r.w_gk", {NKV, HS, 3 * HS}, normal(0.02), Decay::yes);
    }

    bool trains(const std::string& tensor) const {
        return tensor.find(".seer_r.") != std::string::npos ? distils() : !is_dense();
    }
    bool distils() const { return gate_training != GateTraining::off; }
    bool is_dense() const { return gate_training == GateTraining::gate_only; }
    Form form() const { return {.has_teacher = distils()}; }

    /// The blocks that a token sees without choosing them: all, or its own.
    ForcedBlocks everything() const { return {*this, block, INT_MAX, 1}; }
    ForcedBlocks forced() const { return is_dense() ? everything() : ForcedBlocks(*this, block, 0, 1); }
    ForcedBlocks forced(int T) const { return threshold < 0 ? forced().in_text(top, T) : forced(); }
    int slots_of(const LayerShape& s) const { return forced().slots(top, s.T); }
    BlockChoice block_choice(const LayerShape& s) const {
        const BlockChoice c{s.B, s.T, s.NH, s.NKV, block, forced(s.T).slots(top, s.T)};
        require_countable(c, "--seer-r-top-k", "seer_r_top_k", "lower it, or raise --seer-r-block");
        return c;
    }

    // ---- accounting

    bool expects_at_most() const { return threshold >= 0 && !is_dense(); }
    PairCount expected_pairs(int heads, int T) const { return expected_block_pairs(forced(T), top, heads, T); }
    /// The dense pass that teaches the gate while attention is sparse.
    double further_pairs(int heads, int T) const { return gate_training == GateTraining::joint ? heads * (double(T) * (T + 1) / 2) : 0; }
    /// Keys and values, a gate key for every past block (half of a key/value pair), and the pooled keys of the current block.
    double cached_keys(int T) const { return is_dense() ? T : T + 0.5 * ((T - 1) / block) + 1.5; }

    // ---- memory

    GateShape gate_shape(const LayerShape& s, const Documents& documents = {}) const {
        return {s.B, s.T, NH, NKV, HS, block, GateQuery::first, documents};
    }

    template <class W>
    struct Kept {
        BumpAllocator allocator;
        int* choice;     // BlockChoice
        W *dwq, *dwk;    // gradients per unit of dloss

        Kept(const seer_r& p, std::byte* memory, const LayerShape& s)
            : allocator(memory), choice(allocator.take<int>(p.block_choice(s).size())),
              dwq(allocator.take<W>(p.distils() * p.wq.size)), dwk(allocator.take<W>(p.distils() * p.wk.size)) {}
    };
    template <class X>
    size_t kept_bytes(const LayerShape& s) const {
        return Kept<Wide<X>>(*this, nullptr, s).allocator.bytes();
    }

    template <class X, class Device>
    struct Scratch {
        using W = Wide<X>;
        BumpAllocator allocator;
        TokenBlocks<Device, X> blocks;
        TokenGate<W> gate;
        BlocksOfDocuments<Device, X> of_documents;   // empty without distillation, like all below
        DenseTeacher<Device, X> teacher;
        BlockLists lists;
        W *dscores, *dkeys;   // (B, NKV, T, N), (B, NKV, N, HS)

        Scratch(Device device, const seer_r& p, std::byte* memory, const LayerShape& s, const Documents& documents = {})
            : allocator(memory), blocks(device, allocator, s, p.block_choice(s), p), gate(allocator, p.gate_shape(s, documents)),
              of_documents(device, allocator, {p.distils() ? s.B : 0, s.T, s.C, s.NH, s.NKV, s.HS}, p),
              teacher(allocator, s, p.distils(), p.is_dense()) {
            const size_t d = p.distils(), N = gate.s.blocks(), tiles = tiles_of(s.T), heads = d * s.B * s.NH;
            lists = {allocator.take<int>(heads * N), allocator.take<int>(heads * N * N),
                     allocator.take<int>(heads * tiles), allocator.take<int>(heads * tiles * tiles)};
            dscores = allocator.take<W>(d * gate.rows() * N), dkeys = allocator.take<W>(d * s.B * s.NKV * N * s.HS);
        }
    };
    template <class X, class Device>
    size_t workspace_bytes(Device device, const LayerShape& s) const {
        return Scratch<X, Device>(device, *this, nullptr, s).allocator.bytes();
    }

    // ---- the layer

    template <class Device, class X>
    void forward(Device device, const LayerInputs<X>& in, const X* weights, LayerState<X>& state, std::byte* workspace,
                 const Statistics<X>& statistics) const {
        using W = Wide<X>;
        const Kept<W> kept(*this, state.kept, in);
        const Scratch<X, Device> scratch(device, *this, workspace, in, in.documents);
        const BlockChoice choice = block_choice(in);
        token_gate_scores(device, scratch.gate, in, weights + wq.offset, weights + wk.offset);
        if (choice.slots > 0) choose_by_gate(device, kept.choice, scratch.gate, choice, {.top = choice.slots, .threshold = threshold});
        W* const auxiliary = state.score_inputs.auxiliary;
        if (is_dense() || (distils() && auxiliary)) {
            const GateShape& s = scratch.gate.s;
            const DenseMap<W> map = scratch.teacher.map(device, everything(), in, state, statistics, s, scratch.lists,
                                                        scratch.of_documents);
            if (auxiliary) {
                distil(device, scratch.dscores, scratch.teacher.divergences, scratch.gate.scores, TokenTeacher<W>{map, s, lambda});
                sum_divergences(device, auxiliary, scratch.teacher.divergences, in.B * NH, in.T, NH / NKV);
                token_gate_backward(device, kept.dwq, kept.dwk, scratch.dkeys, scratch.dscores, scratch.gate, in);
            }
        } else if (auxiliary) {
            fill(device, auxiliary, size_t(in.B) * NH, W(0));
        }
        if (!is_dense()) scratch.blocks.forward(device, forced(in.T), kernel_arguments(in, state, statistics), kept.choice);
    }

    template <class Device, class X>
    void backward(Device device, const LayerInputs<X>& in, const X* /*weights*/, const LayerState<X>& state, const X* dout,
                  const QkvGradients<X>& to, ScoreInputGradients<X>& more, std::byte* workspace) const {
        using W = Wide<X>;
        const Kept<W> kept(*this, state.kept, in);
        const Scratch<X, Device> scratch(device, *this, workspace, in, in.documents);
        scratch.blocks.backward(device, forced(in.T), kernel_arguments(in, state, Statistics<X>{}), kernel_gradients(dout, to),
                                kept.choice);
        clear_heads(device, Heads<W>{more.dq_pre, in.qk_row}, in.B * in.T, NH, HS);
        clear_heads(device, Heads<W>{more.dk_pre, in.qk_row}, in.B * in.T, NKV, HS);
        if (!distils()) return;
        each_element(device, wq.size, 1, AddScaled<W>{more.dweights + wq.offset, kept.dwq, more.dloss});
        each_element(device, wk.size, 1, AddScaled<W>{more.dweights + wk.offset, kept.dwk, more.dloss});
    }

    // ---- the paper's formulas without the above

    template <class X>
    void naive(const LayerInputs<X>& in, const X* weights, X* out) const {
        const int N = (in.T + block - 1) / block;
        const std::vector<X> scores = naive_token_scores(in, weights + wq.offset, weights + wk.offset, block);
        dense_softmax_of_blocks(in, out, block, NKV, [&](int b, int kv, int t) {
            const X* const row = &scores[((size_t(b) * NKV + kv) * in.T + t) * N];
            std::vector<bool> seen = naive_choice(row, {.top = is_dense() ? N : top}, t / block);
            const std::vector<bool> large = naive_choice(row, {.threshold = threshold}, t / block);
            for (int c = 0; c < t / block && threshold >= 0 && !is_dense(); c++) seen[c] = seen[c] && large[c];
            return seen;
        });
    }
};
