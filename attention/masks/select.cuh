// Block selection: from one score per query tile and key tile to the lists of key tiles that the kernel
// visits. The choice has no gradient.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>

#include "attention/kernel/call.h"

/// The tiles that query tile r visits: its own and the `local` - 1 before it, the first `leading` tiles, and of the tiles in between
/// (the candidates) the `top` with the largest scores, ties going to earlier tiles; or, if `threshold` is not negative, those whose
/// share in the softmax of the candidates' scores is above it. The first `dense_heads` query heads visit everything.
struct TileChoice {
    int top = 0;
    float threshold = -1;
    int leading = 0, local = 1;
    int dense_heads = 0;

    constexpr bool forced(int r, int c) const { return c < leading || c > r - local; }
};

/// Shapes: lists (B, NH, N, N), N = tiles_of(T) entries for each query tile; scores (B, heads, N, N), one set for each
/// group of NH / heads query heads.
struct TileScores {
    int B, NH, heads, N;
    constexpr size_t row(int b, int h, int r) const { return ((size_t(b) * heads + h / (NH / heads)) * N + r) * N; }
    constexpr size_t list(int b, int h, int r) const { return (size_t(b) * NH + h) * N + r; }
};

/// The first tile of every tile's text: 0. Rows with several texts use another function of (b, r); r + 1 leaves tile r without a list.
struct FirstTile {
    constexpr int operator()(int /*b*/, int /*r*/) const { return 0; }
};

/// Whether candidate c is chosen: its rank is the number of better candidates.
template <class W>
constexpr bool chosen_by_rank(const W* scores, const TileChoice& choice, int r, int c) {
    int rank = 0;
    for (int other = 0; other <= r && rank < choice.top; other++)
        if (!choice.forced(r, other) && (scores[other] > scores[c] || (scores[other] == scores[c] && other < c))) rank++;
    return rank < choice.top;
}

/// The candidates' largest score and sum of exp(score - largest), which turn scores into shares. Not computed if the choice is by rank.
template <class W>
struct CandidateSoftmax {
    W largest = -1e30f, sum = 0;
    constexpr CandidateSoftmax(const W* scores, const TileChoice& choice, int r) {
        if (choice.threshold < 0) return;
        for (int c = 0; c <= r; c++)
            if (!choice.forced(r, c) && scores[c] > largest) largest = scores[c];
        for (int c = 0; c <= r; c++)
            if (!choice.forced(r, c)) sum += exp_of(scores[c] - largest);
    }
};

template <class W>
constexpr bool chosen(const W* scores, const TileChoice& choice, const CandidateSoftmax<W>& softmax, int h, int r, int c) {
    if (h < choice.dense_heads || choice.forced(r, c)) return true;
    if (choice.threshold < 0) return chosen_by_rank(scores, choice, r, c);
    return exp_of(scores[c] - softmax.largest) > W(choice.threshold) * softmax.sum;
}

/// count (B, NH, N) and tiles (B, NH, N, N), ascending. Tiles of a text count from its first.
template <class W, class First = FirstTile>
void choose_tiles(CPU, int* count, int* tiles, const W* scores, const TileScores& s, const TileChoice& choice, First first_of = {}) {
#pragma omp parallel for collapse(3)
    for (int b = 0; b < s.B; b++)
        for (int h = 0; h < s.NH; h++)
            for (int tile = 0; tile < s.N; tile++) {
                const int first = first_of(b, tile), r = tile - first;
                const W* mine = scores + s.row(b, h, tile) + first;
                const CandidateSoftmax<W> softmax(mine, choice, r);
                int* list = tiles + s.list(b, h, tile) * s.N;
                int n = 0;
                for (int c = 0; c <= r; c++)
                    if (chosen(mine, choice, softmax, h, r, c)) list[n++] = first + c;
                count[s.list(b, h, tile)] = n;
            }
}

namespace choosing {

/// Maps floats to integers of the same order.
constexpr unsigned ordered(float x) {
    const unsigned bits = std::bit_cast<unsigned>(x == 0 ? 0.0f : x);   // 0 and -0 are equal
    return bits >> 31 ? ~bits : bits | 1u << 31;
}

}   // namespace choosing

#ifdef WITH_GPU

namespace choosing {

/// The chosen candidates: those whose ordered() score is above `key`, and the first `equal` of those equal to it.
struct Cut {
    unsigned key;
    int equal;
};

/// Visits candidates in order, one per lane of a warp at a time.
class ChosenByCut {
public:
    __device__ explicit ChosenByCut(Cut cut) : cut_(cut) {}

    /// Whether this lane's candidate is chosen. All lanes call it, also those without a candidate.
    __device__ bool has(bool candidate, unsigned key) {
        const unsigned before = (1u << threadIdx.x % WARP) - 1;
        const unsigned equals = __ballot_sync(ALL_LANES, candidate && key == cut_.key);
        const bool fits = key > cut_.key || (key == cut_.key && equal_ + __popc(equals & before) < cut_.equal);
        equal_ += __popc(equals);
        return candidate && fits;
    }

private:
    Cut cut_;
    int equal_ = 0;   // candidates at the cut so far
};

/// The cut for the `top` largest scores: the largest key that at least `top` candidates reach, found bit by bit.
template <class W>
__device__ Cut cut_of_greatest(const W* scores, const TileChoice& choice, int r) {
    const auto reach = [&](unsigned key) {
        int count = 0;
        for (int first = 0; first <= r; first += WARP) {
            const int c = first + int(threadIdx.x) % WARP;
            count += __popc(__ballot_sync(ALL_LANES, c <= r && !choice.forced(r, c) && ordered(scores[c]) >= key));
        }
        return count;
    };
    unsigned key = 0;
    for (unsigned bit = 1u << 31; bit; bit >>= 1)
        if (reach(key | bit) >= choice.top) key |= bit;
    return {key, choice.top - (key == ~0u ? 0 : reach(key + 1))};
}

/// The cut for shares above the threshold, computed as in CandidateSoftmax and chosen(), in the same order of sums on every lane.
template <class W>
__device__ Cut cut_of_shares(const W* scores, const TileChoice& choice, int r) {
    const CandidateSoftmax<W> softmax(scores, choice, r);
    unsigned key = ~0u;
    for (int c = int(threadIdx.x) % WARP; c <= r; c += WARP)
        if (!choice.forced(r, c) && exp_of(scores[c] - softmax.largest) > W(choice.threshold) * softmax.sum)
            key = min(key, ordered(scores[c]));
    for (int distance = WARP / 2; distance > 0; distance /= 2) key = min(key, __shfl_xor_sync(ALL_LANES, key, distance));
    return {key, r + 1};
}

}   // namespace choosing

/// One warp per query tile; 32 key tiles at a time.
template <class W, class First>
__global__ void choose_tiles_kernel(int* count, int* tiles, const W* scores, const TileScores s, const TileChoice choice,
                                    const First first_of) {
    const int tile = blockIdx.x, h = blockIdx.y, b = blockIdx.z, lane = threadIdx.x;
    const int begin = first_of(b, tile), r = tile - begin;
    const W* mine = scores + s.row(b, h, tile) + begin;
    using namespace choosing;
    ChosenByCut by_cut(choice.threshold < 0 ? cut_of_greatest(mine, choice, r) : cut_of_shares(mine, choice, r));
    const unsigned before = (1u << lane) - 1;
    int* list = tiles + s.list(b, h, tile) * s.N;
    int n = 0;
    for (int first = 0; first <= r; first += WARP) {
        const int c = first + lane;
        const bool always = c <= r && (h < choice.dense_heads || choice.forced(r, c)), candidate = c <= r && !choice.forced(r, c);
        const bool above = by_cut.has(candidate, candidate ? ordered(mine[c]) : 0), take = always || above;
        const unsigned taken = __ballot_sync(ALL_LANES, take);
        if (take) list[n + __popc(taken & before)] = begin + c;
        n += __popc(taken);
    }
    if (lane == 0) count[s.list(b, h, tile)] = n;
}

template <class W, class First = FirstTile>
void choose_tiles(GPU device, int* count, int* tiles, const W* scores, const TileScores& s, const TileChoice& choice,
                  First first_of = {}) {
    launch(device, choose_tiles_kernel<W, First>, Grid(s.N, s.NH, s.B), WARP, 0, count, tiles, scores, s, choice, first_of);
}

#endif
