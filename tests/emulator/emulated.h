// Shared by the tests of the emulator.
#pragma once
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/gpu/device_array.h"

/// The seeds that a kernel should be run with: in order, last first, and two random orders; streams at once, late and mixed.
inline const std::vector<int> SEEDS{0, 1, 2, 3, 4};

/// What the emulator says about `action`; empty when it has nothing to say.
template <class Action>
std::string complaint(Action action) {
    try {
        action();
        cudaDeviceSynchronize();
    } catch (const emulator::Error& error) {
        return error.what();
    }
    return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
