// One block of the tiled attention kernel on the GPU, backward, for any policy. It owns a tile of keys: K and V stay in shared
// memory, dK and dV in registers. The block walks over the query tiles that see its keys, head after head of the group. Each warp owns
// some of the keys and computes its scores transposed, S^T = K Q^T, so that P^T and dS^T are already in the registers of the left
// factors of dV = P^T dO and dK = dS^T Q.
//
// dQ = dS K is a sum over key tiles, and its order must not depend on the speed of blocks. Blocks therefore add to a query tile's dQ in
// memory one after the other, from the highest key tile to the lowest; a semaphore per query tile holds the key tile that added last.
// Blocks take their work in the same order (BackwardWork), so a block waits only for blocks that have started. In a causal pass the
// block of the next higher key tile visited the same query tile a step earlier (tiles of 128 keys, two query tiles each: no waits) or
// visits it now (tiles of 64: a pipeline in which each block runs slightly behind the next). A warp waits for the semaphore once its
// part of dQ is computed. The L2 cache does the addition, so no sum is loaded.
// Source: FlashAttention-2 (Dao 2023), with D_i = <dO_i, O_i> - dLSE_i when the log-sum-exp has a gradient of its own.
#pragma once
#include "attention/kernel/backward_features.cuh"

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
