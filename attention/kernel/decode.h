// Single-token decode on the CPU: one query per head against the KV cache. Scores, masks and running softmax are those of cpu.h. There is
// no tile of queries to share a transposed K, so each key is read once, in place.
//     NextRow   a device for a layer's own forward(): a kernel call with it appends the row's keys to the cache and reads the whole
//               cache
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/kernel/cpu.h"
#include "attention/kernel/key_cache.h"

/// Whether decode needs only the rotated keys and the values of a text: the policy reads nothing else and makes one kernel call.
template <class P>
constexpr bool may_read_keys_only = !P::own_passes && !P::reads_qk_pre && !P::reads_x;
template <class P>
bool reads_keys_only(const P& policy) {
    const Features f = policy.features();
    return may_read_keys_only<P> && policy.rotates() && !policy.gates_output() && f.head + f.row + f.column == 0;
}

/// A query row of head h at position i of its text, with the inputs of score().
template <class X>
struct Query {
    const X* q;   // (HS)
    int h, i;
    const Wide<X>*head_scalars = nullptr, *row_features = nullptr;
};

/// Row 0 of the call `a` in head h.
template <class X>
Query<X> query_of(const AttentionForward<X>& a, const Features& f, int h, int position) {
    return {a.q.data + size_t(h) * a.HS, h, position, a.head + size_t(h) * f.head, a.row + size_t(h) * f.row};
}

/// The running softmax of one row.
template <class X>
class QueryRow {
public:
    explicit QueryRow(int HS) : HS_(HS), scale_(X(1) / std::sqrt(X(HS))), sums_(HS) {}

    /// Adds the keys that are visible to the query under `policy`.
    template <class P>
    void visit(const P& policy, const Query<X>& query, const KeySpan<X>& keys) {
        for (int n = 0; n < keys.count; n += TILE) {
            const int columns = std::min(TILE, keys.count - n), j0 = keys.first + n;
            const Tile verdict = policy.tile(query.h, query.i, query.i + 1, j0, j0 + columns);
            if (verdict == Tile::hidden) continue;
            X z[TILE] = {};
            for (int j = 0; j < columns; j++) z[j] = scale_ * inner_product(query.q, keys.k.data + (n + j) * keys.k.row, HS_);
            modify_scores(z, policy, query, keys, n, columns);
            for (int j = 0; j < columns; j++)
                if (verdict == Tile::mixed && !policy.visible(query.h, query.i, j0 + j)) z[j] = X(HIDDEN);
            add_values(z, keys.v.data + n * keys.v.row, keys.v.row, columns);
        }
    }

    /// Log-sum-exp of the keys so far.
    X lse() const {
        return state_.sum == X(0) ? -std::numeric_limits<X>::infinity() : state_.largest + std::log(state_.sum);
    }

    /// Writes out (HS); 0 if no key was seen.
    void write(X* out) const {
        for (int d = 0; d < HS_; d++) out[d] = state_.sum == X(0) ? X(0) : sums_[d] / state_.sum;
    }

private:
    template <class P>
    static void modify_scores(X* z, const P& policy, const Query<X>& query, const KeySpan<X>& keys, int n, int columns) {
        const int width = whole_packs<X>(columns);
        Pair<Pack<X>> pair;
        pair.head_scalars = query.head_scalars, pair.row_features = query.row_features;
        pair.column_stride = keys.column_stride, pair.tile_bias = keys.tile_bias, pair.i = X(query.i);
        for (int j = 0; j < width; j += LANES<X>) {
            pair.column_features = keys.columns + n + j, pair.j = iota(X(keys.first + n + j));
            store(z + j, policy.score(load<Pack<X>>(z + j), pair));
        }
        for (int j = columns; j < width; j++) z[j] = X(HIDDEN);
    }

    /// Turns z (columns) into exp(z - largest).
    void add_values(X* z, const X* v, size_t row, int columns) {
        const X rescale = absorb(state_, z, whole_packs<X>(columns), Statistics<X>());
        for (int d = 0; d < HS_; d++) sums_[d] *= rescale;
        for (int j = 0; j < columns; j++)
#pragma omp simd
            for (int d = 0; d < HS_; d++) sums_[d] += z[j] * v[j * row + d];
    }

    int HS_;
    X scale_;
    OnlineRow<X> state_;
    std::vector<X> sums_;   // (HS) of exp(z - largest) v
};

/// The decode state of a policy besides keys. Most policies have none.
struct NothingMore {
    template <class P>
    NothingMore(const P&, BumpAllocator&, const LayerShape&) {}
    template <class P, class X>
    void begin(const P&, const LayerInputs<X>&, const X* /*weights*/, const LayerState<X>&) {}
#ifdef WITH_GPU
    template <class P, class X>
    void begin(const GPU&, int /*text*/, const P&, const LayerInputs<X>&, const X* /*weights*/, const LayerState<X>&) {}
#endif
};

/// The device of single-token decode on the CPU, B = T = 1. A layer's forward() on it gives that layer's row of the whole text. RoPE's
/// table begins at position 0, not at the row's.
template <class X, class More = NothingMore, class Slots = RingSlots>
struct NextRow : CPU {
    KeyCache<X, Slots>* keys;   // of the previous rows
    More* more;
};

/// Row b of `in`, as the next token of a sequence.
template <class X>
LayerInputs<X> row_of(LayerInputs<X> in, int b) {
    in.B = 1;
    in.x += size_t(b) * in.C;
    if (in.q_pre) in.q_pre += b * in.qk_row, in.k_pre += b * in.qk_row;
    in.q += b * in.qk_row, in.k += b * in.qk_row, in.v += b * in.v_row;
    return in;
}

/// `state` for that row: its output is in its place, all else is scratch memory.
template <class X>
LayerState<X> row_of(LayerState<X> state, const LayerShape& s, int b) {
    const size_t at = size_t(b) * s.NH * s.HS;
    state.out += at, state.gated_out += at;
    return state;
}

/// Writes out, lse and, with a gate, gated_out of head h.
template <class X>
void write_row(const AttentionForward<X>& a, int h, const QueryRow<X>& row) {
    X* const out = a.out + size_t(h) * a.HS;
    row.write(out);
    a.lse[h] = row.lse();
    for (int d = 0; a.gate && d < a.HS; d++) a.gated_out[size_t(h) * a.HS + d] = a.gate[h] * out[d];
}

/// Computes out and lse of the next row, and gated_out with a gate. Calls attend(h, row, span), which adds to the row's softmax, for
/// every query head and every tile of `keys` (a KeyCache, or a type with its each_span(), span(), tile() and tile_size()). Heads that
/// share keys process a tile in turn, so that it is loaded from memory once.
template <class X, class Keys, class Attend>
void attend_next_row(const AttentionForward<X>& a, const Keys& keys, Attend attend) {
    const int group = a.NH / a.NKV;
#pragma omp parallel for
    for (int first = 0; first < a.NH; first += group) {
        std::vector<QueryRow<X>> rows(group, QueryRow<X>(a.HS));
        std::vector<X> memory(keys.tile_size());
        keys.each_span(first, [&](const KeySpan<X>& span) {
            for (int n = 0; n < span.count; n += TILE) {
                const int j = span.first + n, count = std::min(TILE, span.count - n);
                const KeySpan<X> tile = keys.tile(first, j, count, memory.data());
                for (int g = 0; g < group; g++) {
                    KeySpan<X> of_head = keys.span(first + g, j, count);
                    of_head.k = tile.k, of_head.v = tile.v;
                    attend(first + g, rows[g], of_head);
                }
            }
        });
        for (int g = 0; g < group; g++) write_row(a, first + g, rows[g]);
    }
}

/// The kernel call for the next row: appends its keys to the cache and attends to all of them.
template <class X, class More, class Slots, class P>
void attention_forward(const NextRow<X, More, Slots>& device, const P& policy, const AttentionForward<X>& a) {
    const int position = device.keys->tokens();
    device.keys->append(a);
    attend_next_row(a, *device.keys, [&](int h, QueryRow<X>& row, const KeySpan<X>& keys) {
        row.visit(policy, query_of(a, policy.features(), h, position), keys);
    });
}
