// Calls of the kernel that extend the softmax of an earlier one: rows of queries in their own order (rows.cuh), in which a token may be
// several times or never, against keys in the order of another `Rows`. The backward pass takes the log-sum-exp and out of the whole
// softmax, as in merge.cuh, and adds to dq, dk and dv.
// The CPU's kernel reads rows in place and resumes from the present result. On a GPU queries are copied, keys and values too unless they
// are in text order, and the results are merged by their log-sum-exps (algebra in merge.cuh). With the present result (out_0, lse_0) and a
// token's rows r:
//     lse = log(exp(lse_0) + sum_r exp(lse_r))     out = exp(lse_0 - lse) out_0 + sum_r exp(lse_r - lse) out_r
#pragma once
#include "attention/branches/results.cuh"
#include "attention/kernel/layer.h"
#include "attention/scores/each_element.cuh"

/// The policy of rows that visit whole past blocks only. P is the text's policy.
template <class P>
struct ChosenBlock : P {
    explicit ChosenBlock(const P& text) : P(text) {}
    constexpr Tile tile(int /*h*/, int /*i0*/, int /*i1*/, int /*j0*/, int /*j1*/) const { return Tile::full; }
    constexpr bool visible(int /*h*/, int /*i*/, int /*j*/) const { return true; }
};

/// Arguments of such a call from the text's. Biases and maxima of tiles, if any, are by rows.
template <class X, class Rows>
AttentionForward<X> more_arguments(AttentionForward<X> a, const Rows& rows, const TileList& list) {
    a.T = rows.count, a.list = list, a.documents = {};
    return a;
}

/// The passes of such calls, with their memory; `a` is more_arguments().
template <class Device, class X>
class MoreRows;

template <class X>
class MoreRows<CPU, X> {
public:
    MoreRows(CPU, BumpAllocator&, const LayerShape&, int /*most*/, const Policy&) {}

    template <class Keys>
    void gather_keys(CPU, const AttentionForward<X>&, const Keys&) const {}

    template <class P, class Rows, class Keys>
    void forward(CPU, const P& policy, const AttentionForward<X>& a, const Rows& rows, const Keys& keys) const {
        attention_rows_forward(policy, a, rows, keys, Write::add);
    }
    template <class P, class Rows, class Keys>
    void backward(CPU, const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g, const Rows& rows,
                  const Keys& keys) const {
        attention_rows_backward(policy, a, g, rows, keys, Write::add);
    }
};

#ifdef WITH_GPU

/// Results over the rows of a pass (rows.cuh, with several rows per token), and the text's results, into which they are merged.
template <class X, class Rows>
struct RowMerge {
    using W = Wide<X>;
    RowShape s;         // heads = NH
    Branch<X, Rows> rows;
    X* out;             // (B, T, NH, HS)
    W* lse;             // (B, NH, T)
    Statistics<X> to;   // entropy, pairs, tiles and gates on pairs, or null

    constexpr size_t text(int b, int h, int t) const { return (size_t(b) * s.NH + h) * s.T + t; }
    constexpr size_t row(int b, int h, int r) const { return (size_t(b) * s.NH + h) * rows.rows.count + r; }
    template <class Use>
    constexpr void each_row(int b, int h, int t, Use use) const {
        for (int r = rows.rows.row(b, h, t); r >= 0; r = next_row(rows.rows, b, h, r)) use(r, rows.lse[row(b, h, r)]);
    }

    constexpr W merged_lse(int b, int h, int t) const {
        W largest = lse[text(b, h, t)], sum = 0;
        each_row(b, h, t, [&](int, W of_row) { largest = std::max(largest, of_row); });
        if (largest == W(-INFINITY)) return largest;
        sum = merge_weight(lse[text(b, h, t)], largest);
        each_row(b, h, t, [&](int, W of_row) { sum += merge_weight(of_row, largest); });
        return largest + std::log(sum);
    }

    /// Writes log-sum-exp and statistics, after out has been merged. The entropy is that of choosing a part and then one of its keys.
    constexpr void finish(int b, int h, int t, W total) const {
        const size_t at = text(b, h, t);
        auto part = [&](W entropy, W own) {
            return own == W(-INFINITY) ? W(0) : merge_weight(own, total) * (entropy + total - own);
        };
        if (to.entropy) to.entropy[at] = part(to.entropy[at], lse[at]);
        each_row(b, h, t, [&](int r, W of_row) {
            if (to.entropy) to.entropy[at] += part(rows.statistics.entropy[row(b, h, r)], of_row);
            if (to.pairs) to.pairs[at] += rows.statistics.pairs[row(b, h, r)];
            if (rows.statistics.pair_gate) to.pair_gate[at] += rows.statistics.pair_gate[row(b, h, r)];
        });
        const size_t bh = size_t(b) * s.NH + h;
        if (to.tiles && t % TILE == 0)
            to.tiles[bh * tiles_of(s.T) + t / TILE] += attributed_tiles(rows.statistics.tiles, bh, rows.rows.count, s.T, t / TILE);
        lse[at] = total;
    }
};

/// One block per token, one warp per head at a time: all lanes read the log-sum-exps before the first writes the merged one.
template <class X, class Rows>
__global__ void merge_rows_kernel(const __grid_constant__ RowMerge<X, Rows> m) {
    const int t = blockIdx.x, b = blockIdx.y, lane = int(threadIdx.x) % WARP;
    for (int h = int(threadIdx.x) / WARP; h < m.s.NH; h += int(blockDim.x) / WARP) {
        const float total = m.merged_lse(b, h, t), kept = merge_weight(m.lse[m.text(b, h, t)], total);
        X* const to = m.out + ((size_t(b) * m.s.T + t) * m.s.NH + h) * m.s.HS;
        for (int d = lane; d < m.s.HS; d += WARP) {
            float sum = kept * to_float(to[d]);
            for (int r = m.rows.rows.row(b, h, t); r >= 0; r = next_row(m.rows.rows, b, h, r))
                sum += merge_weight(m.rows.lse[m.row(b, h, r)], total) * to_float(row_at(m.rows.out, m.rows.rows, m.s, b, r, h)[d]);
            to[d] = from_float<X>(sum);
        }
        __syncwarp();
        if (lane == 0) m.finish(b, h, t, total);
    }
}

/// to (B, R, NH) = from (B, T, NH) in the order of the rows, 0 for padding.
template <class Rows>
struct GatherGates {
    float* to;
    const float* from;
    Rows rows;
    int NH;
    constexpr void operator()(unsigned row, int h) const {
        const int b = int(row) / rows.count, token = rows.token(b, h, int(row) % rows.count);
        to[size_t(row) * NH + h] = token < 0 ? 0 : from[(size_t(b) * rows.T + token) * NH + h];
    }
};

template <class X>
class MoreRows<GPU, X> {
    template <class Keys>
    static constexpr bool in_place = std::is_same_v<Keys, RowsInOrder>;

public:
    /// For calls of up to `most` rows under policies that gate pairs only if P does.
    template <class P>
    MoreRows(GPU, BumpAllocator& allocator, const LayerShape& s, int most, const P&)
        : results_(allocator, s, most) {
        const size_t rows = size_t(s.B) * most * s.NH * s.HS, keys = size_t(s.B) * s.T * s.NKV * s.HS;
        if (P::traits.gates_pairs) results_.statistics.pair_gate = allocator.take<float>(rows / s.HS);
        q_ = allocator.take<X>(rows), dout_ = allocator.take<X>(rows);
        gate_ = allocator.take<float>(rows / s.HS);
        dq_ = allocator.take<float>(rows), dk_ = allocator.take<float>(keys), dv_ = allocator.take<X>(keys);
        k_ = allocator.take<X>(keys), v_ = allocator.take<X>(keys);
    }

    /// Precedes calls whose keys are `keys` of the text's call `a`.
    template <class Keys>
    void gather_keys(GPU device, const AttentionForward<X>& a, const Keys& keys) const {
        if constexpr (!in_place<Keys>)
            gather_rows(device, k_, a.k, keys, key_shape(a)), gather_rows(device, v_, a.v, keys, key_shape(a));
    }

    template <class P, class Rows, class Keys>
    void forward(GPU device, const P& policy, const AttentionForward<X>& a, const Rows& rows, const Keys& keys) const {
        AttentionForward<X> mine = gathered(device, a, rows, keys);
        mine.statistics = results_.statistics_for(a.statistics);
        mine.statistics.tile_max = a.statistics.tile_max;
        if (P::traits.gates_pairs && a.statistics.pair_gate) mine.statistics.pair_gate = results_.statistics.pair_gate;
        attention_forward(device, policy, mine);
        const Branch<X, Rows> found{rows, mine.out, mine.lse, mine.statistics};
        const RowMerge<X, Rows> merge{shape(a, rows), found, a.out, a.lse, a.statistics};
        launch(device, merge_rows_kernel<X, Rows>, Grid(merge.s.T, merge.s.B), 4 * WARP, 0, merge);
    }

    template <class P, class Rows, class Keys>
    void backward(GPU device, const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g, const Rows& rows,
                  const Keys& keys) const {
        const RowShape of_rows = shape(a, rows);
        const size_t q_row = size_t(a.NH) * a.HS, k_row = size_t(a.NKV) * a.HS;
        AttentionForward<X> mine = gathered(device, a, rows, keys);
        gather_rows(device, mine.out, Heads<const X>{a.out, q_row}, rows, of_rows);
        gather_rows(device, dout_, Heads<const X>{g.dout, q_row}, rows, of_rows);
        gather_scalars(device, mine.lse, static_cast<const float*>(a.lse), rows, a.B, rows.T, a.NH, float(-INFINITY));
        if (a.gate) each_element(device, size_t(a.B) * rows.count, a.NH, GatherGates<Rows>{gate_, a.gate, rows, a.NH});
        mine.gate = a.gate ? gate_ : nullptr;
        AttentionBackward<X> to{};
        to.dout = dout_, to.dtile = g.dtile, to.workspace = g.workspace;
        to.dq = {dq_, q_row}, to.dk = {dk_, k_row}, to.dv = {dv_, k_row};
        attention_backward(device, policy, mine, to);
        scatter_add_rows(device, g.dq, static_cast<const float*>(dq_), rows, of_rows, Write::add);
        scatter_add_rows(device, g.dk, static_cast<const float*>(dk_), keys, key_shape(a), Write::add);
        scatter_add_rows(device, g.dv, static_cast<const X*>(dv_), keys, key_shape(a), Write::add);
    }

private:
    template <class Rows>
    static RowShape shape(const AttentionForward<X>& a, const Rows& rows) {
        return {a.B, rows.T, a.NH, a.NH, a.HS};
    }
    static RowShape key_shape(const AttentionForward<X>& a) { return {a.B, a.S, a.NKV, a.NKV, a.HS}; }

    /// The arguments of a call with q in the order of its rows, k and v as gather_keys() leaves them.
    template <class Rows, class Keys>
    AttentionForward<X> gathered(GPU device, AttentionForward<X> a, const Rows& rows, const Keys&) const {
        gather_rows(device, q_, a.q, rows, shape(a, rows));
        a.q = {q_, size_t(a.NH) * a.HS};
        if (!in_place<Keys>) a.k = {k_, size_t(a.NKV) * a.HS}, a.v = {v_, size_t(a.NKV) * a.HS};
        a.out = results_.out, a.lse = results_.lse, a.gate = nullptr, a.gated_out = nullptr, a.statistics = {};
        return a;
    }

    BranchResults<X> results_;
    X *q_, *dout_;   // (B, R, NH, HS)
    X *k_, *v_;      // (B, T, NKV, HS) in the order of the keys, where that is not the text's
    float* gate_;    // (B, R, NH)
    float *dq_, *dk_;
    X* dv_;
};

#endif
