// Attention over chosen blocks of keys, with the scores of the block gate: the common part of adaptive_sparse and seer, with
// passes of its own (own_passes):
//     mask          scores (block_gate.cuh)  ->  blocks that each block of queries visits (select.cuh)  ->  lists of tiles
//     score         the bias of each tile, log sigmoid(score), is added to its pairs' scores
//     output gate   per head and token
// and optionally a second, dense call whose pooled map the gate learns from (distil.cuh).
#pragma once
#include "attention/blocks/distil.cuh"
#include "attention/gates/head_gate.cuh"
#include "attention/kernel/layer.h"
#include "attention/masks/distil_mode.h"
#include "attention/masks/select.cuh"

/// How the scores are used.
enum class BlockMask {
    soft,       // every past block is visited, log sigmoid(score) is added
    hard,       // the chosen ones are visited; the language model's loss has no gradient for the gate
    soft_hard,  // the chosen ones are visited, and log sigmoid(score) is added
};

/// For the kernel: causal attention with z = a + the tile's bias.
struct BiasedTiles : Policy {
    explicit BiasedTiles(const Policy& p) : Policy(p) {}
    bool gates_output() const { return true; }   // where there is a head gate
    constexpr Features features() const { return {0, 0, 0, true}; }
    template <class N>
    constexpr N score(N a, const Pair<N>& pair) const {
        return a + pair.tile();
    }
    static constexpr bool gates_pairs = true;   // 1 in blocks without a gate
    template <class N>
    constexpr N pair_gate(const Pair<N>& pair) const {
        return broadcast<N>(exp_of(pair.tile()));
    }
    template <class N, class Loss>
    constexpr N score_backward(N a, const Pair<N>& pair, PairGradients<N>& to, Loss dz_of) const {
        const N dz = dz_of(score(a, pair));
        to.tile(dz);
        return dz;
    }
};

/// For the kernel: plain causal attention, with an output gate.
struct PlainTiles : Policy {
    explicit PlainTiles(const Policy& p) : Policy(p) {}
    bool gates_output() const { return true; }
};

/// From blocks to tiles, for query tile `tile` of a head: block c of the choice has m = block / TILE tiles.
struct BlockTiles {
    GateShape s;
    int dense;   // the first heads, without a gate
    constexpr int tiles() const { return tiles_of(s.T); }
    constexpr int of_block() const { return s.block / TILE; }
    constexpr size_t row(int b, int h, int tile) const { return (size_t(b) * s.NH + h) * tiles() + tile; }
    constexpr bool gated(int h, int r, int c) const { return h >= dense && c < r; }

    /// The bias of a query tile and key tile.
    template <class W>
    constexpr W bias(const W* scores, int b, int h, int q_tile, int k_tile) const {
        const int r = q_tile / of_block(), c = k_tile / of_block();
        return gated(h, r, c) ? -softplus(-scores[s.of_query(b, h, r) * s.blocks() + c]) : W(0);
    }

    /// Entry n of the list of a query tile whose block visits `blocks` (count of them, ascending, its own last).
    constexpr int listed(const int* blocks, int n) const { return blocks[n / of_block()] * of_block() + n % of_block(); }
    constexpr int count(int blocks, int q_tile) const { return (blocks - 1) * of_block() + q_tile % of_block() + 1; }

    /// dL/dscore of (r, c) from the gradients of its tiles' biases, whose derivative is sigmoid(-score).
    template <class W>
    constexpr W dscore(const W* dbiases, const W* scores, int b, int h, int r, int c) const {
        if (!gated(h, r, c)) return 0;
        W sum = 0;
        for (int q = r * of_block(); q < (r + 1) * of_block() && q < tiles(); q++)
            for (int k = c * of_block(); k < (c + 1) * of_block(); k++) sum += dbiases[row(b, h, q) * tiles() + k];
        return sum * sigmoid(-scores[s.of_query(b, h, r) * s.blocks() + c]);
    }
};

/// count (B, NH, tiles) and list (B, NH, tiles, tiles) from the chosen blocks; biases (B, NH, tiles, tiles) from the
/// scores. list or biases may be null.
template <class X>
void spread_blocks(CPU, int* count, int* list, X* biases, const int* block_count, const int* blocks, const X* scores,
                   const BlockTiles& t) {
    const int tiles = t.tiles(), N = t.s.blocks();
#pragma omp parallel for collapse(3)
    for (int b = 0; b < t.s.B; b++)
        for (int h = 0; h < t.s.NH; h++)
            for (int q = 0; q < tiles; q++) {
                const size_t row = t.row(b, h, q), chosen = t.s.of_query(b, h, q / t.of_block());
                if (list) count[row] = t.count(block_count[chosen], q);
                for (int n = 0; list && n < count[row]; n++) list[row * tiles + n] = t.listed(blocks + chosen * N, n);
                for (int k = 0; biases && k < tiles; k++) biases[row * tiles + k] = t.bias(scores, b, h, q, k);
            }
}

/// dscores (B, NH, N, N) = the gradient by way of the tiles' biases plus dloss times that of distillation; either may be null.
template <class X>
void gather_dscores(CPU, X* dscores, const X* dbiases, const X* scores, const X* distilled, X dloss, const BlockTiles& t) {
    const int N = t.s.blocks();
#pragma omp parallel for collapse(3)
    for (int b = 0; b < t.s.B; b++)
        for (int h = 0; h < t.s.NH; h++)
            for (int r = 0; r < N; r++)
                for (int c = 0; c < N; c++) {
                    const size_t at = t.s.of_query(b, h, r) * N + c;
                    dscores[at] = dbiases ? t.dscore(dbiases, scores, b, h, r, c) : X(0);
                    if (distilled) dscores[at] += dloss * distilled[at];
                }
}

#ifdef WITH_GPU

/// Block (query tile, h, b).
template <class W>
__global__ void spread_blocks_kernel(int* count, int* list, W* biases, const int* block_count, const int* blocks, const W* scores,
                                     const BlockTiles t) {
    const int q = blockIdx.x, h = blockIdx.y, b = blockIdx.z, tiles = t.tiles();
    const size_t row = t.row(b, h, q), chosen = t.s.of_query(b, h, q / t.of_block());
    const int places = list ? t.count(block_count[chosen], q) : 0;
    if (list && threadIdx.x == 0) count[row] = places;
    for (int n = threadIdx.x; n < places; n += blockDim.x) list[row * tiles + n] = t.listed(blocks + chosen * t.s.blocks(), n);
    for (int k = threadIdx.x; biases && k < tiles; k += blockDim.x) biases[row * tiles + k] = t.bias(scores, b, h, q, k);
}
inline void spread_blocks(GPU device, int* count, int* list, float* biases, const int* block_count, const int* blocks,
                          const float* scores, const BlockTiles& t) {
    const Grid grid(t.tiles(), t.s.NH, t.s.B);
    launch(device, spread_blocks_kernel<float>, grid, 64, 0, count, list, biases, block_count, blocks, scores, t);
}

/// Block (r, h, b).
template <class W>
__global__ void gather_dscores_kernel(W* dscores, const W* dbiases, const W* scores, const W* distilled, W dloss,
                                      const BlockTiles t) {
    const int r = blockIdx.x, h = blockIdx.y, b = blockIdx.z, N = t.s.blocks();
    for (int c = threadIdx.x; c < N; c += blockDim.x) {
        const size_t at = t.s.of_query(b, h, r) * N + c;
        const W of_biases = dbiases ? t.dscore(dbiases, scores, b, h, r, c) : 0;
        dscores[at] = of_biases + (distilled ? dloss * distilled[at] : 0);
    }
}
inline void gather_dscores(GPU device, float* dscores, const float* dbiases, const float* scores, const float* distilled,
                           float dloss, const BlockTiles& t) {
    const Grid grid(t.s.blocks(), t.s.NH, t.s.B);
    launch(device, gather_dscores_kernel<float>, grid, 64, 0, dscores, dbiases, scores, distilled, dloss, t);
}

#endif

/// Base of the variants, which fill the options from their settings and declare the tensors.
struct BlockSparse : Policy {
    static constexpr bool own_passes = true, reads_qk_pre = true, has_auxiliary_loss = true;
    static constexpr bool tokens_choose =
        true;   // blocks by score, the tokens of a block's extremes, heads by a threshold
    int NH, NKV, HS;
    int block = TILE;
    GateQuery query = GateQuery::first;
    BlockMask mask = BlockMask::soft_hard;
    TileChoice choice;             // among blocks
    Distil distil_mode = Distil::nobody;
    float distil_weight = 1, distil_skip = 0;   // lambda; the fraction of rows skipped at the start
    float head_threshold = -1;     // below 0: no head gate
    bool straight_through = false;
    Slot wq, wk;                   // (NH, HS, HS), (NKV, HS, 3 HS)
    Slot head_weight, head_bias;   // (NH, 2 HS), (NH)

    BlockSparse(const Config& config, int layer) : Policy(config, layer), NH(config.NH), NKV(config.NKV), HS(config.HS) {}

    bool gates_output() const { return head_threshold >= 0 && distil_mode != Distil::alone; }

    bool has_exact_gradients() const { return !(gates_output() && straight_through); }
    bool has_teacher() const { return distils(); }

    bool trains(const std::string& tensor) const {
        return distil_mode != Distil::alone || tensor.find(".w_g") != std::string::npos;
    }

    bool chooses() const { return distil_mode != Distil::alone && mask != BlockMask::soft; }
    bool expects_at_most() const { return chooses() && choice.threshold >= 0; }

    /// With `own` and `oracle`, a row's blocks are chosen by later queries too.
    bool needs_known_text() const { return query >= GateQuery::own && chooses() && (choice.threshold >= 0 || choice.top > 0); }
    bool is_causal() const { return !needs_known_text(); }
    bool keeps_documents_apart() const { return false; }   // pooled blocks lie across their borders

    /// With top_k, exact. What a threshold keeps depends on the data; it counts as dense, an upper bound.
    PairCount expected_pairs(int heads, int T) const {
        const bool sparse = chooses() && choice.threshold < 0;
        const GateShape s{1, T, heads, NKV, HS, block, query};
        PairCount count;
        for (int h = 0; h < heads; h++)
            for (int r = 0; r < s.blocks(); r++) {
                const double rows = s.tokens(r), tiles = tiles_of(s.tokens(r));
                const int forced = std::min(choice.leading, r);
                const int past = sparse && h >= dense() ? forced + std::min(choice.top, r - forced) : r;
                count.pairs += rows * past * block + rows * (rows + 1) / 2;
                count.tiles += tiles * past * (block / TILE) + tiles * (tiles + 1) / 2;
            }
        return count;
    }

    /// The dense pass that teaches the gate while attention is sparse, or takes its place.
    double further_pairs(int heads, int T) const {
        return distil_mode == Distil::jointly || query == GateQuery::oracle ? heads * (double(T) * (T + 1) / 2) : 0;
    }

    /// Besides keys and values: a gate key for every past block, half of such a pair, and the pooled keys of the current block
    /// (mean, maximum and minimum). The mean of its queries, which GateQuery::previous needs, is not counted.
    double cached_keys(int T) const { return distil_mode == Distil::alone ? T : T + 0.5 * ((T - 1) / block) + 1.5; }

    template <class X>
    size_t kept_bytes(const LayerShape& shape) const {
        return Kept<Wide<X>>(*this, nullptr, shape).bytes;
    }
    template <class X, class Device>
    size_t workspace_bytes(Device device, const LayerShape& shape) const {
        return std::max(ForwardScratch<X>(*this, nullptr, shape).bytes,
                        BackwardScratch<Wide<X>>(device, *this, nullptr, shape).bytes);
    }

    template <class Device, class X>
    void forward(Device device, const LayerInputs<X>& in, const X* weights, LayerState<X>& state, std::byte* workspace,
                 const Statistics<X>& statistics) const {
        const GateShape s = gate_shape(in);
        const Kept<Wide<X>> kept(*this, state.kept, in);
        const ForwardScratch<X> scratch(*this, workspace, in);
        gate_scores(device, kept.gate, in, weights + wq.offset, weights + wk.offset, s);
        if (query == GateQuery::oracle)
            scores_of_map(device, kept.gate.scores, dense_map(device, in, state, scratch, Statistics<X>{}), s);
        if (distils()) learn_from_dense(device, in, state, kept, scratch, statistics);
        else if (state.score_inputs.auxiliary)
            sum_divergences(device, state.score_inputs.auxiliary, scratch.divergences, in.B * in.NH, 0);
        if (distil_mode == Distil::alone) return;   // the layer's output is the dense call's

        if (gates_output()) head_gate_forward(device, state.score_inputs.gate, in, weights, head_gate_options());
        if (kept.list)
            choose_tiles(device, scratch.block_count, scratch.blocks, kept.gate.scores, {s.B, s.NH, s.NH, s.blocks()}, choice);
        spread_blocks(device, kept.count, kept.list, kept.biases, scratch.block_count, scratch.blocks, kept.gate.scores,
                      {s, dense()});
        const AttentionForward<X> a = sparse_arguments(in, state, kept, statistics);
        if (kept.biases) attention_forward(device, BiasedTiles(*this), a);
        else attention_forward(device, PlainTiles(*this), a);
    }

    template <class Device, class X>
    void backward(Device device, const LayerInputs<X>& in, const X* weights, const LayerState<X>& state, const X* dout,
                  const QkvGradients<X>& to, ScoreInputGradients<X>& more, std::byte* workspace) const {
        using W = Wide<X>;
        const GateShape s = gate_shape(in);
        const Kept<W> kept(*this, state.kept, in);
        const BackwardScratch<W> scratch(device, *this, workspace, in);
        AttentionBackward<X> g{};
        g.dout = dout, g.dq = to.q, g.dk = to.k, g.dv = to.v;
        g.dgate = more.of.gate, g.dtile = scratch.dbiases, g.workspace = scratch.kernel;
        if (scratch.dbiases) fill(device, scratch.dbiases, tile_pairs(in), W(0));   // unvisited tiles stay 0
        const AttentionForward<X> a = sparse_arguments(in, state, kept, Statistics<X>{});
        if (kept.biases) attention_backward(device, BiasedTiles(*this), a, g);
        else attention_backward(device, PlainTiles(*this), a, g);

        gather_dscores(device, scratch.dscores, scratch.dbiases, kept.gate.scores, kept.distilled, more.dloss, {s, dense()});
        gate_scores_backward(device, scratch.gate, more.dq_pre, more.dk_pre, more.dweights + wq.offset, more.dweights + wk.offset,
                             scratch.dscores, kept.gate, in, weights + wq.offset, weights + wk.offset, s);
        if (gates_output())
            head_gate_backward(device, more.dweights, more.dq_pre, more.dk_pre, more.of.gate, in, weights, head_gate_options(),
                               scratch.heads);
    }

protected:
    static constexpr int LARGEST_BLOCK = 4096;   // tokens
    static float threshold(double setting) { return setting > 0 ? float(setting) : -1; }   // 0: off

    int dense() const { return choice.dense_heads; }
    bool distils() const { return distil_mode != Distil::nobody; }
    GateShape gate_shape(const LayerShape& s) const { return {s.B, s.T, NH, NKV, HS, block, query}; }
    HeadGate head_gate_options() const { return {head_weight.offset, head_bias.offset, head_threshold, straight_through, dense()}; }

private:
    static size_t tile_pairs(const LayerShape& s) { return size_t(s.B) * s.NH * tiles_of(s.T) * tiles_of(s.T); }
    size_t block_pairs(const LayerShape& s) const {
        return size_t(s.B) * s.NH * gate_shape(s).blocks() * gate_shape(s).blocks();
    }

    /// Kept from the forward to the backward pass. Null where the options do not need it.
    template <class W>
    struct Kept {
        size_t bytes;
        BumpAllocator allocator;
        GateMemory<W> gate;
        W* distilled = nullptr;                 // (B, NH, N, N) gradient of the distillation loss by the scores
        W* biases = nullptr;                    // (B, NH, tiles, tiles) log sigmoid(score)
        int *count = nullptr, *list = nullptr;  // (B, NH, tiles), (B, NH, tiles, tiles)

        Kept(const BlockSparse& p, std::byte* memory, const LayerShape& s) : allocator(memory), gate(allocator, p.gate_shape(s)) {
            if (p.distils()) distilled = allocator.take<W>(p.block_pairs(s));
            const bool sparse = p.distil_mode != Distil::alone;
            if (sparse && p.mask != BlockMask::hard) biases = allocator.take<W>(tile_pairs(s));
            if (sparse && p.mask != BlockMask::soft)
                count = allocator.take<int>(size_t(s.B) * s.NH * tiles_of(s.T)), list = allocator.take<int>(tile_pairs(s));
            bytes = allocator.bytes();
        }
    };

    template <class X>
    struct ForwardScratch {
        size_t bytes;
        int *block_count, *blocks;         // (B, NH, N), (B, NH, N, N)
        Wide<X>*tile_max, *divergences;    // (B, NH, T, tiles), (B, NH, N)
        X* out;                            // (B, T, NH, HS), the teacher's where it is not the layer's output
        Wide<X>* lse;                      // (B, NH, T)

        ForwardScratch(const BlockSparse& p, std::byte* memory, const LayerShape& s) {
            BumpAllocator allocator(memory);
            const bool oracle = p.query == GateQuery::oracle, second = p.distil_mode == Distil::jointly || oracle;
            const size_t rows = size_t(s.B) * s.NH * s.T, d = p.distils() || oracle;
            block_count = allocator.take<int>(size_t(s.B) * s.NH * p.gate_shape(s).blocks());
            blocks = allocator.take<int>(p.block_pairs(s));
            tile_max = allocator.take<Wide<X>>(d * rows * tiles_of(s.T));
            divergences = allocator.take<Wide<X>>(d * rows);
            out = allocator.take<X>(second * rows * s.HS), lse = allocator.take<Wide<X>>(second * rows);
            bytes = allocator.bytes();
        }
    };

    template <class W>
    struct BackwardScratch {
        size_t bytes;
        W* dbiases = nullptr;   // (B, NH, tiles, tiles)
        W* dscores;              // (B, NH, N, N)
        std::byte *kernel, *heads;
        BumpAllocator allocator;
        GateGradients<W> gate;

        template <class Device>
        BackwardScratch(Device device, const BlockSparse& p, std::byte* memory, const LayerShape& s)
            : allocator(memory), gate(allocator, p.gate_shape(s)) {
            if (p.distil_mode != Distil::alone && p.mask != BlockMask::hard) dbiases = allocator.take<W>(tile_pairs(s));
            dscores = allocator.take<W>(p.block_pairs(s));
            kernel = allocator.take<std::byte>(attention_workspace(device, BiasedTiles(p), s.B, s.T, s.T, s.NH));
            heads = allocator.take<std::byte>(p.gates_output() ? head_gate_workspace(device, s) : 0);
            bytes = allocator.bytes();
        }
    };

    template <class X>
    AttentionForward<X> sparse_arguments(const LayerInputs<X>& in, const LayerState<X>& state, const Kept<Wide<X>>& kept,
                                         const Statistics<X>& statistics) const {
        AttentionForward<X> a = kernel_arguments(in, state, statistics);
        a.tile = kept.biases;
        a.list = {kept.count, kept.list, tiles_of(in.T)};
        return a;
    }

    /// The map of a dense call, which is the layer's output while the gate alone is distilled; `statistics` are then of that call.
    template <class Device, class X>
    DenseMap<Wide<X>> dense_map(Device device, const LayerInputs<X>& in, LayerState<X>& state, const ForwardScratch<X>& scratch,
                                const Statistics<X>& statistics) const {
        const bool is_output = distil_mode == Distil::alone;
        AttentionForward<X> a = kernel_arguments(in, state, is_output ? statistics : Statistics<X>{});
        a.gate = nullptr, a.gated_out = nullptr;
        if (!is_output) a.out = scratch.out, a.lse = scratch.lse;
        if (!a.statistics.tile_max) a.statistics.tile_max = scratch.tile_max;
        attention_forward(device, PlainTiles(*this), a);
        return {a.statistics.tile_max, a.lse};
    }

    /// The dense call and the distillation from it: fills kept.distilled and state.score_inputs.auxiliary.
    template <class Device, class X>
    void learn_from_dense(Device device, const LayerInputs<X>& in, LayerState<X>& state, const Kept<Wide<X>>& kept,
                          const ForwardScratch<X>& scratch, const Statistics<X>& statistics) const {
        const GateShape s = gate_shape(in);
        const DenseMap<Wide<X>> map = dense_map(device, in, state, scratch, statistics);
        const int skipped = int(distil_skip * float(s.blocks()));
        distil(device, kept.distilled, scratch.divergences, kept.gate.scores, map, s,
               Distillation{distil_weight, dense(), std::max(1, skipped)});
        if (state.score_inputs.auxiliary)
            sum_divergences(device, state.score_inputs.auxiliary, scratch.divergences, s.B * s.NH, s.blocks());
    }
};
