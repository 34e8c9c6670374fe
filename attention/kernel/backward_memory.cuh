// Around the backward kernel: how its work is cut, what it keeps in registers, in shared memory and in memory, the pass that
// prepares that, and the sums that remain at the end.
#pragma once
#include "attention/core/carve.h"
#include "attention/kernel/features.cuh"

/// Numbers of a query row that its pairs with every key need: log-sum-exp in base 2 (infinite where P is 0), D, the gate (or 1).
enum RowNumber { ROW_LSE, ROW_D, ROW_GATE, ROW_NUMBERS };

/// How the work is cut. 16-key tiles of a warp share every fragment of Q and dO that it loads. SMALL, for heads of 128 where a block has
/// 99 KB of shared memory: half the keys, and one buffer of Q and dO, whose copies are then waited for.
template <class X_, int HS_, bool MODIFIED_, bool SMALL = false>
struct BackwardShape {
    using X = X_;
    static constexpr bool MODIFIED = MODIFIED_, fast = std::is_same_v<X, bf16>, tuned = fast && !MODIFIED;
    static constexpr int HS = HS_;
    static constexpr int M_TILES = tuned && HS <= 64 ? 2 : 1, WARP_KEYS = 16 * M_TILES;   // dK and dV fill the registers
    static constexpr int WARPS = tuned && HS > 64 && !SMALL ? 8 : 4, THREADS = WARPS * WARP;
    static constexpr int BLOCKS = fast && HS <= 64 ? 2 : 1;   // per multiprocessor: 255 registers of 2 x 128 threads just fit
    static constexpr int KEYS = WARPS * WARP_KEYS, QUERIES = TILE;
    static constexpr int STEP = tuned ? 32 : 16;   // queries whose scores exist at once
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
    alignas(16) float rows[Shape::BUFFERS][ROW_NUMBERS][Shape::QUERIES];
    float tile_parts[Shape::WARPS];   // each warp's sum of the gradient of the tile's number
    int work;     // the block's ticket
    int before;   // the key tile whose turn was before
};

/// What a thread sums up over the queries of all heads of the group. These are registers, and variables of run(): one number with
/// an index that the compiler does not know would drag the whole of its struct into memory.
template <class Shape>
struct KeySums {
    float dk[Shape::M_TILES][Shape::HS / 8][4] = {}, dv[Shape::M_TILES][Shape::HS / 8][4] = {};
};

/// The gradients of what score() reads, as PairGradients wants them: registers where the policy's number of features is known at
/// compile time, memory of the thread otherwise.
template <class Shape>
struct FeatureSums {
    using N = ScoreNumber<typename Shape::X>;
    static constexpr int ROOM = Shape::MODIFIED ? MOST_FEATURES : 8;
    N head[ROOM];                             // over all pairs of the thread
    float column[2 * Shape::M_TILES][ROOM];   // of the thread's keys, over its queries
    N tile;                                   // over the thread's pairs of the present query tile
};

/// values[n] summed over the eight lanes that have the same columns of a fragment: lane_row() n gets the sum of number n.
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

/// The backward kernel's memory outside of its blocks. Query tiles have TILE rows; there are at most as many key tiles.
struct BackwardMemory {
    int* ticket;         // (1) blocks that have started: each takes the next piece of work
    int* turn;           // (B, NH, query tiles) the key tile that has added to a query tile's gradients last, or NOBODY
    float* rows;         // (B, NH, query tiles, ROW_NUMBERS, TILE)
    float* head_parts;   // (B, NH, key tiles, features.head)
    Stuck* stuck = nullptr;   // for a block whose turn does not come

    static constexpr int NOBODY = -1;

    BackwardMemory(std::byte* memory, int B, int T, int S, int NH, const Features& f) {
        const size_t query_tiles = size_t(B) * NH * tiles_of(T), key_tiles = size_t(B) * NH * tiles_of(S);
        Carve carve(memory);
        ticket = carve.take<int>(1);
        turn = carve.take<int>(query_tiles);
        rows = carve.take<float>(query_tiles * ROW_NUMBERS * TILE);
        head_parts = carve.take<float>(key_tiles * f.head);
        bytes = carve.bytes();
    }
    size_t bytes;
};

/// Bytes that AttentionBackward::workspace has to point to.
template <class P>
size_t attention_workspace(GPU, const P& policy, int B, int T, int S, int NH) {
    return BackwardMemory(nullptr, B, T, S, NH, policy.features()).bytes;
}

/// Which query tile (of TILE rows) meets which key tile (of KEYS columns): asked by key tiles for their query tiles, and by query
/// tiles for their key tiles.
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
    /// The first key tile from `from` on that the query tile visits; key_tiles() when there is none.
    __device__ int first_key_tile(int query_tile, int from) const {
        TileCursor cursor(from, key_tiles());
        const Visit visit = cursor.next([&](int tile) { return walk().judge_listed(place(query_tile, tile)); });
        return visit ? visit.tile : key_tiles();
    }
};

/// Row numbers of one query tile, dgate, and zeros in place of the gradients of rows that no key tile will visit.
/// One block per (head, query tile, sequence); PIECES threads per row.
template <class X, int HS, int KEYS, class P>
__global__ void __launch_bounds__(128)
    attention_prepare_kernel(const __grid_constant__ P policy, const __grid_constant__ AttentionForward<X> a,
                             const __grid_constant__ AttentionBackward<X> g, const __grid_constant__ BackwardMemory memory) {
    constexpr int PIECE = Packed<X>::size, PIECES = HS / PIECE, THREADS = 128;
    const int h = blockIdx.x, tile = blockIdx.y, b = blockIdx.z, i0 = tile * TILE;
    const size_t bh = size_t(b) * a.NH + h, tile_of_all = bh * tiles_of(a.T) + tile;
    if (threadIdx.x == 0) memory.turn[tile_of_all] = BackwardMemory::NOBODY;
    if (threadIdx.x == 0 && tile_of_all == 0) *memory.ticket = 0;
    float* rows = memory.rows + tile_of_all * ROW_NUMBERS * TILE;
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
        rows[ROW_D * TILE + r] = gate * product - (i < a.T && g.dlse ? g.dlse[bh * a.T + i] : 0);
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

/// dhead (B, NH, numbers) from the parts of the key tiles, in their order.
template <class Y>
__global__ void attention_head_sums_kernel(Y* dhead, const float* parts, int heads, int key_tiles, int numbers) {
    const int n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= heads * numbers) return;
    float total = 0;
    for (int tile = 0; tile < key_tiles; tile++) total += parts[(size_t(n / numbers) * key_tiles + tile) * numbers + n % numbers];
    dhead[n] = total;
}
