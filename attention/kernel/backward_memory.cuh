// The backward kernel's tile sizes and its data in registers, shared memory and global memory; the kernel that prepares the global
// memory; and the final sums.
#pragma once
#include "attention/kernel/unit_gate.cuh"

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
