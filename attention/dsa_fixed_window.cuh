// Ablation of Dynamic Sparse Attention (aardXiv 2510.00061) with a window for every row (paper: 4.927).
#pragma once
#include "attention/dsa.cuh"

struct dsa_fixed_window : Dsa<true, DsaWindow::all_rows> {
    static constexpr const char* name = "dsa_fixed_window";
    using Dsa::Dsa;
};
