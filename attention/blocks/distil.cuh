// Gate self-distillation (SeerAttention): a block gate's scores learn the distribution of dense causal attention over blocks.
//     R_rc = max over rows i of block r and keys j of block c of P_ij                     the pooled map of dense attention
//     t_r  = R_r over the blocks c < r, divided by their sum                              the teacher, which has no gradient
//     p_r  = softmax over c < r of the gate's scores                                      the student
//     L = lambda (mean over the rows r of all gated heads of KL(t_r || p_r))              dL/dscore = lambda (p - t) / rows
// R is computed as exp(max over i of (largest z of row i in the block's tiles - LSE_i)) from two outputs of the attention kernel,
// statistics.tile_max and the log-sum-exp; t is a softmax of these exponents, which is defined however small R is.
// A token's weight in the objective is 1 / tokens, so each sequence counts T times. Each packed document counts as a sequence.
#pragma once
#include "attention/blocks/block_gate.cuh"
#include "attention/kernel/call.h"

/// The distilled rows: of heads from `dense` on, without the first row of each text, which has no block to choose, and without the
/// share `skip` of its rows at the start.
struct Distillation {
    float lambda;
    int dense;
    float skip;

    /// The blocks over which row (b, h, r) is distilled, s.first() to r - 1 or none, and the weight of its divergence: lambda times
    /// its text's tokens over the number of rows.
    struct Row {
        int first, end;
        float weight;
        constexpr int count() const { return end - first; }
    };
    constexpr Row row(const GateShape& s, int b, int h, int r) const {
        const int first = s.first(b, r), tokens = s.tokens_of_text(b, r), blocks = (tokens + s.block - 1) / s.block;
        const int first_row = std::max(1, int(skip * float(blocks))), rows = (s.NH - dense) * (blocks - first_row);
        if (h < dense || r - first < first_row) return {first, first, 0};
        return {first, r, lambda * float(tokens) / float(rows)};
    }
};

/// The maxima (B, NH, T, tiles) and the log-sum-exp (B, NH, T) of dense causal attention. With documents the maxima are by rows of
/// blocks (BlockQueries, BlockKeys).
template <class W>
struct DenseMap {
    const W *tile_max, *lse;

    /// The log of the greatest weight of token t in block c; `row` is its row of the maxima.
    constexpr W of_token(const GateShape& s, int b, int h, int row, int t, int c) const {
        const int of_block = s.block / TILE;
        const size_t rows = (size_t(b) * s.NH + h) * s.T;
        W largest = -1e30f;
        for (int tile = c * of_block; tile < (c + 1) * of_block; tile++) {
            const W here = tile_max[(rows + row) * tiles_of(s.T) + tile] - lse[rows + t];
            if (here > largest) largest = here;
        }
        return largest;
    }
    /// log R_rc.
    constexpr W exponent(const GateShape& s, int b, int h, int r, int c) const {
        const int begin = s.queries_begin(b, r), count = s.tokens(b, r);
        W largest = -1e30f;
        for (int i = 0; i < count; i++) {
            const W here = of_token(s, b, h, r * s.block + i, begin + i, c);
            if (here > largest) largest = here;
        }
        return largest;
    }
};

/// A teacher for distil(): the shape (B, heads, rows, N) of scores, the distilled part of each row, and the teacher's logarithms.
template <class W>
struct BlockTeacher {
    DenseMap<W> map;
    GateShape s;
    Distillation d;
    constexpr int heads() const { return s.NH; }
    constexpr int rows() const { return s.blocks(); }
    constexpr Distillation::Row row(int b, int h, int r) const { return d.row(s, b, h, r); }
    constexpr W exponent(int b, int h, int r, int c) const { return map.exponent(s, b, h, r, c); }
};

/// log sum_c exp(x[c]) over c < n.
template <class Team, class X>
constexpr X log_sum(const Team& team, const X* x, int n) {
    X largest = -1e30f, sum = 0;
    for (int c = team.first(); c < n; c += team.step()) largest = std::max(largest, x[c]);
    largest = team.max(largest);
    for (int c = team.first(); c < n; c += team.step()) sum += std::exp(x[c] - largest);
    return largest + std::log(team.sum(sum));
}

/// Teams are (b, h, r). Except in the sums, a member reads and writes its own blocks c only.
template <class X, class Teacher>
struct DistilRows {
    using Number = X;
    X *dscores, *divergences;
    const X* scores;
    Teacher teacher;

    template <class Team>
    constexpr void operator()(const Team& team, unsigned row) const {
        const int N = teacher.s.blocks(), rows = teacher.rows(), r = int(row) % rows, h = int(row) / rows % teacher.heads();
        const int b = int(row) / rows / teacher.heads();
        const Distillation::Row of = teacher.row(b, h, r);
        for (int c = team.first(); c < N; c += team.step())
            if (c < of.first || c >= of.end) dscores[size_t(row) * N + c] = 0;
        const X* const mine = scores + size_t(row) * N + of.first;   // c counts from the first below
        X *const to = dscores + size_t(row) * N + of.first, sum = 0;
        for (int c = team.first(); c < of.count(); c += team.step()) to[c] = teacher.exponent(b, h, r, of.first + c);
        const X of_teacher = log_sum(team, to, of.count()), of_student = log_sum(team, mine, of.count());
        for (int c = team.first(); c < of.count(); c += team.step()) {
            const X log_t = to[c] - of_teacher, log_p = mine[c] - of_student, t = std::exp(log_t);
            sum += of.weight * t * (log_t - log_p);
            to[c] = of.weight * (std::exp(log_p) - t);
        }
        sum = team.sum(sum);
        if (team.first() == 0) divergences[row] = sum;
    }
};

/// dscores (B, heads, rows, N) = the gradient of the objective per unit of dloss, zero outside the distilled rows; divergences
/// (B, heads, rows) = each row's contribution to the objective. A teacher has BlockTeacher's members.
template <class Device, class X, class Teacher>
void distil(Device device, X* dscores, X* divergences, const X* scores, const Teacher& teacher) {
    each_team<4>(device, size_t(teacher.s.B) * teacher.heads() * teacher.rows(),
                 DistilRows<X, Teacher>{dscores, divergences, scores, teacher});
}

/// scores (B, NH, N, N) = log R_rc for past blocks c: the output of a perfect gate. Rows are (b, h, r).
template <class W>
struct ScoresOfMap {
    W* scores;
    DenseMap<W> map;
    GateShape s;
    constexpr void operator()(unsigned row, int c) const {
        const int N = s.blocks(), r = int(row) % N, h = int(row) / N % s.NH, b = int(row) / N / s.NH;
        if (c >= s.first(b, r) && c < r) scores[size_t(row) * N + c] = map.exponent(s, b, h, r, c);
    }
};

/// Teams are heads.
template <class X>
struct SumOfHead {
    using Number = X;
    X* auxiliary;
    const X* divergences;
    int rows, group;
    template <class Team>
    constexpr void operator()(const Team& team, unsigned n) const {
        X sum = 0;
        for (int r = team.first(); r < rows; r += team.step()) sum += divergences[size_t(n / group) * rows + r];
        sum = team.sum(sum);
        if (team.first() == 0) auxiliary[n] = sum / X(group);
    }
};

/// auxiliary (heads) = sums over the rows of divergences (heads / group, rows), divided equally among the heads of a group; zero if
/// rows is 0.
template <class Device, class X>
void sum_divergences(Device device, X* auxiliary, const X* divergences, int heads, int rows, int group = 1) {
    each_team<1>(device, heads, SumOfHead<X>{auxiliary, divergences, rows, group});
}
