// Tools for masks that are static patterns. tile() divides a rectangle of pairs into parts with known verdicts and combines these.
// The result is exact: hidden if no pair is visible, full if every pair is.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "attention/mechanism.h"

/// Past the last token: columns(from, END) are all from `from` on.
inline constexpr int END = std::numeric_limits<int>::max();

/// Queries [i0, i1) against keys [j0, j1).
struct Rectangle {
    int i0, i1, j0, j1;
    constexpr bool empty() const { return i0 >= i1 || j0 >= j1; }
    constexpr Rectangle rows(int from, int to) const { return {std::max(i0, from), std::min(i1, to), j0, j1}; }
    constexpr Rectangle columns(int from, int to) const { return {i0, i1, std::max(j0, from), std::min(j1, to)}; }
};

/// The verdict on a rectangle from those on its parts. Empty parts are ignored.
class Verdict {
public:
    constexpr void add(const Rectangle& part, Tile verdict) {
        if (part.empty()) return;
        some_ = some_ || verdict != Tile::hidden;
        all_ = all_ && verdict == Tile::full;
    }
    constexpr void add_causal(const Rectangle& part) { add(part, Policy::causal_tile(part.i0, part.i1, part.j0, part.j1)); }
    constexpr void add_window(const Rectangle& part, int left) {
        add(part, Policy::window_tile(left, part.i0, part.i1, part.j0, part.j1));
    }
    /// Whether further parts cannot change the verdict.
    constexpr bool is_mixed() const { return some_ && !all_; }
    constexpr Tile tile() const { return !some_ ? Tile::hidden : all_ ? Tile::full : Tile::mixed; }

private:
    bool some_ = false, all_ = true;
};

/// Causal keys [0, leading), and keys i - left .. i.
struct LeadingAndWindow : Policy {
    int leading, left;
    LeadingAndWindow(const Config& config, int layer, int leading_, int left_)
        : Policy(config, layer), leading(leading_), left(left_) {}

    constexpr bool visible(int, int i, int j) const { return j <= i && (j < leading || i - j <= left); }
    constexpr Tile tile(int, int i0, int i1, int j0, int j1) const {
        const Rectangle all{i0, i1, j0, j1};
        Verdict verdict;
        verdict.add_causal(all.columns(0, leading));
        verdict.add_window(all.columns(leading, END), left);
        return verdict.tile();
    }
    constexpr KeptKeys kept_keys() const { return {leading, left + 1}; }
};

/// Causal attention, unless settings beside the mechanism's own read the weights through a window with sinks.
struct ReadThroughWindow : LeadingAndWindow {
    ReadThroughWindow(const Config& config, int layer)
        : LeadingAndWindow(config, layer, int(config.setting("read_sinks")), int(config.setting("read_window"))) {}
    static std::vector<Setting> with(Setting own) {
        return {own,
                {"--read-window", "read_window", 1e9, 0, 1e9, WHOLE, "left reach of a window that is not the mechanism's; 1e9: none", true},
                {"--read-sinks", "read_sinks", 0, 0, 1e9, WHOLE, "leading tokens that are seen beside that window", true}};
    }
};

/// n / d and n mod d for a fixed d and every 0 <= n < 2^31, by a multiplication and a shift: masks need them for every pair, and a
/// division costs twenty times as much. With 2^s >= d and m = floor(2^(31+s) / d) + 1 the error n (m d - 2^(31+s)) stays below 2^(31+s).
class Divisor {
public:
    explicit constexpr Divisor(int d) : d_(d) {
        while ((int64_t(1) << (shift_ - 31)) < d) shift_++;
        factor_ = (uint64_t(1) << shift_) / uint64_t(d) + 1;
    }
    constexpr int divisor() const { return d_; }
    constexpr int quotient(int n) const { return int(uint64_t(n) * factor_ >> shift_); }
    constexpr int remainder(int n) const { return n - quotient(n) * d_; }

private:
    int d_, shift_ = 31;
    uint64_t factor_;
};

/// Chunks of equal length: a query sees its own chunk up to itself, and columns [first, last) of every earlier chunk,
/// counted from the chunk's start.
class Chunks {
public:
    explicit constexpr Chunks(int length) : length_(length) {}

    constexpr bool visible(int first, int last, int i, int j) const {
        const int inside = length_.remainder(j);
        return j <= i && (j >= i - length_.remainder(i) || (inside >= first && inside < last));
    }

    /// One iteration per chunk that the columns overlap.
    constexpr Tile tile(int first, int last, const Rectangle& all) const {
        if (all.j0 > all.i1 - 1) return Tile::hidden;
        Verdict verdict;
        int next = 0;
        for (int start = all.j0 - length_.remainder(all.j0); start < all.j1 && !verdict.is_mixed(); start = next) {
            next = start + length_.divisor();
            const Rectangle chunk = all.columns(start, next), later = chunk.rows(next, END);
            verdict.add(chunk.rows(0, start), Tile::hidden);
            verdict.add_causal(chunk.rows(start, next));
            verdict.add(later.columns(start, start + first), Tile::hidden);
            verdict.add(later.columns(start + first, start + last), Tile::full);
            verdict.add(later.columns(start + last, next), Tile::hidden);
        }
        return verdict.tile();
    }

    /// Keys to cache for chunks that leave their last `shared` tokens to all later rows.
    constexpr KeptChunks kept_keys(int shared) const { return {length_.divisor(), shared}; }

private:
    Divisor length_;
};
