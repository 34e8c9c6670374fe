// Ablation of ASGA with neither the gate nor the scale, which is plain causal attention (paper: 4.930; baseline 4.927).
#pragma once
#include "attention/asga.cuh"

struct asga_neither : Asga<false, AsgaGate::none> {
    static constexpr const char* name = "asga_neither";
    using Asga::Asga;
};
