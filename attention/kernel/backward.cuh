// The tiled attention kernel on the GPU, backward, for any policy. A block owns a tile of keys: K and V stay in shared memory, dK and
// dV in registers. It walks over the query tiles that see its keys, head after head of the group. Each warp owns some of the keys and
// computes its scores transposed, S^T = K Q^T, so that P^T and dS^T are already in the registers of the left factors of dV = P^T dO and
// dK = dS^T Q. The steps of a query tile:
//     loads       wait for this tile's Q, dO and row values; barrier; start to copy the next tile's
//     products    S^T = K Q^T and dP^T = V dO^T, from them P^T and dS^T;  dV += P^T dO, dK += dS^T Q;  dS^T to shared memory
//     barrier     dS^T is complete
//     release     the previous query tile's semaphore: its dQ has reached memory by now
//     product     dS K
//     semaphore   each warp waits until the next higher key tile has added to this query tile
//     adds        dQ += dS K in global memory, where the L2 cache does the sum
//
// dQ = dS K is a sum over key tiles, and its order must not depend on the speed of blocks. Blocks therefore add to a query tile's dQ in
// memory one after the other, from the highest key tile to the lowest; a semaphore per query tile holds the key tile that added last.
// Blocks take their work in the same order (BackwardWork), so a block waits only for blocks that have started. In a causal pass the
// block of the next higher key tile visited the same query tile a step earlier (tiles of 128 keys, two query tiles each: no waits) or
// visits it now (tiles of 64: a pipeline in which each block runs slightly behind the next). A warp waits for the semaphore once its
// part of dQ is computed. The L2 cache does the addition, so no sum is loaded.
// Source: FlashAttention-2 (Dao 2023), with D_i = <dO_i, O_i> - dLSE_i when the log-sum-exp has a gradient of its own.
#pragma once
#include "attention/kernel/unit_gate.cuh"
#include "attention/kernel/wgmma.cuh"

// ------------------------------------------------------------------------------------------------ shapes, shared and global memory

/// Tile sizes. A warp's 16-key tiles share every fragment of Q and dO that it loads. SMALL is for heads of 128 on GPUs with 99 KB of
/// shared memory per block, and for a gate of units, whose numbers need the room: half the keys and a single buffer of Q and dO, whose
/// copies overlap only with the products for dQ.
template <class X_, int HS_, bool MODIFIED_, bool SMALL = false>
struct BackwardShape {
    using X = X_;
    static constexpr bool MODIFIED = MODIFIED_, fast = std::is_same_v<X, bf16>, tuned = fast && !MODIFIED;
    static constexpr int HS = HS_;
    static constexpr int M_TILES = tuned && HS <= 64 ? 2 : 1, WARP_KEYS = 16 * M_TILES;   // dK and dV fill the registers
    static constexpr int WARPS = tuned && HS > 64 && !SMALL ? 8 : 4, THREADS = WARPS * WARP;
    static constexpr int BLOCKS = fast && HS <= 64 ? 2 : 1;   // per multiprocessor: 2 x 128 threads of 255 registers fit exactly
    static constexpr int KEYS = WARPS * WARP_KEYS, QUERIES = TILE;
    /// Queries whose scores exist at once. In tuned shapes the scores take 64 registers per thread beside the 128 of dK and dV. Every
    /// fragment of K and V that a warp loads serves that many queries.
    static constexpr int STEP = tuned ? 64 / M_TILES : 16;
    static constexpr int BUFFERS = fast && !SMALL ? 2 : 1;   // of Q and dO
    static constexpr int GROUP = WARP_KEYS;   // keys whose products are one instruction
    static constexpr int DQ_TILES = 2, DQ_COLUMNS = 2 * HS / WARPS;   // a warp has 32 rows x DQ_COLUMNS of dQ, DQ_STEP at a time
    static constexpr int DQ_STEP = DQ_COLUMNS < 32 ? DQ_COLUMNS : 32;
    using Features = FeatureTiles<QUERIES, KEYS, BUFFERS, 2>;
    using Scores = Accumulator<M_TILES, STEP / 8>;   // transposed, of a part: the warp's keys and STEP queries
    template <int TILE_ROWS, int COLUMNS>
    using Operand = SharedTile<X, TILE_ROWS, COLUMNS>;
};

/// The same for products of two warpgroups, without modified scores.
template <int HS_>
struct WarpgroupBackwardShape {
    using X = bf16;
    static constexpr bool MODIFIED = false, fast = true, tuned = true;
    static constexpr int HS = HS_, M_TILES = 1, WARP_KEYS = 16, WARPS = 8, THREADS = WARPS * WARP, BLOCKS = 1, GROUP = GROUP_ROWS;
    static constexpr int KEYS = WARPS * WARP_KEYS, QUERIES = TILE, STEP = QUERIES, BUFFERS = 2;
    static constexpr int DQ_TILES = 1, DQ_COLUMNS = HS / 2, DQ_STEP = DQ_COLUMNS;
    using Features = FeatureTiles<QUERIES, KEYS, BUFFERS, 2>;
    using Scores = Accumulator<M_TILES, STEP / 8>;
    template <int TILE_ROWS, int COLUMNS>
    using Operand = SwizzledTile<X, TILE_ROWS, COLUMNS>;
};

template <class X, int HS, class P>
using BackwardShapeOf = BackwardShape<X, HS, MODIFIES_SCORES<P>, BY_UNITS<BackwardShape<X, HS, MODIFIES_SCORES<P>>, P>>;

template <class Shape>
struct BackwardShared {
    using X = typename Shape::X;
    using ScoreTile = typename Shape::template Operand<Shape::KEYS, Shape::QUERIES>;
    typename Shape::template Operand<Shape::KEYS, Shape::HS> k, v;
    typename Shape::template Operand<Shape::QUERIES, Shape::HS> q[Shape::BUFFERS], dout[Shape::BUFFERS];
    ScoreTile ds;   // (scale dL/da)^T of all warps, for dQ
    alignas(16) float rows[Shape::BUFFERS][ROW_VALUES][Shape::QUERIES];
    float tile_parts[Shape::WARPS];   // each warp's sum for the gradient of the tile's bias
    int work;       // index of the block's work, from work_counter
    int previous;   // key tile that adds to the query tile's dQ before this one, or NO_TILE
};

/// A thread's sums over the queries of all heads of the group. They must stay in registers, hence variables of run(): a single index
/// that is unknown at compile time would spill the whole struct to memory.
template <class Shape>
struct KeySums {
    Accumulator<Shape::M_TILES, Shape::HS / 8> dk, dv;
};

/// The work of the blocks, in the order in which they start. Within a pair (b, kv) the highest key tile comes first, the order of dQ.
/// The tiles of a few pairs alternate: a block then starts well before the next block of its pair, which waits for it, and the L2
/// cache still holds the data that both read.
struct BackwardWork {
    static constexpr int TOGETHER = 4;
    int key_tiles, pairs;   // pairs: B NKV
    constexpr int tile(int work) const { return key_tiles - 1 - (work - first_pair(work) * key_tiles) / together(work); }
    constexpr int pair(int work) const { return first_pair(work) + (work - first_pair(work) * key_tiles) % together(work); }

private:
    constexpr int first_pair(int work) const { return work / (TOGETHER * key_tiles) * TOGETHER; }
    constexpr int together(int work) const {
        const int left = pairs - first_pair(work);
        return left < TOGETHER ? left : TOGETHER;
    }
};

/// The backward kernel's global memory. Query tiles have TILE rows, key tiles TILE columns or more.
struct BackwardMemory {
    int* work_counter;   // (2) number of started blocks: the index of the next block's work; the second is ByScore's
    int* semaphore;      // (B, NH, query tiles) the last key tile that added to a query tile's gradients, or NO_TILE
    float* rows;         // (B, NH, query tiles, ROW_VALUES, TILE)
    float* head_parts;   // (B, NH, key tiles, features.head)
    float* peaks;        // (B, NH, query tiles, PEAKS) the lengths of the longest rows of dO
    Stuck* stuck = nullptr;   // report of a block whose wait timed out

    static constexpr int NO_TILE = -1;

    BackwardMemory(std::byte* memory, int B, int T, int S, int NH, const Features& f) {
        const size_t query_tiles = size_t(B) * NH * tiles_of(T), key_tiles = size_t(B) * NH * tiles_of(S);
        BumpAllocator allocator(memory);
        work_counter = allocator.take<int>(2);
        semaphore = allocator.take<int>(query_tiles);
        rows = allocator.take<float>(query_tiles * ROW_VALUES * TILE);
        head_parts = allocator.take<float>(key_tiles * f.head);
        peaks = allocator.take<float>(f.reach ? query_tiles * PEAKS : 0);
        bytes = allocator.bytes();
    }
    size_t bytes;
};

/// Size of AttentionBackward::workspace in bytes.
template <class P>
size_t attention_workspace(GPU, const P& policy, int B, int T, int S, int NH) {
    return BackwardMemory(nullptr, B, T, S, NH, policy.features()).bytes;
}

/// The visits of query tiles (TILE rows) to key tiles (KEYS columns), by key tile and by query tile.
template <int KEYS, class X, class P>
struct BackwardTiles {
    const P& policy;
    const AttentionForward<X>& a;
    int b, h;

    __device__ int key_tiles() const { return (a.S + KEYS - 1) / KEYS; }
    __device__ TileWalk<X, P> walk() const { return {policy, a, b, h}; }
    __device__ TilePlace place(int query_tile, int key_tile) const {
        const int i0 = query_tile * TILE, j0 = key_tile * KEYS;
        return {b, h, i0, j0, min(TILE, a.T - i0), min(KEYS, a.S - j0)};
    }
    __device__ Visit first_query_tile(TileCursor& cursor, int key_tile) const {
        return cursor.next([&](int tile) { return walk().judge_listed(place(tile, key_tile)); });
    }
    /// The first key tile from `from` on that the query tile visits; key_tiles() if there is none.
    __device__ int first_key_tile(int query_tile, int from) const {
        TileCursor cursor(from, key_tiles());
        const Visit visit = cursor.next([&](int tile) { return walk().judge_listed(place(query_tile, tile)); });
        return visit ? visit.tile : key_tiles();
    }
};

/// Fills the row values of one query tile and dgate, and clears the gradients of rows that visit no key tile.
/// One block per (head, query tile, sequence); PIECES threads per row.
template <class X, int HS, int KEYS, class P>
__global__ void __launch_bounds__(128)
    attention_prepare_kernel(const __grid_constant__ P policy, const __grid_constant__ AttentionForward<X> a,
                             const __grid_constant__ AttentionBackward<X> g, const __grid_constant__ BackwardMemory memory) {
    constexpr int PIECE = Packed<X>::size, PIECES = HS / PIECE, THREADS = 128;
    const int h = blockIdx.x, tile = blockIdx.y, b = blockIdx.z, i0 = tile * TILE;
    const size_t bh = size_t(b) * a.NH + h, tile_of_all = bh * tiles_of(a.T) + tile;
    if (threadIdx.x == 0) memory.semaphore[tile_of_all] = BackwardMemory::NO_TILE;
    if (threadIdx.x == 0 && tile_of_all == 0) memory.work_counter[0] = memory.work_counter[1] = 0;
    float* rows = memory.rows + tile_of_all * ROW_VALUES * TILE;
    float peak = 0;   // of the squares of dO's rows
    for (int r = int(threadIdx.x) / PIECES; r < TILE; r += THREADS / PIECES) {
        const int i = i0 + r, d = int(threadIdx.x) % PIECES * PIECE;
        const size_t head = (size_t(b) * a.T + i) * a.NH + h;
        float product = 0, square = 0;
        if (i < a.T) {
            const Packed<X> gradient = load_packed(g.dout + head * HS + d), out = load_packed(a.out + head * HS + d);
            for (int e = 0; e < PIECE; e++) product += gradient[e] * out[e];
            for (int e = 0; e < PIECE && P::traits.gate_of_units; e++) square += gradient[e] * gradient[e];
        }
        for (int distance = PIECES / 2; distance > 0; distance /= 2) {
            product += __shfl_xor_sync(ALL_LANES, product, distance);
            if (P::traits.gate_of_units) square += __shfl_xor_sync(ALL_LANES, square, distance);
        }
        if (d != 0) continue;
        const float lse = i < a.T ? a.lse[bh * a.T + i] : -INFINITY, gate = i < a.T && a.gate ? a.gate[head] : 1;
        rows[ROW_LSE * TILE + r] = lse > -INFINITY ? lse * LOG2_E : INFINITY;
        const float of_row = gate * product - (i < a.T && g.dlse ? g.dlse[bh * a.T + i] : 0);
        rows[ROW_D * TILE + r] = MODIFIES_SCORES<P> ? of_row : rsqrtf(float(HS)) * of_row;
        rows[ROW_GATE * TILE + r] = gate;
        if (i < a.T && g.dgate) g.dgate[head] = product;
        peak = fmaxf(peak, square);
    }
    if constexpr (P::traits.gate_of_units) {
        static_assert(THREADS / WARP == PEAKS && !MAY_BE_GATED<P>);
        peak = sqrtf(warp_max(peak));
        if (lane_of() == 0 && policy.features().reach) memory.peaks[tile_of_all * PEAKS + threadIdx.x / WARP] = peak;
    }

    const BackwardTiles<KEYS, X, P> tiles{policy, a, b, h};
    if (tiles.first_key_tile(tile, 0) < tiles.key_tiles()) return;
    const int features = policy.features().row, exist = min(TILE, a.T - i0);
    for (int n = threadIdx.x; n < exist * HS; n += THREADS)
        g.dq.data[(size_t(b) * a.T + i0 + n / HS) * g.dq.row + size_t(h) * HS + n % HS] = 0;
    for (int n = threadIdx.x; n < exist * features; n += THREADS) g.drow[(bh * a.T + i0) * features + n] = 0;
}

/// dhead (B, NH, numbers) from the key tiles' partial sums, in the order of the tiles.
template <class Y>
__global__ void attention_head_sums_kernel(Y* dhead, const float* parts, int heads, int key_tiles, int numbers) {
    const int n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= heads * numbers) return;
    float total = 0;
    for (int tile = 0; tile < key_tiles; tile++) total += parts[(size_t(n / numbers) * key_tiles + tile) * numbers + n % numbers];
    dhead[n] = total;
}

// ------------------------------------------------------------------------------------------------------------ from scores to dL/da
// Three forms with the same functions: scores that are q.k, Policy::score_backward(), and the gate of unit_gate.cuh. differentiate()
// turns S^T of a part into gate P^T and dP^T into (scale dL/da)^T, in place, and adds to the thread's sums for score inputs.

/// Scores without inputs: 3 or 4 operations per pair besides the exponential.
template <class Shape, class P>
struct PlainGradients : NoFeatures {
    using Scores = typename Shape::Scores;
    static constexpr bool OF_HEADS = false;
    struct Sums {};
    const BackwardShared<Shape>& shared;

    __device__ PlainGradients(const P&, const AttentionForward<typename Shape::X>&, const AttentionBackward<typename Shape::X>&,
                              const BackwardShared<Shape>& shared_, const float*, float*)
        : NoFeatures({}, nullptr), shared(shared_) {}
    static constexpr int rounds() { return 1; }
    __device__ void clear(Sums&) const {}
    __device__ void start_tile(Sums&) const {}
    __device__ void finish_tile(const Sums&) const {}
    __device__ void finish_head(auto&&...) const {}
    __device__ void keep_nothing(int, int) const {}
    __device__ void add_tile(const TilePlace&, bool) const {}
    static __device__ void hide(Scores& s, unsigned&, int m, int n, int e) { s.d[m][n][e] = -INFINITY; }

    template <class Walk>
    __device__ __forceinline__ void differentiate(Scores& s, Scores& dp, Sums&, const QueryPart& part, const Walk&) const {
        constexpr bool GATED = MAY_BE_GATED<P>;
        const float scale = rsqrtf(float(Shape::HS));
        const auto& rows = shared.rows[part.visit.buffer];
#pragma unroll
        for (int n = 0; n < Scores::N; n++)
#pragma unroll
            for (int side = 0; side < 2; side++) {
                const int r = part.q0 + 8 * n + lane_column() + side;
                const float lse = rows[ROW_LSE][r], scaled_d = rows[ROW_D][r], gate = GATED ? rows[ROW_GATE][r] : 1;
                const float factor = GATED ? gate * scale : scale;
#pragma unroll
                for (int key = 0; key < Scores::ROWS; key++) {
                    const float p = exp2_of(fmaf(s.at(key, n, side), scale * LOG2_E, -lse));
                    s.at(key, n, side) = GATED ? gate * p : p;
                    dp.at(key, n, side) = p * fmaf(factor, dp.at(key, n, side), -scaled_d);
                }
            }
    }
};

/// Scores by Policy::score(), differentiated by score_backward().
template <class Shape, class P>
class PolicyGradients : public Shape::Features, public ScoreInputSums<Shape> {
    using X = typename Shape::X;
    using N = ScoreNumber<X>;
    using Scores = typename Shape::Scores;
    using Tiles = typename Shape::Features;
    using Inputs = ScoreInputSums<Shape>;
    using Inputs::f_;

public:
    /// A thread's sums, in the layout of PairGradients: in registers if the policy's number of features is known at compile time, else in
    /// local memory.
    struct Sums {
        N head[MOST_FEATURES];                       // over all pairs of the thread
        float column[Scores::ROWS][MOST_FEATURES];   // of the thread's keys, over its queries
        N tile;                                      // over the thread's pairs of the present query tile
    };

    __device__ PolicyGradients(const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g,
                               BackwardShared<Shape>& shared, const float* /*peaks*/, float* memory)
        : Tiles(policy.features(), memory), Inputs(policy.features(), memory + Tiles::bytes(policy.features()) / sizeof(float)),
          policy_(policy), a_(a), g_(g), shared_(shared) {}
    static constexpr size_t bytes(const Features& f) { return Tiles::bytes(f) + Inputs::bytes(f); }

    /// Warps run one after the other if shared memory has no room for the row sums of each.
    __device__ int rounds() const { return Inputs::slabs(f_) == 1 ? Shape::WARPS : 1; }

    __device__ __forceinline__ void clear(Sums& sums) const {
        for (int f = 0; f < f_.head; f++) sums.head[f] = 0;
#pragma unroll
        for (int key = 0; key < Scores::ROWS; key++)
            for (int f = 0; f < f_.column; f++) sums.column[key][f] = 0;
    }
    __device__ void start_tile(Sums& sums) const { sums.tile = 0; }
    __device__ __forceinline__ void finish_tile(const Sums& sums) const {
        if (!f_.tile) return;
        const float sum = warp_sum(float(sums.tile));
        if (lane_of() == 0) shared_.tile_parts[this->warp_] = sum;
    }

    template <class Walk>
    __device__ __forceinline__ void differentiate(Scores& s, Scores& dp, Sums& sums, const QueryPart& part, const Walk& walk) const {
        const float scale = rsqrtf(float(Shape::HS));
        const QueryTileVisit& visit = part.visit;
        const auto& rows = shared_.rows[visit.buffer];
        if (walk.is_plain(part.place.part(part.q0, part.key0, Shape::STEP, Shape::WARP_KEYS))) return differentiate_plainly(s, dp, part);
#pragma unroll
        for (int n = 0; n < Scores::N; n++)
#pragma unroll
            for (int side = 0; side < 2; side++) {
                const int r = part.q0 + 8 * n + lane_column() + side;
                const float lse = rows[ROW_LSE][r], d = rows[ROW_D][r], gate = MAY_BE_GATED<P> ? rows[ROW_GATE][r] : 1;
                N row_sums[MOST_FEATURES];   // of one query, over the thread's keys
                for (int f = 0; f < (f_.row + 7) / 8 * 8; f++) row_sums[f] = 0;
#pragma unroll
                for (int key = 0; key < Scores::ROWS; key++) {
                    const int bit = 4 * (key / 2 * Scores::N + n) + key % 2 * 2 + side, c = part.key0 + 8 * key + lane_row();
                    const auto pair = this->pair(a_, walk, part.place, visit.buffer, r, visit.columns, c);
                    PairGradients<N> gradients{sums.head, row_sums, sums.column[key], 1, &sums.tile};
                    const N a = s.at(key, n, side) * scale;
                    const auto dz_of = [&](N z) {   // of hidden pairs too, without a jump
                        const float weight = exp2_of(fmaf(float(z), LOG2_E, -lse));
                        const float p = part.hidden >> bit & 1 ? 0 : weight;
                        s.at(key, n, side) = gate * p;
                        return N(p * fmaf(gate, dp.at(key, n, side), -d));
                    };
                    dp.at(key, n, side) = scale * float(policy_.score_backward(a, pair, gradients, dz_of));
                }
                keep_row_sums(row_sums, r);
            }
    }

    /// Writes dcolumn and the key tile's part of dhead at the end of head h of sequence b. j0 is the warp's first key.
    __device__ __forceinline__ void finish_head(int b, int h, int j0, float* head_parts, Sums& sums) const {
        write_columns(g_.dcolumn + (size_t(b) * a_.NH + h) * f_.column * padded(a_.S), j0, sums);
        for (int f = 0; f < f_.head; f++) {
            const float sum = warp_sum(float(sums.head[f]));
            if (lane_of() == 0) this->head_slab()[f] = sum;
        }
        clear(sums);
        this->write_head(head_parts);
    }

    /// Adds to drow of a query tile, and writes the gradient of the bias of the two tiles.
    __device__ __forceinline__ void add_tile(const TilePlace& at, bool first) const {
        static_assert(Shape::KEYS == TILE && Shape::QUERIES == TILE);
        this->add_rows(g_.drow + ((size_t(at.b) * a_.NH + at.h) * a_.T + at.i0) * f_.row, at.i0, a_.T, first);
        if (!f_.tile || threadIdx.x != 0) return;
        float total = 0;
        for (float part : shared_.tile_parts) total += part;
        g_.dtile[tile_bias_at(a_, at)] = total;
    }

private:
    /// differentiate() where score() changes no pair.
    __device__ __forceinline__ void differentiate_plainly(Scores& s, Scores& dp, const QueryPart& part) const {
        const float scale = rsqrtf(float(Shape::HS));
        const auto& rows = shared_.rows[part.visit.buffer];
        s.for_each_of_lane([&](float& score, int key, int n, int side) {
            const int r = part.q0 + 8 * n + lane_column() + side, bit = 4 * (key / 2 * Scores::N + n) + key % 2 * 2 + side;
            const float gate = MAY_BE_GATED<P> ? rows[ROW_GATE][r] : 1;
            const float weight = exp2_of(fmaf(score, scale * LOG2_E, -rows[ROW_LSE][r])), p = part.hidden >> bit & 1 ? 0 : weight;
            float& of_score = dp.at(key, n, side);
            score = gate * p, of_score = scale * p * fmaf(gate, of_score, -rows[ROW_D][r]);
        });
        this->keep_nothing(part.q0, Shape::STEP);
    }

    /// Stores the sums of query r over the warp's keys.
    __device__ __forceinline__ void keep_row_sums(const N* row_sums, int r) const {
        for (int f = 0; f < f_.row; f += 8) {
            float values[8];
#pragma unroll
            for (int n = 0; n < 8; n++) values[n] = float(row_sums[f + n]);
            float* to = this->row_slab() + r * Inputs::slab_row(f_) + f + lane_row();
            const float sum = scattered_sums(values);
            *to = this->owns_slab() ? sum : *to + sum;
        }
    }
    /// Writes dcolumn (column features, padded(S)) of the warp's keys, from j0 on.
    __device__ __forceinline__ void write_columns(float* dcolumn, int j0, const Sums& sums) const {
#pragma unroll
        for (int key = 0; key < Scores::ROWS; key++)
            for (int f = 0; f < f_.column; f++) {
                const float sum = row_sum(sums.column[key][f]);
                const int j = j0 + 8 * key + lane_row();
                if (lane_column() == 0 && j < padded(a_.S)) dcolumn[size_t(f) * padded(a_.S) + j] = sum;
            }
    }

    const P& policy_;
    const AttentionForward<X>& a_;
    const AttentionBackward<X>& g_;
    BackwardShared<Shape>& shared_;
};

template <class Shape, class P>
using GradientsOf = std::conditional_t<BY_UNITS<Shape, P>, UnitGradients<Shape>,
                                       std::conditional_t<Shape::MODIFIED, PolicyGradients<Shape, P>, PlainGradients<Shape, P>>>;

// ----------------------------------------------------------------------------------------------------------------------- the block

template <class Shape, class P>
class BackwardBlock {
    using X = typename Shape::X;
    using Scores = typename Shape::Scores;
    using Gradients = GradientsOf<Shape, P>;
    static constexpr int HS = Shape::HS, KEYS = Shape::KEYS, QUERIES = Shape::QUERIES, STEP = Shape::STEP, M = Shape::M_TILES;
    static constexpr int THREADS = Shape::THREADS;
    using ScoreTile = typename BackwardShared<Shape>::ScoreTile;

public:
    __device__ __forceinline__ BackwardBlock(const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g,
                                             const BackwardMemory& memory, BackwardShared<Shape>& shared, int work)
        : policy_(policy), a_(a), g_(g), memory_(memory), shared_(shared),
          gradients_(policy, a, g, shared, memory.peaks, reinterpret_cast<float*>(&shared + 1)), tile_(of_blocks().tile(work)),
          b_(of_blocks().pair(work) / a.NKV), warp_(int(threadIdx.x) / WARP), key0_(warp_ * Shape::WARP_KEYS),
          group0_(group_row<Shape::GROUP>(key0_)) {}

    static constexpr size_t shared_bytes(const Features& f) {
        return sizeof(BackwardShared<Shape>) + Gradients::bytes(f);
    }

    __device__ __forceinline__ void run() {
        const int group = a_.NH / a_.NKV, first_head = kv() * group, last_head = first_head + group;
        if (!computes<Shape, P>(a_, b_, first_head, last_head)) return;
        int sums_of = first_head;   // the head of `sums`
        TileCursor cursor(0, tiles_of(a_.T));
        int held = -1;   // index of the semaphore that this block has yet to release
        QueryTileVisit now = next_visit(first_head, last_head, cursor);
        fetch_keys();
        if (now) fetch(now, true);
        KeySums<Shape> keys;
        typename Gradients::Sums sums;
        gradients_.clear(sums);
        bool new_head = true;
        while (Gradients::OF_HEADS || now) {   // with sums for each head, one more round for the last one's
            wait_for_copies();
            if (now) gradients_.arrived(new_head);
            ScoreTile::publish();
            __syncthreads();   // the tile is visible to all threads; the other buffer and ds are no longer read
            if (Gradients::OF_HEADS && !now && held >= 0) release_semaphore(held);
            for (; Gradients::OF_HEADS && sums_of < (now ? now.h : last_head); sums_of++)
                gradients_.finish_head(b_, sums_of, tile_ * KEYS + key0_, head_part(sums_of), sums);
            if (Gradients::OF_HEADS && !now) break;
            QueryTileVisit next = next_visit(now.h, last_head, cursor);
            next.buffer = (now.buffer + 1) % Shape::BUFFERS;
            next.columns = next.h == now.h ? now.columns : 1 - now.columns;
            new_head = next.h != now.h;
            if (Shape::BUFFERS > 1 && next) fetch(next, new_head);
            add_keys(keys, sums, now);
            ScoreTile::publish();
            if (warp_ == 0) find_previous(now);
            __syncthreads();   // ds is complete
            if (held >= 0) release_semaphore(held);
            if (Shape::BUFFERS == 1 && next) fetch(next, new_head);
            add_queries(now);
            held = semaphore_of(now), now = next;
        }
        if (!Gradients::OF_HEADS) wait_for_copies();
        if (!Gradients::OF_HEADS) __syncthreads();
        if (!Gradients::OF_HEADS && held >= 0) release_semaphore(held);
        write_keys(keys);
    }

private:
    __device__ int key_tiles() const { return (a_.S + KEYS - 1) / KEYS; }
    __device__ float* head_part(int h) const {
        return memory_.head_parts + ((size_t(b_) * a_.NH + h) * key_tiles() + tile_) * policy_.features().head;
    }
    /// The head of K and V. Used only at the beginning and at the end, so no register holds it in between.
    __device__ int kv() const { return of_blocks().pair(shared_.work) % a_.NKV; }
    __device__ BackwardWork of_blocks() const { return {key_tiles(), a_.B * a_.NKV}; }

    // ---- the tiles to visit, and their copies to shared memory

    __device__ BackwardTiles<KEYS, X, P> tiles(int h) const { return {policy_, a_, b_, h}; }

    __device__ __forceinline__ QueryTileVisit next_visit(int h, int last_head, TileCursor& cursor) const {
        for (; h < last_head; h++, cursor = TileCursor(0, tiles_of(a_.T))) {
            const Visit visit = tiles(h).first_query_tile(cursor, tile_);
            if (visit) return {h, visit.tile, visit.verdict};
        }
        return {0, 0, Tile::hidden};
    }

    __device__ __forceinline__ void fetch_keys() {
        const int j0 = tile_ * KEYS, first = b_ * a_.S + j0, exist = a_.S - j0;
        copy_rows<THREADS>(shared_.k, a_.k.data + kv() * HS, a_.k.row, first, exist);
        copy_rows<THREADS>(shared_.v, a_.v.data + kv() * HS, a_.v.row, first, exist);
    }

    __device__ __forceinline__ void fetch(const QueryTileVisit& visit, bool new_head) {
        const int h = visit.h, i0 = visit.tile * QUERIES, first = b_ * a_.T + i0, exist = a_.T - i0, buffer = visit.buffer;
        copy_rows<THREADS>(shared_.q[buffer], a_.q.data + h * HS, a_.q.row, first, exist);
        copy_rows<THREADS>(shared_.dout[buffer], g_.dout + h * HS, a_.NH * HS, first, exist);
        const float* rows = memory_.rows + ptrdiff_t(semaphore_of(visit)) * (ROW_VALUES * QUERIES);
        static_assert(ROW_VALUES * QUERIES <= 4 * THREADS);
        const int n = 4 * threadIdx.x;
        if (n < ROW_VALUES * QUERIES) copy_async<16>(&shared_.rows[buffer][0][0] + n, rows + n, 16);
        gradients_.template copy_row_features<THREADS>(a_, b_, h, i0, buffer);
        if (new_head) gradients_.template copy_column_features<THREADS>(a_, b_, h, tile_ * KEYS, visit.columns);
    }

    // ---- dK, dV and the features' gradients

    /// Adds the contributions of all queries of the tile to the warp's keys.
    __device__ __forceinline__ void add_keys(KeySums<Shape>& keys, typename Gradients::Sums& sums, const QueryTileVisit& visit) {
        const int rounds = gradients_.rounds();
        const TilePlace at = tiles(visit.h).place(visit.tile, tile_);
        gradients_.start_tile(sums);
        for (int round = 0; round < rounds; round++) {
#pragma unroll 1
            for (int q0 = 0; q0 < QUERIES && (rounds == 1 || round == warp_); q0 += STEP)
                add_keys(keys, sums, {visit, at, q0, key0_});
            if (rounds > 1) __syncthreads();
        }
        gradients_.finish_tile(sums);
    }

    __device__ __forceinline__ void add_keys(KeySums<Shape>& keys, typename Gradients::Sums& sums, QueryPart part) {
        const int buffer = part.visit.buffer, q0 = part.q0;
        const auto walk = tiles(computed_here(part.visit.h)).walk();   // its offsets into arrays are rarely needed
        const TilePlace place = part.place.part(q0, key0_, STEP, Shape::WARP_KEYS);
        const TilePlace of_group = part.place.part(q0, group0_, STEP, Shape::GROUP);
        const Tile verdict = walk.judge_part(of_group, part.visit.verdict);
        if (verdict == Tile::hidden) return add_nothing(q0);
        Scores s(typename Scores::Unset{}), dp(typename Scores::Unset{});   // S^T and dP^T, then P^T and dS^T: rows are keys
        start_rows_times_rows(s, shared_.k, group0_, shared_.q[buffer], q0);
        constexpr bool EARLY = Shape::GROUP > Shape::WARP_KEYS;   // dP^T is computed while S^T is masked; by mma.sync it would spill
        if constexpr (EARLY) start_rows_times_rows(dp, shared_.v, group0_, shared_.dout[buffer], q0);
        ScoreTile::template finish_products<EARLY>(s);
        for_hidden_pairs(place, verdict, [&](int m, int n, int e) { Gradients::hide(s, part.hidden, m, n, e); });
        if constexpr (!EARLY) start_rows_times_rows(dp, shared_.v, group0_, shared_.dout[buffer], q0);
        ScoreTile::finish_products(dp);
        gradients_.differentiate(s, dp, sums, part, walk);
        FragmentA<X> of_p[STEP / 16][M], of_ds[STEP / 16][M];
#pragma unroll
        for (int k = 0; k < STEP / 16; k++) {
#pragma unroll
            for (int m = 0; m < M; m++) of_p[k][m] = s.template as_a<X>(m, k);
            start_registers_times_rows(keys.dv, of_p[k], shared_.dout[buffer], q0 + 16 * k);
#pragma unroll
            for (int m = 0; m < M; m++) {
                of_ds[k][m] = dp.template as_a<X>(m, k);
                store_a(shared_.ds, key0_ + 16 * m, q0 + 16 * k, of_ds[k][m]);
            }
            start_registers_times_rows(keys.dk, of_ds[k], shared_.q[buffer], q0 + 16 * k);
        }
        ScoreTile::finish_products(keys.dv, keys.dk);
    }

    __device__ __forceinline__ void add_nothing(int q0) {
        FragmentA<X> zero;
        for (auto& part : zero.part) make_two(part, 0, 0);
        for (int q = 0; q < STEP; q += 16)
            for (int m = 0; m < M; m++) store_a(shared_.ds, key0_ + 16 * m, q0 + q, zero);
        gradients_.keep_nothing(q0, STEP);
    }

    /// Calls hide(m, n, e) for the thread's scores of hidden pairs. Most tiles have none, so everything is computed here and no register
    /// holds it during the products.
    template <class Hide>
    __device__ __forceinline__ void for_hidden_pairs(const TilePlace& part, Tile verdict, const Hide& hide) const {
        if (verdict == Tile::full && part.columns == Shape::WARP_KEYS) return;
        if constexpr (P::traits.reads_bits)
            if (verdict == Tile::mixed) return for_pairs_without_bits(part, hide);
        tiles(computed_here(part.h)).walk().with_visible(verdict, [&](auto visible) {
            const int i0 = computed_here(part.i0), j0 = computed_here(part.j0);
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int n = 0; n < STEP / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int i = i0 + 8 * n + lane_column() + e % 2, j = j0 + 16 * m + e / 2 * 8 + lane_row();
                        if (j >= a_.S || !visible(i, j)) hide(m, n, e);
                    }
        });
    }

    /// The same by the bits of each query.
    template <class Hide>
    __device__ __forceinline__ void for_pairs_without_bits(const TilePlace& part, const Hide& hide) const {
        const auto walk = tiles(computed_here(part.h)).walk();
        const int i0 = computed_here(part.i0), j0 = computed_here(part.j0);
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int side = 0; side < 2; side++) {
                const uint64_t seen = walk.bits(i0 + 8 * n + lane_column() + side, j0);
#pragma unroll
                for (int key = 0; key < 2 * M; key++) {
                    const int c = 8 * key + lane_row();
                    if (j0 + c >= a_.S || !(seen >> c & 1)) hide(key / 2, n, key % 2 * 2 + side);
                }
            }
    }

    // ---- dQ and drow, in the order of the semaphores

    __device__ int semaphore_of(const QueryTileVisit& visit) const { return (b_ * a_.NH + visit.h) * tiles_of(a_.T) + visit.tile; }
    /// Called by warp 0; valid in all warps after the next __syncthreads().
    __device__ __forceinline__ void find_previous(const QueryTileVisit& visit) {
        const int previous = tiles(visit.h).first_key_tile(visit.tile, tile_ + 1);
        if (lane_of() == 0) shared_.previous = previous < key_tiles() ? previous : BackwardMemory::NO_TILE;
    }
    /// Acquire: the previous block's additions to dQ are visible before ours. Called by each warp before it adds.
    __device__ __forceinline__ void wait_for_semaphore(const QueryTileVisit& visit, int previous) const {
        const int query_tile = visit.h * tiles_of(a_.T) + visit.tile;
        if (lane_of() == 0) wait_for_flag(memory_.semaphore + semaphore_of(visit), previous, memory_.stuck, query_tile);
        __syncwarp();
    }
    /// Called after a __syncthreads() and one query tile late: the writes have completed by then, so the release does not wait.
    __device__ __forceinline__ void release_semaphore(int semaphore) {
        if (threadIdx.x == 0) raise_flag(memory_.semaphore + semaphore, tile_);
    }

    /// dQ += dS K: a warp has 16 DQ_TILES rows and DQ_COLUMNS columns of the query tile. The first block overwrites.
    __device__ __forceinline__ void add_queries(const QueryTileVisit& visit) {
        const int previous = shared_.previous;
        const bool first = previous == BackwardMemory::NO_TILE;
        constexpr int ROWS = 16 * Shape::DQ_TILES, WARPS_OF_ROWS = QUERIES / ROWS;
        const int column0 = (Shape::GROUP == GROUP_ROWS ? group0_ / GROUP_ROWS : warp_ / WARPS_OF_ROWS) * Shape::DQ_COLUMNS;
        const int i0 = visit.tile * QUERIES, row0 = warp_ % WARPS_OF_ROWS * ROWS, rows = a_.T - i0 - row0;
        float* const to = g_.dq.data + size_t(b_ * a_.T + i0 + row0 + lane_row()) * g_.dq.row + visit.h * HS + column0 + lane_column();
#pragma unroll
        for (int d0 = 0; d0 < Shape::DQ_COLUMNS; d0 += Shape::DQ_STEP) {
            using Part = Accumulator<Shape::DQ_TILES, Shape::DQ_STEP / 8>;
            Part dq(typename Part::Unset{});
            start_columns_times_columns(dq, shared_.ds, row0, shared_.k, column0 + d0);
            ScoreTile::finish_products(dq);
            if (d0 == 0 && !first) wait_for_semaphore(visit, previous);
            for_query_pairs(to + d0, rows, [&](int m, int n, int half, float* at) {
                add_part(reinterpret_cast<float2*>(at), make_float2(dq.d[m][n][2 * half], dq.d[m][n][2 * half + 1]), first);
            });
        }
        const TilePlace at = tiles(visit.h).place(visit.tile, tile_);
        if (first || !tiles(visit.h).walk().is_plain(at)) gradients_.add_tile(at, first);
    }

    /// Calls body(m, n, half, at) for each pair of dQ elements of the thread. `to` is the address of the first of its rows, of which
    /// `rows` exist.
    template <class Body>
    __device__ __forceinline__ void for_query_pairs(float* to, int rows, const Body& body) const {
#pragma unroll
        for (int m = 0; m < Shape::DQ_TILES; m++)
#pragma unroll
            for (int half = 0; half < 2; half++, to += 8 * g_.dq.row) {
                if (16 * m + 8 * half + lane_row() >= rows) continue;
#pragma unroll
                for (int n = 0; n < Shape::DQ_STEP / 8; n++) body(m, n, half, to + 8 * n);
            }
    }

    // ---- the end

    __device__ __forceinline__ void write_keys(const KeySums<Shape>& keys) {
#pragma unroll
        for (int key = 0; key < 2 * M; key++) {
            const int j = tile_ * KEYS + key0_ + 8 * key + lane_row();
            if (j >= a_.S) continue;
            const size_t token = size_t(b_) * a_.S + j, at = size_t(kv()) * HS + lane_column();
#pragma unroll
            for (int n = 0; n < HS / 8; n++) {
                Two<float> wide;
                Two<X> narrow;
                make_two(wide, keys.dk.at(key, n, 0), keys.dk.at(key, n, 1));
                make_two(narrow, keys.dv.at(key, n, 0), keys.dv.at(key, n, 1));
                store_two(g_.dk.data + token * g_.dk.row + at + 8 * n, wide);
                store_two(g_.dv.data + token * g_.dv.row + at + 8 * n, narrow);
            }
        }
    }

    const P& policy_;
    const AttentionForward<X>& a_;
    const AttentionBackward<X>& g_;
    const BackwardMemory& memory_;
    BackwardShared<Shape>& shared_;
    Gradients gradients_;
    int tile_, b_;
    int warp_, key0_, group0_;   // first keys in the tile: the warp's, and of the warps that multiply together
};

// ------------------------------------------------------------------------------------------------------------------------ launches

template <class Shape, class P>
__global__ void __launch_bounds__(Shape::THREADS, Shape::BLOCKS)
    attention_backward_kernel(const __grid_constant__ P policy, const __grid_constant__ AttentionForward<typename Shape::X> a,
                              const __grid_constant__ AttentionBackward<typename Shape::X> g,
                              const __grid_constant__ BackwardMemory memory) {
    if constexpr (!HAS_WGMMA && Shape::GROUP == GROUP_ROWS) return without_wgmma();
    auto& shared = dynamic_shared<BackwardShared<Shape>>();
    constexpr bool BY_SCORE = P::traits.gate_of_units && !BY_UNITS<Shape, P>;
    if (threadIdx.x == 0) shared.work = atomicAdd(memory.work_counter + BY_SCORE, 1);
    __syncthreads();
    BackwardBlock<Shape, P>(policy, a, g, memory, shared, shared.work).run();
}

template <class Shape, class P, class X>
void launch_backward_kernel(GPU device, const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g,
                            const BackwardMemory& memory) {
    const size_t shared = BackwardBlock<Shape, P>::shared_bytes(policy.features());
    require_shared_memory(shared, Shape::HS, policy.features());
    const Grid blocks(blocks_for(a.S, Shape::KEYS) * a.NKV * a.B);
    launch(device, attention_backward_kernel<Shape, P>, blocks, Shape::THREADS, shared, policy, a, g, memory);
}

template <class Shape, class P, class X>
void attention_backward_as(GPU device, const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g,
                           const BackwardMemory& memory) {
    const Features f = policy.features();
    if (a.gate && !MAY_BE_GATED<P>)
        fail(Exit::usage, "attention's backward pass: arguments with a gate, for a policy without traits.gates_output");
    launch(device, attention_prepare_kernel<X, Shape::HS, Shape::KEYS, P>, Grid(a.NH, tiles_of(a.T), a.B), 128, 0, policy, a, g, memory);
    if constexpr (BY_UNITS<Shape, P>) {
        AttentionForward<X> rest = a;
        if (BackwardBlock<Shape, P>::shared_bytes(f) > max_shared_memory()) rest.reach = nullptr;
        if (rest.reach) launch_backward_kernel<Shape>(device, policy, a, g, memory);
        launch_backward_kernel<BackwardShape<X, Shape::HS, true>>(device, ByScore<P>(policy), rest, g, memory);
    } else {
        launch_backward_kernel<Shape>(device, policy, a, g, memory);
    }
    const int key_tiles = int(blocks_for(a.S, Shape::KEYS));
    if (f.head)
        launch(device, attention_head_sums_kernel<Wide<X>>, blocks_for(size_t(a.B) * a.NH * f.head, 128), 128, 0, g.dhead,
               memory.head_parts, a.B * a.NH, key_tiles, f.head);
}

/// Gradients of attention_forward(): dq, dk, dv and those of the score inputs and the gate. `a` holds the forward call's arguments
/// with its outputs `out` and `lse`. Preconditions: as in the forward pass; all pointers are in device memory; g.workspace has
/// attention_workspace() bytes; rows of dq, dk and dv begin at even indices, as elements are written in pairs. Fails on a gate if the
/// policy has no traits.gates_output.
template <class X, class P>
void attention_backward(GPU device, const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g) {
    require_aligned(a.q, "q"), require_aligned(a.k, "k"), require_aligned(a.v, "v");
    if (const Features f = policy.features(); std::max({f.head, f.row, f.column}) > MOST_FEATURES)
        fail(Exit::usage, "attention's backward pass on the GPU takes at most ", MOST_FEATURES,
             " features per head, row or column");
    specialise(policy, [&](const auto& special) {
        using Special = std::decay_t<decltype(special)>;
        const Features f = special.features();
        BackwardMemory memory(g.workspace, a.B, a.T, a.S, a.NH, f);
        memory.stuck = stuck();
        for_head_size(a.HS, [&](auto HS) {
            using Shape = BackwardShapeOf<X, HS, Special>;
            if constexpr (MAY_USE_WARPGROUPS<X, HS, Special>)
                if (attention_kernels() == AttentionKernels::wgmma)
                    return attention_backward_as<WarpgroupBackwardShape<HS>>(device, special, a, g, memory);
            if constexpr (Shape::tuned && HS > 64)
                if (BackwardBlock<Shape, Special>::shared_bytes(f) > max_shared_memory())
                    return attention_backward_as<BackwardShape<X, HS, false, true>>(device, special, a, g, memory);
            attention_backward_as<Shape>(device, special, a, g, memory);
        });
    });
}
