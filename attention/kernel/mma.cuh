// The primitives of the tiled attention kernels: tiles in shared memory, fragments in registers, their products on the tensor
// cores, asynchronous copies, flags between blocks. All of the project's PTX is here and in wgmma.cuh, except for a tanh in
// model/device/math.h. Without nvcc the emulator's counterparts are called.
//
// A warp multiplies 16 x 16 by 16 x 8 elements at a time, D = A B + C. The hardware fixes the lane of each element (PTX ISA,
// mma.m16n8k16). Each cell names the lane:
//     A (16 x 16)                                     B (16 x 8)                     C, D (16 x 8)
//     column  0,1  2,3  4,5  6,7   8,9  ..  14,15     column    0   1   2  ..   7    column  0,1  2,3  4,5  6,7
//     row 0    0    1    2    3     0   ..    3       row 0,1   0   4   8  ..  28    row 0    0    1    2    3
//     row 1    4    5    6    7     4   ..    7       row 2,3   1   5   9  ..  29    row 1    4    5    6    7
//      ..                                             row 4,5   2   6  10  ..  30     ..
//     row 7   28   29   30   31    28   ..   31       row 6,7   3   7  11  ..  31    row 7   28   29   30   31
//     row 8    0    1    2    3     0   ..    3       row 8,9   0   4   8  ..  28    row 8    0    1    2    3
//      ..                                              ..                             ..
// With g = lane / 4 and c = 2 (lane % 4), a lane holds rows g, g + 8 and columns c, c + 1, c + 8, c + 9 of A; rows c, c + 1, c + 8,
// c + 9 and column g of B; rows g, g + 8 and columns c, c + 1 of D. Two adjacent D's thus have the layout of an A, and a result
// enters the next product without leaving the registers.
// bf16 and fp16 use the tensor cores. float has the same fragments and multiplies exactly, by shuffles; it is slow and for comparison
// only.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "model/device/gpu.cuh"

// ---- shared memory

/// ROWS x COLUMNS elements. Rows are padded by 16 bytes, so that the eight 16-byte pieces of a column that ldmatrix loads at once lie in
/// different banks.
template <class X, int ROWS_, int COLUMNS_>
struct SharedTile {
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_;
    alignas(16) X x[ROWS][COLUMNS + 16 / sizeof(X)];

    __device__ __forceinline__ X* at(int row, int column) { return &x[row][column]; }
    __device__ __forceinline__ const X* at(int row, int column) const { return &x[row][column]; }
    __device__ __forceinline__ void store(int row, int column, const auto& two) { store_two(at(row, column), two); }

    // What a tile for products of a warpgroup needs (wgmma.cuh): these products are done when their function returns.
    static __device__ void publish() {}
    template <int LEFT = 0>
    static __device__ void finish_products(auto&...) {}
};

/// Starts a copy of BYTES (4 or 16; both addresses are multiples) into shared memory. Reads the first `take` bytes and zeroes the rest.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from, int take) {
#if defined(__CUDACC__)
    const unsigned at = unsigned(__cvta_generic_to_shared(to));
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(take) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(take) : "memory");
#else
    emulator::cp_async(to, from, BYTES, take);
#endif
}

/// Waits for all copies that this thread has started. Other threads see the data after the next __syncthreads().
__device__ __forceinline__ void wait_for_copies() {
#if defined(__CUDACC__)
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
#else
    emulator::cp_async_commit();
    emulator::cp_async_wait(0);
#endif
}

/// Starts to copy rows `first`.. of a matrix with a stride of `row` elements. Rows from `exist` on become zero. `row` and `first` are
/// ints, so that an address costs one multiplication.
template <int THREADS, class Tile>
__device__ __forceinline__ void copy_rows(Tile& to, const auto* from, int row, int first, int exist) {
    constexpr int PIECE = 16 / sizeof(*from), PIECES = Tile::COLUMNS / PIECE, ROWS_AT_ONCE = THREADS / PIECES;
    static_assert(THREADS % PIECES == 0 && Tile::ROWS % ROWS_AT_ONCE == 0);
    const int r0 = int(threadIdx.x) / PIECES, c = int(threadIdx.x) % PIECES * PIECE;
    const auto* at = from + ptrdiff_t(first + r0) * row + c;
    if (exist >= Tile::ROWS) {   // nearly always, and uniform in the block: two instructions a piece instead of six
#pragma unroll
        for (int r = 0; r < Tile::ROWS; r += ROWS_AT_ONCE, at += ptrdiff_t(ROWS_AT_ONCE) * row)
            copy_async<16>(to.at(r0 + r, c), at, 16);
        return;
    }
#pragma unroll 1
    for (int r = 0; r < Tile::ROWS; r += ROWS_AT_ONCE) {
        const bool exists = r0 + r < exist;
        copy_async<16>(to.at(r0 + r, c), exists ? at + ptrdiff_t(r) * row : from, exists ? 16 : 0);
    }
}

// ---- fragments

/// A number in half precision, in memory: eleven bits of precision, values up to 65504.
struct fp16 {
    uint16_t bits;
};

/// Two adjacent elements, in one register or two.
template <class X>
struct Two;
template <>
struct Two<bf16> {
    uint32_t bits;
};
template <>
struct Two<fp16> {
    uint32_t bits;
};
template <>
struct Two<float> {
    float2 pair;
};
/// Stores both elements; the address must be a multiple of their size.
template <class X>
__device__ __forceinline__ void store_two(X* to, const Two<X>& two) {
    static_assert(sizeof(X) == 2);
    *reinterpret_cast<uint32_t*>(to) = two.bits;
}
__device__ __forceinline__ void store_two(float* to, const Two<float>& two) { *reinterpret_cast<float2*>(to) = two.pair; }
__device__ __forceinline__ void make_two(Two<float>& to, float x, float y) { to.pair = make_float2(x, y); }
__device__ __forceinline__ void make_two(Two<bf16>& to, float x, float y) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(x, y);
    std::memcpy(&to.bits, &both, sizeof to.bits);
}
__device__ __forceinline__ void make_two(Two<fp16>& to, float x, float y) {
#if defined(__CUDACC__)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(to.bits) : "f"(y), "f"(x));
#else
    to.bits = emulator::f16x2_of_floats(x, y);
#endif
}
/// The two elements at `from`, an even index.
__device__ __forceinline__ float2 load_two(const fp16* from) {
    const uint32_t bits = *reinterpret_cast<const uint32_t*>(from);
#if defined(__CUDACC__)
    float2 both;
    asm("{ .reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(both.x), "=f"(both.y)
        : "r"(bits));
    return both;
#else
    return emulator::floats_of_f16x2(bits);
#endif
}

/// Parts of A begin at (g, c), (g + 8, c), (g, c + 8), (g + 8, c + 8); those of B at rows c and c + 8 of column g.
template <class X>
struct FragmentA {
    Two<X> part[4];
};
template <class X>
struct FragmentB {
    Two<X> part[2];
};

/// ldmatrix: four 8 x 8 matrices, 32 bits of each per lane. `row` points to a row of 8 elements; lanes 8 n .. 8 n
/// + 7 pass the rows of matrix n.
template <bool transposed, class Fragment>
__device__ __forceinline__ void load_matrices(Fragment& to, const void* row) {
    static_assert(sizeof(Fragment) == 16);
    uint32_t r[4];
#if defined(__CUDACC__)
    const unsigned at = unsigned(__cvta_generic_to_shared(row));
    if constexpr (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at));
#else
    emulator::ldmatrix<4, transposed>(r, row);
#endif
    std::memcpy(&to, r, sizeof r);
}

__device__ __forceinline__ int lane_of() { return threadIdx.x % WARP; }
__device__ __forceinline__ int lane_row() { return lane_of() / 4; }          // g
__device__ __forceinline__ int lane_column() { return lane_of() % 4 * 2; }   // c
/// The first row of the thread's warp, where each has sixteen.
__device__ __forceinline__ int warp_row() { return int(threadIdx.x) / WARP * 16; }

/// A[m][k] = tile[row + m][column + k].
template <class X, int R, int C>
__device__ __forceinline__ void load_a(FragmentA<X>& a, const SharedTile<X, R, C>& tile, int row, int column) {
    const int lane = lane_of();
    if constexpr (sizeof(X) == 2) {
        load_matrices<false>(a, &tile.x[row + lane % 16][column + lane / 16 * 8]);
    } else {
        for (int n = 0; n < 4; n++) {
            const X* at = &tile.x[row + lane_row() + n % 2 * 8][column + lane_column() + n / 2 * 8];
            a.part[n].pair = make_float2(at[0], at[1]);
        }
    }
}

/// A[m][k] = tile[row + k][column + m].
template <class X, int R, int C>
__device__ __forceinline__ void load_a_transposed(FragmentA<X>& a, const SharedTile<X, R, C>& tile, int row, int column) {
    const int lane = lane_of();
    if constexpr (sizeof(X) == 2) {
        load_matrices<true>(a, &tile.x[row + lane % 8 + lane / 16 * 8][column + lane / 8 % 2 * 8]);
    } else {
        for (int n = 0; n < 4; n++) {
            const int k = row + lane_column() + n / 2 * 8, m = column + lane_row() + n % 2 * 8;
            a.part[n].pair = make_float2(tile.x[k][m], tile.x[k + 1][m]);
        }
    }
}

/// tile[row + m][column + k] = A[m][k].
template <class X>
__device__ __forceinline__ void store_a(auto& tile, int row, int column, const FragmentA<X>& a) {
    for (int n = 0; n < 4; n++) tile.store(row + lane_row() + n % 2 * 8, column + lane_column() + n / 2 * 8, a.part[n]);
}

/// Two B's side by side: B[k][n] = tile[row + n][column + k] for n < 16.
template <class X, int R, int C>
__device__ __forceinline__ void load_b(FragmentB<X> (&b)[2], const SharedTile<X, R, C>& tile, int row, int column) {
    const int lane = lane_of();
    if constexpr (sizeof(X) == 2) {
        load_matrices<false>(b, &tile.x[row + lane / 16 * 8 + lane % 8][column + lane / 8 % 2 * 8]);
    } else {
        for (int n = 0; n < 4; n++) {
            const X* at = &tile.x[row + n / 2 * 8 + lane_row()][column + n % 2 * 8 + lane_column()];
            b[n / 2].part[n % 2].pair = make_float2(at[0], at[1]);
        }
    }
}

/// Two B's side by side: B[k][n] = tile[row + k][column + n] for n < 16.
template <class X, int R, int C>
__device__ __forceinline__ void load_b_transposed(FragmentB<X> (&b)[2], const SharedTile<X, R, C>& tile, int row, int column) {
    const int lane = lane_of();
    if constexpr (sizeof(X) == 2) {
        load_matrices<true>(b, &tile.x[row + lane / 8 % 2 * 8 + lane % 8][column + lane / 16 * 8]);
    } else {
        for (int n = 0; n < 4; n++) {
            const int k = row + n % 2 * 8 + lane_column(), m = column + n / 2 * 8 + lane_row();
            b[n / 2].part[n % 2].pair = make_float2(tile.x[k][m], tile.x[k + 1][m]);
        }
    }
}

// ---- accumulators

/// Results of products in a warp's registers: M x N tiles D, 16 M rows and 8 N columns. A lane holds 2 M rows: its n-th is row
/// 8 n + lane_row(). Loops over elements are unrolled, because registers cannot be indexed.
template <int M_, int N_>
struct Accumulator {
    static constexpr int M = M_, N = N_, ROWS = 2 * M;
    float d[M][N][4];

    __device__ __forceinline__ Accumulator() { clear(); }
    struct Unset {};
    __device__ __forceinline__ explicit Accumulator(Unset) {}
    __device__ __forceinline__ void clear() {
        for_each_of_lane([](float& x, int, int, int) { x = 0; });
    }

    /// The lane's n-th row, column 8 column_tile + lane_column() + side.
    __device__ __forceinline__ float& at(int n, int column_tile, int side) { return d[n / 2][column_tile][n % 2 * 2 + side]; }
    __device__ __forceinline__ float at(int n, int column_tile, int side) const { return d[n / 2][column_tile][n % 2 * 2 + side]; }

    /// Calls each(element, row, column) for the lane's elements, column by column.
    template <class Each>
    __device__ __forceinline__ void for_each(const Each& each) {
        for_each_of_lane([&](float& x, int n, int tile, int side) { each(x, 8 * n + lane_row(), 8 * tile + lane_column() + side); });
    }

    /// Calls each(element, n, column_tile, side) for the lane's elements, with the arguments of at().
    template <class Each>
    __device__ __forceinline__ void for_each_of_lane(const Each& each) {
#pragma unroll
        for (int tile = 0; tile < N; tile++)
#pragma unroll
            for (int side = 0; side < 2; side++)
#pragma unroll
                for (int n = 0; n < ROWS; n++) each(at(n, tile, side), n, tile, side);
    }

    /// The largest element of the lane's n-th row, in all four lanes that share it.
    __device__ __forceinline__ float row_max(int n) const {
        float most = -INFINITY;
#pragma unroll
        for (int tile = 0; tile < N; tile++) most = fmaxf(most, fmaxf(at(n, tile, 0), at(n, tile, 1)));
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
        return fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
    }

    /// Keeps the compiler from reading the elements earlier.
    __device__ __forceinline__ void computed_here() {
#if defined(__CUDACC__)
        for_each_of_lane([](float& x, int, int, int) { asm volatile("" : "+f"(x)::"memory"); });
#endif
    }

    __device__ __forceinline__ void scale_row(int n, float factor) {
#pragma unroll
        for (int tile = 0; tile < N; tile++) at(n, tile, 0) *= factor, at(n, tile, 1) *= factor;
    }

    /// Rows 16 m .. and columns 16 k .. as the left factor of the next product.
    template <class X>
    __device__ __forceinline__ FragmentA<X> as_a(int m, int k) const {
        const auto &left = d[m][2 * k], &right = d[m][2 * k + 1];
        FragmentA<X> a;
        make_two(a.part[0], left[0], left[1]), make_two(a.part[1], left[2], left[3]);
        make_two(a.part[2], right[0], right[1]), make_two(a.part[3], right[2], right[3]);
        return a;
    }
};

/// The sum over the four lanes that share a row of an accumulator.
template <class Number>
__device__ __forceinline__ Number row_sum(Number x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

// ---- products

/// D += A B on the tensor cores, summed in float32.
template <class X>
__device__ __forceinline__ void multiply_add(float (&d)[4], const FragmentA<X>& a, const FragmentB<X>& b) {
    constexpr bool HALVES = std::is_same_v<X, fp16>;
    const uint32_t rows[4] = {a.part[0].bits, a.part[1].bits, a.part[2].bits, a.part[3].bits};
    const uint32_t columns[2] = {b.part[0].bits, b.part[1].bits};
#if defined(__CUDACC__)
    if constexpr (HALVES)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(columns[0]), "r"(columns[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(columns[0]), "r"(columns[1]));
#else
    emulator::mma_m16n8k16(d, rows, columns, HALVES);
#endif
}

__device__ __forceinline__ float2 pair_of_lane(float2 pair, int lane) {
    unsigned long long bits;
    std::memcpy(&bits, &pair, sizeof bits);
    bits = __shfl_sync(ALL_LANES, bits, lane);
    std::memcpy(&pair, &bits, sizeof bits);
    return pair;
}

/// D += A B in float32: every lane collects the rows of A and columns of B that its results need.
__device__ __forceinline__ void multiply_add(float (&d)[4], const FragmentA<float>& a, const FragmentB<float>& b) {
    const int first = lane_of() / 4 * 4, column = lane_column();
#pragma unroll
    for (int k = 0; k < 8; k++) {   // terms 2 k and 2 k + 1 of the sum, which every fourth lane holds
        const int half = k / 4, owner = k % 4;
        const float2 upper = pair_of_lane(a.part[2 * half].pair, first + owner);
        const float2 lower = pair_of_lane(a.part[2 * half + 1].pair, first + owner);
        const float2 left = pair_of_lane(b.part[half].pair, 4 * column + owner);
        const float2 right = pair_of_lane(b.part[half].pair, 4 * column + 4 + owner);
        d[0] += upper.x * left.x, d[1] += upper.x * right.x, d[2] += lower.x * left.x, d[3] += lower.x * right.x;
        d[0] += upper.y * left.y, d[1] += upper.y * right.y, d[2] += lower.y * left.y, d[3] += lower.y * right.y;
    }
}

/// Unroll factor of loops over products: float's bodies are long.
template <class X>
inline constexpr int UNROLL = sizeof(X) == 2 ? 64 : 1;

/// sums += A B^T: rows a_row.. of one tile times rows b_row.. of another, over all columns.
template <int M, int N, class X, int RA, int RB, int K>
__device__ __forceinline__ void rows_times_rows(Accumulator<M, N>& sums, const SharedTile<X, RA, K>& a, int a_row,
                                                const SharedTile<X, RB, K>& b, int b_row) {
#pragma unroll UNROLL<X>
    for (int k = 0; k < K; k += 16) {
        FragmentA<X> rows[M];
#pragma unroll
        for (int m = 0; m < M; m++) load_a(rows[m], a, a_row + 16 * m, k);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            FragmentB<X> columns[2];
            load_b(columns, b, b_row + 8 * n, k);
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply_add(sums.d[m][n], rows[m], columns[0]);
                multiply_add(sums.d[m][n + 1], rows[m], columns[1]);
            }
        }
    }
}

/// sums += A B: 16 columns of A in registers, 16 rows of B from (row, column) on.
template <int M, int N, class X, int R, int C>
__device__ __forceinline__ void registers_times_rows(Accumulator<M, N>& sums, const FragmentA<X> (&a)[M],
                                                     const SharedTile<X, R, C>& b, int row, int column = 0) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        FragmentB<X> columns[2];
        load_b_transposed(columns, b, row, column + 8 * n);
#pragma unroll
        for (int m = 0; m < M; m++) {
            multiply_add(sums.d[m][n], a[m], columns[0]);
            multiply_add(sums.d[m][n + 1], a[m], columns[1]);
        }
    }
}

// The attention kernels' products, which on other tiles run while the threads go on (wgmma.cuh); here they are done at once.

/// D = A B^T, as rows_times_rows().
template <int M, int N, class X, int RA, int RB, int K>
__device__ __forceinline__ void start_rows_times_rows(Accumulator<M, N>& d, const SharedTile<X, RA, K>& a, int a_row,
                                                      const SharedTile<X, RB, K>& b, int b_row) {
    d.clear();
    rows_times_rows(d, a, a_row, b, b_row);
}

/// sums += A B, as registers_times_rows().
template <int M, int N, class X, int R, int C>
__device__ __forceinline__ void start_registers_times_rows(Accumulator<M, N>& sums, const FragmentA<X> (&a)[M],
                                                           const SharedTile<X, R, C>& b, int row) {
    registers_times_rows(sums, a, b, row);
}

/// D = A^T B: 16 M columns of A from a_column on, and 8 N columns of B from b_column on, over all rows.
template <int M, int N, class X, int R, int CA, int CB>
__device__ __forceinline__ void start_columns_times_columns(Accumulator<M, N>& d, const SharedTile<X, R, CA>& a, int a_column,
                                                            const SharedTile<X, R, CB>& b, int b_column) {
    d.clear();
#pragma unroll UNROLL<X>
    for (int row = 0; row < R; row += 16) {
        FragmentA<X> left[M];
#pragma unroll
        for (int m = 0; m < M; m++) load_a_transposed(left[m], a, row, a_column + 16 * m);
        registers_times_rows(d, left, b, row, b_column);
    }
}

// ---- scalars

/// The same value, opaque to the compiler, so that its dependents are computed at their use. Otherwise the compiler would hoist addresses
/// of rarely taken paths out of loops and keep them in registers that the products need.
__device__ __forceinline__ int computed_here(int x) {
#if defined(__CUDACC__)
    asm volatile("" : "+r"(x));
#endif
    return x;
}

inline constexpr float LOG2_E = 1.4426950408889634f;

/// 2^x; 0 for -infinity.
__device__ __forceinline__ float exp2_of(float x) {
#if defined(__CUDACC__)
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return std::exp2(x);
#endif
}

// ---- order between blocks

/// Release store: writes of this thread, and writes of others before a __syncthreads(), are visible to every thread that has waited for
/// the flag.
__device__ __forceinline__ void raise_flag(int* flag, int value) {
#if defined(__CUDACC__)
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
#else
    __threadfence();
    __stcg(flag, value);
#endif
}
/// Acquire load: if it returns the value of a raise_flag(), all writes before that raise_flag() are visible to this thread, and to its
/// warp after a __syncwarp(). Cheaper than a relaxed load and a fence, which waits for all of the thread's own memory operations.
__device__ __forceinline__ int read_flag(const int* flag) {
    int value;
#if defined(__CUDACC__)
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
#else
    value = __ldcg(flag);
    __threadfence();
#endif
    return value;
}

/// Polls before a wait times out: about ten seconds. A poll takes 0.7 us; a semaphore is held for microseconds, or for milliseconds
/// under a debugger.
inline constexpr int PATIENCE = 1 << 24;

/// Waits until the flag has that value (see read_flag()); `tile` is the index of the awaited tile. A block waits only for blocks that
/// have started, and only for work that does not depend on its own. A wait without end is therefore a bug: after `patience` polls the
/// kernel writes `stuck` and traps, which ends the program. No printf: any call costs registers in the whole kernel.
__device__ __forceinline__ void wait_for_flag(const int* flag, int value, Stuck* stuck, int tile, int patience = PATIENCE) {
    int seen = read_flag(flag);
#pragma unroll 1
    for (int polls = 0; seen != value; seen = read_flag(flag)) {
        __nanosleep(40);
        if (++polls <= patience) continue;
        *stuck = {true, int(blockIdx.x), tile, seen, value};
        __threadfence_system();
        __trap();
    }
}

/// to += x. The L2 cache does the addition: nothing is loaded, and the thread does not wait. Reproducible sums need an order of blocks.
__device__ __forceinline__ void add_in_memory(float* to, float x) { atomicAdd(to, x); }
__device__ __forceinline__ void add_in_memory(float2* to, float2 x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x.x), "f"(x.y) : "memory");
#else
    add_in_memory(&to->x, x.x), add_in_memory(&to->y, x.y);
#endif
}
__device__ __forceinline__ void add_in_memory(float4* to, float4 x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
                 : "memory");
#else
    float2* const pairs = reinterpret_cast<float2*>(to);
    add_in_memory(pairs, {x.x, x.y}), add_in_memory(pairs + 1, {x.z, x.w});
#endif
}
