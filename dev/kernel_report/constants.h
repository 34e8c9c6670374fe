// What the prediction of attention's speed assumes of a GPU (model.py reads the numbers from here); dev/bench_constants.cu measures
// it.
#pragma once

inline constexpr double HMMA_CYCLES = 6.4;    // of its scheduler, for a product of 16 x 8 x 16 numbers of a warp
inline constexpr double ISSUE_CYCLES = 1;     // of its scheduler, for any instruction of a warp
inline constexpr double SCHEDULERS = 4;       // of a multiprocessor, which share one shared memory of 128 bytes a cycle
inline constexpr double CONSTANT_GHZ = 2.30;  // model cycles of a second on an H200: its clock, and what overlaps
