// What every rung of the ladder computes: causal attention of NH heads of HS numbers, 64 or 128,
//     O_i = sum_j P_ij v_j,   P_ij = exp(z_ij) / sum_j exp(z_ij),   z_ij = q_i.k_j / sqrt(HS),   j <= i
// with q, k, v and out (B, T, NH, HS) in bf16 and every sum in float32. A visible pair costs 4 HS floating-point operations (two
// products) and one exponential; there are B NH T (T + 1) / 2 visible pairs.
#pragma once
#include "attention/kernel/mma.cuh"

struct LadderProblem {
    int B, T, NH, HS;
    const bf16 *q, *k, *v;
    bf16* out;

    /// From one token to the next.
    constexpr size_t row() const { return size_t(NH) * HS; }
    /// Where head h of token t of sequence b begins.
    constexpr size_t at(int b, int t, int h) const { return (size_t(b) * T + t) * row() + size_t(h) * HS; }
    constexpr size_t numbers() const { return size_t(B) * T * row(); }
    constexpr double flops() const { return 4.0 * HS * B * NH * T * (T + 1.0) / 2; }
};

/// exp(q.k / sqrt(HS)) = 2^(q.k to_base_2): one multiplication less per pair, as the hardware's exponential is that of 2.
__device__ __forceinline__ float to_base_2(int HS) { return LOG2_E * rsqrtf(float(HS)); }

/// Calls run(std::integral_constant<int, HS>).
template <class Run>
void for_ladder_head_size(int HS, Run run) {
    if (HS == 64) return run(std::integral_constant<int, 64>{});
    if (HS == 128) return run(std::integral_constant<int, 128>{});
    fail(Exit::usage, "the ladder has head sizes 64 and 128, not ", HS);
}
