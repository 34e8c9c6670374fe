// The access of the CPU's kernel to the vectors of its rows. Row r of query head h holds the token given by a `Rows` (rows.cuh), or token
// r without one. A thread copies its rows tile by tile: 64 contiguous rows, which stay in its cache. A branch that reads the text in
// another order therefore costs no more than one in text order, and nothing is gathered beforehand.
#pragma once
#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

#include "attention/kernel/rows.cuh"
#include "attention/kernel/walk.h"

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
