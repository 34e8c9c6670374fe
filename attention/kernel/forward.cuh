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

// ------------------------------------------------------------------------------------------------------------------------ the mask

/// Calls each(value, r, c) for the thread's elements of a part of a tile, in column-major order; r and c are row and column in the
/// part.
template <class Shape, class Each>
__device__ __forceinline__ void for_each_pair(float (&s)[Shape::M_TILES][Shape::STEP / 8][4], Each each) {
#pragma unroll
    for (int n = 0; n < Shape::STEP / 8; n++)
#pragma unroll
        for (int side = 0; side < 2; side++)
#pragma unroll
            for (int row = 0; row < 2 * Shape::M_TILES; row++)
                each(s[row / 2][n][row % 2 * 2 + side], 8 * row + lane_row(), 8 * n + lane_column() + side);
}

/// Hidden pairs become -infinity. A long visible() is called in a rolled loop over columns that sets one bit per pair.
template <class Shape, bool LONG, class Visible>
__device__ __forceinline__ void mask_by(float (&s)[Shape::M_TILES][Shape::STEP / 8][4], Visible visible, int i0, int j0, int keys) {
    if constexpr (!LONG) {
        for_each_pair<Shape>(s, [&](float& value, int r, int c) {
            if (j0 + c >= keys || !visible(i0 + r, j0 + c)) value = -INFINITY;
        });
    } else {
        constexpr int ROWS = 2 * Shape::M_TILES;   // of the thread
        unsigned hidden[ROWS] = {};
#pragma unroll 1
        for (int k = 0; k < Shape::STEP / 4; k++) {
            const int j = j0 + k / 2 * 8 + lane_column() + k % 2;
#pragma unroll
            for (int row = 0; row < ROWS; row++)
                if (j >= keys || !visible(i0 + 8 * row + lane_row(), j)) hidden[row] |= 1u << k;
        }
#pragma unroll
        for (int row = 0; row < ROWS; row++)
#pragma unroll
            for (int k = 0; k < Shape::STEP / 4; k++)
                if (hidden[row] >> k & 1) s[row / 2][k / 2][row % 2 * 2 + k % 2] = -INFINITY;
    }
}

template <class Shape, class Walk>
__device__ __forceinline__ void mask(float (&s)[Shape::M_TILES][Shape::STEP / 8][4], const Walk& walk, const TilePlace& part,
                                     Tile verdict, int keys) {
    if (verdict == Tile::full && part.columns == Shape::STEP) return;
    walk.with_visible(verdict, [&](auto visible) {
        constexpr bool LONG = Walk::template is_long<decltype(visible)>();
        mask_by<Shape, LONG>(s, visible, computed_here(part.i0), computed_here(part.j0), keys);
    });
}

// ------------------------------------------------------------------------------------------------------------ shapes and the block

/// Tile sizes. A warp's 16-row tiles share every fragment of K and V that it loads. A policy with its own scores spends its time on
/// them and has fewer registers to spare.
template <class X_, int HS_, bool MODIFIED>
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
    static constexpr int BUFFERS = fast && !staggered ? 2 : 1;
    static constexpr int BLOCKS = MODIFIED && HS <= 64 ? 3 : 2;           // per multiprocessor, by registers
    using Features = FeatureTiles<QUERIES, KEYS, 1, BUFFERS>;
};

template <class Shape, class P>
using ForwardFeatures = std::conditional_t<BY_UNITS<Shape, P>, UnitScores<Shape>, typename Shape::Features>;

template <class Shape>
struct ForwardShared {
    SharedTile<typename Shape::X, Shape::QUERIES, Shape::HS> q;   // at the end, each warp overwrites its rows with their output
    SharedTile<typename Shape::X, Shape::KEYS, Shape::HS> k[Shape::BUFFERS], v[Shape::BUFFERS];
};

/// A thread's part of its warp's rows: rows lane_row() (half 0) and lane_row() + 8 (half 1) of each 16. Until the end, sums are over
/// the thread's own columns.
template <class Shape>
struct ForwardRows {
    float out[Shape::M_TILES][Shape::HS / 8][4] = {};   // sum of exp(z - largest) v
    float largest[Shape::M_TILES][2];                   // score so far
    float sum[Shape::M_TILES][2] = {};                  // of exp(z - largest)
    float moment[Shape::M_TILES][2] = {};               // of exp(z - largest) score, for the entropy
    int pairs[Shape::M_TILES][2] = {};                  // visible pairs
    float pair_gates[Shape::M_TILES][2] = {};           // sum of Policy::pair_gate() over these
    float peak[Shape::M_TILES][2];                      // largest score in the current key tile
};

/// Adds up the gates on the pairs that are not hidden.
template <class Shape>
__device__ __forceinline__ void add_pair_gates(ForwardRows<Shape>& rows, const float (&s)[Shape::M_TILES][Shape::STEP / 8][4],
                                               const float (&gates)[Shape::M_TILES][Shape::STEP / 8][4]) {
#pragma unroll
    for (int m = 0; m < Shape::M_TILES; m++)
#pragma unroll
        for (int n = 0; n < Shape::STEP / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (s[m][n][e] > -INFINITY) rows.pair_gates[m][e / 2] += gates[m][n][e];
}

/// Updates the running maxima and rescales the sums. After the first tiles maxima rarely change, and the whole warp skips the
/// rescaling.
template <class Shape, bool STATISTICS>
__device__ __forceinline__ void raise_maxima(ForwardRows<Shape>& rows, const float (&s)[Shape::M_TILES][Shape::STEP / 8][4],
                                             float to_base_2) {
    float rescale[Shape::M_TILES][2];
    bool raised = false;
#pragma unroll
    for (int m = 0; m < Shape::M_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float peak = -INFINITY;
#pragma unroll
            for (int n = 0; n < Shape::STEP / 8; n++) peak = fmaxf(peak, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
            peak = fmaxf(peak, __shfl_xor_sync(ALL_LANES, peak, 1));   // four lanes share a row
            peak = fmaxf(peak, __shfl_xor_sync(ALL_LANES, peak, 2));
            if (STATISTICS) rows.peak[m][half] = fmaxf(rows.peak[m][half], peak);
            const float before = rows.largest[m][half], largest = fmaxf(before, peak);
            rescale[m][half] = largest == before ? 1.0f : exp2_of((before - largest) * to_base_2);
            rows.largest[m][half] = largest;
            raised = raised || largest != before;
        }
    if (!__any_sync(ALL_LANES, raised)) return;
#pragma unroll
    for (int m = 0; m < Shape::M_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            rows.sum[m][half] *= rescale[m][half];
            if (STATISTICS) rows.moment[m][half] *= rescale[m][half];
#pragma unroll
            for (int n = 0; n < Shape::HS / 8; n++)
                rows.out[m][n][2 * half] *= rescale[m][half], rows.out[m][n][2 * half + 1] *= rescale[m][half];
        }
}

/// Turns scores into exp(z - largest) in place.
template <class Shape, bool STATISTICS>
__device__ __forceinline__ void exponentials(ForwardRows<Shape>& rows, float (&s)[Shape::M_TILES][Shape::STEP / 8][4],
                                             float to_base_2) {
#pragma unroll
    for (int m = 0; m < Shape::M_TILES; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float largest = rows.largest[m][half];
            const float base = largest == -INFINITY ? 0.0f : largest * to_base_2;   // -inf - -inf would be NaN
            float sum = 0, moment = 0;
            int pairs = 0;
#pragma unroll
            for (int n = 0; n < Shape::STEP / 8; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) {
                    const float p = exp2_of(fmaf(s[m][n][e], to_base_2, -base));
                    if (STATISTICS) moment += p > 0 ? p * s[m][n][e] : 0, pairs += s[m][n][e] > -INFINITY;
                    s[m][n][e] = p;
                    sum += p;
                }
            rows.sum[m][half] += sum;
            if (STATISTICS) rows.moment[m][half] += moment, rows.pairs[m][half] += pairs;
        }
}

/// P of STEP keys as left factors. For bf16 they take half the registers of the scores.
template <class Shape>
struct Weights {
    FragmentA<typename Shape::X> of_keys[Shape::STEP / 16][Shape::M_TILES];
};

template <class Shape>
__device__ __forceinline__ void pack(Weights<Shape>& weights, const float (&p)[Shape::M_TILES][Shape::STEP / 8][4]) {
#pragma unroll
    for (int k = 0; k < Shape::STEP / 16; k++)
#pragma unroll
        for (int m = 0; m < Shape::M_TILES; m++) results_as_a(weights.of_keys[k][m], p[m][2 * k], p[m][2 * k + 1]);
}

/// out += P V for STEP keys from c0 on.
template <class Shape>
__device__ __forceinline__ void add_values(ForwardRows<Shape>& rows, const Weights<Shape>& weights,
                                           const SharedTile<typename Shape::X, Shape::KEYS, Shape::HS>& v, int c0) {
#pragma unroll
    for (int k = 0; k < Shape::STEP / 16; k++) registers_times_rows(rows.out, weights.of_keys[k], v, c0 + 16 * k);
}

/// statistics.tile_max: z of each row's largest score in one key tile.
template <class Shape>
__device__ __forceinline__ void write_peaks(const ForwardRows<Shape>& rows, const AttentionForward<typename Shape::X>& a,
                                            const TilePlace& at, int row0, float to_z) {
    for (int m = 0; m < Shape::M_TILES; m++)
        for (int half = 0; half < 2; half++) {
            const int i = at.i0 + row0 + 16 * m + 8 * half + lane_row();
            if (i >= a.T || lane_column() != 0) continue;
            const size_t row = (size_t(at.b) * a.NH + at.h) * a.T + i;
            a.statistics.tile_max[row * tiles_of(a.S) + at.j0 / TILE] = rows.peak[m][half] * to_z;
        }
}

/// statistics.tiles. The first threads of a block have one query tile each and count the key tiles that it visits.
template <class Shape>
struct TileCounter {
    static constexpr int MINE = Shape::QUERIES / TILE;   // query tiles of a block
    TilePlace tile;
    int visited = 0;
    __device__ TileCounter(int T, const TilePlace& block) : tile(block) {
        tile.i0 += int(threadIdx.x) * TILE;
        tile.rows = int(threadIdx.x) < MINE ? min(TILE, T - tile.i0) : 0;
    }
    template <class Walk>
    __device__ void count(const Walk& walk, const TilePlace& block) {
        tile.j0 = block.j0, tile.columns = block.columns;
        if (tile.rows > 0) visited += walk.judge_listed(tile) != Tile::hidden;
    }
    template <class X>
    __device__ void write(const AttentionForward<X>& a) const {
        if (tile.rows > 0) a.statistics.tiles[(size_t(tile.b) * a.NH + tile.h) * tiles_of(a.T) + tile.i0 / TILE] = visited;
    }
};

/// Writes the log-sum-exp and statistics of the warp's rows, and out / sum to shared memory. `to_z` turns a score into z.
template <class Shape, bool STATISTICS, bool PAIR_GATES>
__device__ __forceinline__ void finish_rows(ForwardRows<Shape>& rows, ForwardShared<Shape>& shared,
                                            const AttentionForward<typename Shape::X>& a, const TilePlace& at, int row0,
                                            float to_z) {
#pragma unroll
    for (int m = 0; m < Shape::M_TILES; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = rows.sum[m][half], moment = rows.moment[m][half];
            int pairs = rows.pairs[m][half];
            float pair_gates = rows.pair_gates[m][half];
            for (int lane = 1; lane <= 2; lane *= 2) {
                sum += __shfl_xor_sync(ALL_LANES, sum, lane);
                if (!STATISTICS) continue;
                moment += __shfl_xor_sync(ALL_LANES, moment, lane);
                pairs += __shfl_xor_sync(ALL_LANES, pairs, lane);
                if (PAIR_GATES) pair_gates += __shfl_xor_sync(ALL_LANES, pair_gates, lane);
            }
            const float inverse = sum > 0 ? 1 / sum : 0, lse = sum > 0 ? rows.largest[m][half] * to_z + logf(sum) : -INFINITY;
#pragma unroll
            for (int n = 0; n < Shape::HS / 8; n++) rows.out[m][n][2 * half] *= inverse, rows.out[m][n][2 * half + 1] *= inverse;
            const int i = at.i0 + row0 + 16 * m + 8 * half + lane_row();
            if (i >= a.T || lane_column() != 0) continue;
            const size_t row = (size_t(at.b) * a.NH + at.h) * a.T + i;
            a.lse[row] = lse;
            if (STATISTICS && a.statistics.entropy) a.statistics.entropy[row] = sum > 0 ? lse - moment * inverse * to_z : 0;
            if (STATISTICS && a.statistics.pairs) a.statistics.pairs[row] = pairs;
            if (PAIR_GATES && a.statistics.pair_gate) a.statistics.pair_gate[row] = pair_gates;
        }
#pragma unroll
        for (int n = 0; n < Shape::HS / 8; n += 2) {
            FragmentA<typename Shape::X> piece;
            results_as_a(piece, rows.out[m][n], rows.out[m][n + 1]);
            store_a(shared.q, row0 + 16 * m, 8 * n, piece);
        }
    }
}

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
        Packed<X> piece = load_packed(&shared.q.x[r][d]);
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
    constexpr bool MODIFIED = MODIFIES_SCORES<P>, PAIR_GATES = STATISTICS && P::traits.gates_pairs;
    auto& shared = dynamic_shared<ForwardShared<Shape>>();
    ForwardFeatures<Shape, P> features(policy.features(), reinterpret_cast<float*>(&shared + 1));
    const int b = blockIdx.z, h = blockIdx.y, kv = h / (a.NH / a.NKV), row0 = int(threadIdx.x) / WARP * Shape::ROWS;
    const int i0 = int(gridDim.x - 1 - blockIdx.x) * QUERIES;   // late rows see the most keys, so they start first
    const float scale = rsqrtf(float(HS)), to_z = MODIFIED ? 1.0f : scale;
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
        if constexpr (MODIFIED) features.template copy_column_features<THREADS>(a, b, h, tile * KEYS, buffer);
    };

    copy_rows<THREADS>(shared.q, a.q.data + h * HS, a.q.row, b * a.T + i0, a.T - i0);
    if constexpr (MODIFIED) features.template copy_row_features<THREADS>(a, b, h, i0, 0);
    TileCursor cursor(0, tiles_of(a.S));
    Visit now = cursor.next(judge);
    if (now) fetch(now.tile, 0);
    if (STATISTICS && a.statistics.tile_max) {
        float* peaks = a.statistics.tile_max + ((size_t(b) * a.NH + h) * a.T + i0) * tiles_of(a.S);
        for (int n = threadIdx.x; n < min(QUERIES, a.T - i0) * tiles_of(a.S); n += THREADS) peaks[n] = -INFINITY;
    }

    TileCounter<Shape> counter(a.T, place(0));
    ForwardRows<Shape> rows;
    for (auto& pair : rows.largest) pair[0] = pair[1] = -INFINITY;
    for (int buffer = 0; now; buffer = (buffer + 1) % Shape::BUFFERS) {
        wait_for_copies();
        if constexpr (MODIFIED) features.arrived(buffer);
        __syncthreads();   // this tile is visible to all threads, and the other buffer is no longer read
        const Visit next = cursor.next(judge);
        if (Shape::staggered) fetch_values(now.tile, 0);
        if (Shape::BUFFERS > 1 && next) fetch(next.tile, (buffer + 1) % Shape::BUFFERS);
        const TilePlace at = place(now.tile);
        for (auto& pair : rows.peak) pair[0] = pair[1] = -INFINITY;
        if (STATISTICS && a.statistics.tiles) counter.count(walk, at);
#pragma unroll 1
        for (int c0 = 0; c0 < KEYS; c0 += STEP) {
            const TilePlace part{b, h, i0 + row0, at.j0 + c0, min(Shape::ROWS, at.rows - row0), min(STEP, at.columns - c0)};
            const Tile verdict = walk.judge_part(part, now.verdict);
            Weights<Shape> weights;
            if (verdict != Tile::hidden) {
                float s[Shape::M_TILES][STEP / 8][4] = {};
                rows_times_rows(s, shared.q, row0, shared.k[buffer], c0);
                float gates[Shape::M_TILES][STEP / 8][4] = {};
                if constexpr (BY_UNITS<Shape, P>)
                    features.template score<PAIR_GATES>(s, gates, buffer, c0);
                else if constexpr (MODIFIED)
                    for_each_pair<Shape>(s, [&](float& value, int r, int c) {
                        const auto pair = features.pair(a, walk, at, 0, row0 + r, buffer, c0 + c);
                        value = float(policy.score(ScoreNumber<X>(value * scale), pair));
                    });
                const bool count_gates = PAIR_GATES && a.statistics.pair_gate;
                if constexpr (PAIR_GATES && !BY_UNITS<Shape, P>)
                    if (count_gates)
                        for_each_pair<Shape>(gates, [&](float& gate, int r, int c) {
                            gate = float(policy.pair_gate(features.pair(a, walk, at, 0, row0 + r, buffer, c0 + c)));
                        });
                mask<Shape>(s, walk, part, verdict, a.S);
                if (count_gates) add_pair_gates<Shape>(rows, s, gates);
                raise_maxima<Shape, STATISTICS>(rows, s, to_z * LOG2_E);
                exponentials<Shape, STATISTICS>(rows, s, to_z * LOG2_E);
                pack(weights, s);
            }
            if constexpr (Shape::staggered) {
                wait_for_copies();
                __syncthreads();   // the values are visible to all threads, and the keys are no longer read
                if (next) fetch(next.tile, 0);
            }
            if (verdict != Tile::hidden) add_values<Shape>(rows, weights, shared.v[buffer], c0);
        }
        if (STATISTICS && a.statistics.tile_max) write_peaks<Shape>(rows, a, at, row0, to_z);
        if (Shape::BUFFERS == 1 && !Shape::staggered) __syncthreads();
        if (Shape::BUFFERS == 1 && !Shape::staggered && next) fetch(next.tile, 0);
        now = next;
    }
    wait_for_copies();
    __syncthreads();   // where no tile was visited, the rows of q may still be arriving
    const TilePlace at = place(0);
    if (STATISTICS && a.statistics.tiles) counter.write(a);
    finish_rows<Shape, STATISTICS, PAIR_GATES>(rows, shared, a, at, row0, to_z);
    __syncwarp();
    write_rows<Shape>(shared, a, at, row0);
}

/// Softmax attention under `policy`: out, lse, and the further results that the arguments request.
/// Preconditions: as on the CPU; all pointers are in device memory; HS is 32, 64 or 128; rows of q, k, v and out begin at multiples
/// of 16 bytes.
template <class X, class P>
void attention_forward(GPU device, const P& policy, const AttentionForward<X>& a) {
    require_aligned(a.q, "q"), require_aligned(a.k, "k"), require_aligned(a.v, "v");
    const bool statistics(a.statistics);
    specialise(policy, [&](const auto& special) {
        using Special = std::decay_t<decltype(special)>;
        for_head_size(a.HS, [&](auto HS) {
            using Shape = ForwardShape<X, HS, MODIFIES_SCORES<Special>>;
            const size_t shared = sizeof(ForwardShared<Shape>) + ForwardFeatures<Shape, Special>::bytes(special.features());
            require_shared_memory(shared, HS, special.features());
            const Grid grid(blocks_for(a.T, Shape::QUERIES), a.NH, a.B);
            constexpr bool ALWAYS = !Shape::fast;   // float32 is for comparison only: one kernel fewer to compile
            const auto kernel =
                statistics ? attention_forward_kernel<Shape, true, Special> : attention_forward_kernel<Shape, ALWAYS, Special>;
            launch(device, kernel, grid, Shape::THREADS, shared, special, a);
        });
    });
}
