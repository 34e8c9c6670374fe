// Attention over chosen blocks (block_sparse.cuh) in rows of packed documents. Blocks begin with each document, but the kernel's tiles
// begin with the row. Two calls make one softmax:
//     own blocks    all tokens in text order; the kernel itself counts positions from a document's first token
//     past blocks   rows of queries and keys by blocks (document_blocks.h), which begin with tiles; tokens of a document's first block
//                   have none
// The CPU's kernel reads rows in place and resumes from the own blocks' result. On a GPU queries, keys and values are copied, and the
// results are merged by their log-sum-exps (algebra in merge.cuh):
//     lse = log(exp(lse_own) + exp(lse_past))     out = exp(lse_own - lse) out_own + exp(lse_past - lse) out_past
// The backward pass takes the lse and out of the whole softmax.
#pragma once
#include "attention/blocks/document_blocks.h"
#include "attention/blocks/forced_blocks.h"
#include "attention/branches/results.cuh"
#include "attention/kernel/layer.h"
#include "attention/scores/each_element.cuh"

/// Keys up to the query in its own block.
struct OwnBlock : ForcedBlocks {
    OwnBlock(const Policy& p, int block_) : ForcedBlocks(p, block_, 0, 1) {}
    static constexpr Traits traits{.gates_output = true, .gates_pairs = true};   // by the head gate if any; by 1
};

/// The policy of rows that visit whole past blocks only. P is the text's policy.
template <class P>
struct PastBlock : P {
    explicit PastBlock(const P& text) : P(text) {}
    constexpr Tile tile(int /*h*/, int /*i0*/, int /*i1*/, int /*j0*/, int /*j1*/) const { return Tile::full; }
    constexpr bool visible(int /*h*/, int /*i*/, int /*j*/) const { return true; }
};

/// The passes over past blocks, with their memory: they extend the softmax of the own blocks, and add to dq, dk and dv. The `a` of a pass
/// is the text's call, but lists, biases and maxima of tiles are by rows of blocks.
template <class Device, class X>
class PastBlocks;

template <class X>
class PastBlocks<CPU, X> {
public:
    PastBlocks(CPU, BumpAllocator&, const LayerShape&, const Policy&) {}

    template <class P>
    void forward(CPU, const P& policy, const AttentionForward<X>& a, const DocumentBlocks& blocks) const {
        attention_rows_forward(policy, a, BlockQueries(blocks), BlockKeys(blocks), Write::add);
    }
    template <class P>
    void backward(CPU, const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g, const DocumentBlocks& blocks) const {
        attention_rows_backward(policy, a, g, BlockQueries(blocks), BlockKeys(blocks), Write::add);
    }
};

#ifdef WITH_GPU

/// Results over rows of queries by blocks, and the text's results, into which they are merged.
template <class X>
struct RowMerge {
    using W = Wide<X>;
    RowShape s;         // heads = NH
    Branch<X, BlockQueries> rows;
    X* out;             // (B, T, NH, HS)
    W* lse;             // (B, NH, T)
    Statistics<X> to;   // entropy, pairs, tiles and gates on pairs, or null

    constexpr W merged_lse(size_t at, size_t row) const {
        const W largest = std::max(lse[at], rows.lse[row]);
        if (largest == W(-INFINITY)) return largest;
        return largest + std::log(merge_weight(lse[at], largest) + merge_weight(rows.lse[row], largest));
    }

    /// Writes log-sum-exp and statistics, after out has been merged. The entropy is that of choosing a part and then one of its keys.
    constexpr void finish(size_t at, size_t row, W total) const {
        auto part = [&](W entropy, W own) {
            return own == W(-INFINITY) ? W(0) : merge_weight(own, total) * (entropy + total - own);
        };
        if (to.entropy) to.entropy[at] = part(to.entropy[at], lse[at]) + part(rows.statistics.entropy[row], rows.lse[row]);
        if (to.pairs) to.pairs[at] += rows.statistics.pairs[row];
        if (rows.statistics.pair_gate) to.pair_gate[at] += rows.statistics.pair_gate[row];
        lse[at] = total;
    }
};

/// One block per token, one warp per head at a time: all lanes read the log-sum-exps before the first writes the merged one.
template <class X>
__global__ void merge_rows_kernel(const __grid_constant__ RowMerge<X> m) {
    const int t = blockIdx.x, b = blockIdx.y, lane = int(threadIdx.x) % WARP;
    for (int h = int(threadIdx.x) / WARP; h < m.s.NH; h += int(blockDim.x) / WARP) {
        const size_t bh = size_t(b) * m.s.NH + h, at = bh * m.s.T + t;
        if (m.to.tiles && t % TILE == 0 && lane == 0)
            m.to.tiles[bh * tiles_of(m.s.T) + t / TILE] +=
                attributed_tiles(m.rows.statistics.tiles, bh, m.rows.rows.count, m.s.T, t / TILE);
        const int r = m.rows.rows.row(b, h, t);
        if (r < 0) continue;
        const size_t row = bh * m.rows.rows.count + r;
        const float total = m.merged_lse(at, row), kept = merge_weight(m.lse[at], total), added = merge_weight(m.rows.lse[row], total);
        X* const to = m.out + ((size_t(b) * m.s.T + t) * m.s.NH + h) * m.s.HS;
        const X* const more = row_at(m.rows.out, m.rows.rows, m.s, b, r, h);
        for (int d = lane; d < m.s.HS; d += WARP) to[d] = from_float<X>(kept * to_float(to[d]) + added * to_float(more[d]));
        __syncwarp();
        if (lane == 0) m.finish(at, row, total);
    }
}

/// to (B, T, NH) = from (B, T, NH) in the order of the rows, 0 for padding.
struct GatherGates {
    float* to;
    const float* from;
    BlockQueries rows;
    int NH;
    constexpr void operator()(unsigned row, int h) const {
        const int b = int(row) / rows.count, token = rows.token(b, h, int(row) % rows.count);
        to[size_t(row) * NH + h] = token < 0 ? 0 : from[(size_t(b) * rows.T + token) * NH + h];
    }
};

template <class X>
class PastBlocks<GPU, X> {
public:
    /// For policies that gate pairs only if P does.
    template <class P>
    PastBlocks(GPU, BumpAllocator& allocator, const LayerShape& s, const P&) : results_(allocator, s, s.T) {
        const size_t rows = size_t(s.B) * s.T * s.NH * s.HS, keys = size_t(s.B) * s.T * s.NKV * s.HS;
        if (P::traits.gates_pairs) results_.statistics.pair_gate = allocator.take<float>(rows / s.HS);
        q_ = allocator.take<X>(rows), dout_ = allocator.take<X>(rows);
        gate_ = allocator.take<float>(rows / s.HS);
        dq_ = allocator.take<float>(rows), dk_ = allocator.take<float>(keys), dv_ = allocator.take<X>(keys);
        k_ = allocator.take<X>(keys), v_ = allocator.take<X>(keys);
    }

    template <class P>
    void forward(GPU device, const P& policy, const AttentionForward<X>& a, const DocumentBlocks& blocks) const {
        AttentionForward<X> mine = gathered(device, a, blocks);
        mine.statistics = results_.statistics_for(a.statistics);
        mine.statistics.tile_max = a.statistics.tile_max;
        if (P::traits.gates_pairs && a.statistics.pair_gate) mine.statistics.pair_gate = results_.statistics.pair_gate;
        attention_forward(device, policy, mine);
        const Branch<X, BlockQueries> found{BlockQueries(blocks), mine.out, mine.lse, mine.statistics};
        launch(device, merge_rows_kernel<X>, Grid(a.T, a.B), 4 * WARP, 0, RowMerge<X>{of_queries(a), found, a.out, a.lse, a.statistics});
    }

    template <class P>
    void backward(GPU device, const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g,
                  const DocumentBlocks& blocks) const {
        const BlockQueries rows(blocks);
        const BlockKeys keys(blocks);
        const size_t q_row = size_t(a.NH) * a.HS, k_row = size_t(a.NKV) * a.HS;
        AttentionForward<X> mine = gathered(device, a, blocks);
        gather_rows(device, mine.out, Heads<const X>{a.out, q_row}, rows, of_queries(a));
        gather_rows(device, dout_, Heads<const X>{g.dout, q_row}, rows, of_queries(a));
        gather_scalars(device, mine.lse, static_cast<const float*>(a.lse), rows, a.B, a.T, a.NH, float(-INFINITY));
        if (a.gate) each_element(device, size_t(a.B) * a.T, a.NH, GatherGates{gate_, a.gate, rows, a.NH});
        mine.gate = a.gate ? gate_ : nullptr;
        AttentionBackward<X> to{};
        to.dout = dout_, to.dtile = g.dtile, to.workspace = g.workspace;
        to.dq = {dq_, q_row}, to.dk = {dk_, k_row}, to.dv = {dv_, k_row};
        attention_backward(device, policy, mine, to);
        scatter_add_rows(device, g.dq, static_cast<const float*>(dq_), rows, of_queries(a), Write::add);
        scatter_add_rows(device, g.dk, static_cast<const float*>(dk_), keys, of_keys(a), Write::add);
        scatter_add_rows(device, g.dv, static_cast<const X*>(dv_), keys, of_keys(a), Write::add);
    }

private:
    static RowShape of_queries(const AttentionForward<X>& a) { return {a.B, a.T, a.NH, a.NH, a.HS}; }
    static RowShape of_keys(const AttentionForward<X>& a) { return {a.B, a.S, a.NKV, a.NKV, a.HS}; }

    /// The arguments of a call with q, k and v in the order of their rows.
    AttentionForward<X> gathered(GPU device, AttentionForward<X> a, const DocumentBlocks& blocks) const {
        const BlockKeys keys(blocks);
        gather_rows(device, q_, a.q, BlockQueries(blocks), of_queries(a));
        gather_rows(device, k_, a.k, keys, of_keys(a)), gather_rows(device, v_, a.v, keys, of_keys(a));
        a.q = {q_, size_t(a.NH) * a.HS}, a.k = {k_, size_t(a.NKV) * a.HS}, a.v = {v_, size_t(a.NKV) * a.HS};
        a.out = results_.out, a.lse = results_.lse, a.gate = nullptr, a.gated_out = nullptr, a.statistics = {};
        return a;
    }

    BranchResults<X> results_;
    X *q_, *dout_;   // (B, T, NH, HS)
    X *k_, *v_;      // (B, T, NKV, HS)
    float* gate_;    // (B, T, NH)
    float *dq_, *dk_;
    X* dv_;
};

#endif

/// Both calls, with their memory.
template <class Device, class X>
class BlocksOfDocuments {
public:
    /// For policies that gate pairs only if P does.
    template <class P>
    BlocksOfDocuments(Device device, BumpAllocator& allocator, const LayerShape& s, const P& policy)
        : past_(device, allocator, s, policy) {}

    /// `a` has no output gate.
    template <class P>
    void forward(Device device, const P& policy, const AttentionForward<X>& a, const DocumentBlocks& blocks) const {
        AttentionForward<X> own = of_own(a);
        if (!P::traits.gates_pairs) own.statistics.pair_gate = nullptr;
        attention_forward(device, OwnBlock(policy, blocks.length), own);
        past_.forward(device, PastBlock(policy), of_past(a), blocks);
    }
    template <class P>
    void backward(Device device, const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g,
                  const DocumentBlocks& blocks) const {
        attention_backward(device, OwnBlock(policy, blocks.length), of_own(a), g);
        past_.backward(device, PastBlock(policy), of_past(a), g, blocks);
    }

private:
    static AttentionForward<X> of_own(AttentionForward<X> a) {
        a.list = {}, a.tile = nullptr, a.statistics.tile_max = nullptr;
        return a;
    }
    static AttentionForward<X> of_past(AttentionForward<X> a) {
        a.documents = {};
        return a;
    }
    PastBlocks<Device, X> past_;
};
