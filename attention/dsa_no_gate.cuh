// Ablation of Dynamic Sparse Attention (aardXiv 2510.00061) without its gate (paper: 4.918).
#pragma once
#include "attention/dsa.cuh"

struct dsa_no_gate : Dsa<false, DsaWindow::late_rows> {
    static constexpr const char* name = "dsa_no_gate";
    using Dsa::Dsa;
};
