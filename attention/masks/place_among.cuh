// The places of chosen tokens among all that a thread block has chosen, for kernels that list tokens in order.
#pragma once
#include "model/device/device.h"

#ifdef WITH_GPU

namespace choosing {
inline constexpr int WARPS = 8, THREADS = WARPS * WARP;
struct Shared {
    int counts[WARPS];
};

/// The number of lower threads with `yes`; adds the number of all threads with `yes` to `total`.
__device__ __forceinline__ int place_among(bool yes, int& total, Shared& shared) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const unsigned those = __ballot_sync(ALL_LANES, yes);
    if (lane == 0) shared.counts[warp] = __popc(those);
    __syncthreads();
    int place = __popc(those & ((1u << lane) - 1));
    for (int w = 0; w < WARPS; w++) {
        if (w < warp) place += shared.counts[w];
        total += shared.counts[w];
    }
    __syncthreads();   // the counts have been read
    return place;
}
}   // namespace choosing

#endif
