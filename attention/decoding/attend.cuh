// Single-token decode: one query per head and sequence against the KV cache. A layer's forward() with a DecodeStep as its device
// computes the newest row of each sequence; a kernel call in it appends the rows' keys to the caches and reads the whole caches.
// DecodeSoftmax is such a call: add() adds the keys visible under a policy, finish() writes the results.
//
// On the CPU a step is one row. Scores, masks and running softmax are shared with cpu.h. There is no tile of queries to share a
// transposed K, so each key is read once, in place.
//
// On a GPU a step is a row of each of several sequences. A row needs few multiplications per number that it reads, so it is bound
// by memory bandwidth: there are no tiles of queries and no tensor cores, query heads that share keys share the reads (four at a
// time), and the keys of a sequence are split over blocks, because its heads would be too few for a GPU. add() writes a partial softmax
// for each block, finish() merges the parts in order. The slots that a warp reads depend only on the number of slots, so results are
// the same in every run and in every batch.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/decoding/kv_cache.cuh"
#include "attention/kernel/cpu.h"
#ifdef WITH_GPU
#include "attention/kernel/features.cuh"
#endif

/// The device of a decode step: one row of each of in.B sequences, in.T = 1; in.B = 1 on the CPU. RoPE's table begins at position 0, not
/// at the rows'.
template <class Device, class X, class Slots = RingSlots>
struct DecodeStep : Device {
    KVCache<Device, X, Slots> keys;   // of the previous tokens
    DecodeRows rows;
};

/// The softmax of the rows in `a` over cached keys, under several policies one after the other. A policy may have of_row(sequence), if
/// the mask depends on the sequence, and tile_bias(h, i, j), the bias of the tile.
template <class Device, class X, class Slots>
class DecodeSoftmax;
template <class On, class Device, class X, class Slots>
DecodeSoftmax(const On&, const KVCache<Device, X, Slots>&, const DecodeRows&, const AttentionForward<X>&, int)
    -> DecodeSoftmax<Device, X, Slots>;

// ------------------------------------------------------------------------------------------------------------------- the CPU

/// A query row of head h at position i of its sequence, with the inputs of score().
template <class X>
struct Query {
    const X* q;   // (HS)
    int h, i;
    const Wide<X>*head_scalars = nullptr, *row_features = nullptr;
};

/// The running softmax of one row.
template <class X>
class QueryRow {
public:
    explicit QueryRow(int HS) : HS_(HS), scale_(X(1) / std::sqrt(X(HS))), sums_(HS) {}

    /// Adds the keys that are visible to the query under `policy`.
    template <class P>
    void visit(const P& policy, const Query<X>& query, const KeySpan<X>& keys) {
        for (int n = 0; n < keys.count; n += TILE) {
            const int columns = std::min(TILE, keys.count - n), j0 = keys.first + n;
            const Tile verdict = policy.tile(query.h, query.i, query.i + 1, j0, j0 + columns);
            if (verdict == Tile::hidden) continue;
            X z[TILE] = {};
            for (int j = 0; j < columns; j++) z[j] = scale_ * inner_product(query.q, keys.k.data + (n + j) * keys.k.row, HS_);
            modify_scores(z, policy, query, keys, n, columns);
            for (int j = 0; j < columns; j++)
                if (verdict == Tile::mixed && !policy.visible(query.h, query.i, j0 + j)) z[j] = X(HIDDEN);
            add_values(z, keys.v.data + n * keys.v.row, keys.v.row, columns);
        }
    }

    /// Log-sum-exp of the keys so far.
    X lse() const {
        return state_.sum == X(0) ? -std::numeric_limits<X>::infinity() : state_.largest + std::log(state_.sum);
    }

    /// Writes out (HS); 0 if no key was seen.
    void write(X* out) const {
        for (int d = 0; d < HS_; d++) out[d] = state_.sum == X(0) ? X(0) : sums_[d] / state_.sum;
    }

private:
    template <class P>
    static void modify_scores(X* z, const P& policy, const Query<X>& query, const KeySpan<X>& keys, int n, int columns) {
        const int width = whole_packs<X>(columns);
        Pair<Pack<X>> pair;
        pair.head_scalars = query.head_scalars, pair.row_features = query.row_features;
        pair.column_stride = keys.column_stride, pair.i = X(query.i);
        if constexpr (requires { policy.tile_bias(0, 0, 0); }) pair.tile = policy.tile_bias(query.h, query.i, keys.first + n);
        for (int j = 0; j < width; j += LANES<X>) {
            pair.column_features = keys.columns + n + j, pair.j = iota(X(keys.first + n + j));
            store(z + j, policy.score(load<Pack<X>>(z + j), pair));
        }
        for (int j = columns; j < width; j++) z[j] = X(HIDDEN);
    }

    /// Turns z (columns) into exp(z - largest).
    void add_values(X* z, const X* v, size_t row, int columns) {
        const X rescale = absorb(state_, z, whole_packs<X>(columns), Statistics<X>());
        for (int d = 0; d < HS_; d++) sums_[d] *= rescale;
        for (int j = 0; j < columns; j++)
#pragma omp simd
            for (int d = 0; d < HS_; d++) sums_[d] += z[j] * v[j * row + d];
    }

    int HS_;
    X scale_;
    OnlineRow<X> state_;
    std::vector<X> sums_;   // (HS) of exp(z - largest) v
};

template <class X, class Slots>
class DecodeSoftmax<CPU, X, Slots> {
public:
    DecodeSoftmax(CPU, const KVCache<CPU, X, Slots>& cache, const DecodeRows& rows, const AttentionForward<X>& a, int /*calls*/)
        : cache_(cache), a_(a), sequence_(rows.sequence[0]), position_(rows.position[0]), rows_(a.NH, QueryRow<X>(a.HS)) {}

    /// Adds the keys that are visible to the row's queries q (NH, HS) under `policy`.
    template <class P>
    void add(const P& policy, const Heads<const X>& q) {
        add(policy, q, [](int, KeySpan<X>&) {});
    }

    /// The same, where change(h, span) may replace the keys of a tile. Heads that share keys process a tile in turn, so that it is
    /// loaded from memory once.
    template <class P, class Change>
    void add(const P& policy, const Heads<const X>& q, Change change) {
        const auto of_row = of_sequence(policy);
        const Features f = policy.features();
        const int group = a_.NH / a_.NKV;
#pragma omp parallel for
        for (int kv = 0; kv < a_.NKV; kv++) {
            std::vector<X> memory(cache_.tile_size());
            each_tile([&](int j, int count) {
                const KeySpan<X> tile = cache_.tile(sequence_, kv, j, count, memory.data());
                for (int h = kv * group; h < (kv + 1) * group; h++) {
                    KeySpan<X> keys = tile;
                    keys.columns = cache_.head_columns(sequence_, h) + cache_.slots.slot(j), keys.column_stride = cache_.column_stride;
                    change(h, keys);
                    const X* const of_head = q.data + size_t(h) * a_.HS;
                    rows_[h].visit(of_row, {of_head, h, position_, a_.head + size_t(h) * f.head, a_.row + size_t(h) * f.row}, keys);
                }
            });
        }
    }

    /// Writes out, lse and, with a gate, gated_out.
    void finish() const {
        for (int h = 0; h < a_.NH; h++) {
            X* const out = a_.out + size_t(h) * a_.HS;
            rows_[h].write(out);
            a_.lse[h] = rows_[h].lse();
            for (int d = 0; a_.gate && d < a_.HS; d++) a_.gated_out[size_t(h) * a_.HS + d] = a_.gate[h] * out[d];
        }
    }

private:
    template <class P>
    auto of_sequence(const P& policy) const {
        if constexpr (requires { policy.of_row(sequence_); }) return policy.of_row(sequence_);
        else return policy;
    }

    /// Calls use(j, count) for all tiles of cached keys, in the order of the sequence.
    template <class Use>
    void each_tile(Use use) const {
        const int tokens = position_ + 1;
        for (SlotRun run = cache_.slots.run(0, tokens); run.count; run = cache_.slots.run(run.first + run.count, tokens))
            for (int n = 0; n < run.count; n += TILE) use(run.first + n, std::min(TILE, run.count - n));
    }

    const KVCache<CPU, X, Slots>& cache_;
    const AttentionForward<X>& a_;
    int sequence_, position_;
    std::vector<QueryRow<X>> rows_;   // (NH)
};

#ifdef WITH_GPU
// --------------------------------------------------------------------------------------------------------------------- a GPU

/// Partial softmaxes of `count` blocks for every row and head.
struct RowParts {
    float* out;       // (B, NH, count, HS) sum of exp(z - largest) v
    float* largest;   // (B, NH, count)
    float* sum;       // (B, NH, count) of exp(z - largest)
    int count;
};

template <class X_, int HS_>
struct DecodeShape {
    using X = X_;
    static constexpr int HS = HS_, WARPS = 4, THREADS = WARPS * WARP;
    static constexpr int HEADS = 4;                 // maximum query heads per block that share keys
    static constexpr int PIECE = Packed<X>::size;   // elements of a row per lane
    static constexpr int LANES = HS / PIECE;        // lanes per row
    static constexpr int ROWS = WARP / LANES;       // rows that a warp reads at once
    static constexpr int AHEAD = 8;                 // loads in flight per lane
    static_assert(LANES >= HEADS && TILE % (AHEAD * ROWS) == 0);
};

template <class Shape>
struct DecodeShared {
    float z[Shape::WARPS][Shape::HEADS][TILE];   // q.k of a warp's tile, then the weights exp(z - largest)
    float out[Shape::WARPS][Shape::HEADS][Shape::HS];
    float largest[Shape::WARPS][Shape::HEADS], sum[Shape::WARPS][Shape::HEADS];
};

/// A warp's tile of slots; bit g of a verdict is for head g of the block.
struct SlotTile {
    int slot, count;
    unsigned visited, full;
};

/// Sums s[g], g < 4, over the lanes that share a row; a lane gets the sum of head_of_lane(). In every exchange a lane passes on
/// half of its heads; head by head, each would take all of the exchanges.
template <class Shape>
__device__ __forceinline__ float sum_of_row(const float (&s)[Shape::HEADS]) {
    static_assert(Shape::HEADS == 4);
    const bool upper = lane_of() & Shape::LANES / 2, odd = lane_of() & Shape::LANES / 4;
    const float even_head = (upper ? s[2] : s[0]) + __shfl_xor_sync(ALL_LANES, upper ? s[0] : s[2], Shape::LANES / 2);
    const float odd_head = (upper ? s[3] : s[1]) + __shfl_xor_sync(ALL_LANES, upper ? s[1] : s[3], Shape::LANES / 2);
    float sum = (odd ? odd_head : even_head) + __shfl_xor_sync(ALL_LANES, odd ? even_head : odd_head, Shape::LANES / 4);
    for (int distance = Shape::LANES / 8; distance > 0; distance /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, distance);
    return sum;
}
template <class Shape>
__device__ __forceinline__ int head_of_lane() {
    return (lane_of() & Shape::LANES / 2 ? 2 : 0) + (lane_of() & Shape::LANES / 4 ? 1 : 0);
}

/// A warp's query heads h0 .. h0 + heads - 1 of row b. A lane holds PIECE elements of each head's query and of the sums of every
/// ROWS-th key; lane g holds the softmax of head g.
template <class Shape, class P, class Slots>
class WarpOfRow {
public:
    using X = typename Shape::X;
    static constexpr int HEADS = Shape::HEADS, PIECE = Shape::PIECE, ROWS = Shape::ROWS, AHEAD = Shape::AHEAD;

    __device__ WarpOfRow(const P& policy, const AttentionForward<X>& a, const KVCache<GPU, X, Slots>& keys, int b, int sequence,
                         int position, int h0, int heads, float (&z)[HEADS][TILE])
        : policy_(policy), a_(a), keys_(keys), b_(b), sequence_(sequence), i_(position), h0_(h0), heads_(heads), z_(z),
          slots_(keys.slots.used(position + 1)) {
        for (int g = 0; g < HEADS; g++) {
            const X* q = a.q.data + b * a.q.row + size_t(h0 + min(g, heads - 1)) * Shape::HS + dim();
            const Packed<X> piece = load_packed(q);
            for (int e = 0; e < PIECE; e++) q_[g][e] = piece[e];
        }
    }

    /// Adds all keys in tiles first, first + step, ... of the slots.
    __device__ void visit(int first, int step) {
        const size_t head = head_at();
        for (int tile = first; tile * TILE < slots_; tile += step) visit_slots(head, tile * TILE, min(TILE, slots_ - tile * TILE));
    }

    /// Adds the keys in `count` slots from `slot` on, at most TILE. `head` is head_at().
    __device__ __forceinline__ void visit_slots(size_t head, int slot, int count) {
        const SlotTile at = judge(slot, count);
        if (!at.visited) return;
        multiply_keys(keys_.k + head + size_t(at.slot) * Shape::HS, at.count);
        __syncwarp();
        const float rescale = weigh(at);
        __syncwarp();
        add_values(keys_.v + head + size_t(at.slot) * Shape::HS, at.count, rescale);
        __syncwarp();   // the weights have been read
    }

    /// Beginning of the heads' cached keys and values.
    __device__ size_t head_at() const { return keys_.head_at(sequence_, h0_ / (keys_.NH / keys_.NKV)); }

    /// Row `warp` of each array.
    __device__ void write(DecodeShared<Shape>& shared, int warp) {
        for (int g = 0; g < HEADS; g++)
            for (int e = 0; e < PIECE; e++) {
                for (int distance = Shape::LANES; distance < WARP; distance *= 2)
                    out_[g][e] += __shfl_xor_sync(ALL_LANES, out_[g][e], distance);
                if (lane_of() < Shape::LANES) shared.out[warp][g][dim() + e] = out_[g][e];
            }
        write_sums(shared, warp);
    }
    /// Writes the softmaxes' maxima and sums, without their outputs.
    __device__ void write_sums(DecodeShared<Shape>& shared, int warp) const {
        if (lane_of() < HEADS) shared.largest[warp][lane_of()] = largest_, shared.sum[warp][lane_of()] = sum_;
    }

private:
    __device__ static int dim() { return lane_of() % Shape::LANES * PIECE; }

    /// Lane g classifies the tile for head g, by the tokens in the slots.
    __device__ SlotTile judge(int slot, int count) const {
        const SlotRange tokens = keys_.slots.range(slot, count, i_ + 1);
        Tile verdict = Tile::hidden;
        if (lane_of() < heads_) verdict = policy_.tile(h0_ + lane_of(), i_, i_ + 1, tokens.first, tokens.last + 1);
        return {slot, count, __ballot_sync(ALL_LANES, verdict != Tile::hidden), __ballot_sync(ALL_LANES, verdict == Tile::full)};
    }

    /// Reads `count` rows of keys or values, AHEAD at once, and calls use(piece, row) for each, or for zeros past the last.
    template <class Use>
    __device__ __forceinline__ void each_row(const X* rows, int count, Use use) const {
        const int mine = lane_of() / Shape::LANES;
#pragma unroll 1
        for (int r0 = 0; r0 < count; r0 += AHEAD * ROWS) {
            Packed<X> piece[AHEAD];
#pragma unroll
            for (int n = 0; n < AHEAD; n++) {
                const int r = r0 + n * ROWS + mine;
                piece[n] = load_packed_if(r < count, rows + size_t(r) * Shape::HS + dim());
            }
#pragma unroll
            for (int n = 0; n < AHEAD; n++) use(piece[n], r0 + n * ROWS + mine);
        }
    }

    /// z = q.k
    __device__ __forceinline__ void multiply_keys(const X* keys, int count) {
        each_row(keys, count, [&](const Packed<X>& k, int r) {
            float s[HEADS] = {};
#pragma unroll
            for (int g = 0; g < HEADS; g++)
#pragma unroll
                for (int e = 0; e < PIECE; e++) s[g] += q_[g][e] * k[e];
            const float sum = sum_of_row<Shape>(s);
            if (lane_of() % (Shape::LANES / HEADS) == 0) z_[head_of_lane<Shape>()][r] = sum;
        });
    }

    /// Turns q.k into exp(z - largest), 0 for hidden pairs. Lane g returns the factor that rescales head g's earlier sums.
    __device__ __forceinline__ float weigh(const SlotTile& at) {
        constexpr int MINE = TILE / WARP;   // keys of a lane
        float rescale = 1;
#pragma unroll 1
        for (int g = 0; g < heads_; g++) {
            float z[MINE], peak = -INFINITY, sum = 0;
            for (int n = 0; n < MINE; n++) peak = fmaxf(peak, z[n] = score(at, g, n * WARP + lane_of()));
            peak = warp_max(peak);
            const float before = __shfl_sync(ALL_LANES, largest_, g), largest = fmaxf(before, peak);
            const float base = largest == -INFINITY ? 0.0f : largest;   // -inf - -inf would be NaN
            for (int n = 0; n < MINE; n++) {
                const float weight = exp2_of((z[n] - base) * LOG2_E);
                z_[g][n * WARP + lane_of()] = weight;
                sum += weight;
            }
            sum = warp_sum(sum);
            if (lane_of() != g) continue;
            rescale = before == largest ? 1.0f : exp2_of((before - largest) * LOG2_E);
            largest_ = largest, sum_ = sum_ * rescale + sum;
        }
        return rescale;
    }

    /// z of head g's key in slot at.slot + n; -infinity if hidden.
    __device__ __forceinline__ float score(const SlotTile& at, int g, int n) const {
        if (n >= at.count || !(at.visited >> g & 1)) return -INFINITY;
        const int h = h0_ + g, slot = at.slot + n, j = keys_.slots.token(slot, i_ + 1);
        if (!(at.full >> g & 1) && !policy_.visible(h, i_, j)) return -INFINITY;
        const float scaled = z_[g][n] * rsqrtf(float(Shape::HS));
        if constexpr (MODIFIES_SCORES<P>) {
            const Features f = policy_.features();
            Pair<ScoreNumber<X>> pair{a_.head + size_t(h) * f.head, a_.row + (size_t(b_) * a_.NH + h) * f.row,
                                      keys_.head_columns(sequence_, h) + slot, size_t(keys_.column_stride), float(i_), float(j)};
            if constexpr (requires { policy_.tile_bias(h, i_, j); }) pair.tile = policy_.tile_bias(h, i_, j);
            return float(policy_.score(ScoreNumber<X>(scaled), pair));
        }
        return scaled;
    }

    /// out += the weighted values. A lane adds up every ROWS-th key.
    __device__ __forceinline__ void add_values(const X* values, int count, float rescale) {
#pragma unroll
        for (int g = 0; g < HEADS; g++) {
            const float factor = __shfl_sync(ALL_LANES, rescale, g);
            for (int e = 0; e < PIECE; e++) out_[g][e] *= factor;
        }
        each_row(values, count, [&](const Packed<X>& v, int r) {
#pragma unroll
            for (int g = 0; g < HEADS; g++)
#pragma unroll
                for (int e = 0; e < PIECE; e++) out_[g][e] += z_[g][r] * v[e];
        });
    }

    const P& policy_;
    const AttentionForward<X>& a_;
    const KVCache<GPU, X, Slots>& keys_;
    int b_, sequence_, i_, h0_, heads_;
    float (&z_)[HEADS][TILE];
    int slots_;   // slots in use
    float q_[HEADS][PIECE], out_[HEADS][PIECE] = {};
    float largest_ = -INFINITY, sum_ = 0;
};

/// The policy for the rows of one sequence. (Not constexpr for both devices, which it would not be where a policy's constructor is not.)
template <class P>
__device__ __forceinline__ auto policy_of_row(const P& policy, int sequence) {
    if constexpr (requires { policy.of_row(sequence); }) return policy.of_row(sequence);
    else return policy;
}

/// Merges the parts of Shape::WARPS warps, in the order of the warps. `thread` of Shape::THREADS.
template <class Shape>
__device__ __forceinline__ void write_part(const RowParts& parts, const DecodeShared<Shape>& shared, size_t head, int heads,
                                           int part, int thread) {
    for (int n = thread; n < heads * Shape::HS; n += Shape::THREADS) {
        const int g = n / Shape::HS, d = n % Shape::HS;
        float largest = -INFINITY, out = 0, sum = 0;
        for (int w = 0; w < Shape::WARPS; w++) largest = fmaxf(largest, shared.largest[w][g]);
        for (int w = 0; w < Shape::WARPS; w++) {
            if (shared.sum[w][g] == 0) continue;
            const float factor = exp2_of((shared.largest[w][g] - largest) * LOG2_E);
            out += factor * shared.out[w][g][d], sum += factor * shared.sum[w][g];
        }
        const size_t at = (head + g) * parts.count + part;
        parts.out[at * Shape::HS + d] = out;
        if (d == 0) parts.largest[at] = largest, parts.sum[at] = sum;
    }
}

/// Block (n, heads, b): part first_part + n of the softmaxes of row b, whose warps take every (4 x blocks)-th tile of slots.
template <class Shape, class P, class Slots>
__global__ void __launch_bounds__(Shape::THREADS, 4)
    decode_kernel(const __grid_constant__ P policy, const __grid_constant__ AttentionForward<typename Shape::X> a,
                  const __grid_constant__ KVCache<GPU, typename Shape::X, Slots> keys, const DecodeRows rows, const RowParts parts,
                  int first_part) {
    auto& shared = dynamic_shared<DecodeShared<Shape>>();
    const int group = a.NH / a.NKV, pieces = (group + Shape::HEADS - 1) / Shape::HEADS, warp = int(threadIdx.x) / WARP;
    const int b = blockIdx.z, from = int(blockIdx.y) % pieces * Shape::HEADS, h0 = int(blockIdx.y) / pieces * group + from;
    const int heads = min(Shape::HEADS, group - from);
    const auto of_row = policy_of_row(policy, rows.sequence[b]);
    WarpOfRow<Shape, std::decay_t<decltype(of_row)>, Slots> mine(of_row, a, keys, b, rows.sequence[b], rows.position[b], h0, heads,
                                                                 shared.z[warp]);
    mine.visit(int(blockIdx.x) * Shape::WARPS + warp, int(gridDim.x) * Shape::WARPS);
    mine.write(shared, warp);
    __syncthreads();
    write_part(parts, shared, size_t(b) * a.NH + h0, heads, first_part + int(blockIdx.x), int(threadIdx.x));
}

/// Writes out, lse and, with a gate, gated_out; one warp per head and row.
template <class X>
__global__ void merge_parts_kernel(const AttentionForward<X> a, const RowParts parts, int rows) {
    const int row = int(blockIdx.x * blockDim.x + threadIdx.x) / WARP;   // b NH + h
    if (row >= rows) return;
    const float *largest_of = parts.largest + size_t(row) * parts.count, *sum_of = parts.sum + size_t(row) * parts.count;
    float largest = -INFINITY, sum = 0;
    for (int n = 0; n < parts.count; n++) largest = fmaxf(largest, largest_of[n]);
    for (int n = 0; n < parts.count; n++)
        if (sum_of[n] > 0) sum += sum_of[n] * exp2_of((largest_of[n] - largest) * LOG2_E);
    for (int d = lane_of(); d < a.HS; d += WARP) {
        float out = 0;
        for (int n = 0; n < parts.count; n++)
            if (sum_of[n] > 0)
                out += parts.out[(size_t(row) * parts.count + n) * a.HS + d] * exp2_of((largest_of[n] - largest) * LOG2_E);
        const X stored = from_float<X>(sum > 0 ? out / sum : 0.0f);
        a.out[size_t(row) * a.HS + d] = stored;
        if (a.gate) a.gated_out[size_t(row) * a.HS + d] = from_float<X>(a.gate[row] * to_float(stored));
    }
    if (lane_of() == 0) a.lse[row] = sum > 0 ? largest + logf(sum) : -INFINITY;
}

/// Memory in device.workspace for `count` parts of the softmaxes of the rows in `a`.
template <class X>
RowParts take_parts(const GPU& device, const AttentionForward<X>& a, int count) {
    const size_t parts = size_t(a.B) * a.NH * count;
    float* const memory = take_workspace<float>(device, "decode", parts * (a.HS + 2));
    return {memory, memory + parts * a.HS, memory + parts * (a.HS + 1), count};
}

/// Computes out, lse and, with a gate, gated_out of the rows in `a` from all their parts.
template <class X>
void merge_parts(const GPU& device, const AttentionForward<X>& a, const RowParts& parts) {
    constexpr int WARPS = 4;
    const int rows = a.B * a.NH;
    launch(device, merge_parts_kernel<X>, blocks_for(rows, WARPS), WARPS * WARP, 0, a, parts, rows);
}

template <class X, class Slots>
class DecodeSoftmax<GPU, X, Slots> {
public:
    /// Precondition of finish(): `calls` calls of add().
    DecodeSoftmax(const GPU& device, const KVCache<GPU, X, Slots>& keys, const DecodeRows& rows, const AttentionForward<X>& a,
                  int calls)
        : device_(device), keys_(keys), rows_(rows), a_(a),
          blocks_(std::min(int(blocks_for(tiles_of(keys.slots.count()), WARPS)), MOST_BLOCKS)),
          parts_(take_parts(device, a, calls * blocks_)) {}

    /// Adds the keys that are visible to the rows' queries q (B, 1, NH, HS) under `policy`.
    template <class P>
    void add(const P& policy, const Heads<const X>& q) {
        require_aligned(q, "q");
        AttentionForward<X> a = a_;
        a.q = q;
        specialise(policy, [&](const auto& special) {
            for_head_size(a.HS, [&](auto HS) {
                using Shape = DecodeShape<X, HS>;
                static_assert(Shape::WARPS == WARPS);
                const int pieces = int(blocks_for(a.NH / a.NKV, Shape::HEADS));
                launch(device_, decode_kernel<Shape, std::decay_t<decltype(special)>, Slots>, Grid(blocks_, a.NKV * pieces, a.B),
                       Shape::THREADS, sizeof(DecodeShared<Shape>), special, a, keys_, rows_, parts_, calls_ * blocks_);
            });
        });
        calls_++;
    }

    void finish() { merge_parts(device_, a_, parts_); }

private:
    static constexpr int WARPS = 4;           // per block
    static constexpr int MOST_BLOCKS = 32;   // per key head and sequence; 8 key heads: 256, two per multiprocessor of a large GPU

    GPU device_;
    KVCache<GPU, X, Slots> keys_;
    DecodeRows rows_;
    AttentionForward<X> a_;
    int blocks_;   // blocks per key head and sequence
    RowParts parts_;
    int calls_ = 0;
};

#endif

/// Attention of the rows in `a` to the keys of `cache` under a policy.
template <class On, class Device, class X, class Slots, class P>
void attend(const On& device, const KVCache<Device, X, Slots>& cache, const DecodeRows& rows, const AttentionForward<X>& a,
            const P& policy) {
    DecodeSoftmax softmax(device, cache, rows, a, 1);
    softmax.add(policy, a.q);
    softmax.finish();
}

/// The kernel call of a decode step: appends the rows' keys to the caches, and each row attends to its whole sequence.
template <class Device, class X, class Slots, class P>
void attention_forward(const DecodeStep<Device, X, Slots>& step, const P& policy, const AttentionForward<X>& a) {
    append(step, step.keys, a, {step.rows});
    attend(step, step.keys, step.rows, a, policy);
}
