// Whatever is made of PTX, and what it is used for, against plain loops: on a GPU these few seconds tell whether
// attention/kernel/mma.cuh says what the hardware does; on the emulator whether the emulator agrees with that. Numbers are small
// integers, so that sums are exact and one wrong lane is a different number.
#pragma once
#include <random>
#include <vector>

#include "attention/kernel/backward.cuh"
#include "tests/catch.h"
#include "tests/gpu/device_array.h"

/// What one block makes of `size` numbers, the kernel's first argument.
template <class Y, class... Parameters, class... Arguments>
std::vector<double> made_by(void (*kernel)(Y*, Parameters...), size_t size, int threads, size_t shared, Arguments... arguments) {
    const DeviceArray<Y> out(size, NAN);
    launch(test_gpu(), kernel, Grid(1), threads, shared, out.data(), arguments...);
    return out.numbers();
}

inline std::vector<double> integers(size_t n, int seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    std::vector<double> numbers(n);
    for (double& x : numbers) x = int(random() % 17) - 8;
    return numbers;
}
