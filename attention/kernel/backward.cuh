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

// ------------------------------------------------------------------------------------------------ shapes, shared and global memory

/// Values per query row: log-sum-exp in base 2 (infinite where P is 0), D (times HS^-1/2 if scores are not modified), and the gate
/// (or 1).
enum RowValue { ROW_LSE, ROW_D, ROW_GATE, ROW_VALUES };

/// Tile sizes. A warp's 16-key tiles share every fragment of Q and dO that it loads. SMALL is for heads of 128 on GPUs with 99 KB of
/// shared memory per block: half the keys and a single buffer of Q and dO, without overlapped copies.
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
    static constexpr int DQ_COLUMNS = 2 * HS / WARPS;   // a warp has 32 rows x DQ_COLUMNS of dQ, DQ_STEP at a time
    static constexpr int DQ_STEP = DQ_COLUMNS < 32 ? DQ_COLUMNS : 32;
    using Features = FeatureTiles<QUERIES, KEYS, BUFFERS, 2>;
};

template <class Shape>
struct BackwardShared {
    using X = typename Shape::X;
    SharedTile<X, Shape::KEYS, Shape::HS> k, v;
    SharedTile<X, Shape::QUERIES, Shape::HS> q[Shape::BUFFERS], dout[Shape::BUFFERS];
    SharedTile<X, Shape::KEYS, Shape::QUERIES> ds;   // (scale dL/da)^T of all warps, for dQ
    alignas(16) float rows[Shape::BUFFERS][ROW_VALUES][Shape::QUERIES];
    float tile_parts[Shape::WARPS];   // each warp's sum for the gradient of the tile's bias
    int work;       // index of the block's work, from work_counter
    int previous;   // key tile that adds to the query tile's dQ before this one, or NO_TILE
};

/// A thread's sums over the queries of all heads of the group. They must stay in registers, hence variables of run(): a single index
/// that is unknown at compile time would spill the whole struct to memory.
template <class Shape>
struct KeySums {
    float dk[Shape::M_TILES][Shape::HS / 8][4] = {}, dv[Shape::M_TILES][Shape::HS / 8][4] = {};
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
    int* work_counter;   // (1) number of started blocks: the index of the next block's work
    int* semaphore;      // (B, NH, query tiles) the last key tile that added to a query tile's gradients, or NO_TILE
    float* rows;         // (B, NH, query tiles, ROW_VALUES, TILE)
    float* head_parts;   // (B, NH, key tiles, features.head)
    Stuck* stuck = nullptr;   // report of a block whose wait timed out

    static constexpr int NO_TILE = -1;

    BackwardMemory(std::byte* memory, int B, int T, int S, int NH, const Features& f) {
        const size_t query_tiles = size_t(B) * NH * tiles_of(T), key_tiles = size_t(B) * NH * tiles_of(S);
        BumpAllocator allocator(memory);
        work_counter = allocator.take<int>(1);
        semaphore = allocator.take<int>(query_tiles);
        rows = allocator.take<float>(query_tiles * ROW_VALUES * TILE);
        head_parts = allocator.take<float>(key_tiles * f.head);
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
    if (threadIdx.x == 0 && tile_of_all == 0) *memory.work_counter = 0;
    float* rows = memory.rows + tile_of_all * ROW_VALUES * TILE;
    for (int r = int(threadIdx.x) / PIECES; r < TILE; r += THREADS / PIECES) {
        const int i = i0 + r, d = int(threadIdx.x) % PIECES * PIECE;
        const size_t head = (size_t(b) * a.T + i) * a.NH + h;
        float product = 0;
        if (i < a.T) {
            const Packed<X> gradient = load_packed(g.dout + head * HS + d), out = load_packed(a.out + head * HS + d);
            for (int e = 0; e < PIECE; e++) product += gradient[e] * out[e];
        }
        for (int distance = PIECES / 2; distance > 0; distance /= 2) product += __shfl_xor_sync(ALL_LANES, product, distance);
        if (d != 0) continue;
        const float lse = i < a.T ? a.lse[bh * a.T + i] : -INFINITY, gate = i < a.T && a.gate ? a.gate[head] : 1;
        rows[ROW_LSE * TILE + r] = lse > -INFINITY ? lse * LOG2_E : INFINITY;
        const float of_row = gate * product - (i < a.T && g.dlse ? g.dlse[bh * a.T + i] : 0);
        rows[ROW_D * TILE + r] = MODIFIES_SCORES<P> ? of_row : rsqrtf(float(HS)) * of_row;
        rows[ROW_GATE * TILE + r] = gate;
        if (i < a.T && g.dgate) g.dgate[head] = product;
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

// ------------------------------------------------------------------------------------------------------- gradients of score inputs
// A block's sums over its pairs, and their reduction to memory. Sums for columns
// and for the head stay in registers until the head is done. Sums for a query tile's rows run over a warp's keys in shared memory and
// over key tiles in global memory, under the same semaphore as dQ.

/// A thread's sums, in the layout of PairGradients: in registers if the policy's number of features is known at compile time, else in
/// local memory.
template <class Shape>
struct FeatureSums {
    using N = ScoreNumber<typename Shape::X>;
    static constexpr int ROOM = Shape::MODIFIED ? MOST_FEATURES : 8;
    N head[ROOM];                             // over all pairs of the thread
    float column[2 * Shape::M_TILES][ROOM];   // of the thread's keys, over its queries
    N tile;                                   // over the thread's pairs of the present query tile
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

template <class Shape, class P>
class FeatureGradients {
    using X = typename Shape::X;
    using N = ScoreNumber<X>;
    static constexpr int KEYS = Shape::KEYS, QUERIES = Shape::QUERIES, M = Shape::M_TILES;
    static constexpr int THREADS = Shape::THREADS, WARPS = Shape::WARPS;
    static constexpr bool UNITS = BY_UNITS<Shape, P>;

public:
    using Sums = std::conditional_t<UNITS, UnitSums, FeatureSums<Shape>>;

    __device__ FeatureGradients(const Features& f, const AttentionForward<X>& a, const AttentionBackward<X>& g,
                                const BackwardMemory& memory, float* place)
        : f_(f), a_(a), g_(g), memory_(memory), row_slabs_(place), head_slab_(place + slabs(f) * QUERIES * slab_row(f)),
          warp_(int(threadIdx.x) / WARP) {}

    static constexpr size_t bytes(const Features& f) { return (slabs(f) * QUERIES * slab_row(f) + WARPS * f.head) * sizeof(float); }

    /// Number of slabs for the warps' row sums: one per warp, or a single slab to which the warps add one after the other.
    static constexpr int slabs(const Features& f) { return Shape::Features::staged(f) ? WARPS : 1; }

    __device__ __forceinline__ void clear(Sums& sums) const {
        if constexpr (UNITS) {
            sums = {};
        } else {
            for (int f = 0; f < f_.head; f++) sums.head[f] = 0;
#pragma unroll
            for (int key = 0; key < 2 * M; key++)
                for (int f = 0; f < f_.column; f++) sums.column[key][f] = 0;
        }
    }

    /// Stores the sums of query r over the warp's keys.
    __device__ __forceinline__ void keep_row_sums(const N* row_sums, int r) const {
        for (int f = 0; f < f_.row; f += 8) {
            float values[8];
#pragma unroll
            for (int n = 0; n < 8; n++) values[n] = float(row_sums[f + n]);
            float* to = row_slab() + r * slab_row(f_) + f + lane_row();
            const float sum = scattered_sums(values);
            *to = owns_slab() ? sum : *to + sum;
        }
    }
    /// The same for two hidden units, different ones in each lane_row().
    __device__ __forceinline__ void keep_row_sums(float2 of_units, int r) const {
        *reinterpret_cast<float2*>(row_slab() + r * slab_row(f_) + 2 * lane_row()) = of_units;
    }
    /// Stores zeros for queries q0 .. q0 + count - 1, which see none of the warp's keys.
    __device__ __forceinline__ void keep_nothing(int q0, int count) const {
        for (int n = lane_of(); n < count * slab_row(f_) && owns_slab(); n += WARP) row_slab()[q0 * slab_row(f_) + n] = 0;
    }

    /// Writes dcolumn and the key tile's part of dhead at the end of head h of sequence b. key0 is the warp's first key.
    __device__ __forceinline__ void finish_head(int b, int h, int tile, int key_tiles, int key0, Sums& sums) const {
        const size_t bh = size_t(b) * a_.NH + h;
        if constexpr (UNITS) {
            sums.write(g_.dcolumn + bh * f_.column * padded(a_.S), head_slab_ + warp_ * f_.head, a_.head + size_t(h) * f_.head,
                       rsqrtf(float(Shape::HS)), tile * KEYS + key0, padded(a_.S), row_slab());
        } else {
            write_columns(g_.dcolumn + bh * f_.column * padded(a_.S), tile * KEYS + key0, sums);
            for (int f = 0; f < f_.head; f++) {
                const float sum = warp_sum(float(sums.head[f]));
                if (lane_of() == 0) head_slab_[warp_ * f_.head + f] = sum;
            }
        }
        clear(sums);
        if (f_.head == 0) return;
        __syncthreads();
        for (int f = threadIdx.x; f < f_.head; f += THREADS) {
            float total = 0;
            for (int w = 0; w < WARPS; w++) total += head_slab_[w * f_.head + f];
            memory_.head_parts[(bh * key_tiles + tile) * f_.head + f] = total;
        }
        __syncthreads();
    }

    /// Adds the warps' sums to drow of the query tile from i0 on. The first block overwrites.
    __device__ __forceinline__ void add_rows(int b, int h, int i0, bool first) const {
        float* const to = g_.drow + ((size_t(b) * a_.NH + h) * a_.T + i0) * f_.row;
        if constexpr (UNITS) add_rows_to(reinterpret_cast<float4*>(to), i0, first);
        else add_rows_to(to, min(QUERIES, a_.T - i0) * f_.row, first);
    }

private:
    __device__ __forceinline__ void add_rows_to(float4* to, int i0, bool first) const {
        for (int n = threadIdx.x; n < QUERIES * UnitGate::UNITS / 4; n += THREADS) {
            float4 sum{};
            for (int slab = 0; slab < WARPS; slab++) {
                const float4 more = reinterpret_cast<const float4*>(row_slabs_)[slab * QUERIES * UnitGate::UNITS / 4 + n];
                sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
            }
            if (i0 + n / 4 < a_.T) add_part(to + n, sum, first);
        }
    }
    __device__ __forceinline__ void add_rows_to(float* to, int count, bool first) const {
        for (int n = threadIdx.x; n < count; n += THREADS) {
            const int r = n / f_.row, f = n % f_.row;
            float sum = 0;
            for (int slab = 0; slab < slabs(f_); slab++) sum += row_slabs_[(slab * QUERIES + r) * slab_row(f_) + f];
            add_part(to + n, sum, first);
        }
    }

    static constexpr int slab_row(const Features& f) { return (f.row + 7) / 8 * 8; }   // sums are written in eights
    __device__ bool owns_slab() const { return slabs(f_) > 1 || warp_ == 0; }   // the other warps add to the slab of warp 0
    __device__ float* row_slab() const { return row_slabs_ + (slabs(f_) == 1 ? 0 : warp_) * QUERIES * slab_row(f_); }

    /// Writes dcolumn (column features, padded(S)) of the warp's keys, from j0 on.
    __device__ __forceinline__ void write_columns(float* dcolumn, int j0, const FeatureSums<Shape>& sums) const {
#pragma unroll
        for (int key = 0; key < 2 * M; key++)
            for (int f = 0; f < f_.column; f++) {
                float sum = sums.column[key][f];
                sum += __shfl_xor_sync(ALL_LANES, sum, 1);
                sum += __shfl_xor_sync(ALL_LANES, sum, 2);
                const int j = j0 + 8 * key + lane_row();
                if (lane_column() == 0 && j < padded(a_.S)) dcolumn[size_t(f) * padded(a_.S) + j] = sum;
            }
    }

    Features f_;
    const AttentionForward<X>& a_;
    const AttentionBackward<X>& g_;
    const BackwardMemory& memory_;
    float *row_slabs_, *head_slab_;   // (slabs(), QUERIES, slab_row()), (WARPS, head features)
    int warp_;
};

// ----------------------------------------------------------------------------------------------------------------------- the block

template <class Shape, class P>
class BackwardBlock {
    using X = typename Shape::X;
    using N = ScoreNumber<X>;
    static constexpr int HS = Shape::HS, KEYS = Shape::KEYS, QUERIES = Shape::QUERIES, STEP = Shape::STEP, M = Shape::M_TILES;
    static constexpr int THREADS = Shape::THREADS, WARPS = Shape::WARPS;
    static constexpr bool UNITS = BY_UNITS<Shape, P>, GATED = MAY_BE_GATED<P>;
    using FeatureTiles = std::conditional_t<UNITS, UnitGradients<Shape>, typename Shape::Features>;
    using FeatureSums = typename FeatureGradients<Shape, P>::Sums;

    /// A query tile of a head that visits the key tile, with the buffers of its rows and its head's columns.
    struct QueryTileVisit {
        int h, tile;
        Tile verdict;
        int buffer = 0, columns = 0;
        __device__ explicit operator bool() const { return verdict != Tile::hidden; }
    };

public:
    __device__ __forceinline__ BackwardBlock(const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g,
                                             const BackwardMemory& memory, BackwardShared<Shape>& shared, int work)
        : policy_(policy), a_(a), g_(g), memory_(memory), shared_(shared), f_(policy.features()),
          features_(f_, reinterpret_cast<float*>(&shared + 1)),
          gradients_(f_, a, g, memory, reinterpret_cast<float*>(&shared + 1) + FeatureTiles::bytes(f_) / sizeof(float)),
          tile_(of_blocks().tile(work)), b_(of_blocks().pair(work) / a.NKV), scale_(rsqrtf(float(HS))),
          warp_(int(threadIdx.x) / WARP), key0_(warp_ * Shape::WARP_KEYS) {}

    static constexpr size_t shared_bytes(const Features& f) {
        return sizeof(BackwardShared<Shape>) + FeatureTiles::bytes(f) + FeatureGradients<Shape, P>::bytes(f);
    }

    __device__ __forceinline__ void run() {
        const int group = a_.NH / a_.NKV, first_head = kv() * group, last_head = first_head + group;
        int sums_of = first_head;   // the head of `sums`
        TileCursor cursor(0, tiles_of(a_.T));
        int held = -1;   // index of the semaphore that this block has yet to release
        QueryTileVisit now = next_visit(first_head, last_head, cursor);
        fetch_keys();
        if (now) fetch(now, true);
        KeySums<Shape> keys;
        FeatureSums sums;
        gradients_.clear(sums);
        bool new_head = true;
        while (Shape::MODIFIED || now) {   // with modified scores, one more round for the last head's sums
            wait_for_copies();
            if constexpr (Shape::MODIFIED)
                if (now) features_.arrived(new_head);
            __syncthreads();   // the tile is visible to all threads; the other buffer and ds are no longer read
            if (Shape::MODIFIED && !now && held >= 0) release_semaphore(held);
            for (; Shape::MODIFIED && sums_of < (now ? now.h : last_head); sums_of++)
                gradients_.finish_head(b_, sums_of, tile_, key_tiles(), key0_, sums);
            if (Shape::MODIFIED && !now) break;
            QueryTileVisit next = next_visit(now.h, last_head, cursor);
            next.buffer = (now.buffer + 1) % Shape::BUFFERS;
            next.columns = next.h == now.h ? now.columns : 1 - now.columns;
            new_head = next.h != now.h;
            if (Shape::BUFFERS > 1 && next) fetch(next, new_head);
            add_keys(keys, sums, now);
            if (warp_ == 0) find_previous(now);
            __syncthreads();   // ds is complete
            if (held >= 0) release_semaphore(held);
            if (Shape::BUFFERS == 1 && next) fetch(next, new_head);
            add_queries(now);
            if (Shape::MODIFIED && f_.tile && threadIdx.x == 0) write_tile_bias(now);
            held = semaphore_of(now), now = next;
        }
        if (!Shape::MODIFIED) wait_for_copies();
        if (!Shape::MODIFIED) __syncthreads();
        if (!Shape::MODIFIED && held >= 0) release_semaphore(held);
        write_keys(keys);
    }

private:
    __device__ int key_tiles() const { return (a_.S + KEYS - 1) / KEYS; }
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
        if constexpr (Shape::MODIFIED) {
            features_.template copy_row_features<THREADS>(a_, b_, h, i0, buffer);
            if (new_head) features_.template copy_column_features<THREADS>(a_, b_, h, tile_ * KEYS, visit.columns);
        }
    }

    // ---- dK, dV and the features' gradients

    /// Adds the contributions of all queries of the tile to the warp's keys. Warps run one after the other if shared memory has no room
    /// for the row sums of each.
    __device__ __forceinline__ void add_keys(KeySums<Shape>& keys, FeatureSums& sums, const QueryTileVisit& visit) {
        const int rounds = Shape::MODIFIED && gradients_.slabs(f_) == 1 ? WARPS : 1;
        const TilePlace at = tiles(visit.h).place(visit.tile, tile_);
        if constexpr (!UNITS) sums.tile = 0;
        for (int round = 0; round < rounds; round++) {
#pragma unroll 1
            for (int q0 = 0; q0 < QUERIES && (rounds == 1 || round == warp_); q0 += STEP)
                add_keys(keys, sums, visit, at, q0);
            if (rounds > 1) __syncthreads();
        }
        if constexpr (Shape::MODIFIED && !UNITS) {
            if (!f_.tile) return;
            const float sum = warp_sum(float(sums.tile));
            if (lane_of() == 0) shared_.tile_parts[warp_] = sum;
        }
    }

    __device__ __forceinline__ void add_keys(KeySums<Shape>& keys, FeatureSums& sums, const QueryTileVisit& visit,
                                             const TilePlace& at, int q0) {
        const int buffer = visit.buffer;
        const auto walk = tiles(computed_here(visit.h)).walk();   // its offsets into arrays are rarely needed
        const TilePlace part{b_, visit.h, at.i0 + q0, at.j0 + key0_, min(STEP, at.rows - q0),
                             min(Shape::WARP_KEYS, at.columns - key0_)};
        const Tile verdict = walk.judge_part(part, visit.verdict);
        if (verdict == Tile::hidden) return add_nothing(q0);
        float p[M][STEP / 8][4] = {}, ds[M][STEP / 8][4] = {};   // S^T and dP^T before differentiate(): rows are keys
        rows_times_rows(p, shared_.k, key0_, shared_.q[buffer], q0);
        if constexpr (!Shape::MODIFIED) for_hidden_pairs(part, verdict, [&](int m, int n, int e) { p[m][n][e] = -INFINITY; });
        rows_times_rows(ds, shared_.v, key0_, shared_.dout[buffer], q0);
        unsigned hidden = 0;   // modified scores must stay finite, so hidden pairs are bits: 4 (m STEP / 8 + n) + e for (m, n, e)
        if constexpr (Shape::MODIFIED)
            for_hidden_pairs(part, verdict, [&](int m, int n, int e) { hidden |= 1u << (4 * (m * STEP / 8 + n) + e); });
        if constexpr (UNITS) differentiate_by_units(p[0], ds[0], sums, hidden, buffer, q0);
        else if constexpr (Shape::MODIFIED) differentiate_modified(p, ds, sums, visit, walk, at, hidden, q0);
        else differentiate(p, ds, buffer, q0);
#pragma unroll
        for (int q = 0; q < STEP; q += 16) {
            FragmentA<X> left[M];
#pragma unroll
            for (int m = 0; m < M; m++) results_as_a(left[m], p[m][q / 8], p[m][q / 8 + 1]);
            registers_times_rows(keys.dv, left, shared_.dout[buffer], q0 + q);
#pragma unroll
            for (int m = 0; m < M; m++) {
                results_as_a(left[m], ds[m][q / 8], ds[m][q / 8 + 1]);
                store_a(shared_.ds, key0_ + 16 * m, q0 + q, left[m]);
            }
            registers_times_rows(keys.dk, left, shared_.q[buffer], q0 + q);
        }
    }

    __device__ __forceinline__ void add_nothing(int q0) {
        FragmentA<X> zero;
        for (auto& part : zero.part) make_two(part, 0, 0);
        for (int q = 0; q < STEP; q += 16)
            for (int m = 0; m < M; m++) store_a(shared_.ds, key0_ + 16 * m, q0 + q, zero);
        if constexpr (Shape::MODIFIED) gradients_.keep_nothing(q0, STEP);
    }

    /// Calls hide(m, n, e) for the thread's scores of hidden pairs. Most tiles have none, so everything is computed here and no register
    /// holds it during the products.
    template <class Hide>
    __device__ __forceinline__ void for_hidden_pairs(const TilePlace& part, Tile verdict, const Hide& hide) const {
        if (verdict == Tile::full && part.columns == Shape::WARP_KEYS) return;
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

    // ---- from S^T to gate P^T and from dP^T to (scale dL/da)^T, in place

    /// Without score inputs: 3 or 4 operations per pair besides the exponential.
    __device__ __forceinline__ void differentiate(float (&s)[M][STEP / 8][4], float (&dp)[M][STEP / 8][4], int buffer, int q0) const {
        const auto& rows = shared_.rows[buffer];
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int side = 0; side < 2; side++) {
                const int r = q0 + 8 * n + lane_column() + side;
                const float lse = rows[ROW_LSE][r], scaled_d = rows[ROW_D][r], gate = GATED ? rows[ROW_GATE][r] : 1;
                const float factor = GATED ? gate * scale_ : scale_;
#pragma unroll
                for (int key = 0; key < 2 * M; key++) {
                    const int m = key / 2, e = key % 2 * 2 + side;
                    const float p = exp2_of(fmaf(s[m][n][e], scale_ * LOG2_E, -lse));
                    s[m][n][e] = GATED ? gate * p : p;
                    dp[m][n][e] = p * fmaf(factor, dp[m][n][e], -scaled_d);
                }
            }
    }

    /// With score_backward().
    __device__ __forceinline__ void differentiate_modified(float (&s)[M][STEP / 8][4], float (&dp)[M][STEP / 8][4],
                                                           FeatureSums& sums, const QueryTileVisit& visit,
                                                           const TileWalk<X, P>& walk, const TilePlace& at, unsigned hidden,
                                                           int q0) {
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int side = 0; side < 2; side++) {
                const int r = q0 + 8 * n + lane_column() + side;
                const auto& rows = shared_.rows[visit.buffer];
                const float lse = rows[ROW_LSE][r], d = rows[ROW_D][r], gate = GATED ? rows[ROW_GATE][r] : 1;
                N row_sums[FeatureSums::ROOM];   // of one query, over the thread's keys
                for (int f = 0; f < (f_.row + 7) / 8 * 8; f++) row_sums[f] = 0;
#pragma unroll
                for (int key = 0; key < 2 * M; key++) {
                    const int m = key / 2, e = key % 2 * 2 + side, c = key0_ + 8 * key + lane_row();
                    const auto pair = features_.pair(a_, walk, at, visit.buffer, r, visit.columns, c);
                    PairGradients<N> gradients{sums.head, row_sums, sums.column[key], 1, &sums.tile};
                    const N a = s[m][n][e] * scale_;
                    const auto dz_of = [&](N z) {   // of hidden pairs too, without a jump
                        const float weight = exp2_of(fmaf(float(z), LOG2_E, -lse));
                        const float p = hidden >> (4 * (m * STEP / 8 + n) + e) & 1 ? 0 : weight;
                        s[m][n][e] = gate * p;
                        return N(p * fmaf(gate, dp[m][n][e], -d));
                    };
                    dp[m][n][e] = scale_ * float(policy_.score_backward(a, pair, gradients, dz_of));
                }
                gradients_.keep_row_sums(row_sums, r);
            }
    }

    /// With the code for a gate of hidden units. That code is long, so a rolled loop takes eight queries at a time. Registers cannot be
    /// indexed, so the scores move through s[0] instead.
    __device__ __forceinline__ void differentiate_by_units(float (&s)[STEP / 8][4], float (&dp)[STEP / 8][4], FeatureSums& sums,
                                                           unsigned hidden, int buffer, int q0) {
        const auto& rows = shared_.rows[buffer];
#pragma unroll 1
        for (int n = 0; n < STEP / 8; n++, hidden >>= 4) {
#pragma unroll
            for (int side = 0; side < 2; side++) {
                const int r = q0 + 8 * n + lane_column() + side;
                gradients_.keep_row_sums(
                    features_.differentiate(s[0], dp[0], side, hidden, rows[ROW_LSE][r], rows[ROW_D][r], r, key0_, sums), r);
            }
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float done_s = s[0][e], done_dp = dp[0][e];
                s[0][e] = s[1][e], dp[0][e] = dp[1][e];
                s[1][e] = done_s, dp[1][e] = done_dp;
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

    /// dQ += dS K: a warp has 32 rows and DQ_COLUMNS columns of the query tile. The first block overwrites.
    __device__ __forceinline__ void add_queries(const QueryTileVisit& visit) {
        const int previous = shared_.previous;
        const bool first = previous == BackwardMemory::NO_TILE;
        const int i0 = visit.tile * QUERIES, row0 = warp_ % 2 * 32, rows = a_.T - i0 - row0;
        float* const to = g_.dq.data + size_t(b_ * a_.T + i0 + row0 + lane_row()) * g_.dq.row + visit.h * HS +
                          warp_ / 2 * Shape::DQ_COLUMNS + lane_column();
#pragma unroll
        for (int d0 = 0; d0 < Shape::DQ_COLUMNS; d0 += Shape::DQ_STEP) {
            const int column = warp_ / 2 * Shape::DQ_COLUMNS + d0;
            float dq[2][Shape::DQ_STEP / 8][4] = {};
#pragma unroll UNROLL<X>
            for (int key = 0; key < KEYS; key += 16) {
                FragmentA<X> ds[2];
                load_a_transposed(ds[0], shared_.ds, key, row0);
                load_a_transposed(ds[1], shared_.ds, key, row0 + 16);
                registers_times_rows(dq, ds, shared_.k, key, column);
            }
            if (d0 == 0 && !first) wait_for_semaphore(visit, previous);
            for_query_pairs(to + d0, rows, [&](int m, int n, int half, float* at) {
                add_part(reinterpret_cast<float2*>(at), make_float2(dq[m][n][2 * half], dq[m][n][2 * half + 1]), first);
            });
        }
        if constexpr (Shape::MODIFIED) gradients_.add_rows(b_, visit.h, i0, first);
    }

    /// Calls body(m, n, half, at) for each pair of dQ elements of the thread. `to` is the address of the first of its 32 rows, of which
    /// `rows` exist.
    template <class Body>
    __device__ __forceinline__ void for_query_pairs(float* to, int rows, const Body& body) const {
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int half = 0; half < 2; half++, to += 8 * g_.dq.row) {
                if (16 * m + 8 * half + lane_row() >= rows) continue;
#pragma unroll
                for (int n = 0; n < Shape::DQ_STEP / 8; n++) body(m, n, half, to + 8 * n);
            }
    }

    /// Tiles are square if scores are modified.
    __device__ __forceinline__ void write_tile_bias(const QueryTileVisit& visit) const {
        static_assert(!Shape::MODIFIED || (KEYS == TILE && QUERIES == TILE));
        float total = 0;
        for (float part : shared_.tile_parts) total += part;
        g_.dtile[tile_bias_at(a_, tiles(visit.h).place(visit.tile, tile_))] = total;
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
                const float *dk = keys.dk[key / 2][n] + key % 2 * 2, *dv = keys.dv[key / 2][n] + key % 2 * 2;
                Two<float> wide;
                Two<X> narrow;
                make_two(wide, dk[0], dk[1]), make_two(narrow, dv[0], dv[1]);
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
    Features f_;
    FeatureTiles features_;
    FeatureGradients<Shape, P> gradients_;
    int tile_, b_;
    float scale_;
    int warp_, key0_;   // the warp's first key in the tile
};

// ------------------------------------------------------------------------------------------------------------------------ launches

template <class Shape, class P>
__global__ void __launch_bounds__(Shape::THREADS, Shape::BLOCKS)
    attention_backward_kernel(const __grid_constant__ P policy, const __grid_constant__ AttentionForward<typename Shape::X> a,
                              const __grid_constant__ AttentionBackward<typename Shape::X> g,
                              const __grid_constant__ BackwardMemory memory) {
    auto& shared = dynamic_shared<BackwardShared<Shape>>();
    if (threadIdx.x == 0) shared.work = atomicAdd(memory.work_counter, 1);
    __syncthreads();
    BackwardBlock<Shape, P>(policy, a, g, memory, shared, shared.work).run();
}

template <class Shape, class P, class X>
void attention_backward_as(GPU device, const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g,
                           const BackwardMemory& memory) {
    const Features f = policy.features();
    if (a.gate && !MAY_BE_GATED<P>)
        fail(Exit::usage, "attention's backward pass: arguments with a gate, for a policy without traits.gates_output");
    const size_t shared = BackwardBlock<Shape, P>::shared_bytes(f), key_tiles = blocks_for(a.S, Shape::KEYS);
    require_shared_memory(shared, Shape::HS, f);
    const Grid query_tiles(a.NH, tiles_of(a.T), a.B), blocks(key_tiles * a.NKV * a.B);
    launch(device, attention_prepare_kernel<X, Shape::HS, Shape::KEYS, P>, query_tiles, 128, 0, policy, a, g, memory);
    launch(device, attention_backward_kernel<Shape, P>, blocks, Shape::THREADS, shared, policy, a, g, memory);
    if (f.head)
        launch(device, attention_head_sums_kernel<Wide<X>>, blocks_for(size_t(a.B) * a.NH * f.head, 128), 128, 0, g.dhead,
               memory.head_parts, a.B * a.NH, int(key_tiles), f.head);
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
            using Shape = BackwardShape<X, HS, MODIFIES_SCORES<Special>>;
            if constexpr (Shape::tuned && HS > 64)
                if (BackwardBlock<Shape, Special>::shared_bytes(f) > max_shared_memory())
                    return attention_backward_as<BackwardShape<X, HS, false, true>>(device, special, a, g, memory);
            attention_backward_as<Shape>(device, special, a, g, memory);
        });
    });
}
