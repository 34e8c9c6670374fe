// Attention over selected blocks of keys, with the scores of the block gate: the common part of adaptive_sparse and seer, in passes
// of its own:
//     mask          scores (block_gate.cuh)  ->  blocks that each block of queries visits (select.cuh)  ->  lists of tiles
//     score         the bias of each tile, log sigmoid(score), is added to its pairs' scores
//     output gate   per head and token
// and optionally a second, dense call whose pooled map trains the gate (distil.cuh). In rows of packed documents (varlen) each of these
// calls is split in two (block_documents.cuh).
#pragma once
#include "attention/blocks/dense_map.cuh"
#include "attention/gates/head_gate.cuh"
#include "attention/gates/row_gate.cuh"
#include "attention/kernel/layer.h"
#include "attention/masks/gate_training.h"
#include "attention/masks/select.cuh"

/// Use of the scores.
enum class BlockMask {
    soft,       // every past block is visited, log sigmoid(score) is added
    hard,       // the chosen ones are visited; the language model's loss has no gradient for the gate
    soft_hard,  // the chosen ones are visited, and log sigmoid(score) is added
};

/// Base of the variants, which fill the options from their settings and declare the tensors.
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

    BlockSparse(const Config& config, int layer) : Policy(config, layer), NH(config.NH), NKV(config.NKV), HS(config.HS) {}

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
        const bool sparse = chooses() && choice.threshold < 0;
        const GateShape s{1, T, heads, NKV, HS, block, query};
        PairCount count;
        for (int h = 0; h < heads; h++)
            for (int r = 0; r < s.blocks(); r++) {
                const double rows = s.tokens(0, r), tiles = tiles_of(s.tokens(0, r));
                const int forced = std::min(choice.leading, r);
                const int past = sparse && h >= dense() ? forced + std::min(choice.top, r - forced) : r;
                count.pairs += rows * past * block + rows * (rows + 1) / 2;
                count.tiles += tiles * past * (block / TILE) + tiles * (tiles + 1) / 2;
            }
        return count;
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
    GateShape gate_shape(const LayerShape& s) const { return {s.B, s.T, NH, NKV, HS, block, query}; }
    template <class X>
    GateShape gate_shape(const LayerInputs<X>& in) const {
        return {in.B, in.T, NH, NKV, HS, block, query, in.documents};
    }
    HeadGate head_gate_options() const { return {head_weight.offset, head_bias.offset, head_threshold, straight_through, dense()}; }

    template <class X>
    size_t kept_bytes(const LayerShape& shape) const {
        return Kept<Wide<X>>(*this, nullptr, shape).bytes;
    }
    template <class X, class Device>
    size_t workspace_bytes(Device device, const LayerShape& shape) const {
        return std::max(ForwardScratch<X, Device>(device, *this, nullptr, shape).bytes,
                        BackwardScratch<X, Device>(device, *this, nullptr, shape).bytes);
    }

    template <class Device, class X>
    void forward(Device device, const LayerInputs<X>& in, const X* weights, LayerState<X>& state, std::byte* workspace,
                 const Statistics<X>& statistics) const {
        const GateShape s = gate_shape(in);
        const Kept<Wide<X>> kept(*this, state.kept, in);
        const ForwardScratch<X, Device> scratch(device, *this, workspace, in);
        gate_scores(device, kept.gate, in, weights + wq.offset, weights + wk.offset, s);
        if (query == GateQuery::oracle)
            scores_of_map(device, kept.gate.scores, dense_map(device, in, state, kept, scratch, Statistics<X>{}), s);
        if (distils()) distil_from_dense(device, in, state, kept, scratch, statistics);
        else if (state.score_inputs.auxiliary)
            sum_divergences(device, state.score_inputs.auxiliary, scratch.divergences, in.B * in.NH, 0);
        if (gate_training == GateTraining::gate_only) return;   // the layer's output is the dense call's

        if (gates_heads()) head_gate_forward(device, state.score_inputs.gate, in, weights, head_gate_options());
        if (lists(in))
            list_tiles(device, block_lists(kept, scratch), kept.biases, static_cast<const Wide<X>*>(kept.gate.scores), NH,
                       mask == BlockMask::soft ? TileChoice{.dense_heads = NH} : choice, {s, dense()});
        else spread_blocks(device, nullptr, nullptr, kept.biases, nullptr, nullptr, kept.gate.scores, {s, dense()});
        const AttentionForward<X> a = sparse_arguments(in, state, kept, statistics);
        if (kept.biases) attend(device, BiasedTiles(*this), a, scratch);
        else attend(device, PlainTiles(*this), a, scratch);
    }

    template <class Device, class X>
    void backward(Device device, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state, const X* dout,
                  const QkvGradients<X>& to, ScoreInputGradients<X>& more, std::byte* workspace) const {
        using W = Wide<X>;
        const GateShape s = gate_shape(in);
        const Kept<W> kept(*this, state.kept, in);
        const BackwardScratch<X, Device> scratch(device, *this, workspace, in);
        AttentionBackward<X> g{};
        g.dout = dout, g.dq = to.q, g.dk = to.k, g.dv = to.v;
        g.dgate = more.of.gate, g.dtile = scratch.dbiases, g.workspace = scratch.kernel;
        if (scratch.dbiases) fill(device, scratch.dbiases, tile_pairs(in), W(0));   // unvisited tiles stay 0
        const AttentionForward<X> a = sparse_arguments(in, state, kept, Statistics<X>{});
        if (kept.biases) attend_backward(device, BiasedTiles(*this), a, g, scratch);
        else attend_backward(device, PlainTiles(*this), a, g, scratch);

        gather_dscores(device, scratch.dscores, scratch.dbiases, kept.gate.scores, kept.distilled, more.dloss, {s, dense()});
        gate_scores_backward(device, scratch.gate, more.dq_pre, more.dk_pre, more.dweights + wq.offset, more.dweights + wk.offset,
                             scratch.dscores, kept.gate, in, weights + wq.offset, weights + wk.offset, s);
        if (gates_heads())
            head_gate_backward(device, more.dweights, more.dq_pre, more.dk_pre, more.of.gate, in, weights, head_gate_options(),
                               scratch.heads);
    }

protected:
    static constexpr int LARGEST_BLOCK = 4096;   // tokens
    static float threshold(double setting) { return setting > 0 ? float(setting) : -1; }   // 0: off

private:
    static size_t tile_pairs(const LayerShape& s) { return size_t(s.B) * s.NH * tiles_of(s.T) * tiles_of(s.T); }
    size_t block_pairs(const LayerShape& s) const {
        return size_t(s.B) * s.NH * gate_shape(s).blocks() * gate_shape(s).blocks();
    }

    /// Whether the sparse call has lists of tiles. With documents it is two calls, the second over past blocks of the document alone.
    template <class X>
    bool lists(const LayerInputs<X>& in) const {
        return chooses() || (in.documents && gate_training != GateTraining::gate_only);
    }

    /// Kept from the forward to the backward pass. Null where the options do not need it.
    template <class W>
    struct Kept {
        size_t bytes;
        BumpAllocator allocator;
        GateMemory<W> gate;
        W* distilled = nullptr;                 // (B, NH, N, N) gradient of the distillation loss by the scores
        W* biases = nullptr;                    // (B, NH, tiles, tiles) log sigmoid(score)
        int *count, *list;                      // (B, NH, tiles), (B, NH, tiles, tiles)

        Kept(const BlockSparse& p, std::byte* memory, const LayerShape& s) : allocator(memory), gate(allocator, p.gate_shape(s)) {
            if (p.distils()) distilled = allocator.take<W>(p.block_pairs(s));
            if (p.gate_training != GateTraining::gate_only && p.mask != BlockMask::hard) biases = allocator.take<W>(tile_pairs(s));
            count = allocator.take<int>(size_t(s.B) * s.NH * tiles_of(s.T)), list = allocator.take<int>(tile_pairs(s));
            bytes = allocator.bytes();
        }
    };

    template <class X, class Device>
    struct ForwardScratch {
        size_t bytes;
        BumpAllocator allocator;
        BlocksOfDocuments<Device, X> of_documents;
        int *block_count, *blocks;         // (B, NH, N), (B, NH, N, N)
        Wide<X>*tile_max, *divergences;    // (B, NH, T, tiles), (B, NH, N)
        X* out;                            // (B, T, NH, HS), the teacher's where it is not the layer's output
        Wide<X>* lse;                      // (B, NH, T)

        ForwardScratch(Device device, const BlockSparse& p, std::byte* memory, const LayerShape& s)
            : allocator(memory), of_documents(device, allocator, s, BiasedTiles(p)) {
            const bool oracle = p.query == GateQuery::oracle, second = p.gate_training == GateTraining::joint || oracle;
            const size_t rows = size_t(s.B) * s.NH * s.T, d = p.distils() || oracle;
            block_count = allocator.take<int>(size_t(s.B) * s.NH * p.gate_shape(s).blocks());
            blocks = allocator.take<int>(p.block_pairs(s));
            tile_max = allocator.take<Wide<X>>(d * rows * tiles_of(s.T));
            divergences = allocator.take<Wide<X>>(d * rows);
            out = allocator.take<X>(second * rows * s.HS), lse = allocator.take<Wide<X>>(second * rows);
            bytes = allocator.bytes();
        }
    };

    template <class X, class Device>
    struct BackwardScratch {
        using W = Wide<X>;
        size_t bytes;
        BumpAllocator allocator;
        BlocksOfDocuments<Device, X> of_documents;
        GateGradients<W> gate;
        W* dbiases = nullptr;   // (B, NH, tiles, tiles)
        W* dscores;              // (B, NH, N, N)
        std::byte *kernel, *heads;

        BackwardScratch(Device device, const BlockSparse& p, std::byte* memory, const LayerShape& s)
            : allocator(memory), of_documents(device, allocator, s, BiasedTiles(p)), gate(allocator, p.gate_shape(s)) {
            if (p.gate_training != GateTraining::gate_only && p.mask != BlockMask::hard) dbiases = allocator.take<W>(tile_pairs(s));
            dscores = allocator.take<W>(p.block_pairs(s));
            kernel = allocator.take<std::byte>(attention_workspace(device, BiasedTiles(p), s.B, s.T, s.T, s.NH));
            heads = allocator.take<std::byte>(p.gates_heads() ? head_gate_workspace(device, s) : 0);
            bytes = allocator.bytes();
        }
    };

    template <class Device, class X>
    static BlockLists block_lists(const Kept<Wide<X>>& kept, const ForwardScratch<X, Device>& scratch) {
        return {scratch.block_count, scratch.blocks, kept.count, kept.list};
    }

    template <class X>
    AttentionForward<X> sparse_arguments(const LayerInputs<X>& in, const LayerState<X>& state, const Kept<Wide<X>>& kept,
                                         const Statistics<X>& statistics) const {
        AttentionForward<X> a = kernel_arguments(in, state, statistics);
        a.tile = kept.biases;
        if (lists(in)) a.list = {kept.count, kept.list, tiles_of(in.T)};
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

    /// The map of a dense call. With gate_only that call's output is the layer's, and `statistics` are of it.
    template <class Device, class X>
    DenseMap<Wide<X>> dense_map(Device device, const LayerInputs<X>& in, LayerState<X>& state, const Kept<Wide<X>>& kept,
                                const ForwardScratch<X, Device>& scratch, const Statistics<X>& statistics) const {
        const bool is_output = gate_training == GateTraining::gate_only;
        AttentionForward<X> a = kernel_arguments(in, state, is_output ? statistics : Statistics<X>{});
        a.gate = nullptr, a.gated_out = nullptr;
        if (!is_output) a.out = scratch.out, a.lse = scratch.lse;
        return dense_map_of_call(device, PlainTiles(*this), a, scratch.tile_max, block_lists(kept, scratch), kept.gate.scores,
                                 gate_shape(in), scratch.of_documents);
    }

    /// The dense call and the distillation from it: fills kept.distilled and state.score_inputs.auxiliary.
    template <class Device, class X>
    void distil_from_dense(Device device, const LayerInputs<X>& in, LayerState<X>& state, const Kept<Wide<X>>& kept,
                          const ForwardScratch<X, Device>& scratch, const Statistics<X>& statistics) const {
        const GateShape s = gate_shape(in);
        const DenseMap<Wide<X>> map = dense_map(device, in, state, kept, scratch, statistics);
        distil(device, kept.distilled, scratch.divergences, kept.gate.scores,
               BlockTeacher<Wide<X>>{map, s, {distil_weight, dense(), distil_skip}});
        if (state.score_inputs.auxiliary)
            sum_divergences(device, state.score_inputs.auxiliary, scratch.divergences, s.B * s.NH, s.blocks());
    }
};
