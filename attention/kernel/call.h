// A call of the tiled kernel, the same on every device: its arguments, and its masks and positions in one place (TileWalk): the
// tokens in the rows and columns of a tile, whether the tile is visited, and its visible pairs. Beside a mechanism's score, mask
// and output gate (attention/mechanism.h), a call can differ in
//     positions     rows and columns may be selected or permuted tokens
//     mask          as data: a TileList, or the bits of a policy
//     log-sum-exp   LSE as an output, its gradient as an input: several calls can make one softmax
//     statistics    entropy of each row, its maximum in each tile, visible pairs, visited tiles, pair gates
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "attention/mechanism.h"
#include "model/device/device.h"
#include "model/device/memory.h"

/// A mask as data: the key tiles that each query tile may visit, in ascending order. Query tile t of head h of sequence b has the
/// count[n] tiles from tiles[n * stride] on, n = (b * NH + h) * query_tiles + t. Policy::tile() still classifies each of them.
struct TileList {
    const int* count = nullptr;
    const int* tiles = nullptr;
    int stride = 0;
    constexpr explicit operator bool() const { return count != nullptr; }
};

/// A mask as data, pair by pair and the same for all heads: query i of sequence b sees key 64 t + c if bit c of its word t is set.
/// The bits of a policy with traits.reads_bits.
struct PairBits {
    uint64_t* words = nullptr;   // (B, T, tiles_of(T))
    int T = 0;
    constexpr explicit operator bool() const { return words != nullptr; }
    constexpr uint64_t& word(int b, int i, int tile) const { return words[(size_t(b) * T + i) * tiles_of(T) + tile]; }
    constexpr uint64_t word(int b, int /*h*/, int i, int tile) const { return word(b, i, tile); }
};

/// Any of these may be null. Entropy is in nats; a row that sees nothing has 0. tile_max is the largest z of the row in the key
/// tile, -infinity in a tile that was not visited. pairs and tiles count the kernel's actual work. A tile is TILE x TILE on every
/// device: where a kernel takes more rows at once, a tile counts if it was part of a visited rectangle and is not hidden by the
/// list or the policy (TileWalk::judge_listed). The count is thus the same as in a kernel that goes tile by tile.
template <class X>
struct Statistics {
    Wide<X>* entropy = nullptr;    // (B, NH, T)
    Wide<X>* tile_max = nullptr;   // (B, NH, T, ceil(S / TILE))
    Wide<X>* pairs = nullptr;      // (B, NH, T) number of keys that the row saw
    Wide<X>* tiles = nullptr;      // (B, NH, ceil(T / TILE)) number of key tiles that the query tile visited
    Wide<X>* pair_gate = nullptr;  // (B, NH, T) sum of pair_gate() over those keys; not written without traits.gates_pairs
    constexpr explicit operator bool() const { return entropy || tile_max || pairs || tiles || pair_gate; }

    /// The statistics of gated branch n of a layer (branch_names(), attention/layer_of.h). Each array holds all branches in turn,
    /// with `rows` (B, NH, T) or `query_tiles` elements each. tile_max is left out, because its size depends on the branch's keys.
    Statistics of_branch(int n, size_t rows, size_t query_tiles) const {
        auto part = [n](Wide<X>* all, size_t size) { return all ? all + n * size : nullptr; };
        return {part(entropy, rows), nullptr, part(pairs, rows), part(tiles, query_tiles), part(pair_gate, rows)};
    }
};

template <class X>
struct AttentionForward {
    int B, T, S;   // sequences; queries and keys per sequence
    int NH, NKV, HS;
    Heads<const X> q;   // (B, T, NH, HS)
    Heads<const X> k;   // (B, S, NKV, HS); query head h reads head h / (NH / NKV)
    Heads<const X> v;   // (B, S, NKV, HS)

    // Inputs of score(), with the sizes of features(); null for size 0.
    const Wide<X>* head = nullptr;     // (NH, features.head)
    const Wide<X>* row = nullptr;      // (B, NH, T, features.row)
    const Wide<X>* column = nullptr;   // (B, NH, features.column, padded(S))
    const Wide<X>* tile = nullptr;     // (B, NH, tiles_of(T), tiles_of(S))
    Wide<X>* reach = nullptr;          // (B, NH) written by the forward pass; a gate without it is computed by score()

    TileList list;                     // tiles of a mask that the policy does not compute
    const Wide<X>* gate = nullptr;     // (B, T, NH) factor on the output
    const int* q_position = nullptr;   // (B, NH, T) each row's token position; null: its index; -1: padding,
    const int* k_position = nullptr;   // (B, NH, S) which sees nothing and is seen by nothing
    Documents documents = {};          // varlen: a query sees its own document only, and positions count from the document's start

    X* out;                   // (B, T, NH, HS) before the gate
    X* gated_out = nullptr;   // (B, T, NH, HS) gate * out; needed with a gate only
    Wide<X>* lse;             // (B, NH, T) log-sum-exp; -infinity for a row that sees nothing
    Statistics<X> statistics = {};
};

/// All gradients are overwritten. dhead has one partial sum per sequence.
template <class X>
struct AttentionBackward {
    const X* dout;                   // (B, T, NH, HS) gradient of the output, after the gate if there is one
    const Wide<X>* dlse = nullptr;   // (B, NH, T); null: zero
    Heads<Wide<X>> dq, dk;           // wide: the GPU accumulates dq over key tiles in memory, and RoPE's backward reads both
    Heads<X> dv;
    Wide<X>* dhead = nullptr;     // (B, NH, features.head)
    Wide<X>* drow = nullptr;      // (B, NH, T, features.row)
    Wide<X>* dcolumn = nullptr;   // (B, NH, features.column, padded(S))
    Wide<X>* dtile = nullptr;     // (B, NH, tiles_of(T), tiles_of(S)), for visited tiles only
    Wide<X>* dgate = nullptr;     // (B, T, NH)
    std::byte* workspace = nullptr;   // attention_workspace() bytes on a GPU; unused on the CPU
};

/// The arguments of the only kernel call of a layer.
template <class X>
AttentionForward<X> kernel_arguments(const LayerInputs<X>& in, const LayerState<X>& state, const Statistics<X>& statistics) {
    AttentionForward<X> a{};
    a.B = in.B, a.T = in.T, a.S = in.T;
    a.NH = in.NH, a.NKV = in.NKV, a.HS = in.HS;
    a.q = {in.q, in.qk_row}, a.k = {in.k, in.qk_row}, a.v = {in.v, in.v_row};
    a.head = state.score_inputs.head, a.row = state.score_inputs.row, a.column = state.score_inputs.column;
    a.reach = state.score_inputs.reach, a.gate = state.score_inputs.gate;
    a.documents = in.documents;
    a.out = state.out, a.gated_out = a.gate ? state.gated_out : nullptr, a.lse = state.lse;
    a.statistics = statistics;
    return a;
}

/// The same for a layer that applies its output gate itself after the kernel, from state.out to state.gated_out.
template <class X>
AttentionForward<X> ungated_arguments(const LayerInputs<X>& in, const LayerState<X>& state, const Statistics<X>& statistics) {
    AttentionForward<X> a = kernel_arguments(in, state, statistics);
    a.gate = nullptr, a.gated_out = nullptr;
    return a;
}

/// The arguments of a backward call that overwrites `to`.
template <class X>
AttentionBackward<X> kernel_gradients(const X* dout, const QkvGradients<X>& to, std::byte* workspace = nullptr) {
    AttentionBackward<X> g{};
    g.dout = dout, g.workspace = workspace;
    g.dq = to.q, g.dk = to.k, g.dv = to.v;
    return g;
}

/// Allocates the score inputs of a layer with the features `f`, and its gate if `gated`. `copies` is 1, or B for the partial sums
/// of the gradients of the scalars per head.
template <class X>
ScoreInputs<X> take_score_inputs(BumpAllocator& allocator, const Features& f, bool gated, int B, int T, int NH, int copies) {
    ScoreInputs<X> e;
    if (f.head) e.head = allocator.take<Wide<X>>(size_t(copies) * NH * f.head);
    if (f.row) e.row = allocator.take<Wide<X>>(size_t(B) * NH * T * f.row);
    if (f.column) e.column = allocator.take<Wide<X>>(size_t(B) * NH * padded(T) * f.column);
    if (f.reach) e.reach = allocator.take<Wide<X>>(size_t(B) * NH);
    if (f.token) e.token = allocator.take<Wide<X>>(size_t(B) * T * f.token);
    if (gated) e.gate = allocator.take<Wide<X>>(size_t(B) * T * NH);
    return e;
}

/// A rectangle of the score matrix: on the CPU a tile, cut at the end of the matrix; the GPU uses other sizes too.
struct TilePlace {
    int b, h;
    int i0, j0;          // first row and column, as indices
    int rows, columns;   // number within the matrix

    /// Its part from (row, column) on, at most `height` x `width`; of no rows or columns where the part begins past the end.
    constexpr TilePlace part(int row, int column, int height, int width) const {
        return {b, h, i0 + row, j0 + column, std::min(height, rows - row), std::min(width, columns - column)};
    }
};

/// Index of the bias of a query tile and key tile in AttentionForward::tile.
template <class X>
constexpr size_t tile_bias_at(const AttentionForward<X>& a, const TilePlace& at) {
    return ((size_t(at.b) * a.NH + at.h) * tiles_of(a.T) + at.i0 / TILE) * tiles_of(a.S) + at.j0 / TILE;
}

/// Positions of rows and columns, and the verdicts on tiles, for one (b, h).
template <class X, class P>
class TileWalk {
public:
    constexpr TileWalk(const P& policy, const AttentionForward<X>& a, int b, int h)
        : policy_(policy), a_(a), b_(b), h_(h), bh_(size_t(b) * a.NH + h) {}

    constexpr int q_position(int i) const { return a_.q_position ? a_.q_position[bh_ * a_.T + i] : i; }
    constexpr int k_position(int j) const { return a_.k_position ? a_.k_position[bh_ * a_.S + j] : j; }

    /// The policy's verdict on a rectangle, without the list. All its rows and columns must exist.
    constexpr Tile judge(const TilePlace& at) const {
        if (!positions()) return judge_positions(at.i0, at.i0 + at.rows, at.j0, at.j0 + at.columns);
        const Range q = range(a_.q_position, bh_ * a_.T, at.i0, at.rows), k = range(a_.k_position, bh_ * a_.S, at.j0, at.columns);
        if (q.empty() || k.empty()) return Tile::hidden;
        const Tile verdict = judge_positions(q.first, q.last + 1, k.first, k.last + 1);
        return verdict == Tile::full && (q.padding || k.padding) ? Tile::mixed : verdict;
    }

    /// The same with the list: a rectangle of several TILE x TILE tiles is visited if any of them is.
    constexpr Tile judge_listed(const TilePlace& at) const {
        bool some = false, all = true;
        for (int i = at.i0 / TILE; a_.list && i <= (at.i0 + at.rows - 1) / TILE; i++)
            for (int j = at.j0 / TILE; j <= (at.j0 + at.columns - 1) / TILE; j++) {
                const bool one = listed(i, j);
                some = some || one, all = all && one;
            }
        if (a_.list && !some) return Tile::hidden;
        const Tile verdict = judge(at);
        return verdict == Tile::full && !all ? Tile::mixed : verdict;
    }

    /// The verdict on a part of a visited rectangle, cheap enough for every few rows and columns. The part must lie inside one TILE
    /// x TILE tile, or outside the matrix, where it is hidden.
    constexpr Tile judge_part(const TilePlace& part, Tile whole) const {
        if (part.rows <= 0 || part.columns <= 0) return Tile::hidden;
        if (whole == Tile::full) return Tile::full;
        if (a_.list && !listed(part.i0 / TILE, part.j0 / TILE)) return Tile::hidden;
        if (positions()) return whole;
        return judge_positions(part.i0, part.i0 + part.rows, part.j0, part.j0 + part.columns);
    }

    /// Whether score() changes no pair of the rectangle, by the policy's is_plain(); false without it.
    constexpr bool is_plain(const TilePlace& at) const {
        if constexpr (requires { policy_.is_plain(0, 0, 0, 0); })
            return !positions() && policy_.is_plain(at.i0, at.i0 + at.rows, at.j0, at.j0 + at.columns);
        else return false;
    }

    constexpr bool visible(int i, int j) const {
        const int qi = q_position(i), kj = k_position(j);
        if (qi < 0) return false;
        const int start = start_of_document(qi);
        return kj >= start && policy_.visible(h_, qi - start, kj - start);
    }

    /// visible() with the arrays of positions and documents. Rows and columns past the end are allowed.
    struct ByArrays {
        const TileWalk& walk;
        constexpr bool operator()(int i, int j) const {
            return walk.visible(std::min(i, walk.a_.T - 1), std::min(j, walk.a_.S - 1));
        }
    };

    static constexpr bool reads_bits = P::traits.reads_bits;
    /// Bits of row i, which may lie past the end: column j is the lowest bit, followed by the columns to its right in the tile.
    constexpr uint64_t bits(int i, int j) const { return policy_.bits.word(b_, h_, std::min(i, a_.T - 1), j / TILE) >> (j % TILE); }

    /// Whether a function from with_visible() is long: it loads from arrays, or the policy has traits.long_visible.
    template <class Visible>
    static constexpr bool is_long() {
        return std::is_same_v<Visible, ByArrays> || P::traits.long_visible;
    }

    /// Calls use(visible), where visible(i, j) does no more work than the verdict and the arguments require. Rows and
    /// columns past the end are allowed. Not for mixed parts of a mask of bits().
    template <class Use>
    constexpr void with_visible(Tile verdict, Use use) const {
        if (verdict == Tile::full) return use([](int, int) { return true; });
        if constexpr (!P::traits.reads_bits) {
            if (!positions() && !a_.documents) return use([this](int i, int j) { return policy_.visible(h_, i, j); });
            use(ByArrays{*this});
        }
    }

    /// Calls visit(place, verdict) for every key tile that the query tile at i0 visits, in ascending order.
    template <class Visit>
    void each_tile(int i0, Visit visit) const {
        const int rows = std::min(TILE, a_.T - i0);
        const size_t n = list_entry(i0 / TILE);
        const int* tiles = a_.list ? a_.list.tiles + n * a_.list.stride : nullptr;
        const int count = a_.list ? a_.list.count[n] : tiles_of(a_.S);
        for (int t = 0; t < count; t++) {
            const int j0 = (tiles ? tiles[t] : t) * TILE;
            const TilePlace at{b_, h_, i0, j0, rows, std::min(TILE, a_.S - j0)};
            const Tile verdict = judge(at);
            if (verdict != Tile::hidden) visit(at, verdict);
        }
    }

private:
    struct Range {
        int first = std::numeric_limits<int>::max(), last = -1;
        bool padding = false;
        constexpr bool empty() const { return last < 0; }
    };
    /// Range of the positions of `count` rows or columns from `start` on.
    static constexpr Range range(const int* positions, size_t base, int start, int count) {
        Range r;
        if (!positions) return {start, start + count - 1, false};
        for (int n = start; n < start + count; n++) {
            const int p = positions[base + n];
            if (p < 0) r.padding = true;
            if (p >= 0) r.first = std::min(r.first, p), r.last = std::max(r.last, p);
        }
        return r;
    }

    constexpr bool positions() const { return a_.q_position || a_.k_position; }
    constexpr int start_of_document(int position) const { return a_.documents ? a_.documents.at(b_, position) : 0; }

    /// The verdict on queries at positions i0 .. i1 - 1 and keys at j0 .. j1 - 1.
    constexpr Tile judge_positions(int i0, int i1, int j0, int j1) const {
        if (!a_.documents) return policy_.tile(h_, i0, i1, j0, j1);
        Tile verdict = Tile::hidden;
        for (int end = i1; end > i0;) {   // document by document, from the last
            const int start = a_.documents.at(b_, end - 1), begin = std::max(i0, start);
            const Tile part = judge_document(start, begin, end, j0, j1);
            verdict = end == i1 || part == verdict ? part : Tile::mixed;
            end = begin;
        }
        return verdict;
    }
    /// The same for queries of the document that begins at `start`.
    constexpr Tile judge_document(int start, int i0, int i1, int j0, int j1) const {
        if (j1 <= start) return Tile::hidden;
        const Tile part = policy_.tile(h_, i0 - start, i1 - start, std::max(j0 - start, 0), j1 - start);
        return part == Tile::full && j0 < start ? Tile::mixed : part;
    }
    constexpr size_t list_entry(int q_tile) const { return bh_ * tiles_of(a_.T) + q_tile; }

    /// Binary search in a query tile's ascending list.
    constexpr bool listed(int q_tile, int k_tile) const {
        const size_t n = list_entry(q_tile);
        const int* tiles = a_.list.tiles + n * a_.list.stride;
        int first = 0, last = a_.list.count[n];
        while (first < last) {
            const int middle = (first + last) / 2, tile = tiles[middle];
            if (tile == k_tile) return true;
            if (tile < k_tile)
                first = middle + 1;
            else
                last = middle;
        }
        return false;
    }

    const P& policy_;
    const AttentionForward<X>& a_;
    int b_, h_;
    size_t bh_;
};
