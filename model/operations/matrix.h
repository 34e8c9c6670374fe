// A weight matrix for linear layers and look-ups on the CPU.
#pragma once
#include <cstddef>

#include "model/base/bf16.h"

/// A row-major matrix in the computing type X, or in bf16.
template <class X>
struct Matrix {
    const X* data;
    const StoredBf16* bf16 = nullptr;   // in place of `data`

    constexpr Matrix(const X* numbers) : data(numbers) {}
    explicit constexpr Matrix(const StoredBf16* rounded) : data(nullptr), bf16(rounded) {}
};

/// to (n) = from (n).
template <class X>
void widen(X* to, const StoredBf16* from, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = X(from[i]);
}
