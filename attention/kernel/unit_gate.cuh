// A gate of hidden units in the kernels for bf16 (Traits::gate_of_units; asga.cuh has the formula and the code for other devices and
// number types):
//     z = c a s,   s = sigmoid(b + sum_f w_f GELU(A_f + B_f)),   head scalars [c, b, w_f], row features A_f, column features B_f
// Every pair of tokens needs all units, so the instructions per unit determine the cost of the kernel. Two units are computed at once,
// as Halves. With r^3 = sqrt(2/pi) 0.044715, K = sqrt(2/pi) / r and x = r (A + B), the argument of GELU's tanh is
// y = x (x^2 + K), and
//     t = tanh(y)    v = x + x t = 2 r GELU    sum += w_f v                                      five operations and the tanh
//     2 GELU' - 1 = t + (3 x^2 + K) x (1 - t^2) = t + (3 (x^2 + K) - 2 K) (v - v t)              three more
// Factors that do not depend on the pair (w_f, c, r, HS^-1/2) are applied to the finished sums. The sigmoid is a tanh as well:
// s = (1 + tanh(u / 2)) / 2.
#pragma once
#include "attention/kernel/features.cuh"
#include "attention/kernel/halves.cuh"

/// Whether the kernels compute the policy's scores this way.
template <class Shape, class P>
inline constexpr bool BY_UNITS = Shape::fast && P::traits.gate_of_units;

struct UnitGate {
    static constexpr int UNITS = 16, PAIRS = UNITS / 2, THREADS = 128;
    static constexpr float R = 0.32920349f, K = 2.42368195f;
    /// Clamps for r A, r B and for w / 4 r. They keep 3 (x^2 + K) and the sums of weighted units below the largest half, 65504;
    /// products with an overflow would be NaN.
    static constexpr float MOST_FEATURE = 70, MOST_WEIGHT = 29;
    static constexpr int ROW = PAIRS + 4;   // stride of tokens in shared memory; eight of them lie in different banks

    static __device__ __forceinline__ float feature(float x) { return within(R * x, MOST_FEATURE); }
    static __device__ __forceinline__ float weight(float w) { return within(w / (4 * R), MOST_WEIGHT); }

private:
    /// Keeps NaN, so that a diverged run is detected.
    static __device__ __forceinline__ float within(float x, float most) { return x < -most ? -most : x > most ? most : x; }
};

/// The units of a token, or their weights, in pairs.
using UnitPairs = Halves[UnitGate::PAIRS];

/// From shared memory, starting with pair `first`, 0 or 4; with 4 the lower half comes last.
__device__ __forceinline__ void read_units(UnitPairs& to, const Halves* from, int first = 0) {
    for (int half = 0; half < 2; half++) {
        const uint4 four = *reinterpret_cast<const uint4*>(from + (half ? first ^ 4 : first));
        Halves* const pairs = to + 4 * half;
        pairs[0].bits = four.x, pairs[1].bits = four.y, pairs[2].bits = four.z, pairs[3].bits = four.w;
    }
}

/// Two units of a pair of tokens.
struct HiddenUnits {
    Halves p, t, value;   // x^2 + K, tanh(y), 2 r GELU
    __device__ __forceinline__ HiddenUnits(Halves a, Halves b) {
        const Halves x = a + b;
        p = fma_of(x, x, both_halves(UnitGate::K));
        t = tanh_of(x * p);
        value = fma_of(x, t, x);
    }
    /// 2 GELU' - 1. Relies on tanh returning exactly 1 once saturated, which the conformance tests check on the GPU. The next value below
    /// 1 would add 2^-10 x (3 x^2 + K), 0.02 at y = 9.5 and thousands at the largest x.
    __device__ __forceinline__ Halves slope() const {
        const Halves q = fma_of(p, both_halves(3), both_halves(-2 * UnitGate::K));
        return fma_of(q, fma_of(-value, t, value), t);
    }
};

__device__ __forceinline__ float sum_of(Halves pair) {
    const float2 both = floats_of(pair);
    return both.x + both.y;
}

/// Staging for the features of a tile of tokens: each thread copies eight of them from memory and converts them later.
struct ArrivingFeatures {
    alignas(16) float raw[2][UnitGate::THREADS][4];

    /// Token i0 + threadIdx.x / 2, units 8 (threadIdx.x % 2) ..; zero past the last token. `from` is (tokens, UNITS).
    __device__ __forceinline__ void copy_rows(const float* from, int i0, int count) {
        const int i = i0 + int(threadIdx.x) / 2, exist = i < count ? 16 : 0;
        const float* at = from + (exist ? size_t(i) * UnitGate::UNITS + threadIdx.x % 2 * 8 : 0);
        for (int n = 0; n < 2; n++) copy_async<16>(raw[n][threadIdx.x], at + (exist ? 4 * n : 0), exist);
    }
    __device__ __forceinline__ void convert_rows(Halves (*to)[UnitGate::ROW]) const {
        *reinterpret_cast<uint4*>(&to[threadIdx.x / 2][threadIdx.x % 2 * 4]) =
            make_uint4(pair(0, 0, 0, 1).bits, pair(0, 2, 0, 3).bits, pair(1, 0, 1, 1).bits, pair(1, 2, 1, 3).bits);
    }

    /// Units 2 (threadIdx.x % 8) and the next, of four tokens from j0 + 4 (threadIdx.x / 8) on. `from` is (UNITS, padded(count)).
    __device__ __forceinline__ void copy_columns(const float* from, int j0, int count) {
        const int j = j0 + int(threadIdx.x) / 8 * 4, exist = 4 * max(0, min(4, count - j));
        for (int n = 0; n < 2; n++)
            copy_async<16>(raw[n][threadIdx.x], from + (exist ? size_t(threadIdx.x % 8 * 2 + n) * padded(count) + j : 0), exist);
    }
    __device__ __forceinline__ void convert_columns(Halves (*to)[UnitGate::ROW]) const {
        for (int n = 0; n < 4; n++) to[threadIdx.x / 8 * 4 + n][threadIdx.x % 8] = pair(0, n, 1, n);
    }

private:
    __device__ __forceinline__ Halves pair(int part, int n, int other_part, int m) const {
        return make_halves(UnitGate::feature(raw[part][threadIdx.x][n]), UnitGate::feature(raw[other_part][threadIdx.x][m]));
    }
};

// ---- forward

/// score() for a block: the features of its rows in registers, those of the keys in shared memory.
template <class Shape>
class UnitScores {
    static_assert(Shape::THREADS == UnitGate::THREADS && Shape::KEYS == TILE && Shape::M_TILES == 1);
    struct Memory {
        ArrivingFeatures arriving;
        alignas(16) Halves columns[Shape::BUFFERS][Shape::KEYS][UnitGate::ROW];
    };

public:
    static constexpr size_t bytes(const Features&) { return sizeof(Memory); }
    __device__ UnitScores(const Features&, float* memory) : memory_(*reinterpret_cast<Memory*>(memory)) {}

    /// The features of the thread's two rows of the tile at i0, and head h's scalars.
    template <int THREADS, class X>
    __device__ __forceinline__ void copy_row_features(const AttentionForward<X>& a, int b, int h, int i0, int) {
        const float* numbers = a.head + size_t(h) * (2 + UnitGate::UNITS);
        half_scale_ = 0.5f * numbers[0] * rsqrtf(float(Shape::HS)), half_bias_ = 0.5f * numbers[1];
#pragma unroll
        for (int n = 0; n < UnitGate::PAIRS; n++)
            weights_[n] = make_halves(UnitGate::weight(numbers[2 + 2 * n]), UnitGate::weight(numbers[3 + 2 * n]));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = min(i0 + int(threadIdx.x) / WARP * 16 + 8 * half + lane_row(), a.T - 1);
            const float* row = a.row + ((size_t(b) * a.NH + h) * a.T + i) * UnitGate::UNITS;
#pragma unroll
            for (int n = 0; n < UnitGate::PAIRS; n++)
                rows_[half][n] = make_halves(UnitGate::feature(row[2 * n]), UnitGate::feature(row[2 * n + 1]));
        }
    }
    template <int THREADS, class X>
    __device__ __forceinline__ void copy_column_features(const AttentionForward<X>& a, int b, int h, int j0, int) const {
        memory_.arriving.copy_columns(a.column + (size_t(b) * a.NH + h) * UnitGate::UNITS * padded(a.S), j0, a.S);
    }
    /// Called between wait_for_copies() and the __syncthreads() before the first read.
    __device__ __forceinline__ void arrived(int buffer) const { memory_.arriving.convert_columns(memory_.columns[buffer]); }

    static __device__ float to_z(float) { return 1; }

    /// Turns q.k into z in place for the 16 keys from c0 on; with GATES, writes s to `gates`.
    template <bool GATES>
    __device__ __forceinline__ void score(Accumulator<1, 2>& z, Accumulator<1, 2>& gates, const auto& /*policy*/, const auto& /*a*/,
                                          const auto& /*walk*/, const TilePlace& /*at*/, int /*row0*/, int buffer, int c0) const {
#pragma unroll
        for (int key = 0; key < 4; key++) {
            const int n = key / 2, side = key % 2;
            UnitPairs column;
            read_units(column, memory_.columns[buffer][c0 + 8 * n + lane_column() + side]);
#pragma unroll
            for (int row = 0; row < 2; row++) {
                Halves sum = both_halves(0);
#pragma unroll
                for (int k = 0; k < UnitGate::PAIRS; k++)
                    sum = fma_of(weights_[k], HiddenUnits(rows_[row][k], column[k]).value, sum);
                const float t = tanh_of(half_bias_ + sum_of(sum));
                float& score = z.at(row, n, side);
                score = half_scale_ * score, score = fmaf(score, t, score);
                if (GATES) gates.at(row, n, side) = fmaf(0.5f, t, 0.5f);
            }
        }
    }

private:
    Memory& memory_;
    UnitPairs rows_[2], weights_;
    float half_scale_, half_bias_;   // c / 2 sqrt(HS), b / 2
};

// ---- backward

/// A thread's sums for the gate over the queries of a head, without constant factors. Pairs of units start with pair
/// lane_row() & 4: see summed_over_rows().
struct UnitSums {
    float scale = 0;                        // of dz (1 + tanh(u / 2)) q.k
    float head[UnitGate::PAIRS][2] = {};    // of e v, where e = 2 dL/du
    float column[2][UnitGate::PAIRS][2] = {}, column_total[2] = {};   // of the thread's keys: e (2 GELU' - 1), e

    /// Writes the warp's sums with their factors: dcolumn (units, columns) of its 16 keys from j0 on, and its part of dhead. `numbers` are
    /// the head's scalars, `scale_of_a` is HS^-1/2, and `room` has 1024 floats. It runs once per head and is compact rather than fast:
    /// rolled loops over shared memory.
    __device__ __forceinline__ void write(float* dcolumn, float* dhead, const float* numbers, float scale_of_a, int j0, int columns,
                                          float* room) const {
        const int lane = lane_of();
#pragma unroll
        for (int n = 0; n < 2 * UnitGate::UNITS; n++) {
            const int key = n / UnitGate::UNITS, k = n % UnitGate::UNITS;
            room[n * WARP + lane] = column[key][k / 2][k % 2] + column_total[key];
        }
        __syncwarp();
#pragma unroll 1
        for (int n = lane; n < 16 * UnitGate::UNITS; n += WARP) {
            const int unit = n / 16, key = n % 16, first_lane = key % 8 * 4;
            const float* const from = room + (key / 8 * UnitGate::UNITS + place(unit, first_lane)) * WARP + first_lane;
            const float4 four = *reinterpret_cast<const float4*>(from);
            const float sum = four.x + four.y + four.z + four.w;
            if (j0 + key < columns) dcolumn[size_t(unit) * columns + j0 + key] = numbers[2 + unit] / 4 * sum;
        }
        __syncwarp();
        room[lane] = scale * scale_of_a / 2, room[WARP + lane] = (column_total[0] + column_total[1]) / 2;
#pragma unroll
        for (int k = 0; k < UnitGate::UNITS; k++) room[(2 + k) * WARP + lane] = head[k / 2][k % 2] / (4 * UnitGate::R);
        __syncwarp();
        if (lane >= 2 + UnitGate::UNITS) return;
        float sum = 0;
#pragma unroll 1
        for (int of = 0; of < WARP; of++) sum += room[(lane < 2 ? lane : 2 + place(lane - 2, of)) * WARP + of];
        dhead[lane] = sum;
    }

private:
    /// The place of a lane's sum for a unit.
    static __device__ __forceinline__ int place(int unit, int lane) { return unit ^ (lane / 4 & 4) * 2; }
};

/// Reduce-scatter of values[k] over the eight lanes that hold the same columns of a fragment: each lane ends with pair
/// lane_row(). Lanes 16..31 hold the upper four pairs first, so that in the first step every lane keeps the first four and
/// sends the others, without a select.
__device__ __forceinline__ float2 summed_over_rows(float (&values)[UnitGate::PAIRS][2]) {
#pragma unroll
    for (int k = 0; k < 4; k++)
        for (int n = 0; n < 2; n++) values[k][n] += __shfl_xor_sync(ALL_LANES, values[k + 4][n], 16);
#pragma unroll
    for (int half = 2; half > 0; half /= 2) {
        const bool upper = lane_row() & half;
#pragma unroll
        for (int k = 0; k < half; k++)
            for (int n = 0; n < 2; n++) {
                const float keep = upper ? values[k + half][n] : values[k][n], give = upper ? values[k][n] : values[k + half][n];
                values[k][n] = keep + __shfl_xor_sync(ALL_LANES, give, 4 * half);
            }
    }
    return make_float2(values[0][0], values[0][1]);
}

/// score() and its gradients for a block's tiles of 64 queries and 64 keys.
template <class Shape>
class UnitGradients : public ScoreInputSums<Shape> {
    using X = typename Shape::X;
    using Scores = typename Shape::Scores;
    using Inputs = ScoreInputSums<Shape>;
    static_assert(Shape::THREADS == UnitGate::THREADS && Shape::KEYS == TILE && Shape::QUERIES == TILE && Shape::M_TILES == 1);
    struct Memory {
        ArrivingFeatures arriving_rows, arriving_columns;
        alignas(16) Halves rows[TILE][UnitGate::ROW], columns[TILE][UnitGate::ROW], weights[UnitGate::PAIRS];
        alignas(8) float numbers[2 + UnitGate::UNITS], factors[UnitGate::UNITS];   // the head's scalars; w_f / 4
        float half_scale, half_bias;                                               // c / 2 sqrt(HS), b / 2
    };

public:
    using Sums = UnitSums;
    static constexpr size_t bytes(const Features& f) { return sizeof(Memory) + Inputs::bytes(f); }
    __device__ UnitGradients(const auto& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g, const auto& shared,
                             float* memory)
        : Inputs(policy.features(), memory + sizeof(Memory) / sizeof(float)), a_(a), g_(g), row_values_(shared.rows),
          memory_(*reinterpret_cast<Memory*>(memory)) {}
    static constexpr int rounds() { return 1; }
    __device__ void clear(Sums& sums) const { sums = {}; }
    __device__ void start_tile(Sums&) const {}
    __device__ void finish_tile(const Sums&) const {}

    template <int THREADS>
    __device__ __forceinline__ void copy_row_features(const AttentionForward<X>& a, int b, int h, int i0, int) const {
        memory_.arriving_rows.copy_rows(a.row + (size_t(b) * a.NH + h) * a.T * UnitGate::UNITS, i0, a.T);
    }
    /// The same for columns, with the head's scalars, in pairs. Each thread copies the values that it will convert.
    template <int THREADS>
    __device__ __forceinline__ void copy_column_features(const AttentionForward<X>& a, int b, int h, int j0, int) const {
        memory_.arriving_columns.copy_columns(a.column + (size_t(b) * a.NH + h) * UnitGate::UNITS * padded(a.S), j0, a.S);
        const float* numbers = a.head + size_t(h) * (2 + UnitGate::UNITS);
        if (threadIdx.x <= UnitGate::PAIRS)
            for (int n = 2 * threadIdx.x; n < 2 * int(threadIdx.x) + 2; n++) copy_async<4>(&memory_.numbers[n], numbers + n, 4);
    }
    /// Called between wait_for_copies() and the __syncthreads() before the first read. No thread reads features between the two barriers
    /// after their last use, so a single buffer suffices.
    __device__ __forceinline__ void arrived(bool new_head) const {
        memory_.arriving_rows.convert_rows(memory_.rows);
        if (!new_head) return;
        memory_.arriving_columns.convert_columns(memory_.columns);
        if (threadIdx.x > UnitGate::PAIRS) return;
        const int pair = int(threadIdx.x) - 1;
        const float x = memory_.numbers[2 * threadIdx.x], y = memory_.numbers[2 * threadIdx.x + 1];
        if (pair < 0) return void((memory_.half_scale = 0.5f * rsqrtf(float(Shape::HS)) * x, memory_.half_bias = 0.5f * y));
        memory_.weights[pair] = make_halves(UnitGate::weight(x), UnitGate::weight(y));
        memory_.factors[2 * pair] = x / 4, memory_.factors[2 * pair + 1] = y / 4;
    }

    /// A rolled loop takes eight queries at a time, as the code of a query is long. Registers cannot be indexed, so the scores move
    /// through tile 0 instead.
    __device__ __forceinline__ void differentiate(Scores& s, Scores& dp, Sums& sums, const QueryPart& part, const auto& /*walk*/) const {
        const auto& rows = row_values_[part.visit.buffer];
        unsigned hidden = part.hidden;
#pragma unroll 1
        for (int n = 0; n < Scores::N; n++, hidden >>= 4) {
#pragma unroll
            for (int side = 0; side < 2; side++) {
                const int r = part.q0 + 8 * n + lane_column() + side;
                const float2 of_units = differentiate(s.d[0][0], dp.d[0][0], side, hidden, rows[ROW_LSE][r], rows[ROW_D][r], r,
                                                      part.key0, sums);
                *reinterpret_cast<float2*>(this->row_slab() + r * UnitGate::UNITS + 2 * lane_row()) = of_units;
            }
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float done_s = s.d[0][0][e], done_dp = dp.d[0][0][e];
                s.d[0][0][e] = s.d[0][1][e], dp.d[0][0][e] = dp.d[0][1][e];
                s.d[0][1][e] = done_s, dp.d[0][1][e] = done_dp;
            }
        }
    }

    /// Writes dcolumn and the key tile's part of dhead at the end of head h of sequence b. j0 is the warp's first key.
    __device__ __forceinline__ void finish_head(int b, int h, int j0, float* head_parts, Sums& sums) const {
        const int columns = padded(a_.S);
        sums.write(g_.dcolumn + (size_t(b) * a_.NH + h) * UnitGate::UNITS * columns, this->head_slab(),
                   a_.head + size_t(h) * (2 + UnitGate::UNITS), rsqrtf(float(Shape::HS)), j0, columns, this->row_slab());
        clear(sums);
        this->write_head(head_parts);
    }

    /// Adds to drow of a query tile, four units at a time.
    __device__ __forceinline__ void add_tile(const TilePlace& at, bool first) const {
        constexpr int FOURS = UnitGate::UNITS / 4;
        auto* const to = reinterpret_cast<float4*>(g_.drow + ((size_t(at.b) * a_.NH + at.h) * a_.T + at.i0) * UnitGate::UNITS);
        for (int n = threadIdx.x; n < Shape::QUERIES * FOURS; n += Shape::THREADS) {
            float4 sum{};
            for (int slab = 0; slab < Shape::WARPS; slab++) {
                const float4 more = reinterpret_cast<const float4*>(this->row_slabs_)[slab * Shape::QUERIES * FOURS + n];
                sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
            }
            if (at.i0 + n / FOURS < a_.T) add_part(to + n, sum, first);
        }
    }

private:
    /// For query r and the thread's two keys, key0 + lane_row() and eight further: turns q.k into P and dO.v into HS^-1/2 dL/da in place,
    /// in elements 2 key + side of s and dp, which are also their bits in `hidden`. Returns the gradient of the query's features, summed
    /// over the warp's keys, for the pair of units lane_row().
    __device__ __forceinline__ float2 differentiate(float (&s)[4], float (&dp)[4], int side, unsigned hidden, float lse, float d,
                                                    int r, int key0, UnitSums& sums) const {
        const int first = lane_row() & 4;
        const float half_scale = memory_.half_scale, half_bias = memory_.half_bias;
        UnitPairs weights, row;
        read_units(weights, memory_.weights, first);
        read_units(row, memory_.rows[r], first);
        Halves values[2][UnitGate::PAIRS], slopes[2][UnitGate::PAIRS];
        float e[2];
#pragma unroll
        for (int key = 0; key < 2; key++) {
            UnitPairs column;
            read_units(column, memory_.columns[key0 + 8 * key + lane_row()], first);
            Halves sum = both_halves(0);
#pragma unroll
            for (int k = 0; k < UnitGate::PAIRS; k++) {
                const HiddenUnits units(row[k], column[k]);
                sum = fma_of(weights[k], units.value, sum);
                values[key][k] = units.value, slopes[key][k] = units.slope();
            }
            const float t = tanh_of(half_bias + sum_of(sum));
            const int n = 2 * key + side;
            const float z = half_scale * s[n], weight = exp2_of(fmaf(fmaf(z, t, z), LOG2_E, -lse));
            const float p = hidden >> n & 1 ? 0 : weight, dz = p * (dp[n] - d), da = fmaf(dz, t, dz);
            const float ds = half_scale * da;
            sums.scale += da * s[n];
            e[key] = s[n] * fmaf(-ds, t, ds);
            sums.column_total[key] += e[key];
            s[n] = p, dp[n] = ds;
        }
        float of_row[UnitGate::PAIRS][2];
#pragma unroll
        for (int k = 0; k < UnitGate::PAIRS; k++) {
            of_row[k][0] = of_row[k][1] = e[0] + e[1];
#pragma unroll
            for (int key = 0; key < 2; key++) {
                const float2 value = floats_of(values[key][k]), slope = floats_of(slopes[key][k]);
                of_row[k][0] = fmaf(e[key], slope.x, of_row[k][0]), of_row[k][1] = fmaf(e[key], slope.y, of_row[k][1]);
                sums.column[key][k][0] = fmaf(e[key], slope.x, sums.column[key][k][0]);
                sums.column[key][k][1] = fmaf(e[key], slope.y, sums.column[key][k][1]);
                sums.head[k][0] = fmaf(e[key], value.x, sums.head[k][0]), sums.head[k][1] = fmaf(e[key], value.y, sums.head[k][1]);
            }
        }
        const float2 sum = summed_over_rows(of_row);
        const float* factors = &memory_.factors[2 * lane_row()];
        return make_float2(factors[0] * sum.x, factors[1] * sum.y);
    }

    const AttentionForward<X>& a_;
    const AttentionBackward<X>& g_;
    const float (*row_values_)[ROW_VALUES][Shape::QUERIES];   // of each buffer
    Memory& memory_;
};
