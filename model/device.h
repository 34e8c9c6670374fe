// Where an operation runs. Every operation is a set of overloads on one of these tags, with the same name and the same order of
// arguments: device, outputs, inputs, sizes. X is the number type: float in training, double where the CPU is the oracle.
#pragma once
#include <algorithm>
#include <cstddef>

/// OpenMP threads and CBLAS. The overloads are in the same files as the formulas.
struct CPU {
    static constexpr const char* name = "cpu";
};

/// Whether a gradient replaces what its buffer holds (first micro-step) or is added to it (the later ones).
enum class Write : bool { overwrite, add };

/// x (n) = value.
template <class X>
void fill(CPU, X* x, size_t n, X value) {
    std::fill(x, x + n, value);
}
