// Causal attention: the baseline of every comparison (Vaswani et al. 2017; the Qwen technical reports).
//     z_ij = q_i.k_j / sqrt(HS)   for j <= i
// Every hook has its default. Copy this file for a new variant; the struct has the name of the file.
#pragma once
#include "attention/kernel/layer.h"

struct causal : Policy {
    static constexpr const char* name = "causal";
    using Policy::Policy;

    template <class X>
    void naive(const LayerInputs<X>& in, const X* /*weights*/, X* out) const {
        dense_softmax(in, out, [](int, int i, int j) { return j <= i; });
    }
};
