// What every rung of the ladder computes: causal attention of NH heads of HS numbers, 64 or 128,
//     O_i = sum_j P_ij v_j,   P_ij = exp(z_ij) / sum_j exp(z_ij),   z_ij = q_i.k_j / sqrt(HS),   j <= i
// with every sum in float32. A visible pair costs 4 HS floating-point operations (two products) and one exponential; there are
// B NH T (T + 1) / 2 visible pairs. What goes backward is in backward_problem.h.
#pragma once
#include "attention/kernel/mma.cuh"

struct LadderProblem {
    int B, T, NH, HS;
    const bf16 *q = nullptr, *k = nullptr, *v = nullptr;   // (B, T, NH, HS)
    bf16* out = nullptr;                                   // (B, T, NH, HS)
    float* lse = nullptr;   // (B, NH, T) the log-sum-exp of each row, which the last rung writes and backward reads

    // Of the backward pass, which reads `out` and `lse` of the forward pass.
    const bf16* dout = nullptr;            // (B, T, NH, HS)
    float* D = nullptr;                    // (B, NH, T), room for it
    float *dq = nullptr, *dk = nullptr;    // (B, T, NH, HS)
    bf16* dv = nullptr;                    // (B, T, NH, HS)
    std::byte* workspace = nullptr;        // backward_3::workspace() bytes

    /// From one token to the next.
    constexpr size_t row() const { return size_t(NH) * HS; }
    /// Where head h of token t of sequence b begins.
    constexpr size_t at(int b, int t, int h) const { return (size_t(b) * T + t) * row() + size_t(h) * HS; }
    /// Number of row i in (B, NH, T).
    constexpr size_t row_at(int b, int i, int h) const { return (size_t(b) * NH + h) * T + i; }
    constexpr size_t numbers() const { return size_t(B) * T * row(); }
    constexpr double flops() const { return 4.0 * HS * B * NH * T * (T + 1.0) / 2; }
};

/// exp(q.k / sqrt(HS)) = 2^(q.k to_base_2): one multiplication less per pair, as the hardware's exponential is that of 2.
__device__ __forceinline__ float to_base_2(int HS) { return LOG2_E * rsqrtf(float(HS)); }

/// Rows first.. of a head into shared memory by THREADS threads, 16 bytes at a time; zeros where there is no row.
template <int THREADS, int HS, int ROWS, int COLUMNS>
__device__ __forceinline__ void fetch(bf16 (&to)[ROWS][COLUMNS], const bf16* head, const LadderProblem& p, int first) {
    constexpr int PIECES = HS / 8;
    for (int n = threadIdx.x; n < ROWS * PIECES; n += THREADS) {
        const int r = n / PIECES, d = n % PIECES * 8;
        Packed<bf16> piece{};
        if (first + r < p.T) piece = load_packed(head + size_t(first + r) * p.row() + d);
        store_packed(&to[r][d], piece);
    }
}

/// The product of two rows of a head.
template <int HS>
__device__ __forceinline__ float dot_product(const bf16* q, const bf16* k) {
    float sum = 0;
#pragma unroll 4
    for (int d = 0; d < HS; d += 8) {
        const Packed<bf16> x = load_packed(q + d), y = load_packed(k + d);
#pragma unroll
        for (int n = 0; n < 8; n++) sum += x[n] * y[n];
    }
    return sum;
}

/// sums += factor row
template <int HS>
__device__ __forceinline__ void add_row(float (&sums)[HS], float factor, const bf16* row) {
#pragma unroll
    for (int d = 0; d < HS; d += 8) {
        const Packed<bf16> x = load_packed(row + d);
#pragma unroll
        for (int n = 0; n < 8; n++) sums[d + n] += factor * x[n];
    }
}

/// Calls run(std::integral_constant<int, HS>).
template <class Run>
void for_ladder_head_size(int HS, Run run) {
    if (HS == 64) return run(std::integral_constant<int, 64>{});
    if (HS == 128) return run(std::integral_constant<int, 128>{});
    fail(Exit::usage, "the ladder has head sizes 64 and 128, not ", HS);
}
