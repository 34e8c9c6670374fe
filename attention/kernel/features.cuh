// Shared by both passes of the tiled kernel on the GPU: the score inputs of a tile in shared memory, sums for their gradients, and the
// walk over the tiles to visit.
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

/// The functions of FeatureTiles for scores without features.
struct NoFeatures {
    __device__ NoFeatures(const Features&, float*) {}
    static constexpr size_t bytes(const Features&) { return 0; }
    template <int THREADS>
    __device__ void copy_row_features(auto&&...) const {}
    template <int THREADS>
    __device__ void copy_column_features(auto&&...) const {}
    __device__ void arrived(auto...) const {}
};

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
        if (f_.tile) pair.tile = a.tile[tile_bias_at(a, at)];
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

// ------------------------------------------------------------------------------------------------------- gradients of score inputs

/// Values per query row: log-sum-exp in base 2 (infinite where P is 0), D (times HS^-1/2 if scores are not modified), and the gate
/// (or 1).
enum RowValue { ROW_LSE, ROW_D, ROW_GATE, ROW_VALUES };

/// Parts per query tile in BackwardMemory::peaks: one per warp of attention_prepare_kernel().
inline constexpr int PEAKS = 4;

/// A query tile of a head that visits the key tile, with the buffers of its rows and its head's columns.
struct QueryTileVisit {
    int h, tile;
    Tile verdict;
    int buffer = 0, columns = 0;
    __device__ explicit operator bool() const { return verdict != Tile::hidden; }
};

/// The STEP queries from q0 on of the visited tile, whose place is `place`, and the warp's keys from key0 on.
struct QueryPart {
    const QueryTileVisit& visit;
    const TilePlace& place;
    int q0, key0;
    unsigned hidden = 0;   // bit 4 (m STEP / 8 + n) + e of element (m, n, e), where hidden scores must stay finite
};

/// Reduce-scatter of values[n] over the eight lanes that hold the same columns of a fragment: lane_row() n gets sum n.
__device__ __forceinline__ float scattered_sums(float (&values)[8]) {
#pragma unroll
    for (int half = 4; half > 0; half /= 2) {
        const bool upper = lane_row() & half;
#pragma unroll
        for (int n = 0; n < half; n++) {
            const float keep = upper ? values[n + half] : values[n], give = upper ? values[n] : values[n + half];
            values[n] = keep + __shfl_xor_sync(ALL_LANES, give, 4 * half);
        }
    }
    return values[0];
}

/// Adds a block's part of a sum over key tiles, in the semaphores' order. The first block overwrites the memory.
template <class Number>
__device__ __forceinline__ void add_part(Number* to, const Number& part, bool first) {
    if (first) __stcg(to, part);
    else add_in_memory(to, part);
}

/// A block's sums for the gradients of score inputs, from its warps to memory. Sums for columns and for the head stay in registers until
/// the head is done. Sums for a query tile's rows run over a warp's keys in shared memory and over key tiles in global memory, in the
/// order of dQ.
template <class Shape>
class ScoreInputSums {
public:
    static constexpr bool OF_HEADS = true;   // whether finish_head() has sums to write

    static constexpr size_t bytes(const Features& f) {
        return (slabs(f) * Shape::QUERIES * slab_row(f) + Shape::WARPS * f.head) * sizeof(float);
    }

    /// Hidden scores stay finite: a bit marks each.
    static __device__ void hide(typename Shape::Scores&, unsigned& hidden, int m, int n, int e) {
        hidden |= 1u << (4 * (m * Shape::Scores::N + n) + e);
    }

    /// Stores zeros for queries q0 .. q0 + count - 1, which see none of the warp's keys.
    __device__ __forceinline__ void keep_nothing(int q0, int count) const {
        for (int n = lane_of(); n < count * slab_row(f_) && owns_slab(); n += WARP) row_slab()[q0 * slab_row(f_) + n] = 0;
    }

    /// Adds the warps' sums to drow of the query tile from i0 on. The first block overwrites.
    __device__ __forceinline__ void add_rows(float* drow, int i0, int T, bool first) const {
        for (int n = threadIdx.x; n < min(Shape::QUERIES, T - i0) * f_.row; n += Shape::THREADS) {
            const int r = n / f_.row, f = n % f_.row;
            float sum = 0;
            for (int slab = 0; slab < slabs(f_); slab++) sum += row_slabs_[(slab * Shape::QUERIES + r) * slab_row(f_) + f];
            add_part(drow + n, sum, first);
        }
    }

protected:
    __device__ ScoreInputSums(const Features& f, float* memory)
        : f_(f), row_slabs_(memory), head_slab_(memory + slabs(f) * Shape::QUERIES * slab_row(f)), warp_(int(threadIdx.x) / WARP) {}

    /// Number of slabs for the warps' row sums: one per warp, or a single slab to which the warps add one after the other.
    static constexpr int slabs(const Features& f) { return Shape::Features::staged(f) ? Shape::WARPS : 1; }
    static constexpr int slab_row(const Features& f) { return (f.row + 7) / 8 * 8; }   // sums are written in eights
    __device__ bool owns_slab() const { return slabs(f_) > 1 || warp_ == 0; }   // the other warps add to the slab of warp 0
    __device__ float* row_slab() const { return row_slabs_ + (slabs(f_) == 1 ? 0 : warp_) * Shape::QUERIES * slab_row(f_); }
    __device__ float* head_slab() const { return head_slab_ + warp_ * f_.head; }

    /// parts (features.head) = the sum of the warps' head slabs.
    __device__ __forceinline__ void write_head(float* parts) const {
        if (f_.head == 0) return;
        __syncthreads();
        for (int f = threadIdx.x; f < f_.head; f += Shape::THREADS) {
            float total = 0;
            for (int w = 0; w < Shape::WARPS; w++) total += head_slab_[w * f_.head + f];
            parts[f] = total;
        }
        __syncthreads();
    }

    Features f_;
    float *row_slabs_, *head_slab_;   // (slabs(), QUERIES, slab_row()), (WARPS, head features)
    int warp_;
};

// -------------------------------------------------------------------------------------------------------------- the tiles to visit

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
