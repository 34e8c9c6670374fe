// The work of the CPU's kernel on one TILE x TILE tile: the part to compute, score() and mask, statistics, and the running softmax of
// its rows, in loops over SIMD vectors of keys.
#pragma once
#include <algorithm>
#include <limits>

#include "attention/kernel/arguments.h"
#include "attention/kernel/policy.h"
#include "attention/kernel/walk.h"

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
    if (f.tile) pair.tile_bias = a.tile[tile_bias_at(a, at)];
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
    if constexpr (P::reads_bits) return mask_by_bits(z, walk, at);
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
    for (int r = 0; r < at.rows; r++) {
        X* row = z + r * TILE;
        for (int j = 0; j < width; j += LANES<X>)
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
