// The device's resources, and the memory that running on it costs besides the tensors: overloads on the device.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "model/base/text.h"
#include "model/config.h"
#include "model/device/blas.h"
#include "model/device/machine.h"
#include "model/device/memory.cuh"
#include "model/operations/linear.cuh"

// ---- CPU

inline constexpr size_t BLAS_BYTES = size_t(10) << 20;   // buffers of OpenBLAS and stacks of threads, as measured while training
inline constexpr size_t MPI_BYTES = size_t(24) << 20;    // per rank, measured likewise

/// Adds the memory used besides the model's plan; rank 0 needs `gathered` bytes to save sharded moments.
inline void add_overheads(CPU, std::vector<MemoryUse>& plan, size_t gathered, bool launched) {
    if (gathered) plan.push_back({"moments gathered to be saved (rank 0)", gathered});
    if (launched) plan.push_back({"MPI", MPI_BYTES});
    static const size_t program = resident_memory();   // first called before anything is allocated
    plan.push_back({"program and libraries", program + BLAS_BYTES});
}
inline size_t available_memory(CPU) { return available_memory(); }
inline size_t peak_memory(CPU) { return peak_memory(); }
inline int ranks_per_device(CPU, int local_ranks) { return local_ranks; }
inline std::string describe(CPU, int threads) { return "cpu: " + describe_cpu(threads); }
inline std::string describe_blas(CPU) { return describe_blas(); }
inline void require_sizes(CPU, const Config&) {}
inline void warn(CPU) { warn_about_blas(); }

/// Measured FLOP/s of a float32 linear layer, 512 x 512 with 1024 rows: the ceiling for MFU.
inline double measure_matmul(CPU) {
    const int rows = 1024, n = 512;   // small, as the process keeps freed memory (disable_malloc_trim())
    std::vector<float> a(size_t(rows) * n, 1.0f), b(size_t(n) * n, 1.0f), c(a);
    double best = 1e30;
    for (int round = 0; round < 5; round++) {
        const Stopwatch watch;
        linear_forward(CPU{}, c.data(), a.data(), b.data(), static_cast<const float*>(nullptr), rows, n, n);
        best = std::min(best, watch.seconds());
    }
    return 2.0 * rows * n * n / best;
}

#ifdef WITH_GPU
#include "model/run/machine_gpu.cuh"
#endif
