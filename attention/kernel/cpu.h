// The tiled attention kernel on the CPU, for any policy: online softmax over tiles of TILE x TILE pairs, without hidden tiles and
// without arrays of size T x T. The five matrix products of a tile go through CBLAS; the rest is loops over SIMD vectors of keys.
// A thread takes some query tiles (forward) or all of them (backward) of one (sequence, key/value head), in the order of the text. For
// each tile it takes all query heads of the group, which share the keys in the cache. In the backward pass a thread owns dK and dV of
// its head: no two threads add to the same element, so two runs give the same bits.
// Source: FlashAttention-2 (Dao 2023), with D_i = <dO_i, O_i> - dLSE_i when the log-sum-exp has a gradient of its own.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "attention/kernel/call.h"
#include "attention/mechanism.h"
#include "attention/kernel/rows.cuh"
#include "model/device/blas.h"
#include "model/device/device.h"

// --------------------------------------------------------------------------------------------------------------- one tile of pairs
// The part to compute, score() and mask, statistics, and the running softmax of its rows, in loops over SIMD vectors of keys.

/// A finite "minus infinity" for hidden pairs: the difference of two such values is 0, not NaN.
inline constexpr double HIDDEN = -1e30;

/// The inputs of score() for row i and the keys from column j on.
template <class X, class P>
Pair<Pack<X>> pair_of(const AttentionForward<X>& a, const Features& f, const TileWalk<X, P>& walk, const TilePlace& at, int i,
                      int j) {
    const size_t bh = size_t(at.b) * a.NH + at.h, columns = padded(a.S);
    Pair<Pack<X>> pair;
    pair.head_scalars = a.head + size_t(at.h) * f.head;
    pair.row_features = a.row + (bh * a.T + i) * f.row;
    pair.column_features = a.column + bh * f.column * columns + j;
    pair.column_stride = columns;
    pair.i = X(walk.q_position(i));
    pair.j = iota(X(j));
    if (f.tile) pair.tile = a.tile[tile_bias_at(a, at)];
    if (!a.k_position) return pair;
    for (int lane = 0; lane < LANES<X>; lane++) pair.j[lane] = X(walk.k_position(std::min(j + lane, a.S - 1)));
    return pair;
}

/// `columns` rounded up to whole SIMD vectors.
template <class X>
constexpr int whole_packs(int columns) {
    return (columns + LANES<X> - 1) / LANES<X> * LANES<X>;
}

/// Side of the squares in which the policy classifies the parts of a mixed tile.
inline constexpr int SQUARE = 16;

/// A strip of rows of a mixed tile without the hidden squares at either end; it may have 0 columns.
template <class X, class P>
TilePlace trimmed(const TileWalk<X, P>& walk, TilePlace strip, Tile verdict) {
    const int end = strip.j0 + strip.columns;
    auto hidden = [&](int j0) {
        return walk.judge_part({strip.b, strip.h, strip.i0, j0, strip.rows, std::min(SQUARE, end - j0)}, verdict) == Tile::hidden;
    };
    int first = strip.j0, last = strip.j0 + (strip.columns - 1) / SQUARE * SQUARE;   // squares
    while (first <= last && hidden(first)) first += SQUARE;
    while (last > first && hidden(last)) last -= SQUARE;
    strip.j0 = first, strip.columns = std::max(0, std::min(end, last + SQUARE) - first);
    return strip;
}

/// Calls use(band) for the parts of a visited tile to compute: bands of rows that need the same columns. On the diagonal the bands
/// cover little more than half of the tile.
template <class X, class P, class Use>
void each_band(const TileWalk<X, P>& walk, const TilePlace& at, Tile verdict, Use use) {
    if (verdict == Tile::full) return use(at);
    TilePlace band = at;
    band.rows = band.columns = 0;
    for (int r0 = 0; r0 < at.rows; r0 += SQUARE) {
        const TilePlace strip = trimmed(walk, {at.b, at.h, at.i0 + r0, at.j0, std::min(SQUARE, at.rows - r0), at.columns}, verdict);
        if (strip.j0 == band.j0 && strip.columns == band.columns) {
            band.rows += strip.rows;
            continue;
        }
        if (band.columns > 0) use(band);
        band = strip;
    }
    if (band.columns > 0) use(band);
}

/// mask() for a mask of bits: SQUARE columns at a time, the last of which may lie past the end. A row's bits are loaded once: compilers
/// would assume that the stores to z change them, and would not vectorise the loop.
template <class X, class P>
void mask_by_bits(X* z, const TileWalk<X, P>& walk, const TilePlace& at) {
    for (int r = 0; r < at.rows; r++) {
        const uint64_t of_row = walk.bits(at.i0 + r, at.j0);
        for (int c0 = 0; c0 < at.columns; c0 += SQUARE) {
            X* const row = z + r * TILE + c0;
            const auto bits = uint32_t(of_row >> c0);
            for (int c = 0; c < SQUARE; c++) row[c] = bits >> c & 1 ? row[c] : X(HIDDEN);
        }
    }
}

/// Writes HIDDEN over the pairs of a mixed tile that the policy hides. The policy classifies squares first, and single pairs only in
/// mixed squares.
template <class X, class P>
void mask(X* z, const TileWalk<X, P>& walk, const TilePlace& at, Tile verdict) {
    if constexpr (P::traits.reads_bits) return mask_by_bits(z, walk, at);
    for (int r0 = 0; r0 < at.rows; r0 += SQUARE)
        for (int c0 = 0; c0 < at.columns; c0 += SQUARE) {
            const int rows = std::min(SQUARE, at.rows - r0), columns = std::min(SQUARE, at.columns - c0);
            const TilePlace part{at.b, at.h, at.i0 + r0, at.j0 + c0, rows, columns};
            const Tile judged = walk.judge_part(part, verdict);
            if (judged == Tile::full) continue;
            walk.with_visible(judged, [&](auto visible) {
                for (int r = 0; r < rows; r++) {
                    X* row = z + (r0 + r) * TILE + c0;
                    bool keep[SQUARE];   // a separate loop, which the compiler can vectorise
                    for (int c = 0; c < SQUARE; c++) keep[c] = judged == Tile::mixed && visible(part.i0 + r, part.j0 + c);
                    for (int c = 0; c < columns; c++) row[c] = keep[c] ? row[c] : X(HIDDEN);
                }
            });
        }
}

/// Writes 0 for the visible pairs of a band and HIDDEN for the others, up to column whole_packs(at.columns).
template <class X, class P>
void hide(X* to, const TileWalk<X, P>& walk, const TilePlace& at, Tile verdict) {
    for (int r = 0; r < at.rows; r++) {
        std::fill_n(to + r * TILE, at.columns, X(0));
        std::fill(to + r * TILE + at.columns, to + r * TILE + whole_packs<X>(at.columns), X(HIDDEN));
    }
    if (verdict == Tile::mixed) mask(to, walk, at, verdict);
}

/// Turns the raw scores of a tile, or of a band, into z in place: score(), then the mask, because score() may multiply. Columns from
/// whole_packs(at.columns) on are neither read nor hidden.
template <class X, class P>
void modify_and_mask(X* z, const P& policy, const AttentionForward<X>& a, const TileWalk<X, P>& walk, const TilePlace& at,
                     Tile verdict) {
    const Features f = policy.features();
    const int width = whole_packs<X>(at.columns);
    const bool plain = walk.is_plain(at);
    for (int r = 0; r < at.rows; r++) {
        X* row = z + r * TILE;
        for (int j = 0; j < width && !plain; j += LANES<X>)
            store(row + j, policy.score(load<Pack<X>>(row + j), pair_of(a, f, walk, at, at.i0 + r, at.j0 + j)));
        for (int j = at.columns; j < width; j++) row[j] = X(HIDDEN);
    }
    if (verdict == Tile::mixed) mask(z, walk, at, verdict);
}

/// The maximum of `width` elements, a multiple of LANES.
template <class X>
X largest_of(const X* row, int width) {
    Pack<X> m = load<Pack<X>>(row);
    for (int j = LANES<X>; j < width; j += LANES<X>) {
        const auto next = load<Pack<X>>(row + j);
        m = m > next ? m : next;
    }
    return fold<X>(m, [](X a, X b) { return a > b ? a : b; });
}

/// statistics.tile_max: the largest z of a row in this key tile.
template <class X>
void write_peak(const AttentionForward<X>& a, const TilePlace& at, int r, const X* z) {
    const X peak = largest_of(z, whole_packs<X>(at.columns));
    const size_t row = (size_t(at.b) * a.NH + at.h) * a.T + at.i0 + r;
    if (peak > X(HIDDEN / 2)) a.statistics.tile_max[row * tiles_of(a.S) + at.j0 / TILE] = peak;
}

/// statistics.pair_gate: the sum of the gates on a row's visible pairs; z is the row's, masked.
template <class X, class P>
X sum_of_pair_gates(const P& policy, const AttentionForward<X>& a, const TileWalk<X, P>& walk, const TilePlace& at, int r,
                    const X* z) {
    using N = Pack<X>;
    const Features f = policy.features();
    N sums{};
    for (int j = 0; j < whole_packs<X>(at.columns); j += LANES<X>) {
        const N gate = policy.pair_gate(pair_of(a, f, walk, at, at.i0 + r, at.j0 + j));
        sums += load<N>(z + j) > X(HIDDEN / 2) ? gate : N{};
    }
    return sum<X>(sums);
}

/// Running softmax of one query row.
template <class X>
struct OnlineRow {
    X largest = X(HIDDEN);
    X sum = 0;      // of exp(z - largest)
    X moment = 0;   // of exp(z - largest) z, for the entropy
    X pairs = 0;    // keys seen, if counted
    X pair_gates = 0;   // sum of the gates on those pairs, if the policy has gates
};

/// Turns `width` elements of a row of z into exp(z - largest) in place and returns the factor that rescales the earlier sums. Moment and
/// pairs are computed only if `asked` has entropy and pairs.
template <class X>
X absorb(OnlineRow<X>& state, X* z, int width, const Statistics<X>& asked) {
    using N = Pack<X>;
    const X largest = std::max(state.largest, largest_of(z, width));
    const X rescale = exp_of(state.largest - largest);
    if (asked.pairs) state.pairs += X(std::count_if(z, z + width, [](X value) { return value > X(HIDDEN / 2); }));
    N sums{}, moments{};
    for (int j = 0; j < width; j += LANES<X>) {
        const N value = load<N>(z + j);
        const N p = value > X(HIDDEN / 2) ? exp_of(value - largest) : N{};
        if (asked.entropy) moments += p * value;
        sums += p;
        store(z + j, p);
    }
    state.largest = largest;
    state.sum = state.sum * rescale + sum<X>(sums);
    state.moment = state.moment * rescale + sum<X>(moments);
    return rescale;
}

// ---------------------------------------------------------------------------------------------------------------------------- rows
// Row r of query head h holds the token given by a `Rows` (rows.cuh), or token
// r without one. A thread copies its rows tile by tile: 64 contiguous rows, which stay in its cache. A branch that reads the text in
// another order therefore costs no more than one in text order, and nothing is gathered beforehand.

/// The token in a row, and the indices of that token in arrays.
template <class Rows>
struct RowPlaces {
    static constexpr bool in_order = std::is_same_v<Rows, RowsInOrder>;
    Rows rows;
    int tokens, NH;
    RowPlaces(const Rows& rows_, int count, int NH_) : rows(rows_), tokens(count), NH(NH_) {
        if constexpr (!in_order) tokens = rows.T;
    }
    int token(int b, int h, int row) const { return rows.token(b, h, row); }   // -1: padding
    size_t of_token(int b, int token) const { return size_t(b) * tokens + token; }                      // in (B, tokens)
    size_t at_BTH(int b, int h, int token) const { return of_token(b, token) * NH + h; }               // in (B, tokens, NH)
    size_t at_BHT(int b, int h, int token) const { return (size_t(b) * NH + h) * tokens + token; }   // in (B, NH, tokens)
};

/// Copies rows r0.. of head `head` of `from`, which has `count` rows, to `to` (TILE, HS). Clears padding: hidden pairs multiply it by
/// zero, and stale memory might hold NaN.
template <class X, class Rows>
void gather_rows(X* to, const Heads<const X>& from, const RowPlaces<Rows>& at, int count, int b, int h, int head, int r0, int HS) {
    for (int r = 0; r < TILE; r++, to += HS) {
        const int token = r0 + r < count ? at.token(b, h, r0 + r) : -1;
        if (token < 0) std::fill_n(to, HS, X(0));
        else std::copy_n(from.data + at.of_token(b, token) * from.row + size_t(head) * HS, HS, to);
    }
}

/// to (HS, TILE) = from (TILE, HS), sixteen rows at a time, so that whole cache lines are written.
template <class X>
void transpose_tile(X* to, const X* from, int HS) {
    const int rows = 16;
    for (int j0 = 0; j0 < TILE; j0 += rows)
        for (int d = 0; d < HS; d++)
            for (int j = j0; j < j0 + rows; j++) to[d * TILE + j] = from[j * HS + d];
}

/// The rows of a tile masked by bits that see any of its keys, packed for the products of a policy with traits.few_rows_see. These take
/// SQUARE rows at a time, zeros after the last: results of a row may depend on the number of rows in a product, and must not depend on what
/// later rows see.
class SeeingRows {
public:
    template <class X, class P>
    SeeingRows(const TileWalk<X, P>& walk, const TilePlace& at) : at_(at) {
        for (int r = 0; r < at.rows; r++)
            if (walk.bits(at.i0 + r, at.j0)) rows_[count_++] = r;
    }
    int count() const { return count_; }

    /// to = these rows of `from` (TILE, HS).
    template <class X>
    void pack(X* to, const X* from, int HS) const {
        for (int n = 0; n < count_; n++) std::copy_n(from + rows_[n] * HS, HS, to + n * HS);
        std::fill(to + count_ * HS, to + (count_ + SQUARE - 1) / SQUARE * SQUARE * HS, X(0));
    }
    /// to (rows, N) = scale from (rows, K) b (K, N).
    template <class X>
    void multiply(X* to, size_t to_row, int N, int K, X scale, const X* from, size_t from_row, const X* b, size_t b_row) const {
        for (int n = 0; n < count_; n += SQUARE)
            gemm(Transpose::no, Transpose::no, SQUARE, N, K, scale, from + n * from_row, from_row, b, b_row, X(0), to + n * to_row, to_row);
    }
    /// These rows of `to` (TILE, HS) += from (count(), HS).
    template <class X>
    void add(X* to, const X* from, int HS) const {
        for (int n = 0; n < count_; n++)
            for (int d = 0; d < HS; d++) to[rows_[n] * HS + d] += from[n * HS + d];
    }
    /// Calls use(row, at) for each row: its place in the score matrix, and where its pairs begin in a packed (TILE, TILE) array.
    template <class Use>
    void each(Use use) const {
        for (int n = 0; n < count_; n++) use(at_.part(rows_[n], 0, 1, at_.columns), n * TILE);
    }

private:
    TilePlace at_;
    int rows_[TILE], count_ = 0;   // within the tile, ascending
};

/// One tile of keys in the layouts that a pass reads; null for layouts that it does not. Rows are (TILE, HS), transposed ones (HS, TILE):
/// a product takes half as long again if the library has to transpose its right factor.
template <class X>
struct KeyTile {
    const X *k, *k_transposed, *v, *v_transposed;
};

enum class Pass : bool { forward, backward };

/// The key tiles of one key/value head. Each is copied when a query tile first visits it, and copies are stored in the order of those
/// visits. If query tiles see few keys, the same memory is thus reused and stays in the cache.
template <class X, class Rows>
class KeyTiles {
public:
    KeyTiles(const AttentionForward<X>& a, const Rows& rows, Pass pass)
        : a_(a), at_(rows, a.S, a.NH), pass_(pass), size_(size_t(TILE) * a.HS), places_(tiles_of(a.S)), passing_(size_) {
        const size_t all = places_.size() * size_;
        rows_ = std::make_unique_for_overwrite<X[]>(all), k_transposed_ = std::make_unique_for_overwrite<X[]>(all);
        if (pass == Pass::backward) v_transposed_ = std::make_unique_for_overwrite<X[]>(all);
    }
    /// Memory of one thread for S keys.
    static size_t bytes(int S, int HS, Pass pass) { return (pass == Pass::forward ? 2 : 3) * sizeof(X) * padded(S) * HS; }

    /// Switches to query head h and all heads of its group with the same rows.
    void start(int b, int h) {
        b_ = b, h_ = h;
        std::fill(places_.begin(), places_.end(), -1);
        gathered_ = 0;
    }

    KeyTile<X> tile(int tile) {
        int& place = places_[tile];
        if (place < 0) gather(tile * TILE, (place = gathered_++) * size_);
        const size_t n = place * size_;
        if (pass_ == Pass::forward) return {nullptr, &k_transposed_[n], &rows_[n], nullptr};
        return {&rows_[n], &k_transposed_[n], nullptr, &v_transposed_[n]};
    }

private:
    void gather(int j0, size_t n) {
        const bool forward = pass_ == Pass::forward;
        X *const k = forward ? passing_.data() : &rows_[n], *const v = forward ? &rows_[n] : passing_.data();
        bring_head(k, a_.k, j0);
        transpose_tile(&k_transposed_[n], k, a_.HS);
        bring_head(v, a_.v, j0);
        if (!forward) transpose_tile(&v_transposed_[n], v, a_.HS);
    }
    void bring_head(X* to, const Heads<const X>& from, int j0) {
        gather_rows(to, from, at_, a_.S, b_, h_, h_ / (a_.NH / a_.NKV), j0, a_.HS);
    }

    const AttentionForward<X>& a_;
    const RowPlaces<Rows> at_;
    Pass pass_;
    size_t size_;                                                // of a tile
    int b_ = 0, h_ = 0;
    int gathered_ = 0;                                           // tiles
    std::vector<int> places_;                                    // (tiles) place of each tile; -1: not copied yet
    std::unique_ptr<X[]> rows_, k_transposed_, v_transposed_;    // (tiles, TILE, HS) of v forward and of k backward, ...
    std::vector<X> passing_;                                     // (TILE, HS)
};

// ------------------------------------------------------------------------------------------------------------------------- forward

/// The state of one query tile during its walk over the keys.
template <class X>
struct QueryTile {
    std::vector<X> q, z, sums;        // (TILE, HS), (TILE, TILE), (TILE, HS) of exp(z - largest) v
    std::vector<X> packed;            // (TILE, HS) some rows of q, then what a key tile adds to their sums
    std::vector<OnlineRow<X>> rows;   // (TILE)
    int visited = 0;                  // key tiles

    explicit QueryTile(int HS) : q(size_t(TILE) * HS), z(TILE * TILE), sums(q.size()), packed(q.size()), rows(TILE) {}
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

/// Turns z of a band into exp(z - largest) in place, and counts it in the softmax of its rows, whose sums are rescaled.
template <class X, class P>
void absorb_band(X* z, const P& policy, const AttentionForward<X>& a, const TileWalk<X, P>& walk, const TilePlace& band,
                 QueryTile<X>& tile) {
    const int r0 = band.i0 % TILE, width = whole_packs<X>(band.columns);
    for (int r = 0; r < band.rows; r++) {
        X *const row = z + r * TILE, *const sums = &tile.sums[(r0 + r) * a.HS];
        if (a.statistics.tile_max) write_peak(a, band, r, row);
        if (P::traits.gates_pairs && a.statistics.pair_gate)
            tile.rows[r0 + r].pair_gates += sum_of_pair_gates(policy, a, walk, band, r, row);
        const X rescale = absorb(tile.rows[r0 + r], row, width, a.statistics);
        if (rescale == X(1)) continue;
        for (int d = 0; d < a.HS; d++) sums[d] *= rescale;
    }
}

/// Adds the keys of a band to the softmax of its rows.
template <class X, class P>
void visit_band(const P& policy, const AttentionForward<X>& a, const TileWalk<X, P>& walk, const TilePlace& band, Tile verdict,
                const KeyTile<X>& keys, QueryTile<X>& tile) {
    const int HS = a.HS, r0 = band.i0 % TILE, c0 = band.j0 % TILE;
    X* const z = &tile.z[r0 * TILE + c0];
    band_scores(z, policy, a, walk, band, verdict, &tile.q[r0 * HS], HS, keys.k_transposed + c0);
    absorb_band(z, policy, a, walk, band, tile);
    gemm(Transpose::no, Transpose::no, band.rows, HS, band.columns, X(1), z, TILE, keys.v + c0 * HS, HS, X(1), &tile.sums[r0 * HS],
         HS);
}

/// The same for a tile masked by bits, with packed rows.
template <class X, class P>
void visit_seeing_rows(const P& policy, const AttentionForward<X>& a, const TileWalk<X, P>& walk, const TilePlace& at,
                       const KeyTile<X>& keys, QueryTile<X>& tile) {
    const int HS = a.HS;
    const SeeingRows rows(walk, at);
    X *const packed = tile.packed.data(), *const z = tile.z.data();
    rows.pack(packed, tile.q.data(), HS);
    rows.multiply(z, TILE, whole_packs<X>(at.columns), HS, X(1) / std::sqrt(X(HS)), packed, HS, keys.k_transposed, TILE);
    rows.each([&](const TilePlace& row, int n) {
        modify_and_mask(z + n, policy, a, walk, row, Tile::mixed);
        absorb_band(z + n, policy, a, walk, row, tile);
    });
    rows.multiply(packed, HS, HS, at.columns, X(1), z, TILE, keys.v, HS);
    rows.add(tile.sums.data(), packed, HS);
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
            if constexpr (P::traits.few_rows_see)
                if (verdict == Tile::mixed) return visit_seeing_rows(policy, a, walk, place, key_tile, tile);
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
            if (!P::traits.gates_pairs || !a.statistics.pair_gate) continue;
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

/// With Write::add the call adds keys to a softmax: out, lse and the statistics hold the result over other keys and are updated. They and
/// q are over the rows.T tokens of a sequence, k and v over key_rows.T; positions and lists are over the T rows of queries and the S rows
/// of keys. No features then but biases of tiles, which are by rows, as tile_max is. Two rows of keys never hold the same token; of
/// queries they may, and then one thread takes all rows of the heads that share keys, because the rows resume from each other's results.
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

// ------------------------------------------------------------------------------------------------------------------------ backward

/// A thread's buffers for the tiles of one (sequence, key/value head).
template <class X>
struct BackwardWorkspace {
    std::vector<char> started;                        // (tiles): whether dk and dv of the tile have been written
    std::vector<X> q, dout, dq;                       // (TILE, HS); with a gate dout is g dO'
    std::vector<X> lse, D;                            // (TILE)
    std::vector<X> hidden, a, p, dz;                  // (TILE, TILE); 0 or HIDDEN, raw scores, probabilities, dL/dP and dL/da
    std::vector<X> packed_q, packed_dout;             // (TILE, HS) some rows of q and dout
    std::vector<X> product;                           // (TILE, HS) to be added to rows that are scattered in memory
    std::unique_ptr<Pack<X>[]> head_sums, row_sums;   // no std::vector: nvcc rejects SIMD vectors in its constexpr members

    BackwardWorkspace(const AttentionForward<X>& f, const Features& n) : started(tiles_of(f.S)) {
        for (std::vector<X>* rows : {&q, &dout, &dq, &packed_q, &packed_dout, &product}) rows->resize(size_t(TILE) * f.HS);
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
    const bool plain = walk.is_plain(at);
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
            if (plain) {
                store(&tile.dz[n], dz_of(load<N>(&tile.a[n])));
                continue;
            }
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

/// The same for a tile masked by bits, with packed rows. Returns their number.
template <class X, class P>
int backward_seeing_rows(const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g, const TileWalk<X, P>& walk,
                         const TilePlace& at, const KeyTile<X>& keys, BackwardWorkspace<X>& w) {
    const int HS = a.HS, width = whole_packs<X>(at.columns);
    const X scale = X(1) / std::sqrt(X(HS));
    const SeeingRows rows(walk, at);
    X *const q = w.packed_q.data(), *const dout = w.packed_dout.data(), *const dq = w.product.data();
    rows.pack(q, w.q.data(), HS), rows.pack(dout, w.dout.data(), HS);
    rows.multiply(w.a.data(), TILE, width, HS, scale, q, HS, keys.k_transposed, TILE);
    rows.multiply(w.dz.data(), TILE, width, HS, X(1), dout, HS, keys.v_transposed, TILE);
    rows.each([&](const TilePlace& row, int n) {
        hide(&w.hidden[n], walk, row, Tile::mixed);
        backward_pairs(policy, a, g, walk, row, BandOfTiles<X>(w, n), w);
    });
    rows.multiply(dq, HS, HS, at.columns, scale, w.dz.data(), TILE, keys.k, HS);
    rows.add(w.dq.data(), dq, HS);
    return rows.count();
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
            if (f.tile) g.dtile[tile_bias_at(a, at)] = X(0);
            if constexpr (P::traits.few_rows_see)
                if (verdict == Tile::mixed) {
                    const int count = backward_seeing_rows(policy, a, g, walk, at, key_tile, w);
                    return add_to_keys({b, h, i0, at.j0, count, at.columns}, w.packed_q.data(), w.packed_dout.data(), w);
                }
            if (verdict == Tile::mixed) std::fill(w.p.begin(), w.p.end(), X(0)), std::fill(w.dz.begin(), w.dz.end(), X(0));
            int begin = TILE, end = 0;   // the range of columns over all bands
            each_band(walk, at, verdict, [&](const TilePlace& band) {
                backward_band(policy, a, g, walk, band, verdict, key_tile, w);
                begin = std::min(begin, band.j0 % TILE), end = std::max(end, band.j0 % TILE + band.columns);
            });
            if (end > begin) add_to_keys({b, h, i0, at.j0 + begin, rows, end - begin}, w.q.data(), w.dout.data(), w);
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

    /// Adds P^T dout to dv and scale (dL/da)^T q to dk for the keys of `at`, columns of one tile. q and dout have at.rows rows.
    void add_to_keys(const TilePlace& at, const X* q, const X* dout, BackwardWorkspace<X>& w) const {
        const int c0 = at.j0 % TILE, kv = at.h / (a.NH / a.NKV), tile = at.j0 / TILE;
        if (write == Write::overwrite && !std::exchange(w.started[tile], 1)) clear_keys(at.b, kv, tile);
        add_products(at, g.dv, X(1), &w.p[c0], dout, w);
        add_products(at, g.dk, X(1) / std::sqrt(X(a.HS)), &w.dz[c0], q, w);
    }

    /// to += scale pairs^T rows; in place if the keys' rows are contiguous.
    void add_products(const TilePlace& at, const Heads<X>& to, X scale, const X* pairs, const X* rows,
                      BackwardWorkspace<X>& w) const {
        const int kv = at.h / (a.NH / a.NKV);
        if constexpr (RowPlaces<KeyRows>::in_order)
            return gemm(Transpose::yes, Transpose::no, at.columns, a.HS, at.rows, scale, pairs, TILE, rows, a.HS, X(1),
                        home(to, keys, at.b, kv, at.j0), to.row);
        gemm(Transpose::yes, Transpose::no, at.columns, a.HS, at.rows, scale, pairs, TILE, rows, a.HS, X(0), w.product.data(), a.HS);
        for (int j = 0; j < at.columns; j++) {
            const int token = keys.token(at.b, at.h, at.j0 + j);
            if (token >= 0) put(to, keys, at.b, kv, token, &w.product[j * a.HS]);
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

/// Gradients of attention_rows_forward(); out and lse are the results over all keys. Write::add: adds to dq, dk and dv.
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
