// The results of one branch of a softmax, a kernel call over its own rows and keys, for merging (merge.cuh, more_rows.cuh).
#pragma once
#include <cmath>

#include "attention/kernel/call.h"
#include "attention/kernel/rows.cuh"

/// exp(lse_n - lse); 0 where the branch, or the row, sees nothing.
template <class W>
constexpr W merge_weight(W branch_lse, W lse) {
    return branch_lse == W(-INFINITY) ? W(0) : std::exp(branch_lse - lse);
}

/// The results of a branch of R rows (rows.cuh).
template <class X, class Rows>
struct Branch {
    using W = Wide<X>;
    Rows rows;
    const X* out = nullptr;         // (B, R, NH, HS)
    const W* lse = nullptr;         // (B, NH, R)
    Statistics<X> statistics = {};   // entropy, pairs and tiles, where they are merged

    constexpr W lse_of(int NH, int b, int h, int t) const {
        const int r = rows.row(b, h, t);
        return r < 0 ? W(-INFINITY) : lse[(size_t(b) * NH + h) * rows.count + r];
    }
};

/// Memory for a branch's results.
template <class X>
struct BranchResults {
    X* out;         // (B, R, NH, HS)
    Wide<X>* lse;   // (B, NH, R)
    Statistics<X> statistics;

    BranchResults(BumpAllocator& allocator, const LayerShape& s, int R)
        : BranchResults(allocator.take<X>(size_t(s.B) * s.NH * R * s.HS), allocator, s, R) {}
    /// For a branch whose out takes the memory of the merged one (merge_forward()).
    BranchResults(X* out_, BumpAllocator& allocator, const LayerShape& s, int R) : out(out_) {
        const size_t rows = size_t(s.B) * s.NH * R;
        lse = allocator.take<Wide<X>>(rows);
        statistics.entropy = allocator.take<Wide<X>>(rows), statistics.pairs = allocator.take<Wide<X>>(rows);
        statistics.tiles = allocator.take<Wide<X>>(size_t(s.B) * s.NH * tiles_of(R));
    }

    /// The statistics of the branch that merging needs for the `requested` ones.
    Statistics<X> statistics_for(const Statistics<X>& requested) const {
        Statistics<X> own;
        if (requested.entropy) own.entropy = statistics.entropy;
        if (requested.pairs) own.pairs = statistics.pairs;
        if (requested.tiles) own.tiles = statistics.tiles;
        return own;
    }
    template <class Rows>
    Branch<X, Rows> branch(const Rows& rows) const {
        return {rows, out, lse, statistics};
    }
};

/// The sum over the query tiles of a branch of R rows that are attributed to the text's query tile `tile`: those at the
/// same fraction of the length, so that sums over a head are right (on the CPU, ForwardCall::add_visited()).
/// `of_branch` (B, NH, tiles_of(R)).
template <class W>
constexpr W attributed_tiles(const W* of_branch, size_t bh, int R, int T, int tile) {
    const int mine = tiles_of(R), of_text = tiles_of(T);
    const int first = (tile * mine + of_text - 1) / of_text, end = ((tile + 1) * mine + of_text - 1) / of_text;
    W sum = 0;
    for (int r = first; r < end; r++) sum += of_branch[bh * mine + r];
    return sum;
}
