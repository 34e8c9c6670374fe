// Sums and gathers over the ranks of arrays in the device's memory: MPI for the CPU, NCCL between GPUs.
#pragma once
#include "model/device.h"
#include "model/ranks.h"

template <class Device>
class Collectives;

template <>
class Collectives<CPU> {
public:
    Collectives(CPU, Ranks& ranks) : ranks_(ranks) {}

    const char* name() const { return ranks_.size() > 1 ? "MPI" : "none"; }

    /// x (n) = its sum over the ranks, for everything that the device does after finish(). Every rank makes the same calls.
    void start_sum(CPU, float* x, size_t n) { ranks_.sum(x, n); }
    void start_sum(CPU, double* x, size_t n) {
        for (size_t i = 0; i < n; i++) x[i] = ranks_.sum(x[i]);
    }
    void finish(CPU) {}

    /// Completes x (n) on every rank from each rank's own shard (shard_begin() in tensors.h).
    template <class X>
    void all_gather(CPU, X* x, size_t n) {
        ranks_.all_gather(x, n, sizeof(X));
    }

private:
    Ranks& ranks_;
};
