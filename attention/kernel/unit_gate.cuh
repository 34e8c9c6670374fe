// A gate of hidden units in the kernels for bf16 (Traits::gate_of_units; asga.cuh has the formula and the code for other devices and
// number types):
//     z = c a s,   s = sigmoid(u),   u = b + sum_f w_f GELU(A_f + B_f),   head scalars [c, b, w_f], row features A_f, column features B_f
// Sixteen units are one product of depth 128 on the tensor cores (separable_gelu.h), in half precision and summed in float32. In each
// pass one side stays while tiles of the other stream by:
//     u_sx / 2 = start_s + <stay_s, stream_x>     stay_s = w_f / 2 psi(A_sf)     start_s = b / 2 + sum_f w_f / 2 chi(A_sf)
//                                                 stream_x = phi(B_xf)
// Queries stay in the forward pass, keys in the backward pass, where the roles of A and B are exchanged. GELU(A + B) is the same for
// both. With e = dL / d(u / 2) the gradients are products of the same depth,
//     dA_f = <phi'(A_f), sum_keys e w_f / 2 psi(B_f)>     dB_f = w_f / 2 (<psi'(B_f), sum_queries e phi(A_f)> + chi'(B_f) sum_queries e)
//     dw_f = 1/2 sum_keys (<psi(B_f), sum_queries e phi(A_f)> + chi(B_f) sum_queries e)
// The functions depend on how far A_f + B_f reaches in this head and sequence. Where that is beyond their table, and on a GPU
// whose shared memory is too small, kernels with score() itself compute the head instead.
#pragma once
#include "attention/kernel/features.cuh"
#include "attention/kernel/separable_gelu.h"

struct UnitGate {
    static constexpr int UNITS = 16, HEAD = 2 + UNITS, THREADS = 128;
    static constexpr int DEPTH = UNITS * SeparableGelu::NUMBERS;
    static constexpr int TOGETHER = 4, ROUNDS = UNITS / 2 / TOGETHER;   // of the units of a warp in add_tile(), which has half of all
    using Rows = SharedTile<fp16, TILE, DEPTH>;   // numbers 8 f .. 8 f + 7 of a row are those of unit f
};

/// Whether the kernels compute the policy's scores this way.
template <class Shape, class P>
constexpr bool by_units() {
    if constexpr (Shape::fast && P::traits.gate_of_units) return P::hidden_units == UnitGate::UNITS;
    else return false;
}
template <class Shape, class P>
inline constexpr bool BY_UNITS = by_units<Shape, P>();

/// The same policy for the kernels that call score(), also for sixteen units.
template <class P>
struct ByScore : P {
    static constexpr int hidden_units = 0;
    explicit constexpr ByScore(const P& policy) : P(policy) {}
};

/// Whether this kernel computes heads first .. last - 1 of sequence b: the form by units and ByScore share the work.
template <class Shape, class P, class X>
__device__ bool computes(const AttentionForward<X>& a, int b, int first, int last) {
    if constexpr (!Shape::fast || !P::traits.gate_of_units) return true;
    if (!a.reach) return !BY_UNITS<Shape, P>;
    bool within = true;   // false for NaN
    for (int h = first; h < last; h++) within = within && a.reach[size_t(b) * a.NH + h] <= MOST_REACH;
    return within == BY_UNITS<Shape, P>;
}

/// The largest |A_f + B_f|, |A_f| / 2 or |B_f| / 2 of head blockIdx.x in sequence blockIdx.y, over all units and pairs: the functions are
/// exact for the sum, and half precision for features twice as large. NaN is ignored here and found later.
template <class W>
__global__ void __launch_bounds__(UnitGate::THREADS) gate_reach_kernel(W* reach, const W* row, const W* column, int T, int S) {
    constexpr int UNITS = UnitGate::UNITS, PARTS = UnitGate::THREADS / UNITS;
    auto& ends = dynamic_shared<float[4][UnitGate::THREADS]>();
    const size_t bh = size_t(blockIdx.y) * gridDim.x + blockIdx.x;
    const int unit = threadIdx.x % UNITS, part = int(threadIdx.x) / UNITS;
    float low = INFINITY, high = -INFINITY, low_column = INFINITY, high_column = -INFINITY;
    for (int i = part; i < T; i += PARTS) {
        const float x = row[(bh * T + i) * UNITS + unit];
        low = fminf(low, x), high = fmaxf(high, x);
    }
    for (int j = part; j < S; j += PARTS) {
        const float x = column[(bh * UNITS + unit) * padded(S) + j];
        low_column = fminf(low_column, x), high_column = fmaxf(high_column, x);
    }
    ends[0][threadIdx.x] = low, ends[1][threadIdx.x] = high, ends[2][threadIdx.x] = low_column, ends[3][threadIdx.x] = high_column;
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    for (int n = unit; n < UnitGate::THREADS; n += UNITS) {
        low = fminf(low, ends[0][n]), high = fmaxf(high, ends[1][n]);
        low_column = fminf(low_column, ends[2][n]), high_column = fmaxf(high_column, ends[3][n]);
    }
    const float highest = fmaxf(fmaxf(high, high_column) / 2, high + high_column);
    const float lowest = fminf(fminf(low, low_column) / 2, low + low_column);
    const float most = warp_max(fmaxf(highest, -lowest));
    if (threadIdx.x == 0) reach[bh] = most;
}

/// Fills a.reach.
template <class X>
void find_gate_reach(GPU device, const AttentionForward<X>& a) {
    launch(device, gate_reach_kernel<float>, Grid(a.NH, a.B), UnitGate::THREADS, sizeof(float[4][UnitGate::THREADS]), a.reach, a.row,
           a.column, a.T, a.S);
}

/// Staging for the features of a tile of tokens: each thread copies eight of them from memory and converts them later.
struct ArrivingFeatures {
    alignas(16) float raw[TILE * UnitGate::UNITS / 4][4];   // pieces of four features

    /// Features of TILE tokens from i0 on; zero past the last token. `from` is (tokens, UNITS): a piece has four units of a token.
    __device__ __forceinline__ void copy_rows(const float* from, int i0, int count) {
        each_piece([&](int piece) {
            const int exist = i0 + piece / 4 < count ? 16 : 0;
            copy_async<16>(raw[piece], from + (exist ? size_t(i0) * UnitGate::UNITS + 4 * piece : 0), exist);
        });
    }
    /// The same of (UNITS, padded(count)): a piece has a unit of four tokens.
    __device__ __forceinline__ void copy_columns(const float* from, int j0, int count) {
        each_piece([&](int piece) {
            const int j = j0 + piece / UnitGate::UNITS * 4, exist = 4 * max(0, min(4, count - j));
            copy_async<16>(raw[piece], from + (exist ? size_t(piece % UnitGate::UNITS) * padded(count) + j : 0), exist);
        });
    }

    /// Calls use(token, unit, feature) for the features that the thread has copied.
    template <class Use>
    __device__ __forceinline__ void each_of_rows(Use use) const {
        each_piece([&](int piece) {
            for (int n = 0; n < 4; n++) use(piece / 4, piece % 4 * 4 + n, raw[piece][n]);
        });
    }
    template <class Use>
    __device__ __forceinline__ void each_of_columns(Use use) const {
        each_piece([&](int piece) {
            for (int n = 0; n < 4; n++) use(piece / UnitGate::UNITS * 4 + n, piece % UnitGate::UNITS, raw[piece][n]);
        });
    }
    /// Feature `unit` of a token that was copied as a column, by any thread.
    __device__ float of_column(int token, int unit) const { return raw[token / 4 * UnitGate::UNITS + unit][token % 4]; }

private:
    template <class Use>
    static __device__ __forceinline__ void each_piece(Use use) {
#pragma unroll
        for (int n = 0; n < TILE * UnitGate::UNITS / 4; n += UnitGate::THREADS) use(n + int(threadIdx.x));
    }
};

/// The eight numbers of a unit, each pair by pair(n).
template <class Pair>
__device__ __forceinline__ void store_unit(UnitGate::Rows& to, int token, int unit, Pair pair) {
    Two<fp16> pairs[SeparableGelu::PAIRS];
#pragma unroll
    for (int n = 0; n < SeparableGelu::PAIRS; n++) {
        const float2 numbers = pair(n);
        make_two(pairs[n], numbers.x, numbers.y);
    }
    *reinterpret_cast<uint4*>(&to.x[token][unit * SeparableGelu::NUMBERS]) =
        make_uint4(pairs[0].bits, pairs[1].bits, pairs[2].bits, pairs[3].bits);
}

/// The number of the lane's pair among the four of a unit, where a fragment has a unit per column tile.
__device__ __forceinline__ int lane_pair() { return lane_column() / 2; }

// ---- forward

/// score() for a block: its queries stay, in registers; keys stream through shared memory.
template <class Shape>
class UnitScores {
    static_assert(Shape::THREADS == UnitGate::THREADS && Shape::KEYS == TILE && Shape::M_TILES == 1);
    static constexpr int STEPS = UnitGate::DEPTH / 16;
    struct Memory {
        ArrivingFeatures arriving;
        UnitGate::Rows keys[Shape::BUFFERS];
    };

public:
    static constexpr size_t bytes(const Features&) { return sizeof(Memory); }
    __device__ UnitScores(const Features&, float* memory) : memory_(*reinterpret_cast<Memory*>(memory)) {}

    /// The features of the thread's two rows of the tile at i0, and head h's scalars.
    template <int THREADS, class X>
    __device__ __forceinline__ void copy_row_features(const AttentionForward<X>& a, int b, int h, int i0, int) {
        const size_t bh = size_t(b) * a.NH + h;
        const float* numbers = a.head + size_t(h) * UnitGate::HEAD;
        gelu_ = SeparableGelu::for_reach(a.reach[bh]);
        half_scale_ = 0.5f * numbers[0] * rsqrtf(float(Shape::HS));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = min(i0 + int(threadIdx.x) / WARP * 16 + 8 * half + lane_row(), a.T - 1);
            float units[UnitGate::UNITS];
            read_numbers(units, a.row + (bh * a.T + i) * UnitGate::UNITS);
            start_[half] = 0.5f * numbers[1];
#pragma unroll
            for (int unit = 0; unit < UnitGate::UNITS; unit++) {
                const float weight = 0.5f * numbers[2 + unit];
                const float2 psi = gelu_.psi(units[unit], lane_pair());
                make_two(queries_[unit / 2].part[unit % 2 * 2 + half], weight * psi.x, weight * psi.y);
                start_[half] += weight * gelu_.chi(units[unit]);
            }
        }
    }
    template <int THREADS, class X>
    __device__ __forceinline__ void copy_column_features(const AttentionForward<X>& a, int b, int h, int j0, int) const {
        memory_.arriving.copy_columns(a.column + (size_t(b) * a.NH + h) * UnitGate::UNITS * padded(a.S), j0, a.S);
    }
    /// Called between wait_for_copies() and the __syncthreads() before the first read.
    __device__ __forceinline__ void arrived(int buffer) const {
        memory_.arriving.each_of_columns([&](int key, int unit, float x) {
            store_unit(memory_.keys[buffer], key, unit, [&](int n) { return gelu_.phi(x, n); });
        });
    }

    static __device__ float to_z(float) { return 1; }

    /// Turns q.k into z in place for the 16 keys from c0 on; with GATES, writes s to `gates`.
    template <bool GATES>
    __device__ __forceinline__ void score(Accumulator<1, 2>& z, Accumulator<1, 2>& gates, const auto& /*policy*/, const auto& /*a*/,
                                          const auto& /*walk*/, const TilePlace& /*at*/, int /*row0*/, int buffer, int c0) const {
        Accumulator<1, 2> u;   // u / 2
        u.for_each_of_lane([&](float& half, int row, int, int) { half = start_[row]; });
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            FragmentB<fp16> keys[2];
            load_b(keys, memory_.keys[buffer], c0, 16 * step);
            for (int n = 0; n < 2; n++) multiply_add(u.d[0][n], queries_[step], keys[n]);
        }
        u.for_each_of_lane([&](float& half, int row, int n, int side) {
            const float t = tanh_of(half);
            float& score = z.at(row, n, side);
            score = half_scale_ * score, score = fmaf(score, t, score);
            if (GATES) gates.at(row, n, side) = fmaf(0.5f, t, 0.5f);
        });
    }

private:
    Memory& memory_;
    SeparableGelu gelu_;
    FragmentA<fp16> queries_[STEPS];
    float start_[2], half_scale_;   // half_scale_: c / 2 sqrt(HS)
};

// ---- backward

/// A thread's sums for the gate over the queries of a head, without constant factors.
struct UnitSums {
    float scale = 0;             // of dz (1 + tanh(u / 2)) q.k
    float total[2] = {};         // of the thread's keys: e = dL / d(u / 2)
    Accumulator<1, UnitGate::DEPTH / 8> of_phi;   // of the warp's keys: 2^n e phi, with unit_factor()'s 2^n
};

/// score() and its gradients for a block's tiles of 64 queries and 64 keys.
template <class Shape>
class UnitGradients : public ScoreInputSums<Shape> {
    using X = typename Shape::X;
    using Scores = typename Shape::Scores;
    using Inputs = ScoreInputSums<Shape>;
    static constexpr int UNITS = UnitGate::UNITS;
    static_assert(Shape::THREADS == UnitGate::THREADS && Shape::KEYS == TILE && Shape::QUERIES == TILE && Shape::M_TILES == 1);
    struct Memory {
        ArrivingFeatures arriving_queries, arriving_keys;
        UnitGate::Rows queries, keys;               // phi; w / 2 psi
        SharedTile<fp16, TILE, TILE> e;             // 2^n e, transposed, of all warps
        float start[TILE], numbers[UnitGate::HEAD];   // of the keys; the head's scalars
        // Of the head. Registers have no room for them.
        SeparableGelu gelu;
        float half_scale;   // c / 2 sqrt(HS)
        float factor;       // 2^n
        int head;
    };

public:
    using Sums = UnitSums;
    static constexpr size_t bytes(const Features&) { return sizeof(Memory) + Inputs::bytes({UnitGate::HEAD}); }
    __device__ UnitGradients(const auto& /*policy*/, const AttentionForward<X>& a, const AttentionBackward<X>& g, const auto& shared,
                             const float* peaks, float* memory)
        : Inputs({UnitGate::HEAD}, memory + sizeof(Memory) / sizeof(float)), a_(a), g_(g), row_values_(shared.rows), peaks_(peaks),
          memory_(*reinterpret_cast<Memory*>(memory)) {}
    static constexpr int rounds() { return 1; }
    __device__ void clear(Sums& sums) const { sums = {}; }
    __device__ void start_tile(Sums&) const {}
    __device__ void finish_tile(const Sums&) const {}

    template <int THREADS>
    __device__ __forceinline__ void copy_row_features(const AttentionForward<X>& a, int b, int h, int i0, int) const {
        memory_.arriving_queries.copy_rows(a.row + head_of(b, h) * a.T * UNITS, i0, a.T);
    }
    /// The same for columns, with the head's scalars.
    template <int THREADS>
    __device__ __forceinline__ void copy_column_features(const AttentionForward<X>& a, int b, int h, int j0, int) const {
        memory_.arriving_keys.copy_columns(a.column + head_of(b, h) * UNITS * padded(a.S), j0, a.S);
        if (threadIdx.x < UnitGate::HEAD) copy_async<4>(&memory_.numbers[threadIdx.x], a.head + h * UnitGate::HEAD + threadIdx.x, 4);
        if (threadIdx.x == 0) memory_.head = int(head_of(b, h));
    }
    /// Called by all threads between wait_for_copies() and the __syncthreads() before the first read.
    __device__ __forceinline__ void arrived(bool new_head) const {
        __syncthreads();   // the previous tiles are no longer read, and the scalars are visible to all threads
        const SeparableGelu gelu = new_head ? SeparableGelu::for_reach(a_.reach[memory_.head]) : memory_.gelu;
        if (new_head) start_head(gelu);
        memory_.arriving_queries.each_of_rows([&](int query, int unit, float x) {
            store_unit(memory_.queries, query, unit, [&](int n) { return gelu.phi(x, n); });
        });
    }

    /// Turns S^T into P^T and dP^T into (scale dL/da)^T in place, and keeps e for the gradients of both sides.
    __device__ __forceinline__ void differentiate(Scores& s, Scores& dp, Sums& sums, const QueryPart& part, const auto& /*walk*/) const {
        const auto& rows = row_values_[part.visit.buffer];
        Scores u;   // u / 2, then 2^n e
        u.for_each_of_lane([&](float& half, int key, int, int) { half = memory_.start[part.key0 + 8 * key + lane_row()]; });
        rows_times_rows(u, memory_.keys, part.key0, memory_.queries, part.q0);
        u.for_each_of_lane([&](float& half, int key, int n, int side) {
            const int r = part.q0 + 8 * n + lane_column() + side, bit = 4 * n + 2 * key + side;
            const float qk = s.at(key, n, side), t = tanh_of(half), z = memory_.half_scale * qk;
            const float weight = exp2_of(fmaf(fmaf(z, t, z), LOG2_E, -rows[ROW_LSE][r])), p = part.hidden >> bit & 1 ? 0 : weight;
            const float dz = p * (dp.at(key, n, side) - rows[ROW_D][r]), da = fmaf(dz, t, dz), ds = memory_.half_scale * da;
            const float e = qk * fmaf(-ds, t, ds);
            sums.scale += da * qk, sums.total[key] += e;
            s.at(key, n, side) = p, dp.at(key, n, side) = ds, half = within_half(memory_.factor * e);
        });
        const FragmentA<fp16> left[1] = {u.template as_a<fp16>(0, 0)};
        registers_times_rows(sums.of_phi, left, memory_.queries, part.q0);
        store_a(memory_.e, part.key0, part.q0, left[0]);
    }
    __device__ __forceinline__ void keep_nothing(int q0, int count) const {
        FragmentA<fp16> zero;
        for (auto& part : zero.part) make_two(part, 0, 0);
        for (int q = q0; q < q0 + count; q += 16) store_a(memory_.e, this->warp_ * 16, q, zero);
    }

    /// Adds to drow of a query tile: a warp has 32 queries and eight units, as it has dQ's rows, four units at a time.
    __device__ __forceinline__ void add_tile(const TilePlace& at, bool first) const {
        constexpr int TOGETHER = UnitGate::TOGETHER;
        const int row0 = this->warp_ % 2 * 32, unit0 = this->warp_ / 2 * (UNITS / 2);
        const float factor = 1 / memory_.factor;
        float* const to = g_.drow + (head_of(at.b, at.h) * a_.T + at.i0) * UNITS;
#pragma unroll 1
        for (int unit = unit0; unit < unit0 + UnitGate::ROUNDS * TOGETHER; unit += TOGETHER) {
            Accumulator<2, TOGETHER> sums;   // of e w / 2 psi
#pragma unroll
            for (int key = 0; key < TILE; key += 16) {
                FragmentA<fp16> e[2];
                load_a_transposed(e[0], memory_.e, key, row0);
                load_a_transposed(e[1], memory_.e, key, row0 + 16);
                registers_times_rows(sums, e, memory_.keys, key, unit * SeparableGelu::NUMBERS);
            }
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const int r = row0 + 8 * n + lane_row();
                float of_unit[TOGETHER];
#pragma unroll
                for (int k = 0; k < TOGETHER; k++) {
                    const float2 phi = load_two(&memory_.queries.x[r][(unit + k) * SeparableGelu::NUMBERS + lane_column()]);
                    const float2 sum = make_float2(sums.at(n, k, 0), sums.at(n, k, 1));
                    of_unit[k] = factor * row_sum(memory_.gelu.phi_slope(phi, lane_pair(), sum));
                }
                if (lane_column() != 0 || r >= at.rows) continue;
                add_part(reinterpret_cast<float4*>(to + r * UNITS + unit), float4{of_unit[0], of_unit[1], of_unit[2], of_unit[3]}, first);
            }
        }
    }

    /// Writes dcolumn and the key tile's part of dhead at the end of head h of sequence b. j0 is the warp's first key. Shared memory
    /// already has the next head's numbers.
    __device__ __forceinline__ void finish_head(int b, int h, int j0, float* head_parts, Sums& sums) const {
        const int columns = padded(a_.S), n = lane_pair();
        const size_t bh = head_of(b, h);
        const SeparableGelu gelu = SeparableGelu::for_reach(a_.reach[bh]);
        const float factor = 1 / unit_factor(int(bh));
        const float total[2] = {row_sum(sums.total[0]), row_sum(sums.total[1])};
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++) {
            const float weight = 0.5f * a_.head[h * UnitGate::HEAD + 2 + unit];
            float of_weight = 0;
#pragma unroll
            for (int key = 0; key < 2; key++) {
                const int j = j0 + 8 * key + lane_row();
                const size_t at = (bh * UNITS + unit) * columns + j;
                const float x = a_.column[at];
                const float2 psi = gelu.psi(x, n);
                const float2 of_phi = make_float2(factor * sums.of_phi.at(key, unit, 0), factor * sums.of_phi.at(key, unit, 1));
                of_weight += psi.x * of_phi.x + psi.y * of_phi.y + (n == 3 ? gelu.chi(x) * total[key] : 0);
                const float of_key = row_sum(gelu.psi_slope(psi, n, of_phi) + (n == 3 ? psi.x * total[key] : 0));
                if (n == 0) g_.dcolumn[at] = weight * of_key;
            }
            of_weight = 0.5f * warp_sum(of_weight);
            if (lane_of() == 0) this->head_slab()[2 + unit] = of_weight;
        }
        const float scale = warp_sum(sums.scale), of_bias = warp_sum(sums.total[0] + sums.total[1]);
        if (lane_of() == 0) this->head_slab()[0] = 0.5f * rsqrtf(float(Shape::HS)) * scale, this->head_slab()[1] = 0.5f * of_bias;
        clear(sums);
        this->write_head(head_parts);
    }

private:
    __device__ size_t head_of(int b, int h) const { return size_t(b) * a_.NH + h; }

    /// The keys' numbers, and the head's.
    __device__ __forceinline__ void start_head(const SeparableGelu& gelu) const {
        const float factor = unit_factor(memory_.head);
        if (threadIdx.x == 0) {
            memory_.gelu = gelu, memory_.factor = factor;
            memory_.half_scale = 0.5f * rsqrtf(float(Shape::HS)) * memory_.numbers[0];
        }
        memory_.arriving_keys.each_of_columns([&](int key, int unit, float x) {
            const float weight = 0.5f * memory_.numbers[2 + unit];
            store_unit(memory_.keys, key, unit, [&](int n) {
                const float2 psi = gelu.psi(x, n);
                return make_float2(weight * psi.x, weight * psi.y);
            });
        });
        if (threadIdx.x >= TILE) return;
        float start = 0.5f * memory_.numbers[1];
        for (int unit = 0; unit < UNITS; unit++)
            start += 0.5f * memory_.numbers[2 + unit] * gelu.chi(memory_.arriving_keys.of_column(threadIdx.x, unit));
        memory_.start[threadIdx.x] = start;
    }

    /// Half precision ends at 65504; larger gradients are cut off (|v| c |a| above some 8,000).
    static __device__ float within_half(float x) { return fmaxf(-65504, fminf(x, 65504)); }

    /// 2^n, by which e is multiplied to fit into half precision: the longest row of dO becomes 8 to 16 long. Called by whole warps.
    __device__ float unit_factor(int bh) const {
        const int count = tiles_of(a_.T) * PEAKS;
        float peak = 0;
        for (int n = lane_of(); n < count; n += WARP) peak = fmaxf(peak, peaks_[size_t(bh) * count + n]);
        const int exponent = max(-60, min(60, ilogbf(warp_max(peak))));
        return ldexpf(8, -exponent);
    }

    const AttentionForward<X>& a_;
    const AttentionBackward<X>& g_;
    const float (*row_values_)[ROW_VALUES][Shape::QUERIES];   // of each buffer
    const float* peaks_;                                      // (B, NH, query tiles, PEAKS) BackwardMemory::peaks
    Memory& memory_;
};
