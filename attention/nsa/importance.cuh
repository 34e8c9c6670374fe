// The choice of blocks by their importance to a query, from its attention to compressed keys (NSA, Yuan et al. 2025, equation 9),
// summed over the query heads of a group, which share the choice (equation 10):
//     score_j = sum_h sum_c p_hc |block j and compressed block c| / d,   p_hc = exp(q_h.Kc_c / sqrt(HS) - LSE_h)
// |..| counts the tokens in both; blocks have TILE tokens. If d divides TILE and l this is the paper's sum over p of the strips of d
// tokens that they share; this form holds for any l and d. Blocks of packed documents are numbered by document_blocks.h.
// InfLLM-V2 takes the largest of the sums over h in place of the weighted sum over c (Pool::largest).
#pragma once
#include <vector>

#include "attention/kernel/cpu.h"
#include "attention/masks/choose_blocks.cuh"
#include "attention/nsa/compress.cuh"
#include "model/device/blas.h"
#ifdef WITH_GPU
#include "attention/kernel/features.cuh"
#endif

/// The rule for blocks of TILE tokens: `slots` are chosen, and every token sees the first, its own and the one before it.
constexpr TileChoice choice_of_blocks(int slots) { return {.top = slots, .leading = 1, .local = 2}; }

enum class Pool { sum, largest };   // over the compressed blocks that overlap a block

/// Every `every`-th token chooses: row n of a choice belongs to token n * every.
template <class X>
struct Importance {
    int B, T, NH, NKV, HS;
    BlockGrid grid;
    int every;
    Heads<const X> q;     // (B, T, NH, HS)
    const X* keys;        // (B, R, NKV, HS) compressed, R = grid.rows(T)
    const Wide<X>* lse;   // (B, NH, T) of the attention to the compressed keys
    Wide<X>* scores;      // importance_scratch() numbers
    Documents documents = {};
    Pool pool = Pool::sum;

    constexpr int group() const { return NH / NKV; }
    constexpr int rows() const { return (T + every - 1) / every; }
    constexpr int token(int row) const { return row * every; }
    constexpr DocumentBlocks compressed() const { return {grid.l, grid.d, T, documents}; }
    constexpr DocumentBlocks blocks() const { return {TILE, TILE, T, documents}; }
    /// The row's own block, counted from its document's first.
    constexpr int own(int b, int row) const { return blocks().past(b, token(row)); }
    /// The row sees compressed keys first_key() to past_key() - 1. Earlier keys do not affect its blocks; their p may be infinite.
    constexpr int first_key(int b, int row) const { return compressed().first(b, token(row)); }
    constexpr int past_key(int b, int row) const {
        return first_key(b, row) + grid.complete(compressed().inside(b, token(row)) + 1);
    }
    constexpr const X* query(int b, int h, int row) const {
        return q.data + (size_t(b) * T + token(row)) * q.row + size_t(h) * HS;
    }
    constexpr const X* key(int b, int kv, int c) const { return keys + ((size_t(b) * grid.rows(T) + c) * NKV + kv) * HS; }
    constexpr Wide<X> lse_of(int b, int h, int row) const { return lse[(size_t(b) * NH + h) * T + token(row)]; }

    /// The factor of p_hc in the score of block j: |block j and compressed block c| / d, or 1 or 0 for overlap or none. 0 for a number
    /// without a block.
    constexpr Wide<X> weight(int b, int c, int j) const {
        const int of_j = blocks().begin(b, j), of_c = compressed().begin(b, c);
        const int begin = std::max(of_j, of_c), past = std::min(of_j + TILE, of_c + grid.l);
        if (of_j < 0 || of_c < 0 || past <= begin) return 0;
        return pool == Pool::sum ? Wide<X>(past - begin) / Wide<X>(grid.d) : Wide<X>(1);
    }
    /// Pools the score of a block with one more term, which is not negative.
    template <class N>
    constexpr N pooled(N score, N term) const {
        if (pool == Pool::sum) return score + term;
        return term > score ? term : score;
    }
    /// The first and last block that compressed block c, which begins in [c d, c d + d), can overlap.
    constexpr int first_block(int c) const { return std::max(0, c * grid.d - (documents ? TILE - 1 : 0)) / TILE; }
    constexpr int last_block(int c) const { return (c * grid.d + (documents ? grid.d - 1 : 0) + grid.l - 1) / TILE; }
    /// The score of block j from compressed blocks `first` to `end` - 1; `shares` begins at `first`.
    constexpr Wide<X> score(const Wide<X>* shares, int b, int first, int end, int j) const {
        const int begin = blocks().begin(b, j), lowest = std::max(0, begin - grid.l + 1) / grid.d;
        Wide<X> sum = 0;
        for (int c = std::max(first, lowest); begin >= 0 && c < end && c * grid.d < begin + TILE; c++)
            sum = pooled(sum, shares[c - first] * weight(b, c, j));
        return sum;
    }
};

/// The scores of blocks for TILE rows of one key/value head, on the CPU. Arrays are by key or block, then by row, so that a SIMD vector
/// holds several rows.
template <class X>
class ScoresOfRows {
    static constexpr int KEYS = 2 * TILE;   // at a time: their results stay in the cache

public:
    explicit ScoresOfRows(const Importance<X>& s)
        : s_(s), rows_of_q_(size_t(TILE) * s.HS), q_(size_t(s.group()) * s.HS * TILE), lse_(size_t(s.group()) * TILE), first_(TILE),
          past_(TILE), z_(KEYS * TILE), shares_(KEYS * TILE), scores_(size_t(tiles_of(s.T)) * TILE) {}

    /// `past`: one past the last block that any of the rows sees.
    void compute(int b, int kv, int row0, int rows, int past) {
        std::fill_n(scores_.begin(), size_t(past) * TILE, X(0));
        for (int r = 0; r < TILE; r++) {
            first_[r] = r < rows ? X(s_.first_key(b, row0 + r)) : X(0);
            past_[r] = r < rows ? X(s_.past_key(b, row0 + r)) : X(0);
        }
        for (int h = 0; h < s_.group(); h++) load_queries(b, kv * s_.group() + h, h, row0, rows);
        const int past_keys = s_.past_key(b, row0 + rows - 1);   // of all rows
        for (int c0 = s_.first_key(b, row0) / KEYS * KEYS; c0 < past_keys; c0 += KEYS)
            add_keys(b, kv, c0, std::min(KEYS, past_keys - c0));
    }
    /// Copies the row's scores of blocks `first` to `past` - 1 to `to`, by block.
    void copy_row(X* to, int r, int first, int past) const {
        for (int j = first; j < past; j++) to[j] = scores_[size_t(j) * TILE + r];
    }

private:
    using N = Pack<X>;

    void load_queries(int b, int head, int h, int row0, int rows) {
        for (int r = 0; r < rows; r++) {
            std::copy_n(s_.query(b, head, row0 + r), s_.HS, &rows_of_q_[size_t(r) * s_.HS]);
            lse_[h * TILE + r] = s_.lse_of(b, head, row0 + r);
        }
        transpose_tile(&q_[size_t(h) * s_.HS * TILE], rows_of_q_.data(), s_.HS);
    }
    void add_keys(int b, int kv, int c0, int keys) {
        std::fill(shares_.begin(), shares_.end(), X(0));
        for (int h = 0; h < s_.group(); h++) {
            gemm(Transpose::no, Transpose::no, keys, TILE, s_.HS, X(1) / std::sqrt(X(s_.HS)), s_.key(b, kv, c0),
                 size_t(s_.NKV) * s_.HS, &q_[size_t(h) * s_.HS * TILE], TILE, X(0), z_.data(), TILE);
            for (int c = 0; c < keys; c++)
                for (int r = 0; r < TILE; r += LANES<X>) {
                    const N p = exp_of(load<N>(&z_[c * TILE + r]) - load<N>(&lse_[h * TILE + r]));
                    X* const to = &shares_[c * TILE + r];
                    const N seen = load<N>(&past_[r]) > X(c0 + c) ? p : N{};
                    store(to, load<N>(to) + (load<N>(&first_[r]) > X(c0 + c) ? N{} : seen));
                }
        }
        for (int c = c0; c < c0 + keys; c++)
            for (int j = s_.first_block(c); j <= s_.last_block(c) && j < tiles_of(s_.T); j++) {
                const X weight = s_.weight(b, c, j);
                for (int r = 0; r < TILE; r += LANES<X>) {
                    X* const to = &scores_[size_t(j) * TILE + r];
                    store(to, s_.pooled(load<N>(to), weight * load<N>(&shares_[(c - c0) * TILE + r])));
                }
            }
    }

    const Importance<X>& s_;
    std::vector<X> rows_of_q_, q_;        // (TILE, HS) and transposed (group, HS, TILE)
    std::vector<X> lse_, first_, past_;   // (group, TILE), and (TILE) the range of keys that a row sees
    std::vector<X> z_, shares_, scores_;  // (KEYS, TILE) twice and (blocks, TILE)
};

/// The choice (BlockChoice), one per group of heads: the candidates of `rule` with the greatest scores.
template <class X>
void choose_by_importance(CPU, int* choice, const Importance<X>& s, const BlockChoice& c, const TileChoice& rule) {
    const int tiles = tiles_of(s.rows());
#pragma omp parallel
    {
        ScoresOfRows<X> of_rows(s);
        std::vector<X> scores(tiles_of(s.T));
        const ThreadTeam<X> team(0);
#pragma omp for collapse(3) schedule(dynamic)
        for (int tile = tiles - 1; tile >= 0; tile--)   // late rows see the most keys: they start first
            for (int b = 0; b < s.B; b++)
                for (int kv = 0; kv < s.NKV; kv++) {
                    const int row0 = tile * TILE, rows = std::min(TILE, s.rows() - row0), last = s.token(row0 + rows - 1) / TILE;
                    const bool compare = candidates_of(rule, last) > rule.top;   // otherwise all are taken
                    if (compare) of_rows.compute(b, kv, row0, rows, last + 1);
                    for (int r = 0; r < rows; r++) {
                        const int own = s.own(b, row0 + r), first = s.blocks().first(b, s.token(row0 + r));
                        if (compare) of_rows.copy_row(scores.data(), r, first + rule.leading, first + own - rule.local + 1);
                        choose_blocks(team, choice + c.of_token(b, kv, row0 + r), scores.data() + first, rule, own, first);
                    }
                }
    }
}

inline size_t importance_scratch(CPU, const BlockChoice&, int /*T*/) { return 0; }

#ifdef WITH_GPU

namespace importance {
inline constexpr int WARPS = 4, THREADS = WARPS * WARP;
inline constexpr int MOST_BLOCKS = 512;   // enough to fill a GPU; each has scores for TILE rows

inline int blocks(const BlockChoice& c) { return int(std::min<int64_t>(MOST_BLOCKS, int64_t(tiles_of(c.T)) * c.choosers * c.B)); }
}   // namespace importance

/// Size of Importance::scores for a choice of blocks of T tokens.
inline size_t importance_scratch(GPU, const BlockChoice& c, int T) { return size_t(importance::blocks(c)) * TILE * tiles_of(T); }

template <class X, int HS>
struct ImportanceShared {
    SharedTile<X, TILE, HS> q, k;
    float shares[TILE][TILE + 1];
};

/// TILE rows of one key/value head: computes their scores of all blocks, key tile by key tile, then their choices.
template <class X, int HS>
struct ImportanceTile {
    const Importance<X>& s;
    const TileChoice& rule;
    ImportanceShared<X, HS>& shared;
    float* scores;   // (TILE, N)
    int b, kv, row0, rows;

    __device__ int width() const { return tiles_of(s.T); }
    __device__ void choose(int* choice, const BlockChoice& c) const {
        const int last = s.token(row0 + rows - 1) / TILE;
        for (int n = threadIdx.x; n < rows * (last + 1); n += importance::THREADS)
            scores[size_t(n / (last + 1)) * width() + n % (last + 1)] = 0;
        const int past = candidates_of(rule, last) > rule.top ? s.past_key(b, row0 + rows - 1) : 0;   // otherwise all are taken
        for (int c0 = s.first_key(b, row0) / TILE * TILE; c0 < past; c0 += TILE) add_keys(c0, last);
        __syncthreads();
        for (int r = int(threadIdx.x) / WARP; r < rows; r += importance::WARPS) {
            const int first = s.blocks().first(b, s.token(row0 + r));
            choose_blocks(BlockTeam<1>(), choice + c.of_token(b, kv, row0 + r), scores + size_t(r) * width() + first, rule,
                          s.own(b, row0 + r), first);
        }
        __syncthreads();
    }

private:
    /// Adds the shares of compressed keys from c0 on to the scores of the blocks that they touch, up to block `last`.
    __device__ void add_keys(int c0, int last) const {
        Accumulator<1, TILE / 8> share;
        __syncthreads();   // the tile of keys before is no longer read
        copy_rows<importance::THREADS>(shared.k, s.key(b, kv, 0), size_t(s.NKV) * HS, c0, s.grid.rows(s.T) - c0);
        for (int h = kv * s.group(); h < (kv + 1) * s.group(); h++) add_head(share, h, c0);
        share.for_each([&](float& p, int r, int c) { shared.shares[warp_row() + r][c] = p; });
        __syncthreads();
        const int first = s.first_block(c0), past = min(last, s.last_block(c0 + TILE - 1)) + 1;
        for (int n = threadIdx.x; n < rows * (past - first); n += importance::THREADS) {
            const int r = n / (past - first), j = first + n % (past - first);
            float& score = scores[size_t(r) * width() + j];
            score = s.pooled(score, s.score(shared.shares[r], b, c0, c0 + TILE, j));
        }
    }

    /// share += p of one query head; 0 where the key is not visible.
    __device__ void add_head(Accumulator<1, TILE / 8>& share, int h, int c0) const {
        __syncthreads();   // the queries before are no longer read
        copy_rows<importance::THREADS>(shared.q, s.query(b, h, 0), s.every * s.q.row, row0, s.rows() - row0);
        wait_for_copies();
        __syncthreads();
        Accumulator<1, TILE / 8> z;
        rows_times_rows(z, shared.q, warp_row(), shared.k, 0);
        float lse[2];
        int first[2], past[2];
        for (int half = 0; half < 2; half++) {
            const int r = warp_row() + lane_row() + 8 * half;
            first[half] = r < rows ? s.first_key(b, row0 + r) - c0 : 0;
            past[half] = r < rows ? s.past_key(b, row0 + r) - c0 : 0;
            lse[half] = r < rows ? s.lse_of(b, h, row0 + r) * LOG2_E : 0;
        }
        const float to_base_2 = rsqrtf(float(HS)) * LOG2_E;
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int c = 8 * n + lane_column() + e % 2;
                if (c >= first[e / 2] && c < past[e / 2]) share.d[0][n][e] += exp2_of(z.d[0][n][e] * to_base_2 - lse[e / 2]);
            }
    }
};

/// Blocks process one tile of rows after the other, starting with those that see the most keys.
template <class X, int HS>
__global__ void __launch_bounds__(importance::THREADS)
    choose_by_importance_kernel(int* choice, const __grid_constant__ Importance<X> s, const BlockChoice c, const TileChoice rule) {
    auto& shared = dynamic_shared<ImportanceShared<X, HS>>();
    const int tiles = tiles_of(s.rows()), lists = s.NKV * s.B;
    float* const scores = s.scores + size_t(blockIdx.x) * TILE * tiles_of(s.T);
    for (int n = blockIdx.x; n < tiles * lists; n += gridDim.x) {
        const int row0 = (tiles - 1 - n / lists) * TILE, list = n % lists;
        ImportanceTile<X, HS>{s, rule, shared, scores, list / s.NKV, list % s.NKV, row0, min(TILE, s.rows() - row0)}.choose(choice, c);
    }
}

template <class X>
void choose_by_importance(GPU device, int* choice, const Importance<X>& s, const BlockChoice& c, const TileChoice& rule) {
    for_head_size(s.HS, [&](auto HS) {
        launch(device, choose_by_importance_kernel<X, HS>, importance::blocks(c), importance::THREADS,
               sizeof(ImportanceShared<X, HS>), choice, s, c, rule);
    });
}

#endif
