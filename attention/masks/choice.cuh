// The choice among blocks by their scores: the blocks that are visited in any case, and the cut above which candidates are taken.
#pragma once
#include <algorithm>
#include <bit>

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

/// Number of blocks that a token in block r may choose from.
constexpr int candidates_of(const TileChoice& choice, int r) {
    return std::max(0, r + 1 - choice.leading - choice.local);
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
    /// Whether a candidate's share is above the threshold, if there is one.
    constexpr bool passes(W score, const TileChoice& choice) const {
        return choice.threshold < 0 || exp_of(score - largest) > W(choice.threshold) * sum;
    }
};

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

}   // namespace choosing

#endif
