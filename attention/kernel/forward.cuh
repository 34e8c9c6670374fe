// The tiled attention kernel on the GPU, forward, for any policy. One block computes some query rows of one head. Their output and
// running softmax stay in registers; tiles of keys and values stream through shared memory, and the next tile is prefetched while the
// current one is used. Each warp owns its rows, so the softmax never leaves the warp.
// The walk of the block of query rows 192 .. 255 under a causal mask, keys in tiles of 64:
//     key tile     0          1          2          3               4 ..
//     verdict      full       full       full       mixed           hidden: neither copied nor computed
//     copies       K1 V1      K2 V2      K3 V3      -
//     computes     S, P, PV   S, P, PV   S, P, PV   S, mask, P, PV
// Below, a "score" is q.k as the tensor cores return it, or z where the policy modifies scores; exp(z) = 2^(score * to_base_2).
// Source: FlashAttention-2 (Dao 2023).
#pragma once
#include "attention/kernel/features.cuh"
#include "attention/kernel/unit_gate.cuh"
#include "attention/kernel/wgmma.cuh"

// ------------------------------------------------------------------------------------------------------------------------ the mask

/// Hidden pairs become -infinity; the part begins at (i0, j0). A long visible() is called in a rolled loop over columns that sets one
/// bit per pair.
template <bool LONG, int M, int N, class Visible>
__device__ __forceinline__ void mask_by(Accumulator<M, N>& s, Visible visible, int i0, int j0, int keys) {
    if constexpr (!LONG) {
        s.for_each([&](float& value, int r, int c) {
            if (j0 + c >= keys || !visible(i0 + r, j0 + c)) value = -INFINITY;
        });
    } else {
        unsigned hidden[2 * M] = {};
#pragma unroll 1
        for (int k = 0; k < 2 * N; k++) {
            const int j = j0 + k / 2 * 8 + lane_column() + k % 2;
#pragma unroll
            for (int row = 0; row < 2 * M; row++)
                if (j >= keys || !visible(i0 + 8 * row + lane_row(), j)) hidden[row] |= 1u << k;
        }
#pragma unroll
        for (int row = 0; row < 2 * M; row++)
#pragma unroll
            for (int k = 0; k < 2 * N; k++)
                if (hidden[row] >> k & 1) s.at(row, k / 2, k % 2) = -INFINITY;
    }
}

/// The same by bits, which are loaded once for each row.
template <int M, int N, class Walk>
__device__ __forceinline__ void mask_by_bits(Accumulator<M, N>& s, const Walk& walk, int i0, int j0, int keys) {
    uint64_t seen[2 * M];
#pragma unroll
    for (int n = 0; n < 2 * M; n++) seen[n] = walk.bits(i0 + 8 * n + lane_row(), j0);
    s.for_each_of_lane([&](float& value, int n, int tile, int side) {
        const int c = 8 * tile + lane_column() + side;
        if (j0 + c >= keys || !(seen[n] >> c & 1)) value = -INFINITY;
    });
}

template <int M, int N, class Walk>
__device__ __forceinline__ void mask(Accumulator<M, N>& s, const Walk& walk, const TilePlace& part, Tile verdict, int keys) {
    if (verdict == Tile::full && part.columns == 8 * N) return;
    if constexpr (Walk::reads_bits)
        if (verdict == Tile::mixed) return mask_by_bits(s, walk, computed_here(part.i0), computed_here(part.j0), keys);
    walk.with_visible(verdict, [&](auto visible) {
        constexpr bool LONG = Walk::template is_long<decltype(visible)>();
        mask_by<LONG>(s, visible, computed_here(part.i0), computed_here(part.j0), keys);
    });
}

// ------------------------------------------------------------------------------------------------------------ shapes and the block

/// Tile sizes. A warp's 16-row tiles share every fragment of K and V that it loads. A policy with its own scores spends its time on
/// them and has fewer registers to spare. SINGLE is for a gate of units, whose numbers take as much shared memory as keys of 128: two
/// or three blocks on a multiprocessor hide the copies of one another.
template <class X_, int HS_, bool MODIFIED, bool SINGLE = false>
struct ForwardShape {
    using X = X_;
    static constexpr bool fast = std::is_same_v<X, bf16>;
    static constexpr int HS = HS_;
    static constexpr int WARPS = 4, THREADS = WARPS * WARP;
    static constexpr int M_TILES = fast && !MODIFIED ? 2 : 1, ROWS = 16 * M_TILES;   // per warp
    static constexpr int QUERIES = WARPS * ROWS;
    static constexpr int KEYS = TILE;
    static constexpr int STEP = fast && !MODIFIED ? KEYS : 16;   // keys scored at a time: a long score() unrolls into long code
    /// A single buffer each for K and V: two would take more than half the shared memory of an A100's multiprocessor, or all of an
    /// RTX 4090's. Values arrive while scores are computed, and the next keys while values are summed.
    static constexpr bool staggered = fast && !MODIFIED && HS > 64;
    static constexpr int BUFFERS = fast && !staggered && !SINGLE ? 2 : 1;
    static constexpr int BLOCKS = MODIFIED && HS <= 64 ? 3 : 2;           // per multiprocessor, by registers
    static constexpr int GROUP = ROWS;   // rows whose products are one instruction
    using Features = FeatureTiles<QUERIES, KEYS, 1, BUFFERS>;
    using Scores = Accumulator<M_TILES, STEP / 8>;   // of a part: the warp's rows and STEP keys
    template <int TILE_ROWS, int COLUMNS>
    using Operand = SharedTile<X, TILE_ROWS, COLUMNS>;
};

/// The same for products of two warpgroups. Statistics go by tiles of TILE keys, with the same parts and bits.
template <int HS_, bool STATISTICS>
struct WarpgroupForwardShape {
    using X = bf16;
    static constexpr bool fast = true, staggered = false;
    static constexpr int HS = HS_, WARPS = 8, THREADS = WARPS * WARP, M_TILES = 1, ROWS = 16, GROUP = GROUP_ROWS;
    static constexpr int QUERIES = WARPS * ROWS, KEYS = STATISTICS ? TILE : 2 * TILE, STEP = TILE, BUFFERS = 2;
    static constexpr int BLOCKS = HS <= 64 ? 2 : 1;   // per multiprocessor, by registers
    using Features = FeatureTiles<QUERIES, KEYS, 1, BUFFERS>;
    using Scores = Accumulator<M_TILES, STEP / 8>;
    template <int TILE_ROWS, int COLUMNS>
    using Operand = SwizzledTile<X, TILE_ROWS, COLUMNS>;
};

template <class X, int HS, class P>
using ForwardShapeOf = ForwardShape<X, HS, MODIFIES_SCORES<P>, BY_UNITS<ForwardShape<X, HS, MODIFIES_SCORES<P>>, P>>;

template <class Shape>
struct ForwardShared {
    using KeyTile = typename Shape::template Operand<Shape::KEYS, Shape::HS>;
    typename Shape::template Operand<Shape::QUERIES, Shape::HS> q;   // at the end, each warp overwrites its rows with their output
    KeyTile k[Shape::BUFFERS], v[Shape::BUFFERS];
};

// ------------------------------------------------------------------------------------------------------------- from q.k to scores
// Three forms with the same functions: q.k as it is, Policy::score(), and the gate of unit_gate.cuh. score<GATES>() changes the q.k of
// a part in place, and with GATES writes the gates of its pairs.

/// The score is q.k.
template <class Shape>
struct PlainScores : NoFeatures {
    using NoFeatures::NoFeatures;
    static __device__ float to_z(float scale) { return scale; }
    template <bool GATES>
    __device__ void score(auto&, auto& gates, auto&&...) const {
        if constexpr (GATES) gates.for_each([](float& gate, int, int) { gate = 1; });   // a pair without a gate counts as 1
    }
};

/// The score is z, by Policy::score().
template <class Shape>
struct PolicyScores : Shape::Features {
    using X = typename Shape::X;
    using Shape::Features::Features;
    static __device__ float to_z(float) { return 1; }

    template <bool GATES, class P, class Walk>
    __device__ __forceinline__ void score(typename Shape::Scores& s, typename Shape::Scores& gates, const P& policy,
                                          const AttentionForward<X>& a, const Walk& walk, const TilePlace& at, int row0, int buffer,
                                          int c0) const {
        const float scale = rsqrtf(float(Shape::HS));
        if (!GATES && walk.is_plain(at.part(row0, c0, Shape::ROWS, Shape::STEP)))
            return s.for_each([&](float& value, int, int) { value *= scale; });
        auto pair = [&](int r, int c) { return this->pair(a, walk, at, 0, row0 + r, buffer, c0 + c); };
        s.for_each([&](float& value, int r, int c) { value = float(policy.score(ScoreNumber<X>(value * scale), pair(r, c))); });
        if constexpr (GATES)
            if (a.statistics.pair_gate)
                gates.for_each([&](float& gate, int r, int c) { gate = float(policy.pair_gate(pair(r, c))); });
    }
};

template <class Shape, class P>
using ScoresOf = std::conditional_t<BY_UNITS<Shape, P>, UnitScores<Shape>,
                                    std::conditional_t<MODIFIES_SCORES<P>, PolicyScores<Shape>, PlainScores<Shape>>>;

// -------------------------------------------------------------------------------------------------------------------- statistics

/// The functions of RowStatistics for a call without statistics.
struct NoStatistics {
    static constexpr bool GATES = false;
    __device__ NoStatistics(auto&&...) {}
    __device__ void start_tile(auto&&...) const {}
    __device__ void add_gates(auto&&...) const {}
    __device__ void raise(int, float) const {}
    __device__ void rescale(int, float) const {}
    __device__ void add(int, float, float) const {}
    __device__ void finish_tile(auto&&...) const {}
    __device__ void finish_row(auto&&...) const {}
    __device__ void finish() const {}
};

/// AttentionForward::statistics of a block, as far as they are asked for. A thread holds its own columns of its warp's rows; the first
/// threads also count the key tiles that a query tile of the block visits.
template <class Shape, class P>
class RowStatistics {
    using X = typename Shape::X;
    using Scores = typename Shape::Scores;

public:
    static constexpr bool GATES = P::traits.gates_pairs;

    __device__ RowStatistics(const AttentionForward<X>& a, const TilePlace& block) : a_(a), query_tile_(block) {
        query_tile_.i0 += int(threadIdx.x) * TILE;
        query_tile_.rows = int(threadIdx.x) < Shape::QUERIES / TILE ? min(TILE, a.T - query_tile_.i0) : 0;
        if (!a.statistics.tile_max) return;
        float* peaks = a.statistics.tile_max + row(block.i0, block) * tiles_of(a.S);
        for (int n = threadIdx.x; n < block.rows * tiles_of(a.S); n += Shape::THREADS) peaks[n] = -INFINITY;
    }

    template <class Walk>
    __device__ void start_tile(const Walk& walk, const TilePlace& at) {
        for (float& peak : peak_) peak = -INFINITY;
        if (!a_.statistics.tiles || query_tile_.rows <= 0) return;
        query_tile_.j0 = at.j0, query_tile_.columns = at.columns;
        visited_ += walk.judge_listed(query_tile_) != Tile::hidden;
    }
    /// The gates on the pairs of a masked part that are not hidden.
    __device__ __forceinline__ void add_gates(const Scores& s, const Scores& gates) {
        if constexpr (GATES) {
            if (!a_.statistics.pair_gate) return;
#pragma unroll
            for (int row = 0; row < Scores::ROWS; row++)
#pragma unroll
                for (int n = 0; n < 2 * Scores::N; n++)
                    if (s.at(row, n / 2, n % 2) > -INFINITY) gates_[row] += gates.at(row, n / 2, n % 2);
        }
    }
    __device__ void raise(int row, float peak) { peak_[row] = fmaxf(peak_[row], peak); }
    __device__ void rescale(int row, float factor) { moment_[row] *= factor; }
    __device__ void add(int row, float p, float score) { moment_[row] += p > 0 ? p * score : 0, pairs_[row] += score > -INFINITY; }

    /// tile_max: z of each row's largest score in this key tile.
    __device__ __forceinline__ void finish_tile(const TilePlace& at, int row0, float to_z) const {
        if (!a_.statistics.tile_max || lane_column() != 0) return;
        for (int n = 0; n < Scores::ROWS; n++) {
            const int i = at.i0 + row0 + 8 * n + lane_row();
            if (i < a_.T) a_.statistics.tile_max[row(i, at) * tiles_of(a_.S) + at.j0 / TILE] = peak_[n] * to_z;
        }
    }
    /// The lane's n-th row, i. `sum` is that of exp(z - largest). Called by all lanes.
    __device__ __forceinline__ void finish_row(int n, int i, const TilePlace& at, float sum, float lse, float to_z) const {
        const float moment = row_sum(moment_[n]), gates = GATES ? row_sum(gates_[n]) : 0;
        const int pairs = row_sum(pairs_[n]);
        if (i >= a_.T || lane_column() != 0) return;
        const Statistics<X>& to = a_.statistics;
        if (to.entropy) to.entropy[row(i, at)] = sum > 0 ? lse - moment / sum * to_z : 0;
        if (to.pairs) to.pairs[row(i, at)] = pairs;
        if (GATES && to.pair_gate) to.pair_gate[row(i, at)] = gates;
    }
    __device__ void finish() const {
        const TilePlace& at = query_tile_;
        if (!a_.statistics.tiles || at.rows <= 0) return;
        a_.statistics.tiles[(size_t(at.b) * a_.NH + at.h) * tiles_of(a_.T) + at.i0 / TILE] = visited_;
    }

private:
    __device__ size_t row(int i, const TilePlace& at) const { return (size_t(at.b) * a_.NH + at.h) * a_.T + i; }   // in (B, NH, T)

    const AttentionForward<X>& a_;
    float moment_[Scores::ROWS] = {};   // sum of exp(z - largest) score, for the entropy
    int pairs_[Scores::ROWS] = {};      // visible pairs
    float gates_[Scores::ROWS] = {};    // sum of Policy::pair_gate() over these
    float peak_[Scores::ROWS];          // largest score in the current key tile
    TilePlace query_tile_;
    int visited_ = 0;
};

// --------------------------------------------------------------------------------------------------------------------- the softmax

/// P of STEP keys as left factors. For bf16 they take half the registers of the scores.
template <class Shape>
struct Weights {
    FragmentA<typename Shape::X> of_keys[Shape::STEP / 16][Shape::M_TILES];

    __device__ __forceinline__ void pack(const typename Shape::Scores& p) {
#pragma unroll
        for (int k = 0; k < Shape::STEP / 16; k++)
#pragma unroll
            for (int m = 0; m < Shape::M_TILES; m++) of_keys[k][m] = p.template as_a<typename Shape::X>(m, k);
    }
};

/// Online softmax of a warp's rows. A thread has its own columns of each; `sum` is over these until the end.
template <class Shape>
struct OnlineSoftmax {
    using X = typename Shape::X;
    using Scores = typename Shape::Scores;
    static constexpr int ROWS = Scores::ROWS;

    Accumulator<Shape::M_TILES, Shape::HS / 8> out;   // sum of exp(z - largest) v
    float largest[ROWS];                              // score so far
    float sum[ROWS] = {};                             // of exp(z - largest)

    __device__ OnlineSoftmax() {
        for (float& score : largest) score = -INFINITY;
    }

    /// Updates the running maxima and rescales the sums. After the first tiles maxima rarely change, and the whole warp skips the
    /// rescaling.
    template <class Statistics>
    __device__ __forceinline__ void raise_maxima(const Scores& s, float to_base_2, Statistics& statistics) {
        float factor[ROWS];
        bool raised = false;
#pragma unroll
        for (int n = 0; n < ROWS; n++) {
            const float peak = s.row_max(n), before = largest[n];
            statistics.raise(n, peak);
            largest[n] = fmaxf(before, peak);
            factor[n] = largest[n] == before ? 1.0f : exp2_of((before - largest[n]) * to_base_2);
            raised = raised || largest[n] != before;
        }
        if (!__any_sync(ALL_LANES, raised)) return;
#pragma unroll
        for (int n = 0; n < ROWS; n++) {
            sum[n] *= factor[n];
            statistics.rescale(n, factor[n]);
            out.scale_row(n, factor[n]);
        }
    }

    /// Turns scores into exp(z - largest) in place.
    template <class Statistics>
    __device__ __forceinline__ void exponentials(Scores& s, float to_base_2, Statistics& statistics) {
#pragma unroll
        for (int n = 0; n < ROWS; n++) {
            const float base = largest[n] == -INFINITY ? 0.0f : largest[n] * to_base_2;   // -inf - -inf would be NaN
            float more = 0;
#pragma unroll
            for (int c = 0; c < 2 * Scores::N; c++) {
                float& score = s.at(n, c / 2, c % 2);
                const float p = exp2_of(fmaf(score, to_base_2, -base));
                statistics.add(n, p, score);
                score = p;
                more += p;
            }
            sum[n] += more;
        }
    }

    /// out += P V for the keys of a part, from c0 on.
    template <class ValueTile>
    __device__ __forceinline__ void add_values(const Weights<Shape>& weights, const ValueTile& v, int c0) {
#pragma unroll
        for (int k = 0; k < Shape::STEP / 16; k++) start_registers_times_rows(out, weights.of_keys[k], v, c0 + 16 * k);
        ValueTile::finish_products(out);
    }

    /// Writes the log-sum-exp and statistics of the warp's rows, and out / sum to shared memory.
    template <class Statistics>
    __device__ __forceinline__ void finish(ForwardShared<Shape>& shared, const AttentionForward<X>& a, const TilePlace& at, int row0,
                                           float to_z, const Statistics& statistics) {
#pragma unroll
        for (int n = 0; n < ROWS; n++) {
            const int i = at.i0 + row0 + 8 * n + lane_row();
            const float total = row_sum(sum[n]), lse = total > 0 ? largest[n] * to_z + logf(total) : -INFINITY;
            out.scale_row(n, total > 0 ? 1 / total : 0);
            statistics.finish_row(n, i, at, total, lse, to_z);
            if (i < a.T && lane_column() == 0) a.lse[(size_t(at.b) * a.NH + at.h) * a.T + i] = lse;
            if (n % 2 == 0) continue;   // a tile has sixteen rows, two of the lane's
#pragma unroll
            for (int k = 0; k < Shape::HS / 16; k++) store_a(shared.q, row0 + n / 2 * 16, 16 * k, out.template as_a<X>(n / 2, k));
        }
    }
};

/// Copies the warp's rows of the output from shared to global memory, 16 bytes at a time, and applies the output gate.
template <class Shape>
__device__ __forceinline__ void write_rows(const ForwardShared<Shape>& shared, const AttentionForward<typename Shape::X>& a,
                                           const TilePlace& at, int row0) {
    using X = typename Shape::X;
    constexpr int PIECE = Packed<X>::size, PIECES = Shape::HS / PIECE;
    for (int n = lane_of(); n < Shape::ROWS * PIECES; n += WARP) {
        const int r = row0 + n / PIECES, d = n % PIECES * PIECE;
        if (at.i0 + r >= a.T) continue;
        const size_t head = (size_t(at.b) * a.T + at.i0 + r) * a.NH + at.h;
        Packed<X> piece = load_packed(shared.q.at(r, d));
        store_packed(a.out + head * Shape::HS + d, piece);
        if (!a.gate) continue;
        for (int e = 0; e < PIECE; e++) piece.set(e, a.gate[head] * piece[e]);
        store_packed(a.gated_out + head * Shape::HS + d, piece);
    }
}

template <class Shape, bool STATISTICS, class P>
__global__ void __launch_bounds__(Shape::THREADS, Shape::BLOCKS)
    attention_forward_kernel(const __grid_constant__ P policy, const __grid_constant__ AttentionForward<typename Shape::X> a) {
    using X = typename Shape::X;
    constexpr int QUERIES = Shape::QUERIES, KEYS = Shape::KEYS, STEP = Shape::STEP, HS = Shape::HS, THREADS = Shape::THREADS;
    using KeyTile = typename ForwardShared<Shape>::KeyTile;
    if constexpr (!HAS_WGMMA && Shape::GROUP == GROUP_ROWS) return without_wgmma();
    using Counts = std::conditional_t<STATISTICS, RowStatistics<Shape, P>, NoStatistics>;
    auto& shared = dynamic_shared<ForwardShared<Shape>>();
    ScoresOf<Shape, P> scores(policy.features(), reinterpret_cast<float*>(&shared + 1));
    if (!computes<Shape, P>(a, blockIdx.z, blockIdx.y, blockIdx.y + 1)) return;
    const int b = blockIdx.z, h = blockIdx.y, kv = h / (a.NH / a.NKV), row0 = int(threadIdx.x) / WARP * Shape::ROWS;
    const int i0 = int(gridDim.x - 1 - blockIdx.x) * QUERIES;   // late rows see the most keys, so they start first
    const int group0 = group_row<Shape::GROUP>(row0);
    const float to_z = scores.to_z(rsqrtf(float(HS)));
    const TileWalk<X, P> walk(policy, a, b, h);

    auto place = [&](int tile) { return TilePlace{b, h, i0, tile * KEYS, min(QUERIES, a.T - i0), min(KEYS, a.S - tile * KEYS)}; };
    auto judge = [&](int tile) { return walk.judge_listed(place(tile)); };
    auto fetch_keys = [&](int tile, int buffer) {
        copy_rows<THREADS>(shared.k[buffer], a.k.data + kv * HS, a.k.row, b * a.S + tile * KEYS, a.S - tile * KEYS);
    };
    auto fetch_values = [&](int tile, int buffer) {
        copy_rows<THREADS>(shared.v[buffer], a.v.data + kv * HS, a.v.row, b * a.S + tile * KEYS, a.S - tile * KEYS);
    };
    auto fetch = [&](int tile, int buffer) {
        fetch_keys(tile, buffer);
        if constexpr (!Shape::staggered) fetch_values(tile, buffer);
        scores.template copy_column_features<THREADS>(a, b, h, tile * KEYS, buffer);
    };

    copy_rows<THREADS>(shared.q, a.q.data + h * HS, a.q.row, b * a.T + i0, a.T - i0);
    scores.template copy_row_features<THREADS>(a, b, h, i0, 0);
    TileCursor cursor(0, (a.S + KEYS - 1) / KEYS);
    Visit now = cursor.next(judge);
    if (now) fetch(now.tile, 0);
    Counts statistics(a, place(0));
    OnlineSoftmax<Shape> softmax;
    for (int buffer = 0; now; buffer = (buffer + 1) % Shape::BUFFERS) {
        wait_for_copies();
        scores.arrived(buffer);
        KeyTile::publish();
        __syncthreads();   // this tile is visible to all threads, and the other buffer is no longer read
        const Visit next = cursor.next(judge);
        if (Shape::staggered) fetch_values(now.tile, 0);
        if (Shape::BUFFERS > 1 && next) fetch(next.tile, (buffer + 1) % Shape::BUFFERS);
        const TilePlace at = place(now.tile);
        statistics.start_tile(walk, at);
#pragma unroll 1
        for (int c0 = 0; c0 < KEYS; c0 += STEP) {
            const TilePlace part = at.part(row0, c0, Shape::ROWS, STEP);
            const Tile verdict = walk.judge_part(at.part(group0, c0, Shape::GROUP, STEP), now.verdict);
            Weights<Shape> weights;
            if (verdict != Tile::hidden) {
                // Scores
                typename Shape::Scores s(typename Shape::Scores::Unset{}), gates;
                start_rows_times_rows(s, shared.q, group0, shared.k[buffer], c0);
                KeyTile::finish_products(s);
                scores.template score<Counts::GATES>(s, gates, policy, a, walk, at, row0, buffer, c0);
                mask(s, walk, part, verdict, a.S);
                statistics.add_gates(s, gates);
                // Softmax
                softmax.raise_maxima(s, to_z * LOG2_E, statistics);
                softmax.exponentials(s, to_z * LOG2_E, statistics);
                weights.pack(s);
            }
            if constexpr (Shape::staggered) {
                wait_for_copies();
                KeyTile::publish();
                __syncthreads();   // the values are visible to all threads, and the keys are no longer read
                if (next) fetch(next.tile, 0);
            }
            if (verdict != Tile::hidden) softmax.add_values(weights, shared.v[buffer], c0);
        }
        statistics.finish_tile(at, row0, to_z);
        if (Shape::BUFFERS == 1 && !Shape::staggered) __syncthreads();
        if (Shape::BUFFERS == 1 && !Shape::staggered && next) fetch(next.tile, 0);
        now = next;
    }
    wait_for_copies();
    __syncthreads();   // where no tile was visited, the rows of q may still be arriving
    statistics.finish();
    softmax.finish(shared, a, place(0), row0, to_z, statistics);
    __syncwarp();
    write_rows<Shape>(shared, a, place(0), row0);
}

template <class Shape, class P>
size_t forward_shared_bytes(const P& policy) {
    return sizeof(ForwardShared<Shape>) + ScoresOf<Shape, P>::bytes(policy.features());
}

template <class Shape, bool STATISTICS, class P, class X>
void launch_forward_kernel(GPU device, const P& policy, const AttentionForward<X>& a) {
    const size_t shared = forward_shared_bytes<Shape>(policy);
    require_shared_memory(shared, Shape::HS, policy.features());
    launch(device, attention_forward_kernel<Shape, STATISTICS, P>, Grid(blocks_for(a.T, Shape::QUERIES), a.NH, a.B), Shape::THREADS,
           shared, policy, a);
}

/// With the arguments' statistics or without.
template <class Shape, class P, class X>
void launch_forward_kernel(GPU device, const P& policy, const AttentionForward<X>& a) {
    constexpr bool ALWAYS = !Shape::fast;   // float32 is for comparison only: one kernel fewer to compile
    if (a.statistics) launch_forward_kernel<Shape, true>(device, policy, a);
    else launch_forward_kernel<Shape, ALWAYS>(device, policy, a);
}

/// Softmax attention under `policy`: out, lse, and the further results that the arguments request.
/// Preconditions: as on the CPU; all pointers are in device memory; HS is 32, 64 or 128; rows of q, k, v and out begin at multiples
/// of 16 bytes.
template <class X, class P>
void attention_forward(GPU device, const P& policy, const AttentionForward<X>& a) {
    require_aligned(a.q, "q"), require_aligned(a.k, "k"), require_aligned(a.v, "v");
    if constexpr (P::traits.gate_of_units)
        if (a.reach) find_gate_reach(device, a);
    specialise(policy, [&](const auto& special) {
        using Special = std::decay_t<decltype(special)>;
        for_head_size(a.HS, [&](auto HS) {
            using Shape = ForwardShapeOf<X, HS, Special>;
            if constexpr (MAY_USE_WARPGROUPS<X, HS, Special>)
                if (attention_kernels() == AttentionKernels::wgmma)
                    return a.statistics ? launch_forward_kernel<WarpgroupForwardShape<HS, true>, true>(device, special, a)
                                        : launch_forward_kernel<WarpgroupForwardShape<HS, false>, false>(device, special, a);
            if constexpr (BY_UNITS<Shape, Special>) {
                AttentionForward<X> rest = a;
                if (forward_shared_bytes<Shape>(special) > max_shared_memory()) rest.reach = nullptr;
                if (rest.reach) launch_forward_kernel<Shape>(device, special, a);
                launch_forward_kernel<ForwardShape<X, HS, true>>(device, ByScore<Special>(special), rest);
            } else {
                launch_forward_kernel<Shape>(device, special, a);
            }
        });
    });
}
