// Ablation of ASGA without the geometric scale: c = 1 (paper: 5.201 against 5.148 for the whole mechanism).
#pragma once
#include "attention/asga.cuh"

struct asga_no_geometry : Asga<false, AsgaGate::learned> {
    static constexpr const char* name = "asga_no_geometry";
    using Asga::Asga;
};
