// Shared by both passes of the tiled kernel on the GPU: the score inputs of a tile in shared memory, and the walk over the tiles to
// visit.
#pragma once
#include "attention/kernel/mma.cuh"
#include "attention/kernel/call.h"

/// Whether the policy defines score() or sets modifies_scores. Otherwise kernels omit all code for score inputs.
template <class P>
constexpr bool modifies_scores_of() {
    if constexpr (requires { P::modifies_scores; }) return P::modifies_scores;
    else return !std::is_same_v<decltype(&P::template score<float>), decltype(&Policy::score<float>)>;
}
template <class P>
inline constexpr bool MODIFIES_SCORES = modifies_scores_of<P>();

/// Whether the policy may have an output gate. Otherwise the backward kernel omits all code for gates.
template <class P>
inline constexpr bool MAY_BE_GATED = P::traits.gates_output;

/// The type in which score() computes on the GPU for stored type X.
template <class X>
using ScoreNumber = std::conditional_t<std::is_same_v<X, bf16>, ReducedPrecision, float>;

/// Calls run(policy), or run(twin) if the policy provides a twin with its feature counts at compile time.
template <class P, class Run>
void specialise(const P& policy, Run run) {
    if constexpr (requires { policy.specialise(run); })
        policy.specialise(run);
    else
        run(policy);
}

/// Calls run(std::integral_constant<int, HS>()): kernels are compiled for each head size.
template <class Run>
void for_head_size(int HS, Run run) {
    if (HS == 32) return run(std::integral_constant<int, 32>{});
    if (HS == 64) return run(std::integral_constant<int, 64>{});
    if (HS == 128) return run(std::integral_constant<int, 128>{});
    fail(Exit::usage, "the GPU supports attention with head sizes 32, 64 and 128; this model has ", HS);
}

/// Fails unless rows can be copied 16 bytes at a time.
template <class X>
void require_aligned(const Heads<const X>& heads, const char* name) {
    if (reinterpret_cast<uintptr_t>(heads.data) % 16 == 0 && heads.row * sizeof(X) % 16 == 0) return;
    fail(Exit::usage, "attention: rows of ", name, " do not begin at multiples of 16 bytes");
}

/// Fails with a reason, before a launch would fail without one.
inline void require_shared_memory(size_t bytes, int HS, const Features& f) {
    const size_t most = max_shared_memory();
    if (bytes <= most) return;
    fail(Exit::usage, "attention with head size ", HS, ", ", f.row, " features per row and ", f.column, " per column needs ", bytes,
         " bytes of shared memory per block; this GPU has ", most);
}

/// Shared memory for the features of QUERIES rows and KEYS columns and the head's scalars. With many features, pairs read global memory
/// instead.
template <int QUERIES, int KEYS, int ROW_BUFFERS, int COLUMN_BUFFERS>
class FeatureTiles {
public:
    static constexpr bool staged(const Features& f) { return f.row + f.column <= 64 && f.head <= 256; }
    static constexpr size_t bytes(const Features& f) {
        const int floats = ROW_BUFFERS * QUERIES * row_length(f) + COLUMN_BUFFERS * (f.column * KEYS + head_length(f));
        return staged(f) ? floats * sizeof(float) : 0;
    }

    __device__ FeatureTiles(const Features& f, float* memory)
        : f_(f), rows_(memory), columns_(rows_ + ROW_BUFFERS * QUERIES * row_length(f)),
          heads_(columns_ + COLUMN_BUFFERS * f.column * KEYS) {}

    /// Starts to copy rows i0.. of head h; rows past the end become zero.
    template <int THREADS, class X>
    __device__ __forceinline__ void copy_row_features(const AttentionForward<X>& a, int b, int h, int i0, int buffer) const {
        if (!staged(f_)) return;
        const float* from = a.row + (size_t(b) * a.NH + h) * a.T * f_.row;
        for (int n = threadIdx.x; n < QUERIES * f_.row; n += THREADS) {
            const int r = n / f_.row, f = n % f_.row;
            const bool exists = i0 + r < a.T;
            copy_async<4>(row(buffer, r) + f, from + (exists ? size_t(i0 + r) * f_.row + f : 0), exists ? 4 : 0);
        }
    }
    /// Starts to copy columns j0.. of head h, zero past the last key, and the head's scalars.
    template <int THREADS, class X>
    __device__ __forceinline__ void copy_column_features(const AttentionForward<X>& a, int b, int h, int j0, int buffer) const {
        if (!staged(f_)) return;
        const float* from = a.column + (size_t(b) * a.NH + h) * f_.column * padded(a.S);
        for (int n = threadIdx.x; n < f_.column * KEYS / 4; n += THREADS) {
            const int f = n / (KEYS / 4), c = n % (KEYS / 4) * 4, exist = max(0, min(4, a.S - (j0 + c)));
            copy_async<16>(columns(buffer) + f * KEYS + c, from + (exist ? size_t(f) * padded(a.S) + j0 + c : 0), 4 * exist);
        }
        for (int f = threadIdx.x; f < f_.head; f += THREADS) copy_async<4>(head(buffer) + f, a.head + size_t(h) * f_.head + f, 4);
    }

    /// Call once this thread's copies have arrived.
    __device__ void arrived(auto...) const {}

    /// The inputs of score() for row i0 + r and column j0 + c, both clamped to the last one.
    template <class X, class Walk>
    __device__ __forceinline__ Pair<ScoreNumber<X>> pair(const AttentionForward<X>& a, const Walk& walk, const TilePlace& at,
                                                         int row_buffer, int r, int column_buffer, int c) const {
        const int i = min(at.i0 + r, a.T - 1), j = min(at.j0 + c, a.S - 1);
        Pair<ScoreNumber<X>> pair{head(column_buffer), row(row_buffer, r), columns(column_buffer) + c, KEYS,
                                  float(walk.q_position(i)), float(walk.k_position(j))};
        if (f_.tile) pair.tile_bias = a.tile[tile_bias_at(a, at)];
        if (staged(f_)) return pair;
        const size_t bh = size_t(at.b) * a.NH + at.h;
        pair.head_scalars = a.head + size_t(at.h) * f_.head;
        pair.row_features = a.row + (bh * a.T + i) * f_.row;
        pair.column_features = a.column + bh * f_.column * padded(a.S) + j;
        pair.column_stride = padded(a.S);
        return pair;
    }

private:
    /// Rows are padded by 16 bytes, so that eight of them, read at once, lie in different banks.
    static constexpr int row_length(const Features& f) { return f.row ? (f.row + 3) / 4 * 4 + 4 : 0; }
    static constexpr int head_length(const Features& f) { return (f.head + 3) / 4 * 4; }
    __device__ float* row(int buffer, int r) const { return rows_ + (buffer * QUERIES + r) * row_length(f_); }
    __device__ float* columns(int buffer) const { return columns_ + buffer * f_.column * KEYS; }
    __device__ float* head(int buffer) const { return heads_ + buffer * head_length(f_); }

    Features f_;
    float *rows_, *columns_, *heads_;
};

/// A tile to visit; `hidden` after the last one.
struct Visit {
    int tile;
    Tile verdict;
    explicit __device__ operator bool() const { return verdict != Tile::hidden; }
};

/// The tiles first <= tile < last that are not hidden, in ascending order. The lanes of a warp classify 32 tiles at a time, so a narrow
/// window in a long sequence is found quickly. Precondition: all lanes of a warp call next() together, with the same judge.
class TileCursor {
public:
    __device__ TileCursor(int first, int last) : next_(first), last_(last) {}

    template <class Judge>
    __device__ __forceinline__ Visit next(Judge judge) {
        while (!visited_) {
            if (next_ >= last_) return {-1, Tile::hidden};
            const int tile = next_ + lane_of();
            next_ += WARP;
            const Tile verdict = tile < last_ ? judge(tile) : Tile::hidden;
            visited_ = __ballot_sync(ALL_LANES, verdict != Tile::hidden);
            full_ = __ballot_sync(ALL_LANES, verdict == Tile::full);
        }
        const int bit = __ffs(int(visited_)) - 1;
        visited_ &= visited_ - 1;
        return {next_ - WARP + bit, full_ >> bit & 1 ? Tile::full : Tile::mixed};
    }

private:
    int next_, last_;
    unsigned visited_ = 0, full_ = 0;   // one bit per tile from next_ - WARP on
};
