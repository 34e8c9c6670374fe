// Whatever is made of PTX, and what it is used for, against plain loops: on a GPU these few seconds tell whether
// attention/kernel/mma.cuh says what the hardware does; on the emulator whether the emulator agrees with that. Numbers are small
// integers, so that sums are exact and one wrong lane is a different number.
//
// Every check is made once as the engine does it, where it must hold, and once with each of the faults that its operands can have,
// where it must not: a check that cannot fail certifies nothing. All faults show on a GPU too, whatever its blocks do first.
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

/// What a kernel is told to do wrong with its operands.
enum class Fault { none, row, column, swapped, transposed, number, part, lane, byte, rounded, order };
inline const char* name_of(Fault fault) {
    constexpr const char* names[] = {"none",
                                     "the next row",
                                     "the next column that can be addressed",
                                     "two operands exchanged",
                                     "the other of two ways to read a tile",
                                     "numbers one place further",
                                     "another part of a fragment, or a row too many",
                                     "the next lane",
                                     "a byte less",
                                     "numbers rounded to bf16",
                                     "another order"};
    return names[int(fault)];
}

/// `matches(fault)`: whether what a kernel gave is what the definition says.
template <class Matches>
void conforms(const std::vector<Fault>& faults, Matches matches) {
    CHECK(matches(Fault::none));
    for (Fault fault : faults) {
        INFO("planted fault: " << name_of(fault));
        CHECK_FALSE(matches(fault));
    }
}
