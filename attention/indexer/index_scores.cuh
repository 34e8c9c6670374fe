// Index scores of all pairs, for some query tiles at a time, in bounded memory:
//     I_ts = scale sum_h w_th ReLU(q_th.k_s)     for the key tiles up to the query's own; undefined for s > t
#pragma once
#include <algorithm>
#include <vector>

#include "attention/indexer/indexer.cuh"
#include "attention/kernel/cpu.h"
#include "model/device/blas.h"
#ifdef WITH_GPU
#include "attention/kernel/features.cuh"
#endif

/// Query tiles first .. first + count - 1, counted through all sequences, and a number for each of their pairs.
template <class W>
struct IndexPiece {
    int B, T, first, count;
    W* pairs;   // (most, TILE, padded(T))

    /// Tiles of a piece: as many as fit 64 MiB of float32, at least four.
    static int most(int B, int T) {
        const int64_t fit = (int64_t(64) << 20) / (int64_t(TILE) * padded(T) * int64_t(sizeof(float)));
        return int(std::min<int64_t>(std::max<int64_t>(fit, 4), int64_t(B) * tiles_of(T)));
    }
    constexpr int b(int n) const { return (first + n) / tiles_of(T); }
    constexpr int tile(int n) const { return (first + n) % tiles_of(T); }
    /// Not std::min(), which takes the address of TILE, a host variable: nvcc then turns the whole kernel into a trap.
    constexpr int rows(int n) const {
        const int left = T - tile(n) * TILE;
        return left < TILE ? left : TILE;
    }
    constexpr W* row(int n, int r) const { return pairs + (size_t(n) * TILE + r) * padded(T); }

    /// Calls use(piece) for every piece of `at_once` tiles, in the order of the tiles.
    template <class Use>
    static void each(int B, int T, int at_once, W* pairs, Use use) {
        const int all = B * tiles_of(T);
        for (int first = 0; first < all; first += at_once) use(IndexPiece{B, T, first, std::min(at_once, all - first), pairs});
    }
};

/// Whether a key tile holds a key that some query of a query tile sees; without flags all tiles up to its own.
struct TouchedTiles {
    const int* flags = nullptr;   // (B, tiles, tiles)
    int tiles = 0;
    constexpr bool has(int b, int query_tile, int key_tile) const {
        return key_tile <= query_tile && (!flags || flags[(size_t(b) * tiles + query_tile) * tiles + key_tile]);
    }
};

/// A thread's products of a query tile and a key tile with heads of D numbers, on the CPU.
template <class X>
class TileProducts {
public:
    explicit TileProducts(int D) : D_(D), rows_(size_t(D) * TILE), keys_(rows_.size()), products_(size_t(TILE) * TILE) {}

    /// Loads the first `count` keys, at most TILE, which are `row` numbers apart.
    void load_keys(const X* keys, size_t row, int count) {
        const int exist = std::min(TILE, count);
        for (int j = 0; j < exist; j++) std::copy_n(keys + j * row, D_, &rows_[size_t(j) * D_]);
        std::fill(rows_.begin() + size_t(exist) * D_, rows_.end(), X(0));
        transpose_tile(keys_.data(), rows_.data(), D_);
    }
    /// Their products (rows, TILE) with queries `row` numbers apart, times a scale.
    X* compute(const X* queries, size_t row, int rows, X scale = 1) {
        gemm(Transpose::no, Transpose::no, rows, TILE, D_, scale, queries, row, keys_.data(), TILE, X(0), products_.data(), TILE);
        return products_.data();
    }

private:
    int D_;
    std::vector<X> rows_, keys_, products_;   // (TILE, D), (D, TILE), (TILE, TILE)
};

template <class X>
void index_scores(CPU, const IndexPiece<X>& piece, const Index<X>& x, const TouchedTiles& touched) {
    const X scale = x.scale();
#pragma omp parallel
    {
        TileProducts<X> products(x.s.D);
#pragma omp for schedule(dynamic)
        for (int n = piece.count - 1; n >= 0; n--)   // late rows see the most keys: they start first
            for (int key_tile = 0; key_tile <= piece.tile(n); key_tile++) {
                const int b = piece.b(n), i0 = piece.tile(n) * TILE, rows = piece.rows(n);
                if (!touched.has(b, piece.tile(n), key_tile)) continue;
                products.load_keys(x.key(b, key_tile * TILE), x.s.row(), x.s.T - key_tile * TILE);
                for (int r = 0; r < rows; r++) std::fill_n(piece.row(n, r) + key_tile * TILE, TILE, X(0));
                for (int h = 0; h < x.s.heads; h++) {
                    const X* const of_head = products.compute(x.query(b, i0, h), x.s.row(), rows);
                    for (int r = 0; r < rows; r++) {
                        const X w = x.weight(b, i0 + r, h, scale), *from = of_head + r * TILE;
                        X* const to = piece.row(n, r) + key_tile * TILE;
                        for (int j = 0; j < TILE; j++) to[j] += w * (from[j] > 0 ? from[j] : X(0));
                    }
                }
            }
    }
}

#ifdef WITH_GPU

namespace indexing {
inline constexpr int WARPS = 4, THREADS = WARPS * WARP;
}   // namespace indexing

template <class X, int D>
struct IndexTilesShared {
    SharedTile<X, TILE, D> q, k;
};

/// Block (key tile, query tile of the piece).
template <class X, int D>
__global__ void __launch_bounds__(indexing::THREADS)
    index_scores_kernel(const IndexPiece<float> piece, const Index<X> x, const TouchedTiles touched, float scale) {
    using namespace indexing;
    auto& shared = dynamic_shared<IndexTilesShared<X, D>>();
    const int key_tile = blockIdx.x, n = blockIdx.y, b = piece.b(n), i0 = piece.tile(n) * TILE, rows = piece.rows(n);
    if (!touched.has(b, piece.tile(n), key_tile)) return;
    copy_rows<THREADS>(shared.k, x.key(b, 0), x.s.row(), key_tile * TILE, x.s.T - key_tile * TILE);
    Accumulator<1, TILE / 8> sums;
    for (int h = 0; h < x.s.heads; h++) {
        copy_rows<THREADS>(shared.q, x.query(b, 0, h), x.s.row(), i0, x.s.T - i0);
        wait_for_copies();
        __syncthreads();
        Accumulator<1, TILE / 8> products;
        rows_times_rows(products, shared.q, warp_row(), shared.k, 0);
        float w[2];
        for (int half = 0; half < 2; half++) {
            const int r = warp_row() + lane_row() + 8 * half;
            w[half] = r < rows ? x.weight(b, i0 + r, h, scale) : 0;
        }
#pragma unroll
        for (int m = 0; m < TILE / 8; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) sums.d[0][m][e] += w[e / 2] * fmaxf(products.d[0][m][e], 0);
        __syncthreads();   // the queries are no longer read
    }
    sums.for_each([&](float& sum, int row, int c) {
        const int r = warp_row() + row;
        if (r < rows) piece.row(n, r)[key_tile * TILE + c] = sum;
    });
}

template <class X>
void index_scores(GPU device, const IndexPiece<float>& piece, const Index<X>& x, const TouchedTiles& touched) {
    for_head_size(x.s.D, [&](auto D) {
        launch(device, index_scores_kernel<X, D>, Grid(tiles_of(piece.T), piece.count), indexing::THREADS,
               sizeof(IndexTilesShared<X, D>), piece, x, touched, x.scale());
    });
}

#endif
