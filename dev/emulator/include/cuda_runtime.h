// The CUDA runtime, emulated on the CPU (see ../README.md). Programs include it under NVIDIA's name; no toolkit is needed.
#pragma once
#if defined(__CUDACC__)
#error "dev/emulator/include is for C++ compilers; nvcc brings its own cuda_runtime.h"
#endif
#include "../halves.h"
#include "../runtime.h"
#include "../tensor_cores.h"
#include "../warpgroup_products.h"
#include "../warp_operations.h"

#include "../device_language.h"   // last: its macros are for programs
