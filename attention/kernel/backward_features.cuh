// Gradients of the score inputs in the backward kernel: a block's sums over its pairs, and their reduction to memory. Sums for columns
// and for the head stay in registers until the head is done. Sums for a query tile's rows run over a warp's keys in shared memory and
// over key tiles in global memory, under the same semaphore as dQ.
#pragma once
#include "attention/kernel/backward_memory.cuh"

/// A thread's sums, in the layout of PairGradients: in registers if the policy's number of features is known at compile time, else in
/// local memory.
template <class Shape>
struct FeatureSums {
    using N = ScoreNumber<typename Shape::X>;
    static constexpr int ROOM = Shape::MODIFIED ? MOST_FEATURES : 8;
    N head[ROOM];                             // over all pairs of the thread
    float column[2 * Shape::M_TILES][ROOM];   // of the thread's keys, over its queries
    N tile;                                   // over the thread's pairs of the present query tile
};

/// Reduce-scatter of values[n] over the eight lanes that hold the same columns of a fragment: lane_row() n gets sum n.
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

/// Adds a block's part of a sum over key tiles, in the semaphores' order. The first block overwrites the memory.
template <class Number>
__device__ __forceinline__ void add_part(Number* to, const Number& part, bool first) {
    if (first) __stcg(to, part);
    else add_in_memory(to, part);
}

template <class Shape, class P>
class FeatureGradients {
    using X = typename Shape::X;
    using N = ScoreNumber<X>;
    static constexpr int KEYS = Shape::KEYS, QUERIES = Shape::QUERIES, M = Shape::M_TILES;
    static constexpr int THREADS = Shape::THREADS, WARPS = Shape::WARPS;
    static constexpr bool UNITS = BY_UNITS<Shape, P>;

public:
    using Sums = std::conditional_t<UNITS, UnitSums, FeatureSums<Shape>>;

    __device__ FeatureGradients(const Features& f, const AttentionForward<X>& a, const AttentionBackward<X>& g,
                                const BackwardMemory& memory, float* place)
        : f_(f), a_(a), g_(g), memory_(memory), row_slabs_(place), head_slab_(place + slabs(f) * QUERIES * slab_row(f)),
          warp_(int(threadIdx.x) / WARP) {}

    static constexpr size_t bytes(const Features& f) { return (slabs(f) * QUERIES * slab_row(f) + WARPS * f.head) * sizeof(float); }

    /// Number of slabs for the warps' row sums: one per warp, or a single slab to which the warps add one after the other.
    static constexpr int slabs(const Features& f) { return Shape::Features::staged(f) ? WARPS : 1; }

    __device__ __forceinline__ void clear(Sums& sums) const {
        if constexpr (UNITS) {
            sums = {};
        } else {
            for (int f = 0; f < f_.head; f++) sums.head[f] = 0;
#pragma unroll
            for (int key = 0; key < 2 * M; key++)
                for (int f = 0; f < f_.column; f++) sums.column[key][f] = 0;
        }
    }

    /// Stores the sums of query r over the warp's keys.
    __device__ __forceinline__ void keep_row_sums(const N* row_sums, int r) const {
        for (int f = 0; f < f_.row; f += 8) {
            float values[8];
#pragma unroll
            for (int n = 0; n < 8; n++) values[n] = float(row_sums[f + n]);
            float* to = row_slab() + r * slab_row(f_) + f + lane_row();
            const float sum = scattered_sums(values);
            *to = owns_slab() ? sum : *to + sum;
        }
    }
    /// The same for two hidden units, different ones in each lane_row().
    __device__ __forceinline__ void keep_row_sums(float2 of_units, int r) const {
        *reinterpret_cast<float2*>(row_slab() + r * slab_row(f_) + 2 * lane_row()) = of_units;
    }
    /// Stores zeros for queries q0 .. q0 + count - 1, which see none of the warp's keys.
    __device__ __forceinline__ void keep_nothing(int q0, int count) const {
        for (int n = lane_of(); n < count * slab_row(f_) && owns_slab(); n += WARP) row_slab()[q0 * slab_row(f_) + n] = 0;
    }

    /// Writes dcolumn and the key tile's part of dhead at the end of head h of sequence b. key0 is the warp's first key.
    __device__ __forceinline__ void finish_head(int b, int h, int tile, int key_tiles, int key0, Sums& sums) const {
        const size_t bh = size_t(b) * a_.NH + h;
        if constexpr (UNITS) {
            sums.write(g_.dcolumn + bh * f_.column * padded(a_.S), head_slab_ + warp_ * f_.head, a_.head + size_t(h) * f_.head,
                       rsqrtf(float(Shape::HS)), tile * KEYS + key0, padded(a_.S), row_slab());
        } else {
            write_columns(g_.dcolumn + bh * f_.column * padded(a_.S), tile * KEYS + key0, sums);
            for (int f = 0; f < f_.head; f++) {
                const float sum = warp_sum(float(sums.head[f]));
                if (lane_of() == 0) head_slab_[warp_ * f_.head + f] = sum;
            }
        }
        clear(sums);
        if (f_.head == 0) return;
        __syncthreads();
        for (int f = threadIdx.x; f < f_.head; f += THREADS) {
            float total = 0;
            for (int w = 0; w < WARPS; w++) total += head_slab_[w * f_.head + f];
            memory_.head_parts[(bh * key_tiles + tile) * f_.head + f] = total;
        }
        __syncthreads();
    }

    /// Adds the warps' sums to drow of the query tile from i0 on. The first block overwrites.
    __device__ __forceinline__ void add_rows(int b, int h, int i0, bool first) const {
        float* const to = g_.drow + ((size_t(b) * a_.NH + h) * a_.T + i0) * f_.row;
        if constexpr (UNITS) add_rows_to(reinterpret_cast<float4*>(to), i0, first);
        else add_rows_to(to, min(QUERIES, a_.T - i0) * f_.row, first);
    }

private:
    __device__ __forceinline__ void add_rows_to(float4* to, int i0, bool first) const {
        for (int n = threadIdx.x; n < QUERIES * UnitGate::UNITS / 4; n += THREADS) {
            float4 sum{};
            for (int slab = 0; slab < WARPS; slab++) {
                const float4 more = reinterpret_cast<const float4*>(row_slabs_)[slab * QUERIES * UnitGate::UNITS / 4 + n];
                sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
            }
            if (i0 + n / 4 < a_.T) add_part(to + n, sum, first);
        }
    }
    __device__ __forceinline__ void add_rows_to(float* to, int count, bool first) const {
        for (int n = threadIdx.x; n < count; n += THREADS) {
            const int r = n / f_.row, f = n % f_.row;
            float sum = 0;
            for (int slab = 0; slab < slabs(f_); slab++) sum += row_slabs_[(slab * QUERIES + r) * slab_row(f_) + f];
            add_part(to + n, sum, first);
        }
    }

    static constexpr int slab_row(const Features& f) { return (f.row + 7) / 8 * 8; }   // sums are written in eights
    __device__ bool owns_slab() const { return slabs(f_) > 1 || warp_ == 0; }   // the other warps add to the slab of warp 0
    __device__ float* row_slab() const { return row_slabs_ + (slabs(f_) == 1 ? 0 : warp_) * QUERIES * slab_row(f_); }

    /// Writes dcolumn (column features, padded(S)) of the warp's keys, from j0 on.
    __device__ __forceinline__ void write_columns(float* dcolumn, int j0, const FeatureSums<Shape>& sums) const {
#pragma unroll
        for (int key = 0; key < 2 * M; key++)
            for (int f = 0; f < f_.column; f++) {
                float sum = sums.column[key][f];
                sum += __shfl_xor_sync(ALL_LANES, sum, 1);
                sum += __shfl_xor_sync(ALL_LANES, sum, 2);
                const int j = j0 + 8 * key + lane_row();
                if (lane_column() == 0 && j < padded(a_.S)) dcolumn[size_t(f) * padded(a_.S) + j] = sum;
            }
    }

    Features f_;
    const AttentionForward<X>& a_;
    const AttentionBackward<X>& g_;
    const BackwardMemory& memory_;
    float *row_slabs_, *head_slab_;   // (slabs(), QUERIES, slab_row()), (WARPS, head features)
    int warp_;
};
