// Around the backward kernel: the memory it shares between its blocks, the pass that prepares it, and the sums that remain at the end.
#pragma once
#include "attention/core/features.cuh"

/// Numbers of a query row that its pairs with every key need.
enum RowNumber { LSE_2, D, GATE, ROW_NUMBERS };   // log-sum-exp in base 2 (infinite: P = 0); <dO, O> - dLSE; E3

/// The backward kernel's memory outside of its blocks. Query tiles have TILE rows; there are at most as many key tiles.
struct BackwardMemory {
    int* ticket;         // (1) blocks that have started: each takes the next piece of work
    int* turn;           // (B, NH, query tiles) the key tile that has added to a query tile's gradients last, or NOBODY
    float* rows;         // (B, NH, query tiles, ROW_NUMBERS, TILE)
    float* head_parts;   // (B, NH, key tiles, features.head)

    static constexpr int NOBODY = -1;

    BackwardMemory(std::byte* memory, int B, int T, int S, int NH, const Features& f) {
        const size_t query_tiles = size_t(B) * NH * tiles_of(T), key_tiles = size_t(B) * NH * tiles_of(S);
        auto take = [&](size_t count) {
            std::byte* const piece = memory + bytes;
            bytes += (count * sizeof(float) + 15) / 16 * 16;
            return piece;
        };
        ticket = reinterpret_cast<int*>(take(1));
        turn = reinterpret_cast<int*>(take(query_tiles));
        rows = reinterpret_cast<float*>(take(query_tiles * ROW_NUMBERS * TILE));
        head_parts = reinterpret_cast<float*>(take(key_tiles * f.head));
    }
    size_t bytes = 0;
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
        rows[LSE_2 * TILE + r] = lse > -INFINITY ? lse * LOG2_E : INFINITY;
        rows[D * TILE + r] = gate * product - (i < a.T && g.dlse ? g.dlse[bh * a.T + i] : 0);
        rows[GATE * TILE + r] = gate;
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
