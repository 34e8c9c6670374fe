// Attention over selected blocks of keys, with the scores of the block gate: the common part of adaptive_sparse and seer, in passes
// of its own:
//     mask          scores (block_gate.cuh)  ->  blocks that each block of queries visits (select.cuh)  ->  lists of tiles
//     score         the bias of each tile, log sigmoid(score), is added to its pairs' scores
//     output gate   per head and token
// and optionally a second, dense call whose pooled map trains the gate (distil.cuh). In rows of packed documents (varlen) each of these
// calls is split in two (block_documents.cuh).
#pragma once
#include "attention/blocks/dense_map.cuh"
#include "attention/blocks/naive_blocks.h"
#include "attention/gates/head_gate.cuh"
#include "attention/gates/row_gate.cuh"
#include "attention/kernel/layer.h"
#include "attention/masks/gate_training.h"

/// Use of the scores.
enum class BlockMask {
    soft,       // every past block is visited, log sigmoid(score) is added
    hard,       // the chosen ones are visited; the language model's loss has no gradient for the gate
    soft_hard,  // the chosen ones are visited, and log sigmoid(score) is added
};

/// Base of seer and adaptive_sparse, whose constructors read the settings that only one of them has.
struct BlockSparse : Policy {
    static constexpr Traits traits{.own_passes = true, .reads_qk_pre = true, .has_auxiliary_loss = true, .gates_output = true,
                                   .tokens_choose = true};   // blocks by score, a block's extreme tokens, heads by a threshold
    int NH, NKV, HS;
    int block = TILE;
    GateQuery query = GateQuery::first;
    BlockMask mask = BlockMask::soft_hard;
    TileChoice choice;             // among blocks
    GateTraining gate_training = GateTraining::off;
    float distil_weight = 1, distil_skip = 0;   // lambda; the fraction of rows skipped at the start
    float head_threshold = -1;     // below 0: no head gate
    bool straight_through = false;
    Slot wq, wk;                   // (NH, HS, HS), (NKV, HS, 3 HS)
    Slot head_weight, head_bias;   // (NH, 2 HS), (NH)

    /// From the settings "NAME_block" and so on, which both variants have.
    BlockSparse(const Config& config, int layer, const std::string& name)
        : Policy(config, layer), NH(config.NH), NKV(config.NKV), HS(config.HS) {
        auto value = [&](const char* key) { return config.setting(name + key); };
        block = int(value("_block")), query = GateQuery(int(value("_query")));
        choice.top = int(value("_top_k")), choice.leading = int(value("_sink"));
        choice.threshold = value("_threshold") > 0 ? float(value("_threshold")) : -1;
        gate_training = GateTraining(int(value("_distil")));
        distil_weight = float(value("_distil_weight")), distil_skip = float(value("_distil_skip"));
    }

    /// `prefix` ends with the variant's name.
    void declare(TensorList& list, const std::string& prefix) {
        wq = list.add(prefix + ".w_gq", {NH, HS, HS}, normal(0.02), Decay::yes);
        wk = list.add(prefix + ".w_gk", {NKV, HS, 3 * HS}, normal(0.02), Decay::yes);
    }

    bool gates_heads() const { return head_threshold >= 0 && gate_training != GateTraining::gate_only; }

    bool trains(const std::string& tensor) const {
        return gate_training != GateTraining::gate_only || tensor.find(".w_g") != std::string::npos;
    }

    bool chooses() const { return gate_training != GateTraining::gate_only && mask != BlockMask::soft; }
    bool expects_at_most() const { return chooses() && choice.threshold >= 0; }

    /// With `own` and `oracle`, later queries influence the blocks of a row.
    bool needs_known_text() const { return query >= GateQuery::own && chooses() && (choice.threshold >= 0 || choice.top > 0); }
    Form form() const {
        return {.is_causal = !needs_known_text(), .gated = gates_heads(), .has_exact_gradients = !(gates_heads() && straight_through),
                .has_teacher = distils(), .needs_known_text = needs_known_text()};
    }

    /// Exact with top_k. With a threshold the choice depends on the data, and dense attention is the upper bound.
    PairCount expected_pairs(int heads, int T) const {
        const int sparse = chooses() && choice.threshold < 0 ? heads - std::min(heads, dense()) : 0;
        const PairCount all = expected_block_pairs({*this, block, INT_MAX, 1}, 0, heads - sparse, T);
        const PairCount some = expected_block_pairs({*this, block, choice.leading, 1}, choice.top, sparse, T, true);
        return {all.pairs + some.pairs, all.tiles + some.tiles};
    }

    /// The dense pass that teaches the gate while attention is sparse, or replaces it.
    double further_pairs(int heads, int T) const {
        return gate_training == GateTraining::joint || query == GateQuery::oracle ? heads * (double(T) * (T + 1) / 2) : 0;
    }

    /// Keys and values, a gate key for every past block (half of a key/value pair), and the pooled keys of the current block (mean,
    /// maximum and minimum). The mean of its queries, which GateQuery::previous needs, is not counted.
    double cached_keys(int T) const { return gate_training == GateTraining::gate_only ? T : T + 0.5 * ((T - 1) / block) + 1.5; }

    int dense() const { return choice.dense_heads; }
    bool distils() const { return gate_training != GateTraining::off; }
    GateShape gate_shape(const LayerShape& s, const Documents& documents = {}) const {
        return {s.B, s.T, NH, NKV, HS, block, query, documents};
    }
    HeadGate head_gate_options() const { return {head_weight.offset, head_bias.offset, head_threshold, straight_through, dense()}; }

    template <class X>
    size_t kept_bytes(const LayerShape& shape) const {
        return Kept<Wide<X>>(*this, nullptr, shape).allocator.bytes();
    }
    template <class X, class Device>
    size_t workspace_bytes(Device device, const LayerShape& shape) const {
        return std::max(ForwardScratch<X, Device>(device, *this, nullptr, shape).allocator.bytes(),
                        BackwardScratch<X, Device>(device, *this, nullptr, shape).allocator.bytes());
    }

    template <class Device, class X>
    void forward(Device device, const LayerInputs<X>& in, const X* weights, LayerState<X>& state, std::byte* workspace,
                 const Statistics<X>& statistics) const {
        const GateShape s = gate_shape(in, in.documents);
        const Kept<Wide<X>> kept(*this, state.kept, in);
        const ForwardScratch<X, Device> scratch(device, *this, workspace, in);
        gate_scores(device, kept.gate, in, weights + wq.offset, weights + wk.offset, s);
        Wide<X>*const scores = kept.gate.scores, *const auxiliary = state.score_inputs.auxiliary;
        const BlockLists lists{scratch.block_count, scratch.blocks, kept.count, kept.list};
        if (distils() || query == GateQuery::oracle) {
            const DenseMap<Wide<X>> map =
                scratch.teacher.map(device, PlainTiles(*this), in, state, statistics, s, lists, scratch.of_documents);
            if (distils())
                distil(device, kept.distilled, scratch.teacher.divergences, scores,
                       BlockTeacher<Wide<X>>{map, s, {distil_weight, dense(), distil_skip}});
            else each_element(device, size_t(in.B) * NH * s.blocks(), s.blocks(), ScoresOfMap<Wide<X>>{scores, map, s});
        }
        if (auxiliary) sum_divergences(device, auxiliary, scratch.teacher.divergences, in.B * NH, distils() ? s.blocks() : 0);
        if (gate_training == GateTraining::gate_only) return;   // the layer's output is the dense call's

        if (gates_heads()) head_gate_forward(device, state.score_inputs.gate, in, weights, head_gate_options());
        if (has_lists(in))
            list_tiles<Wide<X>>(device, lists, kept.biases, scores, mask == BlockMask::soft ? TileChoice{.dense_heads = NH} : choice,
                                {s, dense()});
        else spread_blocks<Wide<X>>(device, {}, kept.biases, scores, {s, dense()});
        const AttentionForward<X> a = sparse_arguments(in, state, kept, statistics);
        if (kept.biases) attend(device, BiasedTiles(*this), a, scratch);
        else attend(device, PlainTiles(*this), a, scratch);
    }

    template <class Device, class X>
    void backward(Device device, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state, const X* dout,
                  const QkvGradients<X>& to, ScoreInputGradients<X>& more, std::byte* workspace) const {
        using W = Wide<X>;
        const GateShape s = gate_shape(in, in.documents);
        const Kept<W> kept(*this, state.kept, in);
        const BackwardScratch<X, Device> scratch(device, *this, workspace, in);
        AttentionBackward<X> g = kernel_gradients(dout, to, scratch.kernel);
        g.dgate = more.of.gate, g.dtile = scratch.dbiases;
        if (scratch.dbiases) fill(device, scratch.dbiases, tile_pairs(in), W(0));   // unvisited tiles stay 0
        const AttentionForward<X> a = sparse_arguments(in, state, kept, Statistics<X>{});
        if (kept.biases) attend_backward(device, BiasedTiles(*this), a, g, scratch);
        else attend_backward(device, PlainTiles(*this), a, g, scratch);

        each_element(device, size_t(in.B) * NH * s.blocks(), s.blocks(),
                     GatherDscores<W>{scratch.dscores, scratch.dbiases, kept.gate.scores, kept.distilled, more.dloss, {s, dense()}});
        gate_scores_backward(device, scratch.gate, more.dq_pre, more.dk_pre, more.dweights + wq.offset, more.dweights + wk.offset,
                             scratch.dscores, kept.gate, in, weights + wq.offset, weights + wk.offset, s);
        if (gates_heads())
            head_gate_backward(device, more.dweights, more.dq_pre, more.dk_pre, more.of.gate, in, weights, head_gate_options(),
                               scratch.heads);
    }

    // ---- the formulas without the above

    template <class X>
    void naive(const LayerInputs<X>& in, const X* weights, X* out) const {
        const int N = (in.T + block - 1) / block;
        std::vector<X> scores;
        if (gate_training != GateTraining::gate_only)
            scores = query == GateQuery::oracle ? naive_dense_map(in, block, block)
                                                : naive_block_scores(in, weights + wq.offset, weights + wk.offset, block, query);
        auto modify = [&](int b, int h, int i, int j, X a) {
            const int r = i / block, c = j / block;
            if (gate_training == GateTraining::gate_only || h < dense() || c == r) return a;
            const X* row = &scores[((size_t(b) * NH + h) * N + r) * N];
            if (mask != BlockMask::soft && !naive_choice(row, choice, r)[c]) return -X(INFINITY);
            return mask == BlockMask::hard ? a : a - std::log(1 + std::exp(-row[c]));
        };
        dense_softmax(in, out, modify, [](int, int i, int j) { return j <= i; });
        for (int n = 0; n < in.B * in.T * NH && gates_heads(); n++) {
            const int h = n % NH, b = n / NH / in.T, t = n / NH % in.T;
            const X* w = weights + head_weight.offset + size_t(h) * 2 * HS;
            const X u = dot(w, in.query(in.q_pre, b, t, h), HS) + dot(w + HS, in.key(in.k_pre, b, t, h), HS);
            const X s = 1 / (1 + std::exp(-u - weights[head_bias.offset + h]));
            for (int d = 0; d < HS && h >= dense(); d++) out[size_t(n) * HS + d] *= s >= head_threshold ? s : X(0);
        }
    }

protected:
    static constexpr int LARGEST_BLOCK = 4096;   // tokens

private:
    static size_t tile_pairs(const LayerShape& s) { return size_t(s.B) * s.NH * tiles_of(s.T) * tiles_of(s.T); }
    size_t block_pairs(const LayerShape& s) const {
        return size_t(s.B) * s.NH * gate_shape(s).blocks() * gate_shape(s).blocks();
    }

    /// Whether the sparse call has lists of tiles. With documents it is two calls, the second over past blocks of the document alone.
    template <class X>
    bool has_lists(const LayerInputs<X>& in) const {
        return chooses() || (in.documents && gate_training != GateTraining::gate_only);
    }

    /// Kept from the forward to the backward pass. Null where the options do not need it.
    template <class W>
    struct Kept {
        BumpAllocator allocator;
        GateMemory<W> gate;
        W* distilled = nullptr;                 // (B, NH, N, N) gradient of the distillation loss by the scores
        W* biases = nullptr;                    // (B, NH, tiles, tiles) log sigmoid(score)
        int *count, *list;                      // (B, NH, tiles), (B, NH, tiles, tiles)

        Kept(const BlockSparse& p, std::byte* memory, const LayerShape& s) : allocator(memory), gate(allocator, p.gate_shape(s)) {
            if (p.distils()) distilled = allocator.take<W>(p.block_pairs(s));
            if (p.gate_training != GateTraining::gate_only && p.mask != BlockMask::hard) biases = allocator.take<W>(tile_pairs(s));
            count = allocator.take<int>(size_t(s.B) * s.NH * tiles_of(s.T)), list = allocator.take<int>(tile_pairs(s));
        }
    };

    template <class X, class Device>
    struct ForwardScratch {
        BumpAllocator allocator;
        BlocksOfDocuments<Device, X> of_documents;
        DenseTeacher<Device, X> teacher;
        int *block_count, *blocks;   // (B, NH, N), (B, NH, N, N)

        ForwardScratch(Device device, const BlockSparse& p, std::byte* memory, const LayerShape& s)
            : allocator(memory), of_documents(device, allocator, s, BiasedTiles(p)),
              teacher(allocator, s, p.distils() || p.query == GateQuery::oracle, p.gate_training == GateTraining::gate_only),
              block_count(allocator.take<int>(size_t(s.B) * s.NH * p.gate_shape(s).blocks())),
              blocks(allocator.take<int>(p.block_pairs(s))) {}
    };

    template <class X, class Device>
    struct BackwardScratch {
        using W = Wide<X>;
        BumpAllocator allocator;
        BlocksOfDocuments<Device, X> of_documents;
        GateArrays<W> gate;
        W* dbiases = nullptr;   // (B, NH, tiles, tiles)
        W* dscores;              // (B, NH, N, N)
        std::byte *kernel, *heads;

        BackwardScratch(Device device, const BlockSparse& p, std::byte* memory, const LayerShape& s)
            : allocator(memory), of_documents(device, allocator, s, BiasedTiles(p)), gate(allocator, p.gate_shape(s)) {
            if (p.gate_training != GateTraining::gate_only && p.mask != BlockMask::hard) dbiases = allocator.take<W>(tile_pairs(s));
            dscores = allocator.take<W>(p.block_pairs(s));
            kernel = allocator.take<std::byte>(attention_workspace(device, BiasedTiles(p), s.B, s.T, s.T, s.NH));
            heads = allocator.take<std::byte>(p.gates_heads() ? head_gate_workspace(device, s) : 0);
        }
    };

    template <class X>
    AttentionForward<X> sparse_arguments(const LayerInputs<X>& in, const LayerState<X>& state, const Kept<Wide<X>>& kept,
                                         const Statistics<X>& statistics) const {
        AttentionForward<X> a = kernel_arguments(in, state, statistics);
        a.tile = kept.biases;
        if (has_lists(in)) a.list = {kept.count, kept.list, tiles_of(in.T)};
        if (in.documents) a.statistics.tile_max = nullptr;   // the two calls have different tiles
        return a;
    }

    template <class Device, class X, class P>
    void attend(Device device, const P& policy, AttentionForward<X> a, const ForwardScratch<X, Device>& scratch) const {
        if (!a.documents) return attention_forward(device, policy, a);
        const Wide<X>* const gate = std::exchange(a.gate, nullptr);
        scratch.of_documents.forward(device, policy, a, {block, block, a.T, a.documents});
        if (gate) gate_rows_forward(device, a.gated_out, a.out, gate, size_t(a.B) * a.T * a.NH, a.HS);
    }
    template <class Device, class X, class P>
    void attend_backward(Device device, const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g,
                         const BackwardScratch<X, Device>& scratch) const {
        if (!a.documents || !a.list) return attention_backward(device, policy, a, g);   // without lists it is dense, and one call
        scratch.of_documents.backward(device, policy, a, g, {block, block, a.T, a.documents});
    }
};
