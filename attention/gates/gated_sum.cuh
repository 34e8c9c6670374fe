// Gated branches of attention: the sum of separate softmaxes under a gate each, per token
// and head (NSA, Yuan et al. 2025, equation 5):
//     out = sum_c g_c out_c,   g_c = sigmoid(logit_c)
// Backward uses the output gate: each branch's call takes its gate and the gradient of the sum, and returns the gate's gradient.
#pragma once
#include "attention/scores/each_element.cuh"

inline constexpr int BRANCHES = 3;

template <class X>
struct GatedBranches {
    X* out[BRANCHES];          // (B, T, NH, HS)
    Wide<X>* gate[BRANCHES];   // (B, T, NH)
    GatedBranches(BumpAllocator& allocator, size_t heads, int HS) {
        for (int c = 0; c < BRANCHES; c++) out[c] = allocator.take<X>(heads * HS), gate[c] = allocator.take<Wide<X>>(heads);
    }
};

/// Rows are tokens; element n of a token's logits (BRANCHES, NH) belongs to branch n / NH.
template <class X>
struct OpenGates {
    GatedBranches<X> to;
    const X* logits;
    int NH;
    constexpr void operator()(unsigned token, int n) const {
        to.gate[n / NH][size_t(token) * NH + n % NH] = sigmoid(widened(logits[size_t(token) * BRANCHES * NH + n]));
    }
};

/// dlogit = dg g (1 - g).
template <class X>
struct OpenGatesBackward {
    X* dlogits;
    GatedBranches<X> of;
    const Wide<X>* dgates[BRANCHES];
    int NH;
    constexpr void operator()(unsigned token, int n) const {
        const size_t at = size_t(token) * NH + n % NH;
        const Wide<X> g = of.gate[n / NH][at];
        dlogits[size_t(token) * BRANCHES * NH + n] = narrowed<X>(dgates[n / NH][at] * g * (1 - g));
    }
};

/// out (heads, HS) = sum_c g_c out_c; `heads` counts the heads of all tokens.
template <class X>
void gated_sum(CPU, X* out, const GatedBranches<X>& from, size_t heads, int HS) {
#pragma omp parallel for
    for (size_t head = 0; head < heads; head++)
        for (int d = 0; d < HS; d++) {
            X sum = 0;
            for (int c = 0; c < BRANCHES; c++) sum += from.gate[c][head] * from.out[c][head * HS + d];
            out[head * HS + d] = sum;
        }
}

#ifdef WITH_GPU
/// 16 bytes per thread.
template <class X>
__global__ void gated_sum_kernel(X* out, const GatedBranches<X> from, size_t numbers, int HS) {
    constexpr int PIECE = Packed<X>::size;
    const size_t at = (size_t(blockIdx.x) * blockDim.x + threadIdx.x) * PIECE, head = at / HS;
    if (at >= numbers) return;
    float sums[PIECE] = {};
    for (int c = 0; c < BRANCHES; c++) {
        const float gate = from.gate[c][head];
        const Packed<X> piece = load_packed(from.out[c] + at);
        for (int e = 0; e < PIECE; e++) sums[e] += gate * piece[e];
    }
    write_numbers(out + at, sums);
}

template <class X>
void gated_sum(GPU device, X* out, const GatedBranches<X>& from, size_t heads, int HS) {
    const size_t numbers = heads * HS;
    launch(device, gated_sum_kernel<X>, blocks_for(numbers, 256 * Packed<X>::size), 256, 0, out, from, numbers, HS);
}
#endif
