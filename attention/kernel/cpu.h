// The tiled attention kernel on the CPU, for any policy: online softmax over tiles of TILE x TILE pairs, without hidden tiles and
// without arrays of size T x T. The five matrix products of a tile go through CBLAS; the rest is loops over SIMD vectors of keys.
// A thread takes some query tiles (forward) or all of them (backward) of one (sequence, key/value head), in the order of the text. For
// each tile it takes all query heads of the group, which share the keys in the cache. In the backward pass a thread owns dK and dV of
// its head: no two threads add to the same element, so two runs give the same bits.
// cpu_more.h adds keys to the result of an earlier call.
// Source: FlashAttention-2 (Dao 2023), with D_i = <dO_i, O_i> - dLSE_i when the log-sum-exp has a gradient of its own.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "attention/kernel/cpu_rows.h"
#include "attention/kernel/cpu_tile.h"
#include "model/device/blas.h"
#include "model/device/device.h"

// ---- forward

/// The state of one query tile during its walk over the keys.
template <class X>
struct QueryTile {
    std::vector<X> q, z, sums;        // (TILE, HS), (TILE, TILE), (TILE, HS) of exp(z - largest) v
    std::vector<OnlineRow<X>> rows;   // (TILE)
    int visited = 0;                  // key tiles

    explicit QueryTile(int HS) : q(size_t(TILE) * HS), z(TILE * TILE), sums(size_t(TILE) * HS), rows(TILE) {}
};

/// Resumes a row from out, lse and the statistics of an earlier call, which count as one key of weight exp(lse). `sums` has HS elements;
/// `bth` and `bht` are the row's indices in (B, tokens, NH) and (B, NH, tokens).
template <class X>
void resume_row(const AttentionForward<X>& a, OnlineRow<X>& row, X* sums, size_t bth, size_t bht) {
    if (a.lse[bht] == -std::numeric_limits<X>::infinity()) return;
    row.largest = a.lse[bht], row.sum = 1;
    if (a.statistics.entropy) row.moment = a.lse[bht] - a.statistics.entropy[bht];
    if (a.statistics.pairs) row.pairs = a.statistics.pairs[bht];
    std::copy_n(a.out + bth * a.HS, a.HS, sums);
}

/// Writes a row's results: O, LSE, the gated output, entropy and pairs.
template <class X>
void finish_row(const AttentionForward<X>& a, const OnlineRow<X>& row, const X* sums, size_t bth, size_t bht) {
    const bool nothing = row.sum == X(0);
    const X inverse = nothing ? X(0) : X(1) / row.sum;
    const X lse = nothing ? -std::numeric_limits<X>::infinity() : row.largest + std::log(row.sum);
    a.lse[bht] = lse;
    for (int d = 0; d < a.HS; d++) a.out[bth * a.HS + d] = sums[d] * inverse;
    if (a.gate)
        for (int d = 0; d < a.HS; d++) a.gated_out[bth * a.HS + d] = a.gate[bth] * a.out[bth * a.HS + d];
    if (a.statistics.entropy) a.statistics.entropy[bht] = nothing ? X(0) : lse - row.moment * inverse;
    if (a.statistics.pairs) a.statistics.pairs[bht] = row.pairs;
}

/// Computes z of a band from its queries, `q_row` elements apart, and the tile's keys. z and k_transposed point to the band's first
/// pair.
template <class X, class P>
void band_scores(X* z, const P& policy, const AttentionForward<X>& a, const TileWalk<X, P>& walk, const TilePlace& band,
                 Tile verdict, const X* q, size_t q_row, const X* k_transposed) {
    gemm(Transpose::no, Transpose::no, band.rows, whole_packs<X>(band.columns), a.HS, X(1) / std::sqrt(X(a.HS)), q, q_row,
         k_transposed, TILE, X(0), z, TILE);
    modify_and_mask(z, policy, a, walk, band, verdict);
}

/// Adds the keys of a band to the softmax of its rows.
template <class X, class P>
void visit_band(const P& policy, const AttentionForward<X>& a, const TileWalk<X, P>& walk, const TilePlace& band, Tile verdict,
                const KeyTile<X>& keys, QueryTile<X>& tile) {
    const int HS = a.HS, r0 = band.i0 % TILE, c0 = band.j0 % TILE, width = whole_packs<X>(band.columns);
    X *const z = &tile.z[r0 * TILE + c0], *const sums = &tile.sums[r0 * HS];
    band_scores(z, policy, a, walk, band, verdict, &tile.q[r0 * HS], HS, keys.k_transposed + c0);
    for (int r = 0; r < band.rows; r++) {
        X* row = z + r * TILE;
        if (a.statistics.tile_max) write_peak(a, band, r, row);
        if (P::gates_pairs && a.statistics.pair_gate)
            tile.rows[r0 + r].pair_gates += sum_of_pair_gates(policy, a, walk, band, r, row);
        const X rescale = absorb(tile.rows[r0 + r], row, width, a.statistics);
        if (rescale == X(1)) continue;
        for (int d = 0; d < HS; d++) sums[r * HS + d] *= rescale;
    }
    gemm(Transpose::no, Transpose::no, band.rows, HS, band.columns, X(1), z, TILE, keys.v + c0 * HS, HS, X(1), sums, HS);
}

/// A kernel call with the order of its rows.
template <class X, class P, class Rows>
struct ForwardCall {
    const P& policy;
    const AttentionForward<X>& a;
    RowPlaces<Rows> at;
    Write write;

    template <class KeyRows>
    void query_tile(int b, int h, int i0, KeyTiles<X, KeyRows>& keys, QueryTile<X>& tile) const {
        const TileWalk<X, P> walk(policy, a, b, h);
        start(b, h, i0, tile);
        walk.each_tile(i0, [&](const TilePlace& place, Tile verdict) {
            tile.visited++;
            const KeyTile<X> key_tile = keys.tile(place.j0 / TILE);
            each_band(walk, place, verdict,
                      [&](const TilePlace& band) { visit_band(policy, a, walk, band, verdict, key_tile, tile); });
        });
        finish(b, h, i0, tile);
    }

private:
    void start(int b, int h, int i0, QueryTile<X>& tile) const {
        std::fill(tile.sums.begin(), tile.sums.end(), X(0));
        std::fill(tile.rows.begin(), tile.rows.end(), OnlineRow<X>());
        tile.visited = 0;
        gather_rows(tile.q.data(), a.q, at, a.T, b, h, h, i0, a.HS);
        const int rows = std::min(TILE, a.T - i0);
        for (int r = 0; r < rows && write == Write::add; r++) {
            const int token = at.token(b, h, i0 + r);
            if (token < 0) continue;
            resume_row(a, tile.rows[r], &tile.sums[size_t(r) * a.HS], at.at_BTH(b, h, token), at.at_BHT(b, h, token));
        }
        if (!a.statistics.tile_max) return;
        const size_t first = (size_t(b) * a.NH + h) * a.T + i0, key_tiles = tiles_of(a.S);
        std::fill_n(a.statistics.tile_max + first * key_tiles, rows * key_tiles, -std::numeric_limits<X>::infinity());
    }

    void finish(int b, int h, int i0, const QueryTile<X>& tile) const {
        for (int r = 0; r < std::min(TILE, a.T - i0); r++) {
            const int token = at.token(b, h, i0 + r);
            if (token < 0) continue;
            const size_t bht = at.at_BHT(b, h, token);
            finish_row(a, tile.rows[r], &tile.sums[size_t(r) * a.HS], at.at_BTH(b, h, token), bht);
            if (!P::gates_pairs || !a.statistics.pair_gate) continue;
            a.statistics.pair_gate[bht] = tile.rows[r].pair_gates + (write == Write::add ? a.statistics.pair_gate[bht] : X(0));
        }
        if (a.statistics.tiles) add_visited(b, h, i0 / TILE, X(tile.visited));
    }

    /// Counts a query tile of rows for the text's query tile at the same fraction of its length, as in merge.cuh.
    void add_visited(int b, int h, int query_tile, X visited) const {
        const int of_text = tiles_of(at.tokens), as_far_on = int(int64_t(query_tile) * of_text / tiles_of(a.T));
        X& to = a.statistics.tiles[(size_t(b) * a.NH + h) * of_text + as_far_on];
        if (write == Write::overwrite) to = visited;
        else {
#pragma omp atomic   // integers: the order of the threads does not matter
            to += visited;
        }
    }
};

/// Query tiles of a head that a thread takes at a time: many, because it copies their keys anew each time, but few enough that every
/// thread gets some of `all`. Results do not depend on it.
inline int tiles_at_once(int64_t all) { return int(std::clamp<int64_t>(all / (4 * omp_get_max_threads()), 2, 16)); }

/// If a token may have several rows, one thread takes all rows of the heads that share keys, because the rows resume from each other's
/// results.
template <class X, class P, class Rows, class KeyRows>
void attention_rows_forward(const P& policy, const AttentionForward<X>& a, const Rows& rows, const KeyRows& key_rows, Write write) {
    const ForwardCall<X, P, Rows> call{policy, a, {rows, a.T, a.NH}, write};
    const int heads = KeyRows::per_head ? 1 : a.NH / a.NKV, query_tiles = tiles_of(a.T);
    const int length = repeats_tokens<Rows> ? query_tiles : tiles_at_once(int64_t(query_tiles) * a.B * (a.NH / heads));
    const int last_piece = (query_tiles - 1) / length;
#pragma omp parallel
    {
        KeyTiles<X, KeyRows> keys(a, key_rows, Pass::forward);
        QueryTile<X> tile(a.HS);
#pragma omp for collapse(3) schedule(dynamic)
        for (int piece = last_piece; piece >= 0; piece--)   // late rows see the most keys, so they start first
            for (int b = 0; b < a.B; b++)
                for (int first = 0; first < a.NH; first += heads) {
                    keys.start(b, first);
                    const int end = std::min(query_tiles, (piece + 1) * length);
                    for (int t = piece * length; t < end; t++)
                        for (int h = first; h < first + heads; h++) call.query_tile(b, h, t * TILE, keys, tile);
                }
    }
}

/// Softmax attention under `policy`: out, lse, and the further results that the arguments request. A row that sees nothing has out 0
/// and lse -infinity. Preconditions: NH % NKV == 0; gated_out is given if there is a gate.
template <class X, class P>
void attention_forward(CPU, const P& policy, const AttentionForward<X>& a) {
    attention_rows_forward(policy, a, RowsInOrder(), RowsInOrder(), Write::overwrite);
}

// ---- backward

/// A thread's buffers for the tiles of one (sequence, key/value head).
template <class X>
struct BackwardWorkspace {
    std::vector<char> started;                        // (tiles): whether dk and dv of the tile have been written
    std::vector<X> q, dout, dq;                       // (TILE, HS); with a gate dout is g dO'
    std::vector<X> lse, D;                            // (TILE)
    std::vector<X> hidden, a, p, dz;                  // (TILE, TILE); 0 or HIDDEN, raw scores, probabilities, dL/dP and dL/da
    std::vector<X> dkeys;                             // (TILE, HS) for a key tile whose rows are scattered in memory
    std::unique_ptr<Pack<X>[]> head_sums, row_sums;   // no std::vector: nvcc rejects SIMD vectors in its constexpr members

    BackwardWorkspace(const AttentionForward<X>& f, const Features& n) : started(tiles_of(f.S)) {
        for (std::vector<X>* rows : {&q, &dout, &dq, &dkeys}) rows->resize(size_t(TILE) * f.HS);
        for (std::vector<X>* numbers : {&lse, &D}) numbers->resize(TILE);
        for (std::vector<X>* tile : {&hidden, &a, &p, &dz}) tile->resize(TILE * TILE);
        head_sums = std::make_unique<Pack<X>[]>(size_t(f.NH / f.NKV) * n.head), row_sums = std::make_unique<Pack<X>[]>(n.row);
    }
};

/// The same offset into each of the (TILE, TILE) arrays.
template <class X>
struct BandOfTiles {
    X *hidden, *a, *p, *dz;
    BandOfTiles(BackwardWorkspace<X>& w, int at) : hidden(&w.hidden[at]), a(&w.a[at]), p(&w.p[at]), dz(&w.dz[at]) {}
};

/// Turns raw scores and dP of a band into P and dL/da, and accumulates the gradients of the score inputs. The arrays of `tile` start at
/// the band's first pair.
template <class X, class P>
void backward_pairs(const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g, const TileWalk<X, P>& walk,
                    const TilePlace& at, const BandOfTiles<X>& tile, BackwardWorkspace<X>& w) {
    using N = Pack<X>;
    const Features f = policy.features();
    const size_t bh = size_t(at.b) * a.NH + at.h, columns = padded(a.S);
    N* const head_sums = w.head_sums.get() + size_t(at.h % (a.NH / a.NKV)) * f.head;
    N tile_sums{};
    for (int r = 0; r < at.rows; r++) {
        const int i = at.i0 + r;
        const X lse = w.lse[i % TILE], D = w.D[i % TILE];
        std::fill_n(w.row_sums.get(), f.row, N{});
        for (int j = 0; j < at.columns; j += LANES<X>) {
            const int n = r * TILE + j;
            const auto dz_of = [&](N z) {
                const N p = load<N>(&tile.hidden[n]) > X(HIDDEN / 2) ? exp_of(z - lse) : broadcast<N>(0);   // nvcc fails at N{} here
                store(&tile.p[n], p);
                return p * (load<N>(&tile.dz[n]) - D);
            };
            PairGradients<N> gradients{head_sums, w.row_sums.get(), g.dcolumn + bh * f.column * columns + at.j0 + j, columns,
                                       &tile_sums};
            const Pair<N> pair = pair_of(a, f, walk, at, i, at.j0 + j);
            store(&tile.dz[n], policy.score_backward(load<N>(&tile.a[n]), pair, gradients, dz_of));
        }
        for (int n = 0; n < f.row; n++) g.drow[(bh * a.T + i) * f.row + n] += sum<X>(w.row_sums[n]);
    }
    if (f.tile) g.dtile[tile_bias_at(a, at)] += sum<X>(tile_sums);
}

/// Computes P and dL/da of a band, and its keys' contribution to dq.
template <class X, class P>
void backward_band(const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g, const TileWalk<X, P>& walk,
                   const TilePlace& band, Tile verdict, const KeyTile<X>& keys, BackwardWorkspace<X>& w) {
    const int HS = a.HS, r0 = band.i0 % TILE, c0 = band.j0 % TILE, width = whole_packs<X>(band.columns);
    const X scale = X(1) / std::sqrt(X(HS));
    const BandOfTiles<X> tile(w, r0 * TILE + c0);
    gemm(Transpose::no, Transpose::no, band.rows, width, HS, scale, &w.q[r0 * HS], HS, keys.k_transposed + c0, TILE, X(0), tile.a,
         TILE);
    gemm(Transpose::no, Transpose::no, band.rows, width, HS, X(1), &w.dout[r0 * HS], HS, keys.v_transposed + c0, TILE, X(0),
         tile.dz, TILE);
    hide(tile.hidden, walk, band, verdict);
    backward_pairs(policy, a, g, walk, band, tile, w);
    gemm(Transpose::no, Transpose::no, band.rows, HS, band.columns, scale, tile.dz, TILE, keys.k + c0 * HS, HS, X(1),
         &w.dq[r0 * HS], HS);
}

template <class X, class P, class Rows, class KeyRows>
struct BackwardCall {
    const P& policy;
    const AttentionForward<X>& a;
    const AttentionBackward<X>& g;
    RowPlaces<Rows> queries;
    RowPlaces<KeyRows> keys;
    Write write;   // mode for dq, dk and dv; with `add`, rows in another order add to them
    Features f = policy.features();

    /// Processes all query tiles of heads `first` to `end` - 1, which share keys.
    void query_heads(int b, int first, int end, KeyTiles<X, KeyRows>& key_tiles, BackwardWorkspace<X>& w) const {
        key_tiles.start(b, first);
        std::fill_n(w.head_sums.get(), size_t(a.NH / a.NKV) * f.head, Pack<X>{});
        const size_t width = padded(a.S), heads = end - first, bh = size_t(b) * a.NH + first;
        if (f.row) std::fill_n(g.drow + bh * a.T * f.row, heads * a.T * f.row, X(0));
        if (f.column) std::fill_n(g.dcolumn + bh * f.column * width, heads * f.column * width, X(0));
        for (int i0 = 0; i0 < a.T; i0 += TILE)
            for (int h = first; h < end; h++) query_tile(b, h, i0, key_tiles, w);
        for (size_t h = 0; h < heads; h++)
            for (int n = 0; n < f.head; n++)
                g.dhead[(bh + h) * f.head + n] = sum<X>(w.head_sums[(first + h) % (a.NH / a.NKV) * f.head + n]);
    }

    /// Zeros dk and dv of the key tiles that no query tile has visited.
    void finish_keys(int b, int kv, const BackwardWorkspace<X>& w) const {
        for (int tile = 0; tile < tiles_of(a.S) && write == Write::overwrite; tile++)
            if (!w.started[tile]) clear_keys(b, kv, tile);
    }

private:
    void query_tile(int b, int h, int i0, KeyTiles<X, KeyRows>& key_tiles, BackwardWorkspace<X>& w) const {
        const TileWalk<X, P> walk(policy, a, b, h);
        const int rows = std::min(TILE, a.T - i0);
        start(b, h, i0, rows, w);
        walk.each_tile(i0, [&](const TilePlace& at, Tile verdict) {
            const KeyTile<X> key_tile = key_tiles.tile(at.j0 / TILE);
            if (verdict == Tile::mixed) std::fill(w.p.begin(), w.p.end(), X(0)), std::fill(w.dz.begin(), w.dz.end(), X(0));
            if (f.tile) g.dtile[tile_bias_at(a, at)] = X(0);
            int begin = TILE, end = 0;   // the range of columns over all bands
            each_band(walk, at, verdict, [&](const TilePlace& band) {
                backward_band(policy, a, g, walk, band, verdict, key_tile, w);
                begin = std::min(begin, band.j0 % TILE), end = std::max(end, band.j0 % TILE + band.columns);
            });
            if (end > begin) add_to_keys({b, h, i0, at.j0 + begin, rows, end - begin}, w);
        });
        for (int r = 0; r < rows; r++) {
            const int token = queries.token(b, h, i0 + r);
            if (token >= 0) put(g.dq, queries, b, h, token, &w.dq[r * a.HS]);
        }
    }

    /// Loads the rows of a query tile: q, dO, the log-sum-exp and D = <dO, O> - dLSE. With a gate O' = g O: dg = <dO', O>, dO = g dO'.
    void start(int b, int h, int i0, int rows, BackwardWorkspace<X>& w) const {
        gather_rows(w.q.data(), a.q, queries, a.T, b, h, h, i0, a.HS);
        gather_rows(w.dout.data(), {g.dout, size_t(a.NH) * a.HS}, queries, a.T, b, h, h, i0, a.HS);
        std::fill(w.dq.begin(), w.dq.end(), X(0));
        for (int r = 0; r < rows; r++) {
            const int token = queries.token(b, h, i0 + r);
            w.lse[r] = X(-HIDDEN), w.D[r] = 0;
            if (token < 0) continue;   // padding: P is 0
            const size_t bth = queries.at_BTH(b, h, token), bht = queries.at_BHT(b, h, token);
            X* const dout = &w.dout[r * a.HS];
            const X product = inner_product(dout, a.out + bth * a.HS, a.HS);
            if (g.dgate) g.dgate[bth] = product;
            const X gate = a.gate ? a.gate[bth] : X(1);
            for (int d = 0; d < a.HS && a.gate; d++) dout[d] *= gate;
            w.lse[r] = a.lse[bht];
            w.D[r] = gate * product - (g.dlse ? g.dlse[bht] : X(0));
        }
    }

    /// Adds P^T dout to dv and scale (dL/da)^T q to dk for the keys of `at`, columns of one tile.
    void add_to_keys(const TilePlace& at, BackwardWorkspace<X>& w) const {
        const int c0 = at.j0 % TILE, kv = at.h / (a.NH / a.NKV), tile = at.j0 / TILE;
        if (write == Write::overwrite && !std::exchange(w.started[tile], 1)) clear_keys(at.b, kv, tile);
        add_products(at, g.dv, X(1), &w.p[c0], w.dout.data(), w);
        add_products(at, g.dk, X(1) / std::sqrt(X(a.HS)), &w.dz[c0], w.q.data(), w);
    }

    /// to += scale pairs^T rows; in place if the keys' rows are contiguous.
    void add_products(const TilePlace& at, const Heads<X>& to, X scale, const X* pairs, const X* rows,
                      BackwardWorkspace<X>& w) const {
        const int kv = at.h / (a.NH / a.NKV);
        if constexpr (RowPlaces<KeyRows>::in_order)
            return gemm(Transpose::yes, Transpose::no, at.columns, a.HS, at.rows, scale, pairs, TILE, rows, a.HS, X(1),
                        home(to, keys, at.b, kv, at.j0), to.row);
        gemm(Transpose::yes, Transpose::no, at.columns, a.HS, at.rows, scale, pairs, TILE, rows, a.HS, X(0), w.dkeys.data(), a.HS);
        for (int j = 0; j < at.columns; j++) {
            const int token = keys.token(at.b, at.h, at.j0 + j);
            if (token >= 0) put(to, keys, at.b, kv, token, &w.dkeys[j * a.HS]);
        }
    }

    template <class Places>
    X* home(const Heads<X>& to, const Places& at, int b, int head, int token) const {
        return to.data + at.of_token(b, token) * to.row + size_t(head) * a.HS;
    }
    template <class Places>
    void put(const Heads<X>& to, const Places& at, int b, int head, int token, const X* row) const {
        X* const place = home(to, at, b, head, token);
        for (int d = 0; d < a.HS; d++) place[d] = (write == Write::add ? place[d] : X(0)) + row[d];
    }
    void clear_keys(int b, int kv, int tile) const {
        for (int j = tile * TILE; j < std::min(a.S, (tile + 1) * TILE); j++) {
            std::fill_n(home(g.dk, keys, b, kv, j), a.HS, X(0));
            std::fill_n(home(g.dv, keys, b, kv, j), a.HS, X(0));
        }
    }
};

template <class X, class P, class Rows, class KeyRows>
void attention_rows_backward(const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g, const Rows& rows,
                             const KeyRows& key_rows, Write write) {
    const BackwardCall<X, P, Rows, KeyRows> call{policy, a, g, {rows, a.T, a.NH}, {key_rows, a.S, a.NH}, write};
    const int group = a.NH / a.NKV, heads = KeyRows::per_head ? 1 : group;
#pragma omp parallel
    {
        KeyTiles<X, KeyRows> keys(a, key_rows, Pass::backward);
        BackwardWorkspace<X> w(a, policy.features());
#pragma omp for collapse(2) schedule(dynamic)
        for (int b = 0; b < a.B; b++)
            for (int kv = 0; kv < a.NKV; kv++) {
                std::fill(w.started.begin(), w.started.end(), 0);
                for (int h = kv * group; h < (kv + 1) * group; h += heads) call.query_heads(b, h, h + heads, keys, w);
                call.finish_keys(b, kv, w);
            }
    }
}

/// Gradients of attention_forward(): dq, dk, dv and those of the score inputs and the gate. `a` holds the forward call's arguments
/// with its outputs `out` (before the gate) and `lse`; z and P are recomputed tile by tile.
template <class X, class P>
void attention_backward(CPU, const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g) {
    attention_rows_backward(policy, a, g, RowsInOrder(), RowsInOrder(), Write::overwrite);
}
