// Decoding of forgetting attention (attention/forgetting.cuh): a token's running sum continues the previous token's, which is in two
// parts among the cached features of columns.
#pragma once
#include "attention/decoding/decoding.cuh"
#include "attention/forgetting.cuh"

template <class X, class Slots>
void running_sum(const DecodeStep<CPU, X, Slots>& step, const ForgetForward<X>& task, int /*B*/, int NH, int /*T*/) {
    for (int h = 0; h < NH; h++) {
        const double before = double(step.keys.last_feature(h, 0)) + double(step.keys.last_feature(h, 1));
        task.store(0, h, 0, before + task.term(0, h, 0));
    }
}

#ifdef WITH_GPU
/// Block b: row b, one thread per head.
template <class X, class Slots>
__global__ void running_sum_of_rows_kernel(const ForgetForward<X> task, const KVCache<GPU, X, Slots> keys, const DecodeRows rows) {
    const int b = blockIdx.x, slots = keys.slots.count(), last = keys.slots.slot(rows.position[b] - 1);
    for (int h = threadIdx.x; h < keys.NH; h += blockDim.x) {
        const float* const columns = keys.head_columns(rows.sequence[b], h);
        task.store(b, h, 0, double(columns[last]) + double(columns[slots + last]) + task.term(b, h, 0));
    }
}

template <class X, class Slots>
void running_sum(const DecodeStep<GPU, X, Slots>& step, const ForgetForward<X>& task, int B, int /*NH*/, int /*T*/) {
    launch(step, running_sum_of_rows_kernel<X, Slots>, B, 2 * WARP, 0, task, step.keys, step.rows);
}
#endif
