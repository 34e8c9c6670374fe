// One call of the tiled kernel as plain data, attention in loops over all pairs from the same data, and the comparison of the two:
// outputs number by number, gradients by finite differences of the loops.
#pragma once
#include <algorithm>
#include <functional>
#include <utility>

#include "attention/kernel/layer.h"
#include "tests/arrays_on.h"
#include "tests/attention_case.h"

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
    size_t tile_at(int b, int h, int i, int j) const { return query_tile(b, h, i / TILE) * tiles_of(S) + j / TILE; }
    double row_feature(int b, int h, int i, int f) const { return row[head_row(b, h, i) * features.row + f]; }
    double column_feature(int b, int h, int j, int f) const {
        return column[((size_t(b) * NH + h) * features.column + f) * padded(S) + j];
    }

    bool listed(int b, int h, int i, int j) const {
        if (list_count.empty()) return true;
        const size_t n = query_tile(b, h, i / TILE);
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

/// A problem's data on a device. What the kernel has to write starts as NaN.
template <class Device, class X, class P>
class AttentionOn {
    using W = Wide<X>;

public:
    AttentionOn(Device device, const Problem& p, const P& policy)
        : p_(p), policy_(policy), device_(device), arrays_{device}, dout_(put<X>(arrays_, p.dout)), dlse_(some<W>(p.dlse)) {
        a_.B = p.B, a_.T = p.T, a_.S = p.S, a_.NH = p.NH, a_.NKV = p.NKV, a_.HS = p.HS;
        a_.q = {put<X>(arrays_, p.q), q_row()}, a_.k = {put<X>(arrays_, p.k), k_row()}, a_.v = {put<X>(arrays_, p.v), k_row()};
        a_.head = some<W>(p.head), a_.row = some<W>(p.row), a_.column = some<W>(p.column), a_.tile = some<W>(p.tile);
        if (p.features.reach) a_.reach = put<W>(arrays_, Numbers(size_t(p.B) * p.NH, NAN));
        a_.list = {some<int>(p.list_count), some<int>(p.list_tiles), tiles_of(p.S)};
        a_.gate = some<W>(p.gate);
        a_.q_position = some<int>(p.q_position), a_.k_position = some<int>(p.k_position);
        a_.out = put<X>(arrays_, p.q.size()), a_.lse = put<W>(arrays_, p.rows());
        a_.gated_out = a_.gate ? put<X>(arrays_, p.q.size()) : nullptr;
    }

    const AttentionForward<X>& arguments() const { return a_; }
    Numbers reach() const { return numbers_at(arrays_, a_.reach, size_t(p_.B) * p_.NH); }

    /// What a forward pass with these arguments has left.
    Results results() const {
        Results r(p_);
        r.out = numbers_at(arrays_, a_.out, r.out.size()), r.lse = numbers_at(arrays_, a_.lse, r.lse.size());
        r.gated_out = a_.gate ? numbers_at(arrays_, a_.gated_out, r.out.size()) : r.out;
        return r;
    }

    Results forward(bool statistics = true) {
        Results r(p_);
        const std::pair<Numbers*, W*> of_rows[] = {{&r.entropy, put<W>(arrays_, r.entropy)}, {&r.tile_max, put<W>(arrays_, r.tile_max)},
            {&r.pairs, put<W>(arrays_, r.pairs)}, {&r.tiles, put<W>(arrays_, r.tiles)}, {&r.pair_gate, put<W>(arrays_, r.pair_gate)}};
        AttentionForward<X> a = a_;
        if (statistics) a.statistics = {of_rows[0].second, of_rows[1].second, of_rows[2].second, of_rows[3].second, of_rows[4].second};
        attention_forward(device_, policy_, a);
        for (const auto& [numbers, at] : of_rows) *numbers = numbers_at(arrays_, at, numbers->size());
        const Results left = results();
        r.out = left.out, r.gated_out = left.gated_out, r.lse = left.lse;
        return r;
    }

    /// Needs forward(). Numbers of tiles that the kernel does not visit it leaves: they become 0.
    Gradients backward() {
        AttentionBackward<X> g{};
        g.dout = dout_, g.dlse = dlse_;
        g.dq = {put<W>(arrays_, p_.q.size()), q_row()}, g.dk = {put<W>(arrays_, p_.k.size()), k_row()};
        g.dv = {put<X>(arrays_, p_.v.size()), k_row()};
        g.dhead = like(p_.head, p_.B), g.drow = like(p_.row), g.dcolumn = like(p_.column), g.dtile = like(p_.tile);
        g.dgate = like(p_.gate);
        const size_t bytes = attention_workspace(device_, policy_, p_.B, p_.T, p_.S, p_.NH);
        g.workspace = reinterpret_cast<std::byte*>(put<float>(arrays_, bytes / sizeof(float)));
        attention_backward(device_, policy_, a_, g);
        Gradients all{numbers_at(arrays_, g.dq.data, p_.q.size()), numbers_at(arrays_, g.dk.data, p_.k.size()),
                      numbers_at(arrays_, g.dv.data, p_.v.size()), Numbers(p_.head.size(), 0),
                      numbers_at(arrays_, g.drow, p_.row.size()), numbers_at(arrays_, g.dcolumn, p_.column.size()),
                      numbers_at(arrays_, g.dtile, p_.tile.size()), numbers_at(arrays_, g.dgate, p_.gate.size())};
        const Numbers of_sequences = numbers_at(arrays_, g.dhead, p_.head.size() * p_.B);
        for (size_t n = 0; n < of_sequences.size(); n++) all.head[n % p_.head.size()] += of_sequences[n];
        for (double& number : all.tile) number = std::isnan(number) ? 0 : number;
        return all;
    }

private:
    size_t q_row() const { return size_t(p_.NH) * p_.HS; }
    size_t k_row() const { return size_t(p_.NKV) * p_.HS; }
    /// Null for no numbers.
    template <class Y, class Z>
    Y* some(const std::vector<Z>& numbers) {
        return numbers.empty() ? nullptr : put<Y>(arrays_, Numbers(numbers.begin(), numbers.end()));
    }
    W* like(const Numbers& numbers, int copies = 1) { return some<W>(Numbers(copies * numbers.size(), NAN)); }

    const Problem& p_;
    P policy_;
    Device device_;
    ArraysOn<Device> arrays_;
    const X* dout_;
    const W* dlse_;
    AttentionForward<X> a_{};
};

template <class P>
Results forward(const Problem& p, const P& policy) {
    return AttentionOn<CPU, double, P>({}, p, policy).forward();
}

// ---- one against the other

inline Numbers no_nan(Numbers numbers) {
    for (double& number : numbers) number = std::isnan(number) ? -1e3 : number;
    return numbers;
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
    AttentionOn<CPU, double, P> on_cpu({}, p, policy);
    const Results is = on_cpu.forward(), should = by_definition(p, score, seen);
    CHECK(difference(is.out, should.out, {1e-12}) == "");
    CHECK(difference(is.gated_out, should.gated_out, {1e-12}) == "");
    CHECK(difference(no_infinity(is.lse), no_infinity(should.lse), {1e-12}) == "");
    CHECK(difference(no_infinity(is.tile_max), no_infinity(should.tile_max), {1e-12}) == "");
    CHECK(difference(is.entropy, should.entropy, {1e-12, 1e-12}) == "");
    CHECK(is.pairs == should.pairs);
    CHECK(difference(no_nan(is.pair_gate), no_nan(gates_by_definition<P>(p, seen)), {1e-12}) == "");
    CHECK(std::equal(is.tiles.begin(), is.tiles.end(), should.tiles.begin(), std::greater_equal<>()));   // false for NaN

    const Gradients g = on_cpu.backward();
    auto loss_by_definition = [&] { return loss(p, by_definition(p, score, seen)); };
    const std::pair<Numbers*, const Numbers*> inputs[] = {{&p.q, &g.q}, {&p.k, &g.k}, {&p.v, &g.v}, {&p.head, &g.head},
                                                          {&p.row, &g.row}, {&p.column, &g.column}, {&p.tile, &g.tile},
                                                          {&p.gate, &g.gate}};
    int number = 0;
    for (const auto& [values, gradient] : inputs) {
        INFO("number " << number++ << " of q, k, v, head, row, column, tile, gate");
        CHECK((values->size() == gradient->size() && all_finite(*gradient)));
        if (values->empty()) continue;
        CHECK(slope_error(*values, *gradient, [](size_t) { return true; }, loss_by_definition, 1e-5) <= 1e-8);
    }
}
