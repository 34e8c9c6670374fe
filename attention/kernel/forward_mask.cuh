// The mask of the forward kernel: a thread's scores of hidden pairs become -infinity. `Shape` has the layout of scores (forward.cuh).
#pragma once
#include "attention/kernel/features.cuh"

/// Calls each(value, r, c) for the thread's elements of a part of a tile, in column-major order; r and c are row and column in the
/// part.
template <class Shape, class Each>
__device__ __forceinline__ void for_each_pair(float (&s)[Shape::M_TILES][Shape::STEP / 8][4], Each each) {
#pragma unroll
    for (int n = 0; n < Shape::STEP / 8; n++)
#pragma unroll
        for (int side = 0; side < 2; side++)
#pragma unroll
            for (int row = 0; row < 2 * Shape::M_TILES; row++)
                each(s[row / 2][n][row % 2 * 2 + side], 8 * row + lane_row(), 8 * n + lane_column() + side);
}

/// Hidden pairs become -infinity. A long visible() is called in a rolled loop over columns that sets one bit per pair.
template <class Shape, bool LONG, class Visible>
__device__ __forceinline__ void mask_by(float (&s)[Shape::M_TILES][Shape::STEP / 8][4], Visible visible, int i0, int j0, int keys) {
    if constexpr (!LONG) {
        for_each_pair<Shape>(s, [&](float& value, int r, int c) {
            if (j0 + c >= keys || !visible(i0 + r, j0 + c)) value = -INFINITY;
        });
    } else {
        constexpr int ROWS = 2 * Shape::M_TILES;   // of the thread
        unsigned hidden[ROWS] = {};
#pragma unroll 1
        for (int k = 0; k < Shape::STEP / 4; k++) {
            const int j = j0 + k / 2 * 8 + lane_column() + k % 2;
#pragma unroll
            for (int row = 0; row < ROWS; row++)
                if (j >= keys || !visible(i0 + 8 * row + lane_row(), j)) hidden[row] |= 1u << k;
        }
#pragma unroll
        for (int row = 0; row < ROWS; row++)
#pragma unroll
            for (int k = 0; k < Shape::STEP / 4; k++)
                if (hidden[row] >> k & 1) s[row / 2][k / 2][row % 2 * 2 + k % 2] = -INFINITY;
    }
}

template <class Shape, class Walk>
__device__ __forceinline__ void mask(float (&s)[Shape::M_TILES][Shape::STEP / 8][4], const Walk& walk, const TilePlace& part,
                                     Tile verdict, int keys) {
    if (verdict == Tile::full && part.columns == Shape::STEP) return;
    walk.with_visible(verdict, [&](auto visible) {
        constexpr bool LONG = Walk::template is_long<decltype(visible)>();
        mask_by<Shape, LONG>(s, visible, computed_here(part.i0), computed_here(part.j0), keys);
    });
}
