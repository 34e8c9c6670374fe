// Policies made for the tests, one per extension point of the tiled kernel (attention/mechanism.h), data for the points that are
// data, and the problems that both devices solve.
#pragma once
#include "tests/attention_problem.h"

inline double raw(int, int, int, int, double a) { return a; }
inline bool causal(int, int i, int j) { return j <= i; }
inline bool everything(int, int, int) { return true; }

// ---- policies made for the tests

struct Causal : Policy {
    Causal() : Policy(Config{}, 0) {}

    /// The verdict of those that look pair by pair.
    static constexpr Tile past_or_mixed(int i0, int i1, int j0, int j1) {
        return causal_tile(i0, i1, j0, j1) == Tile::hidden ? Tile::hidden : Tile::mixed;
    }
};

/// No mask at all.
struct Everything : Causal {
    constexpr Tile tile(int, int, int, int, int) const { return Tile::full; }
    constexpr bool visible(int, int, int) const { return true; }
};

/// With a gate on every row's output.
struct Gated : Causal {
    static constexpr Traits traits{.gates_output = true};
};

// ---- masks for a policy with scores of its own. One policy for all, as each takes long to compile

/// Every head has a window of its own.
struct Windows {
    static constexpr int left(int h) { return h == 0 ? 0 : 30 * h; }
    static constexpr Tile tile(int h, int i0, int i1, int j0, int j1) { return Causal::window_tile(left(h), i0, i1, j0, j1); }
    static constexpr bool sees(int h, int i, int j) { return j <= i && i - j <= left(h); }
};

/// Irregular: another pattern in each head, some rows see nothing.
struct Holes {
    static constexpr Tile tile(int, int i0, int i1, int j0, int j1) { return Causal::past_or_mixed(i0, i1, j0, j1); }
    static constexpr bool sees(int h, int i, int j) { return j <= i && i % 7 != h && (31 * h + 7 * i + 13 * j) % 5 == 0; }
};

/// Squares of 16 x 16 that are seen or not, with holes between and verdicts that know it.
struct Squares {
    static constexpr bool seen(int h, int row, int column) { return column <= row && (row + 2 * column + h) % 5 > 1; }
    static constexpr bool sees(int h, int i, int j) { return j <= i && seen(h, i / 16, j / 16); }
    static constexpr Tile tile(int h, int i0, int i1, int j0, int j1) {
        bool some = false, all = j1 - 1 <= i0;
        for (int row = i0 / 16; row <= (i1 - 1) / 16; row++)
            for (int column = j0 / 16; column <= (j1 - 1) / 16; column++) {
                some = some || seen(h, row, column);
                all = all && seen(h, row, column);
            }
        if (!some) return Tile::hidden;
        return all ? Tile::full : Tile::mixed;
    }
};

enum class Mask { past, windows, holes, squares };

/// A score that reads everything it may: scalars per head c, e; row features r0, r1 and a table of four; column features k0, k1; the
/// tile's bias u.
///     z = c a s + e (r1 k1 + (i - j) / 50) + table[bucket(i - j)] + u,   s = sigmoid(r0 + k0)
struct Modified : Causal {
    Mask mask;
    explicit Modified(Mask mask_ = Mask::past) : mask(mask_) {}

    constexpr Tile tile(int h, int i0, int i1, int j0, int j1) const {
        if (mask == Mask::windows) return Windows::tile(h, i0, i1, j0, j1);
        if (mask == Mask::holes) return Holes::tile(h, i0, i1, j0, j1);
        if (mask == Mask::squares) return Squares::tile(h, i0, i1, j0, j1);
        return Causal::tile(h, i0, i1, j0, j1);
    }
    constexpr bool visible(int h, int i, int j) const {
        if (mask == Mask::windows) return Windows::sees(h, i, j);
        if (mask == Mask::holes) return Holes::sees(h, i, j);
        if (mask == Mask::squares) return Squares::sees(h, i, j);
        return Causal::visible(h, i, j);
    }

    static constexpr int bucket(int distance) { return std::clamp(distance, 0, 19) / 5; }
    struct TableEntry {   // no pointer to a function: a kernel could not call the host's
        constexpr int operator()(int distance) const { return 2 + bucket(distance); }
    };
    constexpr Features features() const { return {2, 6, 2, true}; }

    static constexpr Traits traits{.gates_output = true, .gates_pairs = true};
    template <class N>
    constexpr N pair_gate(const Pair<N>& p) const {
        return sigmoid(p.row(0) + p.column(0));
    }
    template <class N>
    constexpr N score(N a, const Pair<N>& p) const {
        const N bias = p.row(1) * p.column(1) + (p.i - p.j) / 50;
        return p.head(0) * a * pair_gate(p) + p.head(1) * bias + p.row_by_distance(TableEntry()) + p.tile;
    }
    template <class N, class Loss>
    constexpr N score_backward(N a, const Pair<N>& p, PairGradients<N>& to, Loss dz_of) const {
        const N dz = dz_of(score(a, p)), s = pair_gate(p), du = dz * p.head(0) * a * s * (1 - s);
        to.head(0, dz * a * s);
        to.head(1, dz * (p.row(1) * p.column(1) + (p.i - p.j) / 50));
        to.row(0, du), to.column(0, du);
        to.row(1, dz * p.head(1) * p.column(1)), to.column(1, dz * p.head(1) * p.row(1));
        to.row_by_distance(p, TableEntry(), dz);
        to.tile(dz);
        return dz * p.head(0) * s;
    }

    static double defined_gate(const Problem& p, int b, int h, int i, int j) {
        return 1 / (1 + std::exp(-p.row_feature(b, h, i, 0) - p.column_feature(b, h, j, 0)));
    }
    static ScoreOfPair definition(const Problem& p) {
        return [&p](int b, int h, int i, int j, double a) {
            auto r = [&](int f) { return p.row_feature(b, h, i, f); };
            auto k = [&](int f) { return p.column_feature(b, h, j, f); };
            const double c = p.head[h * 2], e = p.head[h * 2 + 1], s = defined_gate(p, b, h, i, j);
            const int distance = p.q_token(b, h, i) - p.k_token(b, h, j);
            return c * a * s + e * (r(1) * k(1) + distance / 50.0) + r(2 + bucket(distance)) + p.tile[p.tile_at(b, h, i, j)];
        };
    }
};

// ---- data for masks, gates and positions

/// The tiles of one query tile after the other, of all heads and sequences.
inline void set_tile_lists(Problem& p, const std::vector<std::vector<int>>& lists) {
    p.list_tiles.assign(lists.size() * tiles_of(p.S), -1);
    for (size_t n = 0; n < lists.size(); n++) {
        std::copy(lists[n].begin(), lists[n].end(), p.list_tiles.begin() + n * tiles_of(p.S));
        p.list_count.push_back(int(lists[n].size()));
    }
}

/// Every tile with probability 2/3, no tile at all for a quarter of the query tiles.
inline void draw_tile_lists(Problem& p) {
    std::mt19937_64 generator(3);
    std::vector<std::vector<int>> lists(p.B * p.NH * tiles_of(p.T));
    for (size_t n = 0; n < lists.size(); n++)
        for (int t = 0; t < tiles_of(p.S) && n % 4 != 1; t++)
            if (generator() % 3) lists[n].push_back(t);
    set_tile_lists(p, lists);
}

/// `count` different tokens below 2 * count in random order for each (b, h), one in eight of them padding.
inline std::vector<int> draw_positions(const Problem& p, int count, uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::vector<int> all;
    for (int n = 0; n < p.B * p.NH; n++) {
        std::vector<int> tokens(2 * count);
        for (int t = 0; t < 2 * count; t++) tokens[t] = t;
        std::shuffle(tokens.begin(), tokens.end(), generator);
        for (int t = 0; t < count; t++) all.push_back(generator() % 8 ? tokens[t] : -1);
    }
    return all;
}

// ---- problems with heads of size HS, for check(problem, policy, its score, what it sees)

template <class Check>
void check_masks(int HS, Check check) {
    SECTION("windows and holes inside tiles") {
        Problem p(1, 200, 200, 4, 2, HS, Modified().features());
        check(p, Modified(Mask::windows), Modified::definition(p), Windows::sees);
        check(p, Modified(Mask::squares), Modified::definition(p), Squares::sees);
    }
    SECTION("irregular patterns with rows that see nothing") {
        Problem p(2, 130, 130, 4, 1, HS, Modified().features());
        p.dlse = normal_numbers(p.rows(), 9);
        check(p, Modified(Mask::holes), Modified::definition(p), Holes::sees);
    }
    SECTION("lists of tiles, some of them empty") {
        Problem p(2, 260, 260, 2, 1, HS, Modified().features());
        p.dlse = normal_numbers(p.rows(), 9);
        draw_tile_lists(p);
        check(p, Modified(), Modified::definition(p), causal);
        p.features = {}, p.head = p.row = p.column = p.tile = {};
        check(p, Causal(), raw, causal);
    }
}

template <class Check>
void check_positions(int HS, Check check) {
    SECTION("gathered tokens in any order, with padding") {
        Problem p(2, 70, 130, 2, 1, HS, Modified().features());
        p.q_position = draw_positions(p, p.T, 1);
        p.k_position = draw_positions(p, p.S, 2);
        check(p, Modified(), Modified::definition(p), causal);
    }
    SECTION("padding in tiles of which everything else is visible") {
        Problem p(1, 70, 130, 2, 2, HS);
        p.k_position = draw_positions(p, p.S, 2);
        check(p, Everything(), raw, everything);
        p.q_position = draw_positions(p, p.T, 1);
        check(p, Everything(), raw, everything);
        p.k_position.clear();
        check(p, Everything(), raw, everything);
    }
}

/// What both devices are checked with: heads of size HS for most, of size `larger` where a score or a gate reads features.
template <class Check>
void check_on_a_device(int HS, int larger, Check check) {
    SECTION("one token, one tile, partial tiles, many tiles, groups of heads, more keys than queries, fewer") {
        for (auto [T, NH, NKV] : {std::array{1, 4, 2}, {63, 4, 4}, {64, 4, 2}, {65, 4, 1}, {200, 2, 1}}) {
            Problem p(2, T, T, NH, NKV, HS);
            check(p, Causal(), raw, causal);
        }
        for (auto [T, S] : {std::pair{70, 130}, {130, 70}, {1, 65}, {65, 1}, {1, 1}}) {
            Problem p(2, T, S, 2, 1, HS);
            check(p, Everything(), raw, everything);
        }
    }
    SECTION("scalars of heads, features of rows, columns and distances, with their gradients") {
        for (int T : {1, 64, 130}) {
            Problem p(1, T, T, 4, 2, larger, Modified().features());
            p.dlse = normal_numbers(p.rows(), 9);
            check(p, Modified(), Modified::definition(p), causal);
        }
    }
    SECTION("masks") { check_masks(HS, check); }
    SECTION("a gate on the output, also where it is zero") {
        Problem p(2, 70, 70, 4, 2, larger);
        p.gate = normal_numbers(p.rows(), 10);
        for (size_t n = 0; n < p.gate.size(); n += 3) p.gate[n] = 0;
        p.dlse = normal_numbers(p.rows(), 9);
        check(p, Gated(), raw, causal);
    }
    SECTION("positions") { check_positions(HS, check); }
    SECTION("all extension points at once") {
        Problem p(2, 130, 200, 4, 2, larger, Modified().features());
        p.q_position = draw_positions(p, p.T, 1);
        p.k_position = draw_positions(p, p.S, 2);
        p.gate = normal_numbers(p.rows(), 10);
        p.dlse = normal_numbers(p.rows(), 9);
        draw_tile_lists(p);
        check(p, Modified(Mask::holes), Modified::definition(p), Holes::sees);
    }
}
