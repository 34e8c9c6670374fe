// What the device that computes offers, and what running on it costs beside the tensors: overloads on the device.
#pragma once
#include "model/config.h"
#include "model/device/machine.h"
#include "model/device/memory.cuh"

// ---- CPU

inline constexpr size_t BLAS_BYTES = size_t(10) << 20;   // buffers of OpenBLAS and stacks of threads, as measured while training
inline constexpr size_t MPI_BYTES = size_t(24) << 20;    // of every rank, measured likewise

/// What takes memory beside the plan of the model; `gathered` bytes are needed on rank 0 to save what the ranks share out.
inline void add_overheads(CPU, std::vector<MemoryUse>& plan, size_t gathered, bool launched) {
    if (gathered) plan.push_back({"moments gathered to be saved (rank 0)", gathered});
    if (launched) plan.push_back({"MPI", MPI_BYTES});
    static const size_t program = resident_memory();   // the first call comes before anything is allocated
    plan.push_back({"program and libraries", program + BLAS_BYTES});
}
inline size_t available_memory(CPU) { return available_memory(); }
inline size_t peak_memory(CPU) { return peak_memory(); }
inline int ranks_per_device(CPU, int local_ranks) { return local_ranks; }
inline std::string describe(CPU, int threads) { return "cpu: " + describe_cpu(threads); }
inline void require_sizes(CPU, const Config&) {}
inline void warn(CPU) { warn_about_blas(); }

/// FLOP/s of large matrix products here and now: the ceiling that MFU refers to.
inline double measure_matmul(CPU) { return measure_sgemm(); }

#ifdef WITH_GPU
#include "model/run/machine_gpu.cuh"
#endif
