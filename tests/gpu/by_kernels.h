// Attention by each of the instructions that multiply.
#pragma once
#include "attention/kernel/wgmma.cuh"
#include "tests/catch.h"

/// Calls check() by mma and, where kernels `by_groups` exist, by wgmma.
template <class Check>
void by_all_kernels(bool by_groups, const Check& check) {
    for (const AttentionKernels kernels : {AttentionKernels::mma, AttentionKernels::wgmma}) {
        if (kernels == AttentionKernels::wgmma && !(by_groups && has_wgmma())) continue;
        const MultiplyingBy chosen(kernels);
        INFO((kernels == AttentionKernels::mma ? "mma" : "wgmma"));
        check();
    }
}
