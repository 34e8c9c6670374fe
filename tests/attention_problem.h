// One call of the tiled kernel as plain data, attention in loops over all pairs from the same data, and the comparison of the two:
// outputs number by number, gradients by finite differences of the loops.
#pragma once
#include <algorithm>
#include <functional>
#include <utility>

#include "attention/kernel/cpu.h"
#include "tests/attention_case.h"
#include "tests/catch.h"
#include "tests/check.h"
#include "tests/operation.h"

using Numbers = std::vector<double>;

/// What one call of the kernel reads; empty where the call does without. Layouts are those of AttentionForward, without gaps.
struct Problem {
    int B, T, S, NH, NKV, HS;
    Features features = {};
    Numbers q, k, v, dout;
    Numbers head, row, column, tile;
    Numbers gate, dlse;
    std::vector<int> q_position, k_position;
    std::vector<int> list_count, list_tiles;   // tiles_of(S) places per query tile

    Problem(int B_, int T_, int S_, int NH_, int NKV_, int HS_, Features f = {})
        : B(B_), T(T_), S(S_), NH(NH_), NKV(NKV_), HS(HS_), features(f), q(normal_numbers(size_t(B) * T * NH * HS, 1)),
          k(normal_numbers(size_t(B) * S * NKV * HS, 2)), v(normal_numbers(k.size(), 3)), dout(normal_numbers(q.size(), 4)),
          head(normal_numbers(size_t(NH) * f.head, 5)), row(normal_numbers(rows() * f.row, 6)),
          column(normal_numbers(size_t(B) * NH * f.column * padded(S), 7)),
          tile(normal_numbers(f.tile ? size_t(B) * NH * tiles_of(T) * tiles_of(S) : 0, 8)) {}

    size_t rows() const { return size_t(B) * NH * T; }
    size_t head_row(int b, int h, int i) const { return (size_t(b) * NH + h) * T + i; }     // index into (B, NH, T)
    size_t query_tile(int b, int h, int t) const { return (size_t(b) * NH + h) * tiles_of(T) + t; }   // into (B, NH, tiles)
    size_t token_row(int b, int i, int h) const { return (size_t(b) * T + i) * NH + h; }    // index into (B, T, NH)
    size_t key_row(int b, int j, int h) const { return (size_t(b) * S + j) * NKV + h / (NH / NKV); }
    int q_token(int b, int h, int i) const { return q_position.empty() ? i : q_position[head_row(b, h, i)]; }
    int k_token(int b, int h, int j) const { return k_position.empty() ? j : k_position[(size_t(b) * NH + h) * S + j]; }
    size_t tile_at(int b, int h, int i, int j) const {
        return ((size_t(b) * NH + h) * tiles_of(T) + i / TILE) * tiles_of(S) + j / TILE;
    }
    double row_feature(int b, int h, int i, int f) const { return row[head_row(b, h, i) * features.row + f]; }
    double column_feature(int b, int h, int j, int f) const {
        return column[((size_t(b) * NH + h) * features.column + f) * padded(S) + j];
    }

    bool listed(int b, int h, int i, int j) const {
        if (list_count.empty()) return true;
        const size_t n = (size_t(b) * NH + h) * tiles_of(T) + i / TILE;
        const auto first = list_tiles.begin() + n * tiles_of(S), last = first + list_count[n];
        return std::find(first, last, j / TILE) != last;
    }
};

struct Results {
    Numbers out, gated_out;      // (B, T, NH, HS)
    Numbers lse, entropy, pairs, pair_gate;   // (B, NH, T)
    Numbers tiles;               // (B, NH, tiles)
    Numbers tile_max;            // (B, NH, T, tiles)
    explicit Results(const Problem& p, double start = NAN)
        : out(p.q.size(), start), gated_out(p.q.size(), start), lse(p.rows(), start), entropy(p.rows(), start),
          pairs(p.rows(), start), pair_gate(p.rows(), start), tiles(size_t(p.B) * p.NH * tiles_of(p.T), start),
          tile_max(p.rows() * tiles_of(p.S), start) {}
};

struct Gradients {
    Numbers q, k, v, head, row, column, tile, gate;
};

// ---- attention from its definition

/// z of query row i and key column j (indices, as features have them), and which tokens see which (positions).
using ScoreOfPair = std::function<double(int b, int h, int i, int j, double a)>;
using SeenTokens = std::function<bool(int h, int q_token, int k_token)>;

inline bool sees(const Problem& p, const SeenTokens& seen, int b, int h, int i, int j) {
    const int qi = p.q_token(b, h, i), kj = p.k_token(b, h, j);
    return qi >= 0 && kj >= 0 && p.listed(b, h, i, j) && seen(h, qi, kj);
}

/// z of one row; -infinity for what it does not see.
inline Numbers scores_of_row(const Problem& p, const ScoreOfPair& score, const SeenTokens& seen, int b, int h, int i) {
    Numbers z(p.S, -INFINITY);
    for (int j = 0; j < p.S; j++) {
        if (!sees(p, seen, b, h, i, j)) continue;
        double a = 0;
        for (int d = 0; d < p.HS; d++) a += p.q[p.token_row(b, i, h) * p.HS + d] * p.k[p.key_row(b, j, h) * p.HS + d];
        z[j] = score(b, h, i, j, a / std::sqrt(p.HS));
    }
    return z;
}

inline void attend(const Problem& p, const Numbers& z, int b, int h, int i, Results& to) {
    const size_t at = p.token_row(b, i, h) * p.HS, n = p.head_row(b, h, i);
    const double largest = *std::max_element(z.begin(), z.end());
    double total = 0;
    for (double each : z) total += largest > -INFINITY ? std::exp(each - largest) : 0;
    to.lse[n] = total > 0 ? largest + std::log(total) : -INFINITY;
    for (int j = 0; j < p.S; j++) {
        double& peak = to.tile_max[n * tiles_of(p.S) + j / TILE];
        peak = std::max(peak, z[j]);
        if (z[j] == -INFINITY) continue;
        to.pairs[n]++;
        const double weight = std::exp(z[j] - largest) / total;
        to.entropy[n] -= weight > 0 ? weight * std::log(weight) : 0;
        for (int d = 0; d < p.HS; d++) to.out[at + d] += weight * p.v[p.key_row(b, j, h) * p.HS + d];
    }
    for (int d = 0; d < p.HS; d++) to.gated_out[at + d] = to.out[at + d] * (p.gate.empty() ? 1 : p.gate[p.token_row(b, i, h)]);
}

/// How many key tiles have a pair that counts, for one query tile after all its rows: no kernel can visit fewer.
inline double tiles_with_pairs(const Problem& p, const Results& r, int b, int h, int q_tile) {
    double tiles = 0;
    for (int t = 0; t < tiles_of(p.S); t++) {
        bool some = false;
        for (int i = q_tile * TILE; i < std::min(p.T, (q_tile + 1) * TILE); i++)
            some = some || r.tile_max[p.head_row(b, h, i) * tiles_of(p.S) + t] > -INFINITY;
        tiles += some;
    }
    return tiles;
}

inline Results by_definition(const Problem& p, const ScoreOfPair& score, const SeenTokens& seen) {
    Results r(p, 0);
    std::fill(r.tile_max.begin(), r.tile_max.end(), -INFINITY);
    for (int b = 0; b < p.B; b++)
        for (int h = 0; h < p.NH; h++) {
            for (int i = 0; i < p.T; i++) attend(p, scores_of_row(p, score, seen, b, h, i), b, h, i, r);
            for (int t = 0; t < tiles_of(p.T); t++) r.tiles[p.query_tile(b, h, t)] = tiles_with_pairs(p, r, b, h, t);
        }
    return r;
}

/// Of every row the sum of the gates on the pairs that it sees; NaN, what it starts as, where the policy has none.
template <class P>
Numbers gates_by_definition(const Problem& p, const SeenTokens& seen) {
    Numbers sums(p.rows(), P::traits.gates_pairs ? 0 : NAN);
    if constexpr (P::traits.gates_pairs)
        for (int b = 0; b < p.B; b++)
            for (int h = 0; h < p.NH; h++)
                for (int i = 0; i < p.T; i++)
                    for (int j = 0; j < p.S; j++)
                        if (sees(p, seen, b, h, i, j)) sums[p.head_row(b, h, i)] += P::defined_gate(p, b, h, i, j);
    return sums;
}

// ---- the kernel

inline const double* data_or_null(const Numbers& numbers) { return numbers.empty() ? nullptr : numbers.data(); }
inline const int* data_or_null(const std::vector<int>& numbers) { return numbers.empty() ? nullptr : numbers.data(); }

inline AttentionForward<double> arguments(const Problem& p, Results& to) {
    AttentionForward<double> a{};
    a.B = p.B, a.T = p.T, a.S = p.S, a.NH = p.NH, a.NKV = p.NKV, a.HS = p.HS;
    a.q = {p.q.data(), size_t(p.NH) * p.HS}, a.k = {p.k.data(), size_t(p.NKV) * p.HS}, a.v = {p.v.data(), size_t(p.NKV) * p.HS};
    a.head = data_or_null(p.head), a.row = data_or_null(p.row), a.column = data_or_null(p.column), a.tile = data_or_null(p.tile);
    a.list = {data_or_null(p.list_count), p.list_tiles.data(), tiles_of(p.S)};
    a.gate = data_or_null(p.gate);
    a.q_position = data_or_null(p.q_position), a.k_position = data_or_null(p.k_position);
    a.out = to.out.data(), a.lse = to.lse.data();
    a.gated_out = a.gate ? to.gated_out.data() : nullptr;
    a.statistics = {to.entropy.data(), to.tile_max.data(), to.pairs.data(), to.tiles.data(), to.pair_gate.data()};
    return a;
}

template <class P>
Results forward(const Problem& p, const P& policy) {
    Results r(p);
    attention_forward(CPU{}, policy, arguments(p, r));
    if (p.gate.empty()) r.gated_out = r.out;
    return r;
}

/// Everything starts as NaN, as the kernel has to overwrite it. Numbers of tiles that it does not visit it leaves: they become 0.
template <class P>
Gradients backward(const Problem& p, const P& policy, Results& forward) {
    auto nan_like = [](const Numbers& numbers, int copies = 1) { return Numbers(copies * numbers.size(), NAN); };
    Gradients g{nan_like(p.q),   nan_like(p.k),      nan_like(p.v),   nan_like(p.head, p.B),
                nan_like(p.row), nan_like(p.column), nan_like(p.tile),       nan_like(p.gate)};
    AttentionBackward<double> to{};
    to.dout = p.dout.data(), to.dlse = data_or_null(p.dlse);
    const size_t q_row = size_t(p.NH) * p.HS, k_row = size_t(p.NKV) * p.HS;
    to.dq = {g.q.data(), q_row}, to.dk = {g.k.data(), k_row}, to.dv = {g.v.data(), k_row};
    to.dhead = g.head.data(), to.drow = g.row.data(), to.dcolumn = g.column.data(), to.dtile = g.tile.data();
    to.dgate = p.gate.empty() ? nullptr : g.gate.data();
    attention_backward(CPU{}, policy, arguments(p, forward), to);
    Numbers head(p.head.size(), 0);
    for (size_t n = 0; n < g.head.size(); n++) head[n % head.size()] += g.head[n];   // the kernel leaves one part per sequence
    g.head = head;
    for (double& number : g.tile) number = std::isnan(number) ? 0 : number;
    return g;
}

// ---- one against the other

inline Numbers no_infinity(Numbers numbers) {
    for (double& number : numbers) number = number == -INFINITY ? -1e3 : number;
    return numbers;
}
inline Numbers no_nan(Numbers numbers) {
    for (double& number : numbers) number = std::isnan(number) ? -1e3 : number;
    return numbers;
}

/// NaN is not.
inline bool at_least(const Numbers& numbers, const Numbers& others) {
    return std::equal(numbers.begin(), numbers.end(), others.begin(), [](double a, double b) { return a >= b; });
}

inline double loss(const Problem& p, const Results& r) {
    double total = weighted_sum(r.gated_out, p.dout);
    for (size_t n = 0; n < p.dlse.size(); n++) total += std::isfinite(r.lse[n]) ? p.dlse[n] * r.lse[n] : 0;
    return total;
}

/// `score` and `seen` say pair by pair what `policy` says to the kernel. Leaves the problem as it was.
template <class P>
void check_attention(Problem& p, const P& policy, const ScoreOfPair& score, const SeenTokens& seen) {
    INFO("B " << p.B << ", T " << p.T << ", S " << p.S << ", NH " << p.NH << ", NKV " << p.NKV << ", HS " << p.HS);
    const Threads one(1);   // many short runs
    Results is = forward(p, policy);
    const Results should = by_definition(p, score, seen);
    CHECK(difference(is.out, should.out, {1e-12}) == "");
    CHECK(difference(is.gated_out, should.gated_out, {1e-12}) == "");
    CHECK(difference(no_infinity(is.lse), no_infinity(should.lse), {1e-12}) == "");
    CHECK(difference(no_infinity(is.tile_max), no_infinity(should.tile_max), {1e-12}) == "");
    CHECK(difference(is.entropy, should.entropy, {1e-12, 1e-12}) == "");
    CHECK(is.pairs == should.pairs);
    CHECK(difference(no_nan(is.pair_gate), no_nan(gates_by_definition<P>(p, seen)), {1e-12}) == "");
    CHECK(at_least(is.tiles, should.tiles));

    const Gradients g = backward(p, policy, is);
    auto loss_by_definition = [&] { return loss(p, by_definition(p, score, seen)); };
    const std::pair<Numbers*, const Numbers*> inputs[] = {{&p.q, &g.q}, {&p.k, &g.k}, {&p.v, &g.v}, {&p.head, &g.head},
                                                          {&p.row, &g.row}, {&p.column, &g.column}, {&p.tile, &g.tile},
                                                          {&p.gate, &g.gate}};
    int number = 0;
    for (const auto& [values, gradient] : inputs) {
        INFO("number " << number++ << " of q, k, v, head, row, column, tile, gate");
        CHECK((values->size() == gradient->size() && all_finite(*gradient)));
        if (!values->empty()) CHECK(gradient_error(*values, *gradient, loss_by_definition) <= 1e-8);
    }
}
