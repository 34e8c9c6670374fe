// One query row against cached keys and values: attention of a model that generates token by token. Policies and running softmax
// are those of cpu.h, but there is no tile of queries to share a transposed K: each key is read once.
#pragma once
#include <algorithm>
#include <vector>

#include "attention/kernel/cpu.h"

/// Whether decode_attention() gives the result of the whole sequence: the policy reads nothing but q, k and v, rotated
/// by their positions in the text.
template <class P>
constexpr bool may_decode_from_cache = !P::own_passes && !P::reads_qk_pre && !P::reads_x;
template <class P>
bool can_decode_from_cache(const P& policy) {
    const Features f = policy.features();
    return may_decode_from_cache<P> && policy.rotates() && !policy.gates_output() && f.head + f.row + f.column == 0;
}

/// The only query row of head h during its walk over the keys. Arguments: B = T = 1, S keys, q_position is the row's position.
template <class X, class P>
class QueryRow {
public:
    QueryRow(const P& policy, const AttentionForward<X>& a, int h)
        : policy_(policy), a_(a), walk_(policy, a, 0, h), h_(h), kv_(h / (a.NH / a.NKV)), sums_(a.HS) {}

    /// Adds keys j0 .. j1 - 1 to the softmax.
    void visit(int j0, int j1) {
        for (; j0 < j1; j0 += TILE) {
            const TilePlace at{0, h_, 0, j0, 1, std::min(TILE, j1 - j0)};
            const Tile verdict = walk_.judge(at);
            if (verdict != Tile::hidden) visit(at, verdict);
        }
    }

    /// Log-sum-exp of the keys added so far.
    double lse() const { return double(state_.largest) + std::log(double(state_.sum)); }

    /// Writes out and lse.
    void finish() const { finish_row(a_, state_, sums_.data(), h_, h_); }

private:
    void visit(const TilePlace& at, Tile verdict) {
        const int HS = a_.HS;
        const X *q = a_.q.data + size_t(h_) * HS, *k = a_.k.data + at.j0 * a_.k.row + size_t(kv_) * HS;
        const X* v = a_.v.data + at.j0 * a_.v.row + size_t(kv_) * HS;
        const X scale = X(1) / std::sqrt(X(HS));
        X z[TILE] = {};
        for (int j = 0; j < at.columns; j++) z[j] = scale * inner_product(q, k + j * a_.k.row, HS);
        modify_and_mask(z, policy_, a_, walk_, at, verdict);
        const X rescale = absorb(state_, z, whole_packs<X>(at.columns), Statistics<X>());
        for (int d = 0; d < HS; d++) sums_[d] *= rescale;
        for (int j = 0; j < at.columns; j++)
#pragma omp simd
            for (int d = 0; d < HS; d++) sums_[d] += z[j] * v[j * a_.v.row + d];
    }

    const P& policy_;
    const AttentionForward<X>& a_;
    const TileWalk<X, P> walk_;
    int h_, kv_;
    OnlineRow<X> state_;
    std::vector<X> sums_;   // (HS) of exp(z - largest) v
};

/// out and lse of the row under `policy`. Precondition: can_decode_from_cache().
template <class X, class P>
void decode_attention(const P& policy, const AttentionForward<X>& a) {
#pragma omp parallel for
    for (int h = 0; h < a.NH; h++) {
        QueryRow<X, P> row(policy, a, h);
        row.visit(0, a.S);
        row.finish();
    }
}
