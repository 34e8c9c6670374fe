// The importance of a selection block of TILE tokens to a query, from the query's attention to compressed keys (NSA, Yuan et al.
// 2025, equation 9), summed over the query heads of a group:
//     score_j = sum_h sum_c p_hc |block j and compressed block c| / d,   p_hc = exp(q_h.Kc_c / sqrt(HS) - LSE_h)
// |..| counts the tokens in both. Where d divides TILE and l this is the paper's sum over p of the strips of d tokens that they
// share; this form holds for any l and d. There is one row of scores per tile of TILE queries, from the tile's first query.
#pragma once
#include <vector>

#include "attention/masks/select.cuh"
#include "attention/nsa/compress.cuh"
#include "model/device/blas.h"

template <class X>
struct Importance {
    int B, T, NH, NKV, HS;
    BlockGrid grid;
    Heads<const X> q;     // (B, T, NH, HS)
    const X* keys;        // (B, R, NKV, HS) compressed, R = grid.rows(T)
    const Wide<X>* lse;   // (B, NH, T) of the attention to them
    Wide<X>* shares;      // (B, NKV, N, R) scratch: p summed over the heads of the group; N = tiles_of(T)

    constexpr int group() const { return NH / NKV; }
    constexpr size_t row(int b, int kv, int r) const { return (size_t(b) * NKV + kv) * tiles_of(T) + r; }
    constexpr const X* query(int b, int h, int r) const { return q.data + (size_t(b) * T + r * TILE) * q.row + size_t(h) * HS; }
    constexpr const X* key(int b, int kv, int c) const { return keys + ((size_t(b) * grid.rows(T) + c) * NKV + kv) * HS; }
    constexpr Wide<X> lse_of(int b, int h, int r) const { return lse[(size_t(b) * NH + h) * T + r * TILE]; }

    /// Score of block j from the shares of the `visible` compressed keys.
    constexpr Wide<X> score(const Wide<X>* shares_of_row, int visible, int j) const {
        const int begin = j * TILE, end = begin + TILE, l = grid.l, d = grid.d;
        Wide<X> sum = 0;
        for (int c = begin < l ? 0 : (begin - l) / d + 1; c < visible && c * d < end; c++)
            sum += shares_of_row[c] * Wide<X>(std::min(end, c * d + l) - std::max(begin, c * d));
        return sum / Wide<X>(d);
    }
};

/// scores (B, NKV, N, N) of blocks 1 .. r - 2 for query tile r; the others, which are always chosen, are not written.
template <class X>
void importance_of_blocks(CPU, X* scores, const Importance<X>& s) {
    const int N = tiles_of(s.T), R = s.grid.rows(s.T), G = s.group();
#pragma omp parallel for collapse(3)
    for (int b = 0; b < s.B; b++)
        for (int kv = 0; kv < s.NKV; kv++)
            for (int r = 0; r < N; r++) {
                const int visible = s.grid.complete(r * TILE + 1);
                if (r < 3) continue;
                std::vector<X> z(size_t(G) * visible);
                if (visible > 0)
                    gemm(Transpose::no, Transpose::yes, G, visible, s.HS, X(1) / std::sqrt(X(s.HS)), s.query(b, kv * G, r), s.HS,
                         s.key(b, kv, 0), size_t(s.NKV) * s.HS, X(0), z.data(), visible);
                X* shares = s.shares + s.row(b, kv, r) * R;
                std::fill_n(shares, visible, X(0));
                for (int h = 0; h < G; h++)
                    for (int c = 0; c < visible; c++) shares[c] += exp_of(z[size_t(h) * visible + c] - s.lse_of(b, kv * G + h, r));
                for (int j = 1; j < r - 1; j++) scores[s.row(b, kv, r) * N + j] = s.score(shares, visible, j);
            }
}

#ifdef WITH_GPU

namespace importance {
inline constexpr int THREADS = 128;
inline constexpr int HEADS = 4;   // heads that share a thread's loads of a key
}   // namespace importance

/// One block per (query tile, key/value head, sequence); its shared memory holds the group's queries. Threads first share the
/// compressed keys, then the selection blocks.
template <class X>
__global__ void importance_kernel(float* scores, const Importance<X> s) {
    using namespace importance;
    constexpr int PIECE = Packed<X>::size;
    float* queries = &dynamic_shared<float>();
    const int r = blockIdx.x, kv = blockIdx.y, b = blockIdx.z, N = gridDim.x, G = s.group(), HS = s.HS;
    if (r < 3) return;   // uniform in the block
    const int visible = s.grid.complete(r * TILE + 1), slots = (G + HEADS - 1) / HEADS * HEADS;
    for (int n = threadIdx.x; n < slots * HS; n += THREADS)
        queries[n] = n < G * HS ? to_float(s.query(b, kv * G, r)[n]) : 0;
    __syncthreads();

    float* shares = s.shares + s.row(b, kv, r) * s.grid.rows(s.T);
    for (int c = threadIdx.x; c < visible; c += THREADS) {
        float share = 0;
        for (int h0 = 0; h0 < G; h0 += HEADS) {
            float product[HEADS] = {};
            for (int d = 0; d < HS; d += PIECE) {
                const Packed<X> key = load_packed(s.key(b, kv, c) + d);
                for (int h = 0; h < HEADS; h++)
                    for (int e = 0; e < PIECE; e++) product[h] += queries[(h0 + h) * HS + d + e] * key[e];
            }
            for (int h = 0; h < HEADS; h++)
                if (h0 + h < G) share += exp_of(product[h] * rsqrtf(float(HS)) - s.lse_of(b, kv * G + h0 + h, r));
        }
        shares[c] = share;
    }
    __syncthreads();
    for (int j = 1 + int(threadIdx.x); j < r - 1; j += THREADS) scores[s.row(b, kv, r) * N + j] = s.score(shares, visible, j);
}

template <class X>
void importance_of_blocks(GPU device, float* scores, const Importance<X>& s) {
    const int slots = (s.group() + importance::HEADS - 1) / importance::HEADS * importance::HEADS;
    launch(device, importance_kernel<X>, Grid(tiles_of(s.T), s.NKV, s.B), importance::THREADS, size_t(slots) * s.HS * sizeof(float),
           scores, s);
}

#endif
