// All rungs of the ladder with what each adds, forward and backward.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "dev/ladder/backward_1.cuh"
#include "dev/ladder/backward_2.cuh"
#include "dev/ladder/backward_3.cuh"
#include "dev/ladder/rung_1.cuh"
#include "dev/ladder/rung_2.cuh"
#include "dev/ladder/rung_3.cuh"
#include "dev/ladder/rung_4.cuh"
#include "dev/ladder/rung_5.cuh"
#include "dev/ladder/rung_6.cuh"

struct Rung {
    std::string adds;
    std::function<void(GPU, const BackwardProblem&)> attention;
};

/// `lse` has room for (B, NH, T) numbers of every problem that will be given to the last one.
inline std::vector<Rung> rungs(float* lse) {
    return {{"one thread per query row", rung_1::attention},
            {"K and V through shared memory", rung_2::attention},
            {"online softmax, tiles in registers", rung_3::attention},
            {"tensor cores", rung_4::attention},
            {"copies while computing", rung_5::attention},
            {"the kernel that trains", [lse](GPU device, const LadderProblem& p) { rung_6::attention(device, p, lse); }}};
}

/// `memory` has backward_3::workspace() bytes for every problem that will be given to the last one.
inline std::vector<Rung> backward_rungs(std::byte* memory) {
    return {{"one thread per row", backward_1::gradients},
            {"tiles on tensor cores, computed twice", backward_2::gradients},
            {"the kernel that trains",
             [memory](GPU device, const BackwardProblem& p) { backward_3::gradients(device, p, memory); }}};
}
