// Device tags. Every operation is a set of overloads on a tag, with the same name and argument order: device, outputs, inputs,
// sizes. X is the type of weights and activations: float on the CPU (double for the tests' oracle), bf16 or float on the GPU.
#pragma once
#include <algorithm>
#include <cstddef>
#include <type_traits>

// GPU code is compiled by nvcc, or by any C++ compiler with -DEMULATED_GPU (dev/emulator).
#if defined(__CUDACC__) || defined(EMULATED_GPU)
#define WITH_GPU 1
#include "model/device/gpu.cuh"

/// Where a program lacks GPU_FLOAT32: models on a GPU are in bf16.
inline constexpr const char* no_float32_kernels = "this program has only bf16 kernels; use --device cpu, or build it with make FLOAT32=1";
#endif

/// OpenMP threads and CBLAS.
struct CPU {
    static constexpr const char* name = "cpu";
};

/// Wide<X>: the type of an X model's sums, statistics, weight gradients, master weights and moments; float32 for bf16.
template <class X>
struct WideOf {
    using type = X;
};
#ifdef WITH_GPU
template <>
struct WideOf<bf16> {
    using type = float;
};
#endif
template <class X>
using Wide = typename WideOf<X>::type;

/// Converts between the storage type X and the arithmetic type Wide<X>.
template <class X>
constexpr Wide<X> widened(X x) {
    if constexpr (std::is_same_v<X, Wide<X>>) return x;
    else return to_float(x);
}
template <class X>
constexpr X narrowed(Wide<X> x) {
    if constexpr (std::is_same_v<X, Wide<X>>) return x;
    else return from_float<X>(x);
}

/// Whether a gradient overwrites its buffer (first micro-step) or is added to it (later ones).
enum class Write : bool { overwrite, add };

/// x (n) = value.
template <class X>
void fill(CPU, X* x, size_t n, X value) {
    std::fill(x, x + n, value);
}
