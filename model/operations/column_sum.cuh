// Sums over the rows of a matrix, in an order independent of block scheduling: for bias gradients, and as the second stage of every sum
// whose first stage writes one row of partial sums per block.
#pragma once
#include <algorithm>

#include "model/device/device.h"

#ifdef WITH_GPU

inline constexpr int SUM_WARPS = 8;          // per block; they share its rows
inline constexpr size_t SUM_CHUNK = 256;     // rows per block: the first stage leaves one partial sum per chunk and column

// The second stage adds few values and is bound by memory latency, hence many blocks whose threads issue all their loads at once.
namespace second_stage {
inline constexpr int COLUMNS = 8;             // per block: 32 bytes of each row, one memory sector
inline constexpr int ROWS = WARP / COLUMNS;   // per warp and load
inline constexpr int MAX_WARPS = 32;
inline constexpr int IN_FLIGHT = 8;           // loads that a thread issues before it needs the first

struct Shared {
    float sums[MAX_WARPS][COLUMNS];
};

/// Warps per block: enough for IN_FLIGHT values per thread. Depends on the number of rows only, so results are bit-identical.
inline int warps_for(size_t count) { return int(std::clamp(count / (ROWS * IN_FLIGHT), size_t(1), size_t(MAX_WARPS))); }

/// The output of each matrix.
template <int MATRICES>
struct Outputs {
    float* of[MATRICES];
};
}   // namespace second_stage

/// Writes or adds the sums over the rows of partials[m] (count, columns) to outputs.of[m] (columns). A block takes 8 columns of one
/// matrix, and a thread every step-th row of one column; the threads' sums are added within each warp, then warp after warp.
template <int MATRICES>
__global__ void __launch_bounds__(second_stage::MAX_WARPS * WARP, 1)
    sum_partials_kernel(second_stage::Outputs<MATRICES> outputs, const float* partials, unsigned count, unsigned columns,
                        Write write) {
    using namespace second_stage;
    auto& shared = dynamic_shared<Shared>();
    const unsigned warp = threadIdx.x / WARP, warps = blockDim.x / WARP, step = warps * ROWS;
    const unsigned column = blockIdx.x * COLUMNS + threadIdx.x % COLUMNS;
    const float* const numbers = partials + size_t(blockIdx.y) * count * columns + column;
    float* const out = outputs.of[blockIdx.y] + column;
    const bool writes = threadIdx.x < COLUMNS && column < columns;
    float total = writes && write == Write::add ? *out : 0, sum = 0;
    for (unsigned first = threadIdx.x / COLUMNS; first < count && column < columns; first += step * IN_FLIGHT) {
        float x[IN_FLIGHT];   // past the end, the last row is read again and not added
        for (int k = 0; k < IN_FLIGHT; k++) x[k] = numbers[min(first + k * step, count - 1) * columns];
        for (int k = 0; k < IN_FLIGHT; k++) sum = first + k * step < count ? sum + x[k] : sum;
    }
    for (int distance = WARP / 2; distance >= COLUMNS; distance /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, distance);
    if (threadIdx.x % WARP < COLUMNS) shared.sums[warp][threadIdx.x % WARP] = sum;
    __syncthreads();
    if (!writes) return;
    for (unsigned w = 0; w < warps; w++) total += shared.sums[w][threadIdx.x];
    *out = total;
}

/// Writes or adds the sums over the rows of partials[m] (count, columns) to outputs.of[m] (columns).
template <int MATRICES>
void sum_partials(GPU device, const second_stage::Outputs<MATRICES>& outputs, const float* partials, size_t count, size_t columns,
                  Write write) {
    const Grid grid(blocks_for(columns, second_stage::COLUMNS), MATRICES);
    launch(device, sum_partials_kernel<MATRICES>, grid, second_stage::warps_for(count) * WARP, sizeof(second_stage::Shared),
           outputs, partials, unsigned(count), unsigned(columns), write);
}

/// The same for one matrix.
inline void sum_partials(GPU device, float* out, const float* partials, size_t count, size_t columns, Write write) {
    sum_partials<1>(device, {{out}}, partials, count, columns, write);
}

/// The sums of each warp. A lane has `width` columns; one float of padding avoids bank conflicts between lanes.
template <int warps, int width>
struct ColumnSumShared {
    float sums[warps][WARP][width + 1];
};

/// partials (chunks, columns) = the sums over each chunk of rows of matrix (rows, columns). A lane reads 16 bytes per row.
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

/// Preconditions: columns a multiple of 8 (16-byte loads; Exit::usage), room for the partial sums in device.workspace
/// (Exit::out_of_memory). out (columns) = or += the sums over the rows of matrix (rows, columns).
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
