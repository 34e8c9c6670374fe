// Asynchronous copies into shared memory, under CUDA's names.
#pragma once
#include "../tensor_cores.h"

inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes) { emulator::cp_async(to, from, int(bytes), int(bytes)); }
inline void __pipeline_commit() { emulator::cp_async_commit(); }
inline void __pipeline_wait_prior(size_t left) { emulator::cp_async_wait(int(left)); }
