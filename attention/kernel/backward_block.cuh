// The tiled attention kernel on the GPU, backward, for any policy. A block owns a tile of keys: K and V stay in shared memory, dK
// and dV in registers, while the query tiles that see it pass by, head after head of the group. Each warp owns some of the keys and
// computes its scores transposed, S^T = K Q^T: then P^T and dS^T are where dV = P^T dO and dK = dS^T Q want their left factors.
//
// dQ = dS K is a sum over key tiles, and its order must not depend on which block is fast: the blocks of a query tile add to it in
// memory one after the other, from the highest key tile to the lowest. A flag per query tile says whose turn it is. Blocks take
// their work in the same order, so that a block only waits for blocks that have started. In a causal pass the block one
// key tile up has met the same query tile a step earlier (tiles of 128 keys, of two query tiles each: nobody waits) or meets it now
// (tiles of 64: a pipeline in which each block runs a little behind the next).
// Source: FlashAttention-2 (Dao 2023), with D_i = <dO_i, O_i> - dLSE_i when the log-sum-exp has a gradient of its own.
#pragma once
#include "attention/kernel/backward_memory.cuh"

template <class Shape, class P>
class BackwardBlock {
    using X = typename Shape::X;
    using N = ScoreNumber<X>;
    static constexpr int HS = Shape::HS, KEYS = Shape::KEYS, QUERIES = Shape::QUERIES, STEP = Shape::STEP, M = Shape::M_TILES;
    static constexpr int THREADS = Shape::THREADS, WARPS = Shape::WARPS;

    /// A query tile of a head that this key tile has to meet, and which buffers hold its rows and its head's columns.
    struct Meeting {
        int h, tile;
        Tile verdict;
        int buffer = 0, columns = 0;
        __device__ explicit operator bool() const { return verdict != Tile::hidden; }
    };

public:
    __device__ __forceinline__ BackwardBlock(const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g,
                                             const BackwardMemory& memory, BackwardShared<Shape>& shared, int ticket)
        : policy_(policy), a_(a), g_(g), memory_(memory), shared_(shared), f_(policy.features()),
          features_(f_, reinterpret_cast<float*>(&shared + 1)),
          row_slabs_(reinterpret_cast<float*>(&shared + 1) + Shape::Features::bytes(f_) / sizeof(float)),
          head_slab_(row_slabs_ + slabs(f_) * QUERIES * slab_row(f_)), key_tiles_((a.S + KEYS - 1) / KEYS),
          tile_(key_tiles_ - 1 - ticket % key_tiles_), kv_(ticket / key_tiles_ % a.NKV), b_(ticket / key_tiles_ / a.NKV),
          scale_(rsqrtf(float(HS))), warp_(int(threadIdx.x) / WARP), key0_(warp_ * Shape::WARP_KEYS) {}

    static constexpr size_t shared_bytes(const Features& f) {
        const int floats = slabs(f) * QUERIES * slab_row(f) + WARPS * f.head;
        return sizeof(BackwardShared<Shape>) + Shape::Features::bytes(f) + floats * sizeof(float);
    }

    __device__ __forceinline__ void run() {
        const int group = a_.NH / a_.NKV, first_head = kv_ * group, last_head = first_head + group;
        int sums_of = first_head;   // the head that `sums` belong to
        int search = first_head;
        TileCursor cursor(0, tiles_of(a_.T));
        int before = -1;   // where the turn is that this block has still to end
        Meeting now = next_meeting(search, last_head, cursor);
        fetch_keys();
        if (now) fetch(now, true);
        KeySums<Shape> keys;
        FeatureSums<Shape> sums;
        clear(sums);
        while (now) {
            wait_for_copies();
            __syncthreads();   // the tile has arrived for all; nobody reads the other buffer or ds any more
            Meeting next = next_meeting(search, last_head, cursor);
            next.buffer = (now.buffer + 1) % Shape::BUFFERS;
            next.columns = next.h == now.h ? now.columns : 1 - now.columns;
            if (Shape::BUFFERS > 1 && next) fetch(next, next.h != now.h);
            for (; Shape::MODIFIED && sums_of < now.h; sums_of++) finish_head(sums_of, sums);
            add_keys(keys, sums, now);
            if (warp_ == 0) wait_for_turn(now);
            __syncthreads();   // ds is complete, and it is this block's turn
            if (before >= 0) end_turn(before);
            if (Shape::BUFFERS == 1 && next) fetch(next, next.h != now.h);
            add_queries(now);
            if (Shape::MODIFIED && f_.tile && threadIdx.x == 0) write_tile_number(now);
            before = turn_of(now), now = next;
        }
        wait_for_copies();
        __syncthreads();
        if (before >= 0) end_turn(before);
        for (; Shape::MODIFIED && sums_of < last_head; sums_of++) finish_head(sums_of, sums);
        write_keys(keys);
    }

private:
    // ---- which tiles, and their way into shared memory

    __device__ BackwardTiles<KEYS, X, P> tiles(int h) const { return {policy_, a_, b_, h}; }

    __device__ __forceinline__ Meeting next_meeting(int& h, int last_head, TileCursor& cursor) const {
        for (; h < last_head; h++, cursor = TileCursor(0, tiles_of(a_.T))) {
            const Visit visit = tiles(h).first_query_tile(cursor, tile_);
            if (visit) return {h, visit.tile, visit.verdict};
        }
        return {0, 0, Tile::hidden};
    }

    __device__ __forceinline__ void fetch_keys() {
        const size_t sequence = size_t(b_) * a_.S, head = size_t(kv_) * HS;
        copy_rows<THREADS>(shared_.k, a_.k.data + sequence * a_.k.row + head, a_.k.row, tile_ * KEYS, a_.S);
        copy_rows<THREADS>(shared_.v, a_.v.data + sequence * a_.v.row + head, a_.v.row, tile_ * KEYS, a_.S);
    }

    __device__ __forceinline__ void fetch(const Meeting& meeting, bool new_head) {
        const int h = meeting.h, i0 = meeting.tile * QUERIES, buffer = meeting.buffer;
        const size_t sequence = size_t(b_) * a_.T, head = size_t(h) * HS;
        copy_rows<THREADS>(shared_.q[buffer], a_.q.data + sequence * a_.q.row + head, a_.q.row, i0, a_.T);
        copy_rows<THREADS>(shared_.dout[buffer], g_.dout + sequence * a_.NH * HS + head, size_t(a_.NH) * HS, i0, a_.T);
        const float* rows = memory_.rows + ((size_t(b_) * a_.NH + h) * tiles_of(a_.T) + meeting.tile) * ROW_NUMBERS * QUERIES;
        static_assert(ROW_NUMBERS * QUERIES <= 4 * THREADS);
        const int n = 4 * threadIdx.x;
        if (n < ROW_NUMBERS * QUERIES) copy_async<16>(&shared_.rows[buffer][0][0] + n, rows + n, 16);
        if constexpr (Shape::MODIFIED) {
            features_.template copy_row_features<THREADS>(a_, b_, h, i0, buffer);
            if (new_head) features_.template copy_column_features<THREADS>(a_, b_, h, tile_ * KEYS, meeting.columns);
        }
    }

    // ---- dK, dV and the features' gradients

    /// The warp's keys with all queries of the tile. Where there is no room for row sums of every warp, one warp after the other.
    __device__ __forceinline__ void add_keys(KeySums<Shape>& keys, FeatureSums<Shape>& sums, const Meeting& meeting) {
        const int rounds = Shape::MODIFIED && slabs(f_) == 1 ? WARPS : 1;
        const TilePlace at = tiles(meeting.h).place(meeting.tile, tile_);
        sums.tile = 0;
        for (int round = 0; round < rounds; round++) {
#pragma unroll 1
            for (int q0 = 0; q0 < QUERIES && (rounds == 1 || round == warp_); q0 += STEP)
                add_keys(keys, sums, meeting, at, q0);
            if (rounds > 1) __syncthreads();
        }
        if (!Shape::MODIFIED || !f_.tile) return;
        const float sum = warp_sum(float(sums.tile));
        if (lane_of() == 0) shared_.tile_parts[warp_] = sum;
    }

    __device__ __forceinline__ void add_keys(KeySums<Shape>& keys, FeatureSums<Shape>& sums, const Meeting& meeting,
                                             const TilePlace& at, int q0) {
        const int buffer = meeting.buffer;
        const auto walk = tiles(meeting.h).walk();
        const TilePlace part{b_, meeting.h, at.i0 + q0, at.j0 + key0_, min(STEP, at.rows - q0),
                             min(Shape::WARP_KEYS, at.columns - key0_)};
        const Tile verdict = walk.judge_part(part, meeting.verdict);
        if (verdict == Tile::hidden) return add_nothing(q0);
        float p[M][STEP / 8][4] = {}, ds[M][STEP / 8][4] = {};   // S^T and dP^T before differentiate(): rows are keys
        rows_times_rows(p, shared_.k, key0_, shared_.q[buffer], q0);
        rows_times_rows(ds, shared_.v, key0_, shared_.dout[buffer], q0);
        differentiate(p, ds, sums, meeting, walk, at, hidden_pairs(walk, part, verdict), q0);
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
        if constexpr (Shape::MODIFIED)
            for (int n = lane_of(); n < STEP * slab_row(f_) && owns_slab(); n += WARP) row_slab()[q0 * slab_row(f_) + n] = 0;
    }

    /// Which of the thread's scores are of hidden pairs: one bit each, number 4 (m STEP / 8 + n) + e.
    __device__ __forceinline__ unsigned hidden_pairs(const TileWalk<X, P>& walk, const TilePlace& part, Tile verdict) const {
        static_assert(M * STEP / 8 * 4 <= 32);
        unsigned hidden = 0;
        if (verdict == Tile::full && part.columns == Shape::WARP_KEYS) return hidden;
        walk.with_visible(verdict, [&](auto visible) {
#pragma unroll
            for (int bit = 0; bit < M * STEP / 8 * 4; bit++) {
                const int e = bit % 4, n = bit / 4 % (STEP / 8), m = bit / 4 / (STEP / 8);
                const int i = part.i0 + 8 * n + lane_column() + e % 2, j = part.j0 + 16 * m + e / 2 * 8 + lane_row();
                if (j >= a_.S || !visible(i, j)) hidden |= 1u << bit;
            }
        });
        return hidden;
    }

    /// From S^T to gate P^T and from dP^T to (scale dL/da)^T, in place.
    __device__ __forceinline__ void differentiate(float (&s)[M][STEP / 8][4], float (&dp)[M][STEP / 8][4], FeatureSums<Shape>& sums,
                                                  const Meeting& meeting, const TileWalk<X, P>& walk, const TilePlace& at,
                                                  unsigned hidden, int q0) {
#pragma unroll
        for (int n = 0; n < STEP / 8; n++)
#pragma unroll
            for (int side = 0; side < 2; side++) {
                const int r = q0 + 8 * n + lane_column() + side;
                const auto& rows = shared_.rows[meeting.buffer];
                const float lse = rows[ROW_LSE][r], d = rows[ROW_D][r], gate = rows[ROW_GATE][r];
                N row_sums[FeatureSums<Shape>::ROOM];   // of one query, over the thread's keys
                for (int f = 0; f < (f_.row + 7) / 8 * 8; f++) row_sums[f] = 0;
#pragma unroll
                for (int key = 0; key < 2 * M; key++) {
                    const int m = key / 2, e = key % 2 * 2 + side, c = key0_ + 8 * key + lane_row();
                    const bool visible = !(hidden >> (4 * (m * STEP / 8 + n) + e) & 1);
                    Pair<N> pair{};
                    if (Shape::MODIFIED) pair = features_.pair(a_, walk, at, meeting.buffer, r, meeting.columns, c);
                    PairGradients<N> gradients{sums.head, row_sums, sums.column[key], 1, &sums.tile};
                    differentiate_pair(s[m][n][e], dp[m][n][e], visible, lse, d, gate, pair, gradients);
                }
                if (Shape::MODIFIED) keep_row_sums(row_sums, r);
            }
    }

    __device__ __forceinline__ void differentiate_pair(float& s, float& dp, bool visible, float lse, float d, float gate,
                                                       const Pair<N>& pair, PairGradients<N>& gradients) {
        if constexpr (!Shape::MODIFIED) {
            const float p = visible ? exp2_of(fmaf(s, scale_ * LOG2_E, -lse)) : 0;
            s = gate * p;
            dp = scale_ * p * fmaf(gate, dp, -d);
        } else {
            const N a = s * scale_;
            const float z = float(policy_.score(a, pair)), weight = exp2_of(fmaf(z, LOG2_E, -lse));   // also where it is hidden:
            const float p = visible ? weight : 0;   // no branch, and score_backward() goes on from what score() has computed
            s = gate * p;
            dp = scale_ * float(policy_.score_backward(N(p * fmaf(gate, dp, -d)), a, pair, gradients));
        }
    }

    // ---- sums of features' gradients. slabs() x QUERIES rows of slab_row() numbers hold the warps' sums over their keys

    static constexpr int slabs(const Features& f) { return Shape::Features::staged(f) ? WARPS : 1; }
    static constexpr int slab_row(const Features& f) { return (f.row + 7) / 8 * 8; }   // sums come in eights
    __device__ bool owns_slab() const { return slabs(f_) > 1 || warp_ == 0; }   // the others add to what it holds
    __device__ float* row_slab() const { return row_slabs_ + (slabs(f_) == 1 ? 0 : warp_) * QUERIES * slab_row(f_); }

    __device__ __forceinline__ void clear(FeatureSums<Shape>& sums) const {
        for (int f = 0; f < f_.head; f++) sums.head[f] = 0;
#pragma unroll
        for (int key = 0; key < 2 * M; key++)
            for (int f = 0; f < f_.column; f++) sums.column[key][f] = 0;
    }

    /// The sums of query r over the warp's keys, into the warp's slab.
    __device__ __forceinline__ void keep_row_sums(const N* row_sums, int r) {
        for (int f = 0; f < f_.row; f += 8) {
            float values[8];
#pragma unroll
            for (int n = 0; n < 8; n++) values[n] = float(row_sums[f + n]);
            float* to = row_slab() + r * slab_row(f_) + f + lane_row();
            const float sum = scattered_sums(values);
            *to = owns_slab() ? sum : *to + sum;
        }
    }

    /// Head h is done with this key tile: dcolumn, and the tile's part of dhead.
    __device__ __forceinline__ void finish_head(int h, FeatureSums<Shape>& sums) {
        const size_t bh = size_t(b_) * a_.NH + h;
#pragma unroll
        for (int key = 0; key < 2 * M; key++)
            for (int f = 0; f < f_.column; f++) {
                float sum = sums.column[key][f];
                sum += __shfl_xor_sync(ALL_LANES, sum, 1);
                sum += __shfl_xor_sync(ALL_LANES, sum, 2);
                const int j = tile_ * KEYS + key0_ + 8 * key + lane_row();
                if (lane_column() == 0 && j < padded(a_.S)) g_.dcolumn[(bh * f_.column + f) * padded(a_.S) + j] = sum;
            }
        for (int f = 0; f < f_.head; f++) {
            const float sum = warp_sum(float(sums.head[f]));
            if (lane_of() == 0) head_slab_[warp_ * f_.head + f] = sum;
        }
        clear(sums);
        if (f_.head == 0) return;
        __syncthreads();
        for (int f = threadIdx.x; f < f_.head; f += THREADS) {
            float total = 0;
            for (int w = 0; w < WARPS; w++) total += head_slab_[w * f_.head + f];
            memory_.head_parts[(bh * key_tiles_ + tile_) * f_.head + f] = total;
        }
        __syncthreads();
    }

    // ---- dQ and drow, in turns

    __device__ int turn_of(const Meeting& meeting) const { return (b_ * a_.NH + meeting.h) * tiles_of(a_.T) + meeting.tile; }
    __device__ __forceinline__ void wait_for_turn(const Meeting& meeting) {
        const int before = tiles(meeting.h).first_key_tile(meeting.tile, tile_ + 1);
        if (lane_of() != 0) return;
        shared_.before = before < key_tiles_ ? before : BackwardMemory::NOBODY;
        wait_for_flag(memory_.turn + turn_of(meeting), shared_.before, memory_.stuck, meeting.h * tiles_of(a_.T) + meeting.tile);
    }
    /// After a __syncthreads(). The kernel calls it a step late, when what was written has long arrived: nobody waits for that.
    __device__ __forceinline__ void end_turn(int turn) {
        if (threadIdx.x == 0) raise_flag(memory_.turn + turn, tile_);
    }

    /// dQ += dS K: a warp has 32 rows and DQ_COLUMNS columns of the query tile. The first to come overwrites. What dQ has come to so
    /// far goes into the accumulators before the products: the loads are issued together and arrive while fragments are loaded. Added
    /// to the finished products, each old value would be waited for behind the store before it, 16 to 32 ways to the L2 cache.
    __device__ __forceinline__ void add_queries(const Meeting& meeting) {
        const bool first = shared_.before == BackwardMemory::NOBODY;
        const int i0 = meeting.tile * QUERIES, row0 = warp_ % 2 * 32;
        float* to = g_.dq.data + (size_t(b_) * a_.T + i0) * g_.dq.row + size_t(meeting.h) * HS;
#pragma unroll
        for (int d0 = 0; d0 < Shape::DQ_COLUMNS; d0 += Shape::DQ_STEP) {
            const int column = warp_ / 2 * Shape::DQ_COLUMNS + d0;
            float dq[2][Shape::DQ_STEP / 8][4] = {};
            if (!first)
                for_query_pairs(i0, row0, column, [&](int m, int n, int half, size_t at) {
                    const float2 old = __ldcg(reinterpret_cast<const float2*>(to + at));
                    dq[m][n][2 * half] = old.x, dq[m][n][2 * half + 1] = old.y;
                });
#pragma unroll UNROLL<X>
            for (int key = 0; key < KEYS; key += 16) {
                FragmentA<X> ds[2];
                load_a_transposed(ds[0], shared_.ds, key, row0);
                load_a_transposed(ds[1], shared_.ds, key, row0 + 16);
                registers_times_rows(dq, ds, shared_.k, key, column);
            }
            for_query_pairs(i0, row0, column, [&](int m, int n, int half, size_t at) {
                __stcg(reinterpret_cast<float2*>(to + at), make_float2(dq[m][n][2 * half], dq[m][n][2 * half + 1]));
            });
        }
        if (Shape::MODIFIED) add_row_features(meeting, first);
    }

    /// body(m, n, half, at) for each pair of numbers of dQ that the thread holds of the rows that exist; `at` is its place behind row i0.
    template <class Body>
    __device__ __forceinline__ void for_query_pairs(int i0, int row0, int column, const Body& body) const {
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int r = row0 + 16 * m + 8 * half + lane_row();
                if (i0 + r >= a_.T) continue;
#pragma unroll
                for (int n = 0; n < Shape::DQ_STEP / 8; n++) body(m, n, half, size_t(r) * g_.dq.row + column + 8 * n + lane_column());
            }
    }

    /// Tiles have one size in both directions where scores are modified.
    __device__ __forceinline__ void write_tile_number(const Meeting& meeting) const {
        static_assert(!Shape::MODIFIED || (KEYS == TILE && QUERIES == TILE));
        float total = 0;
        for (float part : shared_.tile_parts) total += part;
        g_.dtile[tile_number_at(a_, tiles(meeting.h).place(meeting.tile, tile_))] = total;
    }

    /// drow += the warps' sums, in the same turn; old values are loaded eight at a time for the reason that dQ's are.
    __device__ __forceinline__ void add_row_features(const Meeting& meeting, bool first) {
        constexpr int AT_ONCE = 8;
        const int i0 = meeting.tile * QUERIES, count = min(QUERIES, a_.T - i0) * f_.row;
        float* to = g_.drow + ((size_t(b_) * a_.NH + meeting.h) * a_.T + i0) * f_.row;
        for (int n0 = threadIdx.x; n0 < count; n0 += AT_ONCE * THREADS) {
            float sums[AT_ONCE];
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const int n = n0 + k * THREADS;
                sums[k] = first || n >= count ? 0 : __ldcg(to + n);
            }
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                const int n = n0 + k * THREADS, r = n / f_.row, f = n % f_.row;
                if (n >= count) continue;
                for (int slab = 0; slab < slabs(f_); slab++) sums[k] += row_slabs_[(slab * QUERIES + r) * slab_row(f_) + f];
                __stcg(to + n, sums[k]);
            }
        }
    }

    // ---- the end

    __device__ __forceinline__ void write_keys(const KeySums<Shape>& keys) {
#pragma unroll
        for (int key = 0; key < 2 * M; key++) {
            const int j = tile_ * KEYS + key0_ + 8 * key + lane_row();
            if (j >= a_.S) continue;
            const size_t token = size_t(b_) * a_.S + j, at = size_t(kv_) * HS + lane_column();
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
    typename Shape::Features features_;
    float *row_slabs_, *head_slab_;
    int key_tiles_, tile_, kv_, b_;
    float scale_;
    int warp_, key0_;   // the warp's first key in the tile
};

template <class Shape, class P>
__global__ void __launch_bounds__(Shape::THREADS, Shape::BLOCKS)
    attention_backward_kernel(const __grid_constant__ P policy, const __grid_constant__ AttentionForward<typename Shape::X> a,
                              const __grid_constant__ AttentionBackward<typename Shape::X> g,
                              const __grid_constant__ BackwardMemory memory) {
    auto& shared = dynamic_shared<BackwardShared<Shape>>();
    if (threadIdx.x == 0) shared.work = atomicAdd(memory.ticket, 1);
    __syncthreads();
    BackwardBlock<Shape, P>(policy, a, g, memory, shared, shared.work).run();
}

template <class Shape, class P, class X>
void attention_backward_as(GPU device, const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g,
                           const BackwardMemory& memory) {
    const Features f = policy.features();
    const size_t shared = BackwardBlock<Shape, P>::shared_bytes(f), key_tiles = blocks_for(a.S, Shape::KEYS);
    require_shared_memory(shared, Shape::HS, f);
    const Grid query_tiles(a.NH, tiles_of(a.T), a.B), blocks(key_tiles * a.NKV * a.B);
    launch(device, attention_prepare_kernel<X, Shape::HS, Shape::KEYS, P>, query_tiles, 128, 0, policy, a, g, memory);
    launch(device, attention_backward_kernel<Shape, P>, blocks, Shape::THREADS, shared, policy, a, g, memory);
    if (f.head)
        launch(device, attention_head_sums_kernel<Wide<X>>, blocks_for(size_t(a.B) * a.NH * f.head, 128), 128, 0, g.dhead,
               memory.head_parts, a.B * a.NH, int(key_tiles), f.head);
}

/// Gradients of attention_forward(): dq, dk, dv and those of E1's and E3's inputs; all pointers are the GPU's. `a` holds the
/// forward call's arguments with its outputs `out` and `lse`. Preconditions: as in the forward pass; g.workspace has
/// attention_workspace() bytes; rows of dq, dk and dv begin at even numbers, as pairs are written.
template <class X, class P>
void attention_backward(GPU device, const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g) {
    require_aligned(a.q, "q"), require_aligned(a.k, "k"), require_aligned(a.v, "v");
    if (const Features f = policy.features(); std::max({f.head, f.row, f.column}) > MOST_FEATURES)
        fail(Exit::usage, "attention's backward pass on the GPU takes at most ", MOST_FEATURES, " features per head, row or column");
    specialise(policy, [&](const auto& special) {
        using Special = std::decay_t<decltype(special)>;
        const Features f = special.features();
        BackwardMemory memory(g.workspace, a.B, a.T, a.S, a.NH, f);
        memory.stuck = stuck();
        for_head_size(a.HS, [&](auto HS) {
            using Shape = BackwardShape<X, HS, MODIFIES_SCORES<Special>>;
            if constexpr (Shape::tuned && HS > 64)
                if (BackwardBlock<Shape, Special>::shared_bytes(f) > most_shared_memory())
                    return attention_backward_as<BackwardShape<X, HS, false, true>>(device, special, a, g, memory);
            attention_backward_as<Shape>(device, special, a, g, memory);
        });
    });
}
