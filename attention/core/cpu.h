// The tiled attention kernel on the CPU, for any policy: online softmax over tiles of TILE x TILE pairs, hidden tiles skipped,
// nothing of size T x T. The five matrix products of a tile go through CBLAS; the rest are loops over SIMD vectors of keys.
// Forward: one thread per (sequence, head). Backward: one thread per (sequence, key/value head), which then owns dK and dV, so that
// no two threads add to one number and two runs give the same bits.
// Source: FlashAttention-2 (Dao 2023), with D_i = <dO_i, O_i> - dLSE_i when the log-sum-exp has a gradient of its own.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "attention/core/cpu_tile.h"
#include "model/blas.h"
#include "model/device.h"

/// Writes one finished query tile: O, LSE, the gated output and the entropy.
template <class X>
void finish_tile(const AttentionForward<X>& a, int b, int h, int i0, int rows, const std::vector<OnlineRow<X>>& state,
                 const X* sums) {
    const size_t bh = size_t(b) * a.NH + h;
    for (int r = 0; r < rows; r++) {
        const size_t token = size_t(b) * a.T + i0 + r, head = token * a.NH + h;
        const bool nothing = state[r].sum == X(0);
        const X inverse = nothing ? X(0) : X(1) / state[r].sum;
        const X lse = nothing ? -std::numeric_limits<X>::infinity() : state[r].largest + std::log(state[r].sum);
        a.lse[bh * a.T + i0 + r] = lse;
        for (int d = 0; d < a.HS; d++) a.out[head * a.HS + d] = sums[r * a.HS + d] * inverse;
        if (a.gate)
            for (int d = 0; d < a.HS; d++) a.gated_out[head * a.HS + d] = a.gate[head] * a.out[head * a.HS + d];
        if (a.statistics.entropy) a.statistics.entropy[bh * a.T + i0 + r] = nothing ? X(0) : lse - state[r].moment * inverse;
    }
}

/// One query tile on its way through the keys.
template <class X>
struct QueryTile {
    std::vector<X> z, sums;           // (TILE, TILE), (TILE, HS) of exp(z - largest) v
    std::vector<OnlineRow<X>> rows;   // (TILE)

    explicit QueryTile(int HS) : z(TILE * TILE), sums(size_t(TILE) * HS), rows(TILE) {}
    void start() {
        std::fill(sums.begin(), sums.end(), X(0));
        std::fill(rows.begin(), rows.end(), OnlineRow<X>());
    }
};

/// Takes the keys of a band into its rows. `k_transposed` (tiles, HS, TILE) belongs to the head's keys.
template <class X, class P>
void visit_band(const P& policy, const AttentionForward<X>& a, const TileWalk<X, P>& walk, const TilePlace& band, Tile verdict,
                const X* k_transposed, QueryTile<X>& tile) {
    const int HS = a.HS, r0 = band.i0 % TILE, c0 = band.j0 % TILE, width = whole_packs<X>(band.columns);
    const X* q = a.q.data + (size_t(band.b) * a.T + band.i0) * a.q.row + size_t(band.h) * HS;
    const X* v = a.v.data + (size_t(band.b) * a.S + band.j0) * a.v.row + size_t(band.h / (a.NH / a.NKV)) * HS;
    X *const z = &tile.z[r0 * TILE + c0], *const sums = &tile.sums[r0 * HS];
    gemm(Transpose::no, Transpose::no, band.rows, width, HS, X(1) / std::sqrt(X(HS)), q, a.q.row,
         k_transposed + size_t(band.j0 - c0) * HS + c0, TILE, X(0), z, TILE);
    modify_and_mask(z, policy, a, walk, band, verdict);
    for (int r = 0; r < band.rows; r++) {
        X* row = z + r * TILE;
        add_statistics(a, band, r, row);
        const X rescale = absorb(tile.rows[r0 + r], row, width, a.statistics.entropy != nullptr);
        if (rescale == X(1)) continue;
        for (int d = 0; d < HS; d++) sums[r * HS + d] *= rescale;
    }
    gemm(Transpose::no, Transpose::no, band.rows, HS, band.columns, X(1), z, TILE, v, a.v.row, X(1), sums, HS);
}

template <class X, class P>
void attention_head_forward(const P& policy, const AttentionForward<X>& a, int b, int h, const X* k_transposed) {
    const TileWalk<X, P> walk(policy, a, b, h);
    QueryTile<X> tile(a.HS);
    clear_statistics(a, b, h);
    for (int i0 = 0; i0 < a.T; i0 += TILE) {
        tile.start();
        walk.each_tile(i0, [&](const TilePlace& at, Tile verdict) {
            if (a.statistics.tiles) a.statistics.tiles[(size_t(b) * a.NH + h) * tiles_of(a.T) + i0 / TILE] += 1;
            each_band(walk, at, verdict,
                      [&](const TilePlace& band) { visit_band(policy, a, walk, band, verdict, k_transposed, tile); });
        });
        finish_tile(a, b, h, i0, std::min(TILE, a.T - i0), tile.rows, tile.sums.data());
    }
}

/// out, lse (and what else the arguments ask for) of softmax attention under `policy`.
/// Preconditions: NH % NKV == 0; gated_out where there is a gate. A row that sees nothing gives out 0 and lse -infinity.
template <class X, class P>
void attention_forward(CPU, const P& policy, const AttentionForward<X>& a) {
    const size_t head = size_t(padded(a.S)) * a.HS;
    const auto k_transposed = std::make_unique_for_overwrite<X[]>(size_t(a.B) * a.NKV * head);   // (B, NKV, tiles, HS, TILE)
#pragma omp parallel
    {
#pragma omp for collapse(2)
        for (int b = 0; b < a.B; b++)
            for (int kv = 0; kv < a.NKV; kv++)
                transpose_head(&k_transposed[(size_t(b) * a.NKV + kv) * head], a.k, b, a.S, kv, a.HS);
#pragma omp for collapse(2) schedule(dynamic)
        for (int b = 0; b < a.B; b++)
            for (int h = 0; h < a.NH; h++) {
                const size_t kv = h / (a.NH / a.NKV);
                attention_head_forward(policy, a, b, h, &k_transposed[(size_t(b) * a.NKV + kv) * head]);
            }
    }
}

/// D_i = <dO_i, O_i> - dLSE_i of every row, (B, NH, T); with a gate, for O' = g O, dg = <dO', O> and D = g dg - dLSE. In the order
/// of memory: with a head at a time the processor waits for every row. All threads of a parallel region share the loop.
template <class X>
void prepare_rows(const AttentionForward<X>& a, const AttentionBackward<X>& g, X* D) {
#pragma omp for collapse(2)
    for (int b = 0; b < a.B; b++)
        for (int i = 0; i < a.T; i++)
            for (int h = 0; h < a.NH; h++) {
                const size_t head = (size_t(b) * a.T + i) * a.NH + h, row = (size_t(b) * a.NH + h) * a.T + i;
                X product = 0;
#pragma omp simd reduction(+ : product)
                for (int d = 0; d < a.HS; d++) product += g.dout[head * a.HS + d] * a.out[head * a.HS + d];
                if (g.dgate) g.dgate[head] = product;
                D[row] = (a.gate ? a.gate[head] : X(1)) * product - (g.dlse ? g.dlse[row] : X(0));
            }
}

/// Per thread: what it needs while it walks over the tiles of the query heads of one (sequence, key/value head).
template <class X>
struct BackwardWorkspace {
    std::unique_ptr<X[]> k_transposed, v_transposed;   // (tiles, HS, TILE), written before they are read
    std::vector<char> started;                         // (tiles): whether dk and dv of the tile have been written to
    std::vector<X> q, dout, dq;                        // (TILE, HS); dO is g dO' where there is a gate
    std::vector<X> z, a, p, dz;                        // (TILE, TILE); a keeps the raw scores
    const X* D;                                        // (B, NH, T)
    std::unique_ptr<Pack<X>[]> head_sums, row_sums;    // no std::vector: nvcc wants no SIMD vectors in its constexpr parts

    BackwardWorkspace(const AttentionForward<X>& f, const Features& n, const X* D_) : D(D_) {
        const size_t transposed = size_t(padded(f.S)) * f.HS;
        for (auto* array : {&k_transposed, &v_transposed}) *array = std::make_unique_for_overwrite<X[]>(transposed);
        for (std::vector<X>* rows : {&q, &dout, &dq}) rows->resize(size_t(TILE) * f.HS);
        for (std::vector<X>* tile : {&z, &a, &p, &dz}) tile->resize(TILE * TILE);
        head_sums = std::make_unique<Pack<X>[]>(n.head), row_sums = std::make_unique<Pack<X>[]>(n.row);
    }

    /// The rows of one query tile.
    void start(const AttentionForward<X>& f, const AttentionBackward<X>& g, int b, int h, int i0, int rows) {
        for (int r = 0; r < rows; r++) {
            const size_t token = size_t(b) * f.T + i0 + r, head = token * f.NH + h;
            const X gate = f.gate ? f.gate[head] : X(1);
            std::copy_n(f.q.data + token * f.q.row + size_t(h) * f.HS, f.HS, &q[r * f.HS]);
            for (int d = 0; d < f.HS; d++) dout[r * f.HS + d] = gate * g.dout[head * f.HS + d];
        }
        std::fill(dq.begin(), dq.end(), X(0));
    }
};

/// The same place in each of the (TILE, TILE) arrays.
template <class X>
struct BandOfTiles {
    X *z, *a, *p, *dz;
    BandOfTiles(BackwardWorkspace<X>& w, int at) : z(&w.z[at]), a(&w.a[at]), p(&w.p[at]), dz(&w.dz[at]) {}
};

/// From z and dP to P and dL/da of a band, the gradients of E1's inputs on the way. The arrays of `tile` begin at its first pair.
template <class X, class P>
void backward_pairs(const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g, const TileWalk<X, P>& walk,
                    const TilePlace& at, const BandOfTiles<X>& tile, BackwardWorkspace<X>& w) {
    using N = Pack<X>;
    const Features f = policy.features();
    const size_t bh = size_t(at.b) * a.NH + at.h, columns = padded(a.S);
    N tile_sums{};
    for (int r = 0; r < at.rows; r++) {
        const int i = at.i0 + r;
        const X lse = a.lse[bh * a.T + i], D = w.D[bh * a.T + i];
        std::fill_n(w.row_sums.get(), f.row, N{});
        for (int j = 0; j < at.columns; j += LANES<X>) {
            const int n = r * TILE + j;
            const N z = load<N>(&tile.z[n]);
            const N p = z > X(HIDDEN / 2) ? exp_of(z - lse) : N{};
            const N dz = p * (load<N>(&tile.dz[n]) - D);
            PairGradients<N> gradients{w.head_sums.get(), w.row_sums.get(), g.dcolumn + bh * f.column * columns + at.j0 + j,
                                       columns, &tile_sums};
            store(&tile.p[n], p);
            store(&tile.dz[n], policy.score_backward(dz, load<N>(&tile.a[n]), pair_of(a, f, walk, at, i, at.j0 + j), gradients));
        }
        for (int n = 0; n < f.row; n++) g.drow[(bh * a.T + i) * f.row + n] += sum<X>(w.row_sums[n]);
    }
    if (f.tile) g.dtile[tile_number_at(a, at)] += sum<X>(tile_sums);
}

/// P and dL/da of a band, and what its keys add to dq.
template <class X, class P>
void backward_band(const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g, const TileWalk<X, P>& walk,
                   const TilePlace& band, Tile verdict, BackwardWorkspace<X>& w) {
    const int HS = a.HS, r0 = band.i0 % TILE, c0 = band.j0 % TILE, width = whole_packs<X>(band.columns);
    const X scale = X(1) / std::sqrt(X(HS));
    const X* k = a.k.data + (size_t(band.b) * a.S + band.j0) * a.k.row + size_t(band.h / (a.NH / a.NKV)) * HS;
    const size_t transposed = size_t(band.j0 - c0) * HS + c0;
    const BandOfTiles<X> tile(w, r0 * TILE + c0);
    gemm(Transpose::no, Transpose::no, band.rows, width, HS, scale, &w.q[r0 * HS], HS, &w.k_transposed[transposed], TILE, X(0),
         tile.a, TILE);
    gemm(Transpose::no, Transpose::no, band.rows, width, HS, X(1), &w.dout[r0 * HS], HS, &w.v_transposed[transposed], TILE, X(0),
         tile.dz, TILE);
    for (int r = 0; r < band.rows; r++) std::copy_n(tile.a + r * TILE, width, tile.z + r * TILE);
    modify_and_mask(tile.z, policy, a, walk, band, verdict);
    backward_pairs(policy, a, g, walk, band, tile, w);
    gemm(Transpose::no, Transpose::no, band.rows, HS, band.columns, scale, tile.dz, TILE, k, a.k.row, X(1), &w.dq[r0 * HS], HS);
}

/// Where the gradient of key or value j of key/value head kv begins.
template <class X>
X* first_row(const Heads<X>& to, const AttentionForward<X>& a, int b, int j, int kv) {
    return to.data + (size_t(b) * a.S + j) * to.row + size_t(kv) * a.HS;
}

/// Zeros for dk and dv of one key tile.
template <class X>
void clear_keys(const AttentionForward<X>& a, const AttentionBackward<X>& g, int b, int kv, int tile) {
    for (int j = tile * TILE; j < std::min(a.S, (tile + 1) * TILE); j++) {
        std::fill_n(first_row(g.dk, a, b, j, kv), a.HS, X(0));
        std::fill_n(first_row(g.dv, a, b, j, kv), a.HS, X(0));
    }
}

/// dv += P^T dout and dk += scale (dL/da)^T q for the keys of `at`, columns of one tile; the first visit of a tile clears it.
template <class X>
void add_to_keys(const AttentionForward<X>& a, const AttentionBackward<X>& g, const TilePlace& at, BackwardWorkspace<X>& w) {
    const int HS = a.HS, kv = at.h / (a.NH / a.NKV), tile = at.j0 / TILE, c0 = at.j0 % TILE;
    if (!std::exchange(w.started[tile], 1)) clear_keys(a, g, at.b, kv, tile);
    gemm(Transpose::yes, Transpose::no, at.columns, HS, at.rows, X(1), &w.p[c0], TILE, w.dout.data(), HS, X(1),
         first_row(g.dv, a, at.b, at.j0, kv), g.dv.row);
    gemm(Transpose::yes, Transpose::no, at.columns, HS, at.rows, X(1) / std::sqrt(X(HS)), &w.dz[c0], TILE, w.q.data(), HS, X(1),
         first_row(g.dk, a, at.b, at.j0, kv), g.dk.row);
}

template <class X, class P>
void attention_head_backward(const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g, int b, int h,
                             BackwardWorkspace<X>& w) {
    const Features f = policy.features();
    const int width = padded(a.S), HS = a.HS;
    const size_t bh = size_t(b) * a.NH + h;
    const TileWalk<X, P> walk(policy, a, b, h);
    std::fill_n(w.head_sums.get(), f.head, Pack<X>{});
    if (f.row) std::fill(g.drow + bh * a.T * f.row, g.drow + (bh + 1) * a.T * f.row, X(0));
    if (f.column) std::fill(g.dcolumn + bh * f.column * width, g.dcolumn + (bh + 1) * f.column * width, X(0));
    for (int i0 = 0; i0 < a.T; i0 += TILE) {
        const int rows = std::min(TILE, a.T - i0);
        w.start(a, g, b, h, i0, rows);
        walk.each_tile(i0, [&](const TilePlace& at, Tile verdict) {
            if (verdict == Tile::mixed) std::fill(w.p.begin(), w.p.end(), X(0)), std::fill(w.dz.begin(), w.dz.end(), X(0));
            if (f.tile) g.dtile[tile_number_at(a, at)] = X(0);
            int first = TILE, end = 0;   // columns that some band needs
            each_band(walk, at, verdict, [&](const TilePlace& band) {
                backward_band(policy, a, g, walk, band, verdict, w);
                first = std::min(first, band.j0 % TILE), end = std::max(end, band.j0 % TILE + band.columns);
            });
            if (end > first) add_to_keys(a, g, {b, h, i0, at.j0 + first, rows, end - first}, w);
        });
        for (int r = 0; r < rows; r++)
            std::copy_n(&w.dq[r * HS], HS, g.dq.data + (size_t(b) * a.T + i0 + r) * g.dq.row + size_t(h) * HS);
    }
    for (int n = 0; n < f.head; n++) g.dhead[bh * f.head + n] = sum<X>(w.head_sums[n]);
}

/// Gradients of attention_forward(): dq, dk, dv and those of E1's and E3's inputs. `a` holds the forward call's arguments with
/// its outputs `out` (before the gate) and `lse`; z and P are computed again, tile by tile.
template <class X, class P>
void attention_backward(CPU, const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g) {
    const int group = a.NH / a.NKV;
    const auto D = std::make_unique_for_overwrite<X[]>(size_t(a.B) * a.NH * a.T);
#pragma omp parallel
    {
        prepare_rows(a, g, D.get());
        BackwardWorkspace<X> w(a, policy.features(), D.get());
#pragma omp for collapse(2) schedule(dynamic)
        for (int b = 0; b < a.B; b++)
            for (int kv = 0; kv < a.NKV; kv++) {
                transpose_head(w.k_transposed.get(), a.k, b, a.S, kv, a.HS);
                transpose_head(w.v_transposed.get(), a.v, b, a.S, kv, a.HS);
                w.started.assign(tiles_of(a.S), 0);
                for (int h = kv * group; h < (kv + 1) * group; h++) attention_head_backward(policy, a, g, b, h, w);
                for (int tile = 0; tile < tiles_of(a.S); tile++)
                    if (!w.started[tile]) clear_keys(a, g, b, kv, tile);
            }
    }
}
