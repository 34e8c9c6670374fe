// Decoding of forgetting attention (attention/forgetting.cuh): a token's running sum continues the previous token's, which is in two
// parts among the cached features of columns.
#pragma once
#include "attention/decoding/decoding.cuh"
#include "attention/forgetting.cuh"

/// Head h of row b.
template <class Device, class X, class Slots>
struct ContinueSum {
    ForgetForward<X> task;
    KVCache<Device, X, Slots> keys;
    DecodeRows rows;
    constexpr void operator()(unsigned b, int h) const {
        const Wide<X>* const column = keys.head_columns(rows.sequence[b], h) + keys.slots.slot(rows.position[b] - 1);
        task.store(int(b), h, 0, double(column[0]) + double(column[keys.column_stride]) + task.term(int(b), h, 0));
    }
};

template <class Device, class X, class Slots>
void running_sum(const DecodeStep<Device, X, Slots>& step, const ForgetForward<X>& task, int B, int NH, int /*T*/) {
    each_element(step, B, NH, ContinueSum<Device, X, Slots>{task, step.keys, step.rows});
}
