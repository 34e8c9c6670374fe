// Whatever is made of PTX, and what it is used for, against plain loops: on a GPU these few seconds tell whether
// attention/kernel/mma.cuh says what the hardware does; on the emulator whether the emulator agrees with that. Numbers are small
// integers, so that sums are exact and one wrong lane is a different number.
#pragma once
#include <random>
#include <vector>

#include "attention/kernel/backward.cuh"
#include "tests/catch.h"
#include "tests/gpu/device_array.h"

inline std::vector<double> integers(size_t n, int seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    std::vector<double> numbers(n);
    for (double& x : numbers) x = int(random() % 17) - 8;
    return numbers;
}
