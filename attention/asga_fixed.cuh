// Ablation of ASGA with fixed instead of learned sparsity: a hard window, c learned (paper: 5.087).
#pragma once
#include "attention/asga.cuh"

struct asga_fixed : Asga<true, AsgaGate::window> {
    static constexpr const char* name = "asga_fixed";
    using Asga::Asga;
};
