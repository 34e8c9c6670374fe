// Where an operation runs. Every operation is a set of overloads on one of these tags, with the same name and the same order of
// arguments: device, outputs, inputs, sizes. X is the number type of weights and activations: float on the CPU (double where the
// CPU is the oracle), bf16 or float on the GPU.
#pragma once
#include <algorithm>
#include <cstddef>
#include <type_traits>

// The GPU half of the files is compiled by nvcc, and by any C++ compiler with -DEMULATED_GPU (dev/emulator).
#if defined(__CUDACC__) || defined(EMULATED_GPU)
#define WITH_GPU 1
#include "model/device/gpu.cuh"
#endif

/// OpenMP threads and CBLAS. The overloads are in the same files as the formulas.
struct CPU {
    static constexpr const char* name = "cpu";
};

/// Wide<X>: what sums, statistics, gradients of weights, master weights and moments of an X model are kept in. bf16 has float32.
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

/// A number of X to calculate with, and back as X stores it.
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

/// Whether a gradient replaces what its buffer holds (first micro-step) or is added to it (the later ones).
enum class Write : bool { overwrite, add };

/// x (n) = value.
template <class X>
void fill(CPU, X* x, size_t n, X value) {
    std::fill(x, x + n, value);
}
