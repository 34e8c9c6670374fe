// The choice of keys by their index scores: every query sees the `top` keys with the greatest scores among its past and itself, ties
// going to earlier keys. It has no gradient. ReLU makes many scores exactly 0, so ties are common.
#pragma once
#include <bit>
#include <cmath>
#include <functional>

#include "attention/indexer/index_scores.cuh"
#include "attention/masks/choice.cuh"

/// The chosen keys, and the log-sum-exp of their scores.
template <class W>
struct ChosenKeys {
    PairBits bits;
    int *count, *list;   // (B, NH, tiles), (B, NH, tiles, tiles): the kernel's TileList, the same for all heads
    int* touched;        // (B, tiles, tiles), TouchedTiles::flags
    W* lse;              // (B, T) log-sum-exp of the chosen keys' scores
};

/// The first key that a query may choose: the first of its document.
constexpr int first_candidate(const Documents& documents, int b, int t) { return documents ? documents.at(b, t) : 0; }

/// Keys with a greater score are chosen, and the first `equal` of those with this score.
template <class W>
struct KeyCut {
    W score;
    int equal;
};

/// Finds the cuts of rows, one at a time.
template <class W>
class KeyCuts {
    static constexpr int BUCKETS = 4096;

public:
    /// The cut of `count` scores, more than `top`. Scores are counted by their leading bits first, and only the bucket that holds the
    /// cut is sorted.
    KeyCut<W> find(const W* scores, int count, int top) {
        std::fill(counts_.begin(), counts_.end(), 0);
        for (int j = 0; j < count; j++) counts_[bucket(scores[j])]++;
        int last = BUCKETS - 1, above = 0;
        for (; above + counts_[last] < top; last--) above += counts_[last];
        candidates_.clear();
        for (int j = 0; j < count; j++)
            if (bucket(scores[j]) == last) candidates_.push_back(scores[j] == scores[j] ? scores[j] : W(-INFINITY));
        const auto nth = candidates_.begin() + (top - above - 1);
        std::nth_element(candidates_.begin(), nth, candidates_.end(), std::greater<W>());
        const W cut = *nth;
        return {cut, top - above - int(std::count_if(candidates_.begin(), nth, [&](W score) { return score > cut; }))};
    }

private:
    /// Buckets ascend with the scores; NaN is in the lowest.
    static int bucket(W score) {
        const float x = score == score ? float(score) : -INFINITY;
        return int(choosing::ordered(x) >> 20);
    }

    std::vector<int> counts_ = std::vector<int>(BUCKETS);
    std::vector<W> candidates_;
};

/// A word of TILE bits: 1 for scores above the cut or, with `equal`, at it.
template <bool equal, class X>
uint64_t compare(const X* scores, X cut) {
    uint32_t halves[2] = {};
    for (int half = 0; half < 2; half++)
        for (int c = 0; c < 32; c++) {
            const X score = scores[32 * half + c];
            halves[half] |= uint32_t(equal ? score == cut : score > cut) << c;
        }
    return halves[0] | uint64_t(halves[1]) << 32;
}

/// A word with bits `first` to `last` set, as far as they are within it.
constexpr uint64_t bits_between(int first, int last) {
    return (last < 0 || first >= TILE) ? 0 : ~uint64_t(0) << std::max(first, 0) & ~uint64_t(0) >> (TILE - 1 - std::min(last, TILE - 1));
}

/// Writes row t: its words of `to.bits` up to its own tile, and its lse.
template <class X>
void choose_row(const ChosenKeys<X>& to, const X* scores, int b, int t, int first, int top, KeyCuts<X>& cuts) {
    const int count = t + 1 - first;
    KeyCut<X> cut{-INFINITY, count};
    if (count > top) cut = cuts.find(scores + first, count, top);
    X largest = -INFINITY, sum = 0;
#pragma omp simd reduction(max : largest)
    for (int j = first; j <= t; j++) largest = std::max(largest, scores[j]);
    for (int tile = 0; tile <= t / TILE; tile++) {
        const X* const here = scores + tile * TILE;
        const uint64_t candidates = bits_between(first - tile * TILE, t - tile * TILE);
        uint64_t word = candidates & compare<false>(here, cut.score), equals = candidates & compare<true>(here, cut.score);
        for (; equals && cut.equal > 0; cut.equal--, equals &= equals - 1) word |= equals & -equals;
        to.bits.word(b, t, tile) = word;
        for (; word; word &= word - 1) sum += exp_of(here[std::countr_zero(word)] - largest);
    }
    to.lse[size_t(b) * to.bits.T + t] = largest + std::log(sum);
}

template <class X>
void choose_keys(CPU, const ChosenKeys<X>& to, const IndexPiece<X>& piece, const Documents& documents, int top) {
#pragma omp parallel
    {
        KeyCuts<X> cuts;
#pragma omp for collapse(2) schedule(dynamic, 16)
        for (int n = 0; n < piece.count; n++)
            for (int r = 0; r < TILE; r++) {
                const int b = piece.b(n), t = piece.tile(n) * TILE + r;
                if (t < piece.T) choose_row(to, piece.row(n, r), b, t, first_candidate(documents, b, t), top, cuts);
            }
    }
}

// ---- tiles, on both devices

struct TouchTiles {
    int* touched;
    PairBits bits;
    constexpr void operator()(unsigned row, int tile) const {
        const int tiles = tiles_of(bits.T), b = int(row) / tiles, query_tile = int(row) % tiles;
        uint64_t seen = 0;
        for (int i = query_tile * TILE; tile <= query_tile && i < std::min(bits.T, (query_tile + 1) * TILE); i++)
            seen |= bits.word(b, i, tile);
        touched[size_t(row) * tiles + tile] = seen != 0;
    }
};

struct ListTiles {
    int *count, *list;
    const int* touched;
    int tiles, NH;
    constexpr void operator()(unsigned row, int) const {
        const int b = int(row) / tiles / NH, query_tile = int(row) % tiles;
        const int* const mine = touched + (size_t(b) * tiles + query_tile) * tiles;
        int n = 0;
        for (int tile = 0; tile <= query_tile; tile++)
            if (mine[tile]) list[size_t(row) * tiles + n++] = tile;
        count[row] = n;
    }
};

template <class Device, class W>
void list_chosen_tiles(Device device, const ChosenKeys<W>& to, int B, int NH) {
    const int tiles = tiles_of(to.bits.T);
    each_element(device, size_t(B) * tiles, tiles, TouchTiles{to.touched, to.bits});
    each_element(device, size_t(B) * NH * tiles, 1, ListTiles{to.count, to.list, to.touched, tiles, NH});
}

#ifdef WITH_GPU

/// One warp per (row, query tile of the piece); 32 keys at a time.
template <class W>
__global__ void choose_keys_kernel(const ChosenKeys<W> to, const IndexPiece<W> piece, const Documents documents, int top) {
    using namespace choosing;
    const int n = blockIdx.y, r = blockIdx.x, lane = threadIdx.x, b = piece.b(n), t = piece.tile(n) * TILE + r;
    if (t >= piece.T) return;
    const int first = first_candidate(documents, b, t), count = t + 1 - first;
    const W* const scores = piece.row(n, r);
    Cut cut{0, count};   // below the key of any score
    if (count > top) cut = cut_of_greatest(scores + first, TileChoice{.top = top, .local = 0}, count - 1);
    float largest = -INFINITY, sum = 0;
    for (int j = first + lane; j <= t; j += WARP) largest = fmaxf(largest, scores[j]);
    for (int distance = WARP / 2; distance > 0; distance /= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, distance));
    ChosenByCut by_cut(cut);
    uint64_t word = 0;
    for (int j0 = 0; j0 <= t / TILE * TILE + WARP; j0 += WARP) {
        const int j = j0 + lane;
        const bool candidate = j >= first && j <= t;
        const bool take = by_cut.has(candidate, candidate ? ordered(scores[j]) : 0);
        const uint64_t taken = __ballot_sync(ALL_LANES, take);
        if (take) sum += exp_of(scores[j] - largest);
        word = j0 % TILE ? word | taken << WARP : taken;
        if (lane == 0 && j0 % TILE) to.bits.word(b, t, j0 / TILE) = word;
    }
    sum = warp_sum(sum);
    if (lane == 0) to.lse[size_t(b) * piece.T + t] = largest + logf(sum);
}

inline void choose_keys(GPU device, const ChosenKeys<float>& to, const IndexPiece<float>& piece, const Documents& documents, int top) {
    launch(device, choose_keys_kernel<float>, Grid(TILE, piece.count), WARP, 0, to, piece, documents, top);
}

#endif
