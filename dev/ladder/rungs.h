// All rungs of the ladder with what each adds, forward and backward.
#pragma once
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
#include "dev/ladder/rung_7.cuh"

struct Rung {
    const char* adds;
    void (*run)(GPU, const LadderProblem&);
    AttentionKernels kernels = AttentionKernels::mma;   // wgmma: of Hopper only

    bool exists() const { return kernels == AttentionKernels::mma || has_wgmma(); }
    void operator()(GPU device, const LadderProblem& p) const {
        const MultiplyingBy chosen(kernels);
        run(device, p);
    }
};

inline const std::vector<Rung> FORWARD = {{"one thread per query row", rung_1::attention},
                                          {"K and V through shared memory", rung_2::attention},
                                          {"online softmax, tiles in registers", rung_3::attention},
                                          {"tensor cores", rung_4::attention},
                                          {"copies while computing", rung_5::attention},
                                          {"the kernel that trains", rung_6::attention},
                                          {"products of a warpgroup", rung_7::attention, AttentionKernels::wgmma},
                                          {"the kernel that trains, by wgmma", rung_6::attention, AttentionKernels::wgmma}};

inline const std::vector<Rung> BACKWARD = {{"one thread per row", backward_1::gradients},
                                           {"tiles on tensor cores, computed twice", backward_2::gradients},
                                           {"the kernel that trains", backward_3::gradients},
                                           {"the kernel that trains, by wgmma", backward_3::gradients, AttentionKernels::wgmma}};
