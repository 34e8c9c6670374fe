// Sums over the rows of a matrix, in an order that does not depend on when a block runs: bias gradients, and the second stage of
// every sum whose first stage leaves one row of partial sums per block.
#pragma once
#include "model/device/device.h"

#ifdef WITH_GPU

inline constexpr int SUM_WARPS = 8;          // warps of a block, which share its rows
inline constexpr size_t SUM_CHUNK = 256;     // rows of a block: the first stage leaves one partial sum per chunk and column

/// Bytes of workspace that column_sum() needs for a (rows, columns) matrix.
inline size_t column_sum_workspace(size_t rows, size_t columns) { return blocks_for(rows, SUM_CHUNK) * columns * sizeof(float); }

/// What each warp of a block has added up; a lane has `width` columns, and its sums start one bank after its neighbour's last.
template <int warps, int width>
struct ColumnSumShared {
    float sums[warps][WARP][width + (width > 1)];
};

/// out (columns) = or += the sums over the rows of partials (count, columns): warp w takes rows w, w + 8, ...; then the warps' sums
/// are added in order. A block has 32 columns.
template <int warps>
__global__ void sum_partials_kernel(float* out, const float* partials, size_t count, size_t columns, Write write) {
    auto& shared = dynamic_shared<ColumnSumShared<warps, 1>>();
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const size_t column = blockIdx.x * size_t(WARP) + lane;
    float sum = 0;
    if (column < columns)
        for (size_t row = warp; row < count; row += warps) sum += partials[row * columns + column];
    shared.sums[warp][lane][0] = sum;
    __syncthreads();
    if (warp > 0 || column >= columns) return;
    float total = write == Write::add ? out[column] : 0;
    for (int w = 0; w < warps; w++) total += shared.sums[w][lane][0];
    out[column] = total;
}

/// out (columns) = or += the sums over the rows of partials (count, columns).
inline void sum_partials(GPU device, float* out, const float* partials, size_t count, size_t columns, Write write) {
    launch(device, sum_partials_kernel<SUM_WARPS>, Grid(blocks_for(columns, WARP)), SUM_WARPS * WARP,
           sizeof(ColumnSumShared<SUM_WARPS, 1>), out, partials, count, columns, write);
}

/// partials (chunks, columns): the sums over each chunk of rows of matrix (rows, columns), as above. A lane reads 16 bytes a row.
template <int warps, class X>
__global__ void column_sum_kernel(float* partials, const X* matrix, size_t rows, size_t columns) {
    constexpr int width = Packed<X>::size;
    auto& shared = dynamic_shared<ColumnSumShared<warps, width>>();
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const size_t block_column = blockIdx.x * size_t(WARP * width), column = block_column + lane * width;
    const size_t first = blockIdx.y * SUM_CHUNK, end = first + SUM_CHUNK < rows ? first + SUM_CHUNK : rows;
    float sums[width] = {};
    if (column < columns)
        for (size_t row = first + warp; row < end; row += warps) {
            const Packed<X> x = load_packed(matrix + row * columns + column);
            for (int n = 0; n < width; n++) sums[n] += x[n];
        }
    for (int n = 0; n < width; n++) shared.sums[warp][lane][n] = sums[n];
    __syncthreads();
    for (int n = threadIdx.x; n < WARP * width && block_column + n < columns; n += blockDim.x) {
        float total = 0;
        for (int w = 0; w < warps; w++) total += shared.sums[w][n / width][n % width];
        partials[blockIdx.y * columns + block_column + n] = total;
    }
}

/// out (columns) = or += the sums over the rows of matrix (rows, columns); columns is a multiple of 8, since 16 bytes are read at a
/// time. Needs column_sum_workspace() bytes in device.workspace.
template <class X>
void column_sum(GPU device, float* out, const X* matrix, size_t rows, size_t columns, Write write) {
    require_multiple_of_8("the sum over rows", "the number of columns", int(columns));
    const size_t chunks = blocks_for(rows, SUM_CHUNK);
    float* partials = take_workspace<float>(device, "the sum over rows", chunks * columns);
    launch(device, column_sum_kernel<SUM_WARPS, X>, Grid(blocks_for(columns, WARP * Packed<X>::size), chunks), SUM_WARPS * WARP,
           sizeof(ColumnSumShared<SUM_WARPS, Packed<X>::size>), partials, matrix, rows, columns);
    sum_partials(device, out, partials, chunks, columns, write);
}

#endif
