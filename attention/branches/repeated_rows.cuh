// Branches (rows.cuh) in which a token may have several rows, as in overlapping clusters: the outputs of its rows are averaged with
// equal weights, and a token without rows gets 0. With m rows of token t
//     out_t = 1/m sum_r out_r     dout_r = dout_t / m
// Unlike in merge.cuh every row keeps its own softmax, and its backward pass needs its own output and log-sum-exp. A token's rows
// are a linked list: a branch of R rows needs 2 R + T integers per head, however often a token occurs.
#pragma once
#include "attention/branches/merge.cuh"

struct RepeatedRows {
    int count;   // R
    int T, NH;
    int *tokens, *following;   // (B, NH, R) the token of each row; the next row of the same token; -1: none
    int* first;                // (B, NH, T) the first row of each token, or -1
    constexpr size_t at(int b, int h, int row) const { return (size_t(b) * NH + h) * count + row; }
    constexpr int token(int b, int h, int row) const { return tokens[at(b, h, row)]; }
    constexpr int next(int b, int h, int row) const { return following[at(b, h, row)]; }
    constexpr int row(int b, int h, int token) const { return first[(size_t(b) * NH + h) * T + token]; }
};

/// The same rows, each of which counts 1/m in a sum over a token's rows (rows.cuh).
struct AveragedRows : RepeatedRows {
    /// 0 for a token without rows.
    template <class W>
    constexpr W share(int b, int h, int token) const {
        int m = 0;
        for (int r = row(b, h, token); r >= 0; r = next(b, h, r)) m++;
        return m > 0 ? W(1) / W(m) : W(0);
    }
};

/// Teams are (b, h). Rows that are linked at the same time have different tokens, so members do not conflict.
struct LinkRows {
    using Number = float;
    RepeatedRows rows;
    int distinct;

    template <class Team>
    constexpr void operator()(const Team& team, unsigned bh) const {
        const int h = int(bh) % rows.NH, b = int(bh) / rows.NH;
        int* const first = rows.first + size_t(bh) * rows.T;
        for (int t = team.first(); t < rows.T; t += team.step()) first[t] = -1;
        for (int begin = 0; begin < rows.count; begin += distinct) {
            team.sync();   // all earlier rows are linked
            for (int r = begin + team.first(); r < std::min(begin + distinct, rows.count); r += team.step()) {
                const int t = rows.token(b, h, r);
                rows.following[rows.at(b, h, r)] = t < 0 ? -1 : first[t];
                if (t >= 0) first[t] = r;
            }
        }
    }
};
/// Builds the lists of `rows` from its tokens, later rows first. Precondition: rows 0 .. distinct - 1 have different tokens or
/// none, and so do the next `distinct` rows, and so on.
template <class Device>
void link_rows(Device device, const RepeatedRows& rows, int B, int distinct) {
    each_team<8>(device, size_t(B) * rows.NH, LinkRows{rows, distinct});
}

/// Log-sum-exp and statistics of token t: averages of its rows' log-sum-exps (-infinity without rows) and entropies, and sums of the
/// kernel's counts. Rows are (b, h).
template <class X>
struct AverageStatistics {
    Wide<X>* lse;
    Statistics<X> to;
    Branch<X, AveragedRows> from;
    RowShape s;
    constexpr void operator()(unsigned bh, int t) const {
        const int b = int(bh) / s.NH, h = int(bh) % s.NH;
        const size_t home = size_t(bh) * s.T + t;
        const Wide<X> share = from.rows.template share<Wide<X>>(b, h, t);
        Wide<X> sum = 0, entropy = 0, pairs = 0;
        for (int r = from.rows.row(b, h, t); r >= 0; r = from.rows.next(b, h, r)) {
            const size_t mine = from.rows.at(b, h, r);
            sum += from.lse[mine];
            if (to.entropy) entropy += from.statistics.entropy[mine];
            if (to.pairs) pairs += from.statistics.pairs[mine];
        }
        lse[home] = share > 0 ? share * sum : Wide<X>(-INFINITY);
        if (to.entropy) to.entropy[home] = share * entropy;
        if (to.pairs) to.pairs[home] = pairs;
        if (to.tiles && t % TILE == 0)
            to.tiles[bh * tiles_of(s.T) + t / TILE] = attributed_tiles(from.statistics.tiles, bh, from.rows.count, s.T, t / TILE);
    }
};

/// Writes out (B, T, NH, HS), lse (B, NH, T) and the requested statistics.
template <class Device, class X>
void average_rows(Device device, X* out, Wide<X>* lse, const Branch<X, RepeatedRows>& from, const RowShape& s,
                  const Statistics<X>& statistics) {
    const AveragedRows rows{from.rows};
    scatter_add_rows(device, Heads<X>{out, size_t(s.NH) * s.HS}, from.out, rows, s, Write::overwrite);
    each_element(device, size_t(s.B) * s.NH, s.T, AverageStatistics<X>{lse, statistics, {rows, from.out, from.lse, from.statistics}, s});
}

/// Element (b, row, h) of a gradient, times its share.
template <class X>
struct TakeShare {
    X* dout;
    AveragedRows rows;
    int HS;
    constexpr void operator()(unsigned at, int d) const {
        const int h = int(at) % rows.NH, row = int(at) / rows.NH % rows.count, b = int(at) / rows.NH / rows.count;
        const int token = rows.token(b, h, row);
        X& to = dout[size_t(at) * HS + d];
        if (token >= 0) to = narrowed<X>(rows.share<Wide<X>>(b, h, token) * widened(to));
    }
};
/// dout_r (B, R, NH, HS) of every row from dout (B, T, NH, HS); 0 in padding. `repeated`: a token may have several rows.
template <class Device, class X>
void share_gradient(Device device, X* dout_r, const X* dout, const RepeatedRows& rows, const RowShape& s, bool repeated) {
    gather_rows(device, dout_r, Heads<const X>{dout, size_t(s.NH) * s.HS}, rows, s);
    if (repeated) each_element(device, size_t(s.B) * rows.count * s.NH, s.HS, TakeShare<X>{dout_r, {rows}, s.HS});
}
