// Ablation of Dynamic Sparse Attention (aardXiv 2510.00061) without a window: dense attention with a gate (paper: 5.012).
#pragma once
#include "attention/dsa.cuh"

struct dsa_no_window : Dsa<true, DsaWindow::none> {
    static constexpr const char* name = "dsa_no_window";
    using Dsa::Dsa;
};
