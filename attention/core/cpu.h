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

#include "attention/core/arguments.h"
#include "attention/core/policy.h"
#include "attention/core/walk.h"
#include "model/blas.h"
#include "model/device.h"

/// A finite "minus infinity" for hidden pairs: differences of two of them are 0, not NaN.
inline constexpr double HIDDEN = -1e30;

/// What E1 sees of row i and the keys from column j on.
template <class X, class P>
Pair<Pack<X>> pair_of(const AttentionForward<X>& a, const Features& f, const TileWalk<X, P>& walk, const TilePlace& at, int i,
                      int j) {
    const size_t bh = size_t(at.b) * a.NH + at.h, columns = padded(a.S);
    Pair<Pack<X>> pair;
    pair.head_numbers = a.head + size_t(at.h) * f.head;
    pair.row_features = a.row + (bh * a.T + i) * f.row;
    pair.column_features = a.column + bh * f.column * columns + j;
    pair.column_stride = columns;
    pair.i = X(walk.q_position(i));
    pair.j = iota(X(j));
    if (f.tile) pair.tile_number = a.tile[tile_number_at(a, at)];
    if (!a.k_position) return pair;
    for (int lane = 0; lane < LANES<X>; lane++) pair.j[lane] = X(walk.k_position(std::min(j + lane, a.S - 1)));
    return pair;
}

/// to (tiles, HS, TILE) = head h of sequence b, (count, HS), transposed tile by tile; the padding of the last tile is zero. A tile
/// is one piece of memory: a matrix product finds its rows side by side, not a power of two apart in the same few cache lines.
template <class X>
void transpose_head(X* to, const Heads<const X>& from, int b, int count, int h, int HS) {
    const int block = 16;   // tokens at a time: what is written is whole cache lines and what is read stays in the cache
    const X* head = from.data + size_t(b) * count * from.row + size_t(h) * HS;
    for (int j0 = 0; j0 < padded(count); j0 += block)
        for (int d = 0; d < HS; d++) {
            X* line = to + (size_t(j0 / TILE) * HS + d) * TILE + j0 % TILE;
            for (int j = 0; j < block; j++) line[j] = j0 + j < count ? head[size_t(j0 + j) * from.row + d] : X(0);
        }
}

/// Hides what the policy hides in a mixed tile: it is asked about squares first, and pair by pair only where that says "mixed".
template <class X, class P>
void mask(X* z, const TileWalk<X, P>& walk, const TilePlace& at, Tile verdict) {
    const int side = 16;
    for (int r0 = 0; r0 < at.rows; r0 += side)
        for (int c0 = 0; c0 < at.columns; c0 += side) {
            const int rows = std::min(side, at.rows - r0), columns = std::min(side, at.columns - c0);
            const TilePlace part{at.b, at.h, at.i0 + r0, at.j0 + c0, rows, columns};
            const Tile judged = walk.judge_part(part, verdict);
            if (judged == Tile::full) continue;
            walk.with_visible(judged, [&](auto visible) {
                for (int r = 0; r < rows; r++) {
                    X* row = z + (r0 + r) * TILE + c0;
                    for (int c = 0; c < columns; c++)
                        row[c] = judged == Tile::mixed && visible(part.i0 + r, part.j0 + c) ? row[c] : X(HIDDEN);
                }
            });
        }
}

/// z of one tile from its raw scores, in place: E1, then the mask, so that a modification may multiply.
template <class X, class P>
void modify_and_mask(X* z, const P& policy, const AttentionForward<X>& a, const TileWalk<X, P>& walk, const TilePlace& at,
                     Tile verdict) {
    const Features f = policy.features();
    for (int r = 0; r < at.rows; r++) {
        X* row = z + r * TILE;
        for (int j = 0; j < TILE; j += LANES<X>)
            store(row + j, policy.score(load<Pack<X>>(row + j), pair_of(a, f, walk, at, at.i0 + r, at.j0 + j)));
        for (int j = at.columns; j < TILE; j++) row[j] = X(HIDDEN);
    }
    if (verdict == Tile::mixed) mask(z, walk, at, verdict);
}

template <class X>
X largest_of(const X* row) {
    Pack<X> m = load<Pack<X>>(row);
    for (int j = LANES<X>; j < TILE; j += LANES<X>) {
        const auto next = load<Pack<X>>(row + j);
        m = m > next ? m : next;
    }
    X largest = m[0];
    for (int lane = 1; lane < LANES<X>; lane++) largest = std::max(largest, X(m[lane]));
    return largest;
}

/// E6, what is found on the way from tile to tile: where it starts, and what one row of z adds to it.
template <class X>
void clear_statistics(const AttentionForward<X>& a, int b, int h) {
    const size_t bh = size_t(b) * a.NH + h, maxima = size_t(a.T) * tiles_of(a.S);
    if (a.statistics.tile_max) std::fill_n(a.statistics.tile_max + bh * maxima, maxima, -std::numeric_limits<X>::infinity());
    if (a.statistics.pairs) std::fill_n(a.statistics.pairs + bh * a.T, a.T, X(0));
    if (a.statistics.tiles) std::fill_n(a.statistics.tiles + bh * tiles_of(a.T), tiles_of(a.T), X(0));
}
template <class X>
void add_statistics(const AttentionForward<X>& a, const TilePlace& at, int r, const X* z) {
    const size_t row = (size_t(at.b) * a.NH + at.h) * a.T + at.i0 + r;
    if (a.statistics.pairs)
        a.statistics.pairs[row] += X(std::count_if(z, z + TILE, [](X value) { return value > X(HIDDEN / 2); }));
    if (!a.statistics.tile_max) return;
    const X peak = largest_of(z);
    if (peak > X(HIDDEN / 2)) a.statistics.tile_max[row * tiles_of(a.S) + at.j0 / TILE] = peak;
}

/// Running softmax of one query row.
template <class X>
struct OnlineRow {
    X largest = X(HIDDEN);
    X sum = 0;      // of exp(z - largest)
    X moment = 0;   // of exp(z - largest) z, for the entropy
};

/// Turns a row of z into exp(z - largest) in place and returns the factor that what was summed before must be scaled by.
template <class X>
X absorb(OnlineRow<X>& state, X* z, bool with_entropy) {
    using N = Pack<X>;
    const X largest = std::max(state.largest, largest_of(z));
    const X rescale = exp_of(state.largest - largest);
    N sums{}, moments{};
    for (int j = 0; j < TILE; j += LANES<X>) {
        const N value = load<N>(z + j);
        const N p = value > X(HIDDEN / 2) ? exp_of(value - largest) : N{};
        if (with_entropy) moments += p * value;
        sums += p;
        store(z + j, p);
    }
    state.largest = largest;
    state.sum = state.sum * rescale + sum<X>(sums);
    state.moment = state.moment * rescale + sum<X>(moments);
    return rescale;
}

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

/// `k_transposed` (tiles, HS, TILE) belongs to the head's keys.
template <class X, class P>
void attention_head_forward(const P& policy, const AttentionForward<X>& a, int b, int h, const X* k_transposed) {
    const int kv = h / (a.NH / a.NKV);
    const X scale = X(1) / std::sqrt(X(a.HS));
    const TileWalk<X, P> walk(policy, a, b, h);
    std::vector<X> z(TILE * TILE), sums(size_t(TILE) * a.HS);
    clear_statistics(a, b, h);
    for (int i0 = 0; i0 < a.T; i0 += TILE) {
        std::vector<OnlineRow<X>> state(TILE);
        std::fill(sums.begin(), sums.end(), X(0));
        const X* q = a.q.data + (size_t(b) * a.T + i0) * a.q.row + size_t(h) * a.HS;
        walk.each_tile(i0, [&](const TilePlace& at, Tile verdict) {
            const X* k = k_transposed + size_t(at.j0) * a.HS;
            gemm(Transpose::no, Transpose::no, at.rows, TILE, a.HS, scale, q, a.q.row, k, TILE, X(0), z.data(), TILE);
            modify_and_mask(z.data(), policy, a, walk, at, verdict);
            if (a.statistics.tiles) a.statistics.tiles[(size_t(b) * a.NH + h) * tiles_of(a.T) + i0 / TILE] += 1;
            for (int r = 0; r < at.rows; r++) {
                X* row = &z[r * TILE];
                add_statistics(a, at, r, row);
                const X rescale = absorb(state[r], row, a.statistics.entropy != nullptr);
                if (rescale == X(1)) continue;
                for (int d = 0; d < a.HS; d++) sums[r * a.HS + d] *= rescale;
            }
            const X* v = a.v.data + (size_t(b) * a.S + at.j0) * a.v.row + size_t(kv) * a.HS;
            gemm(Transpose::no, Transpose::no, at.rows, a.HS, at.columns, X(1), z.data(), TILE, v, a.v.row, X(1), sums.data(),
                 a.HS);
        });
        finish_tile(a, b, h, i0, std::min(TILE, a.T - i0), state, sums.data());
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

/// D_i = <dO_i, O_i> - dLSE_i of one query tile; where there is a gate, dO' becomes dO = g dO' in `dout`, and dg = <dO', O>.
template <class X>
void prepare_rows(const AttentionForward<X>& a, const AttentionBackward<X>& g, int b, int h, int i0, int rows, X* dout, X* D) {
    for (int r = 0; r < rows; r++) {
        const size_t token = size_t(b) * a.T + i0 + r, head = token * a.NH + h, bh = size_t(b) * a.NH + h;
        const X* from = g.dout + head * a.HS;
        const X gate = a.gate ? a.gate[head] : X(1);
        X product = 0;
#pragma omp simd reduction(+ : product)
        for (int d = 0; d < a.HS; d++) {
            product += from[d] * a.out[head * a.HS + d];
            dout[r * a.HS + d] = gate * from[d];
        }
        if (g.dgate) g.dgate[head] = product;
        D[r] = gate * product - (g.dlse ? g.dlse[bh * a.T + i0 + r] : X(0));
    }
}

/// Per thread: what it needs while it walks over the tiles of the query heads of one (sequence, key/value head).
template <class X>
struct BackwardWorkspace {
    std::unique_ptr<X[]> k_transposed, v_transposed;   // (tiles, HS, TILE), written before they are read
    std::vector<char> started;                         // (tiles): whether dk and dv of the tile have been written to
    std::vector<X> dout, dq;                           // (TILE, HS)
    std::vector<X> z, a, p, dz;                        // (TILE, TILE); a keeps the raw scores
    std::vector<X> D;                                  // (TILE)
    std::unique_ptr<Pack<X>[]> head_sums, row_sums;    // no std::vector: nvcc wants no SIMD vectors in its constexpr parts

    BackwardWorkspace(const AttentionForward<X>& f, const Features& n) {
        const size_t transposed = size_t(padded(f.S)) * f.HS;
        for (auto* array : {&k_transposed, &v_transposed}) *array = std::make_unique_for_overwrite<X[]>(transposed);
        dout.resize(size_t(TILE) * f.HS), dq.resize(size_t(TILE) * f.HS), D.resize(TILE);
        for (std::vector<X>* tile : {&z, &a, &p, &dz}) tile->resize(TILE * TILE);
        head_sums = std::make_unique<Pack<X>[]>(n.head), row_sums = std::make_unique<Pack<X>[]>(n.row);
    }
};

/// From z and dP to P (in w.p) and dL/da (in w.dz), the gradients of E1's inputs on the way.
template <class X, class P>
void backward_tile(const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g, const TileWalk<X, P>& walk,
                   const TilePlace& at, BackwardWorkspace<X>& w) {
    using N = Pack<X>;
    const Features f = policy.features();
    const size_t bh = size_t(at.b) * a.NH + at.h, columns = padded(a.S);
    N tile_sums{};
    for (int r = 0; r < at.rows; r++) {
        const int i = at.i0 + r;
        const X lse = a.lse[bh * a.T + i];
        std::fill_n(w.row_sums.get(), f.row, N{});
        for (int j = 0; j < TILE; j += LANES<X>) {
            const N z = load<N>(&w.z[r * TILE + j]);
            const N p = z > X(HIDDEN / 2) ? exp_of(z - lse) : N{};
            const N dz = p * (load<N>(&w.dz[r * TILE + j]) - w.D[r]);
            PairGradients<N> gradients{w.head_sums.get(), w.row_sums.get(), g.dcolumn + bh * f.column * columns + at.j0 + j,
                                       columns, &tile_sums};
            store(&w.p[r * TILE + j], p);
            store(&w.dz[r * TILE + j],
                  policy.score_backward(dz, load<N>(&w.a[r * TILE + j]), pair_of(a, f, walk, at, i, at.j0 + j), gradients));
        }
        for (int n = 0; n < f.row; n++) g.drow[(bh * a.T + i) * f.row + n] += sum<X>(w.row_sums[n]);
    }
    if (f.tile) g.dtile[tile_number_at(a, at)] = sum<X>(tile_sums);
}

/// Where the gradient of key or value j of key/value head kv begins.
template <class X>
X* first_row(const Heads<X>& to, const AttentionForward<X>& a, int b, int j, int kv) {
    return to.data + (size_t(b) * a.S + j) * to.row + size_t(kv) * a.HS;
}

/// dk and dv of one key/value head where no query has visited the tile.
template <class X>
void clear_the_rest(const AttentionForward<X>& a, const AttentionBackward<X>& g, int b, int kv, const std::vector<char>& started) {
    for (int j = 0; j < a.S; j++) {
        if (started[j / TILE]) continue;
        std::fill_n(first_row(g.dk, a, b, j, kv), a.HS, X(0));
        std::fill_n(first_row(g.dv, a, b, j, kv), a.HS, X(0));
    }
}

template <class X, class P>
void attention_head_backward(const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g, int b, int h,
                             BackwardWorkspace<X>& w) {
    const Features f = policy.features();
    const int width = padded(a.S), kv = h / (a.NH / a.NKV), HS = a.HS;
    const size_t bh = size_t(b) * a.NH + h;
    const X scale = X(1) / std::sqrt(X(HS));
    const TileWalk<X, P> walk(policy, a, b, h);
    std::fill_n(w.head_sums.get(), f.head, Pack<X>{});
    if (f.row) std::fill(g.drow + bh * a.T * f.row, g.drow + (bh + 1) * a.T * f.row, X(0));
    if (f.column) std::fill(g.dcolumn + bh * f.column * width, g.dcolumn + (bh + 1) * f.column * width, X(0));
    for (int i0 = 0; i0 < a.T; i0 += TILE) {
        const int rows = std::min(TILE, a.T - i0);
        const X* q = a.q.data + (size_t(b) * a.T + i0) * a.q.row + size_t(h) * HS;
        prepare_rows(a, g, b, h, i0, rows, w.dout.data(), w.D.data());
        std::fill(w.dq.begin(), w.dq.end(), X(0));
        walk.each_tile(i0, [&](const TilePlace& at, Tile verdict) {
            const X* k = a.k.data + (size_t(b) * a.S + at.j0) * a.k.row + size_t(kv) * HS;
            gemm(Transpose::no, Transpose::no, rows, TILE, HS, scale, q, a.q.row, &w.k_transposed[size_t(at.j0) * HS], TILE, X(0),
                 w.a.data(), TILE);
            gemm(Transpose::no, Transpose::no, rows, TILE, HS, X(1), w.dout.data(), HS, &w.v_transposed[size_t(at.j0) * HS], TILE,
                 X(0), w.dz.data(), TILE);
            std::copy(w.a.begin(), w.a.begin() + rows * TILE, w.z.begin());
            modify_and_mask(w.z.data(), policy, a, walk, at, verdict);
            backward_tile(policy, a, g, walk, at, w);
            const X before = std::exchange(w.started[at.j0 / TILE], 1) ? X(1) : X(0);
            gemm(Transpose::yes, Transpose::no, at.columns, HS, rows, X(1), w.p.data(), TILE, w.dout.data(), HS, before,
                 first_row(g.dv, a, b, at.j0, kv), g.dv.row);
            gemm(Transpose::yes, Transpose::no, at.columns, HS, rows, scale, w.dz.data(), TILE, q, a.q.row, before,
                 first_row(g.dk, a, b, at.j0, kv), g.dk.row);
            gemm(Transpose::no, Transpose::no, rows, HS, at.columns, scale, w.dz.data(), TILE, k, a.k.row, X(1), w.dq.data(), HS);
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
#pragma omp parallel
    {
        BackwardWorkspace<X> w(a, policy.features());
#pragma omp for collapse(2) schedule(dynamic)
        for (int b = 0; b < a.B; b++)
            for (int kv = 0; kv < a.NKV; kv++) {
                transpose_head(w.k_transposed.get(), a.k, b, a.S, kv, a.HS);
                transpose_head(w.v_transposed.get(), a.v, b, a.S, kv, a.HS);
                w.started.assign(tiles_of(a.S), 0);
                for (int h = kv * group; h < (kv + 1) * group; h++) attention_head_backward(policy, a, g, b, h, w);
                clear_the_rest(a, g, b, kv, w.started);
            }
    }
}
