// The tokens that each head chooses (MoSA), as rows (ListedRows in rows.cuh), and the gradients of the router and its thresholds.
// u (B, T, E) are the router's logits, E = NH - dense_heads per token; r = sigmoid(u).
#pragma once
#include "model/batch.h"
#include "model/device/device.h"
#include "model/device/math.h"

struct TokenChoice {
    int B, T, NH;
    int dense_heads;      // the first heads choose every token
    bool expert_choice;   // the `count` tokens with the largest r, else those with r above the head's threshold; the first token
                          // always, and the first of every document
    int count;
    float share;          // target share of chosen tokens, for the thresholds
    int first = 0;        // position of the first token in its text
    Documents documents = {};   // of packed rows

    constexpr int routed() const { return NH - dense_heads; }
    template <class W>
    constexpr W router(const W* u, int b, int h, int t) const {
        return u[(size_t(b) * T + t) * routed() + h - dense_heads];
    }
    constexpr size_t row(int b, int h) const { return (size_t(b) * NH + h) * T; }   // of (B, NH, T)
    constexpr bool begins(int b, int t) const { return first + t == (documents ? documents.at(b, t) : 0); }

    template <class W>
    constexpr bool takes(const W* u, W threshold, int b, int h, int t) const {
        if (h < dense_heads || begins(b, t)) return true;
        if (!expert_choice) return sigmoid(router(u, b, h, t)) > threshold;
        int rank = 1;   // after the first token; ties go to the earlier one
        for (int other = 1; other < T && rank < count; other++) {
            const W mine = router(u, b, h, t), its = router(u, b, h, other);
            rank += its > mine || (its == mine && other < t);
        }
        return rank < count;
    }
    template <class W>
    constexpr W gate(const W* u, int b, int h, int t) const {
        return h < dense_heads ? W(1) : sigmoid(router(u, b, h, t));
    }
};

/// gate (B, T, NH) = r of chosen tokens, 1 in dense heads, 0 elsewhere; tokens (B, NH, T) = the chosen tokens, ascending, then -1;
/// rows (B, NH, T) = a token's index in that list, or -1. tau (E).
template <class X>
void choose_tokens(CPU, X* gate, int* tokens, int* rows, const X* u, const X* tau, const TokenChoice& c) {
#pragma omp parallel for collapse(2)
    for (int b = 0; b < c.B; b++)
        for (int h = 0; h < c.NH; h++) {
            int count = 0;
            const X threshold = h < c.dense_heads ? X(0) : tau[h - c.dense_heads];
            for (int t = 0; t < c.T; t++) {
                const bool take = c.takes(u, threshold, b, h, t);
                gate[(size_t(b) * c.T + t) * c.NH + h] = take ? c.gate(u, b, h, t) : X(0);
                rows[c.row(b, h) + t] = take ? count : -1;
                if (take) tokens[c.row(b, h) + count++] = t;
            }
            std::fill(tokens + c.row(b, h) + count, tokens + c.row(b, h) + c.T, -1);
        }
}

/// du (B, T, E) from the gradient of gate (B, T, NH), which is zero where the gate is.
template <class X>
void router_backward(CPU, X* du, const X* dgate, const X* gate, const TokenChoice& c) {
    for (size_t n = 0; n < size_t(c.B) * c.T * c.routed(); n++) {
        const size_t at = n / c.routed() * c.NH + c.dense_heads + n % c.routed();
        du[n] = dgate[at] * gate[at] * (1 - gate[at]);
    }
}

/// dtau (E) += dloss sum over tokens of (share - chosen): gradient descent raises the threshold where too many are chosen.
template <class X>
void move_thresholds(CPU, X* dtau, const int* rows, const TokenChoice& c, X dloss) {
    for (int e = 0; e < c.routed(); e++) {
        int64_t chosen = 0;
        for (int b = 0; b < c.B; b++)
            for (int t = 0; t < c.T; t++) chosen += rows[c.row(b, c.dense_heads + e) + t] >= 0;
        dtau[e] += dloss * (X(c.share) * X(c.B) * X(c.T) - X(chosen));
    }
}

#ifdef WITH_GPU

namespace choosing {
inline constexpr int WARPS = 8, THREADS = WARPS * WARP;
struct Shared {
    int counts[WARPS];
};
}   // namespace choosing

/// One block per head and sequence; THREADS tokens at a time.
template <class X>
__global__ void __launch_bounds__(choosing::THREADS)
    choose_tokens_kernel(float* gate, int* tokens, int* rows, const float* u, const X* tau, const TokenChoice c) {
    auto& shared = dynamic_shared<choosing::Shared>();
    const int h = blockIdx.x, b = blockIdx.y, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const float threshold = h < c.dense_heads ? 0.0f : to_float(tau[h - c.dense_heads]);
    int count = 0;
    for (int t0 = 0; t0 < c.T; t0 += choosing::THREADS) {
        const int t = t0 + int(threadIdx.x);
        const bool take = t < c.T && c.takes(u, threshold, b, h, t);
        const unsigned taken = __ballot_sync(ALL_LANES, take);
        if (lane == 0) shared.counts[warp] = __popc(taken);
        __syncthreads();
        int row = count + __popc(taken & ((1u << lane) - 1));
        for (int w = 0; w < choosing::WARPS; w++) {
            if (w < warp) row += shared.counts[w];
            count += shared.counts[w];
        }
        if (t < c.T) {
            gate[(size_t(b) * c.T + t) * c.NH + h] = take ? c.gate(u, b, h, t) : 0.0f;
            rows[c.row(b, h) + t] = take ? row : -1;
            if (take) tokens[c.row(b, h) + row] = t;
        }
        __syncthreads();   // the counts have been read
    }
    for (int row = count + int(threadIdx.x); row < c.T; row += choosing::THREADS) tokens[c.row(b, h) + row] = -1;
}

template <class W>
__global__ void router_backward_kernel(W* du, const W* dgate, const W* gate, const TokenChoice c, size_t count) {
    const size_t n = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (n >= count) return;
    const size_t at = n / c.routed() * c.NH + c.dense_heads + n % c.routed();
    du[n] = dgate[at] * gate[at] * (1 - gate[at]);
}

/// One block per routed head.
template <class W>
__global__ void __launch_bounds__(choosing::THREADS)
    move_thresholds_kernel(W* dtau, const int* rows, const TokenChoice c, W dloss) {
    auto& shared = dynamic_shared<choosing::Shared>();
    const int e = blockIdx.x;
    int chosen = 0;
    for (int b = 0; b < c.B; b++)
        for (int t = threadIdx.x; t < c.T; t += choosing::THREADS) chosen += rows[c.row(b, c.dense_heads + e) + t] >= 0;
    chosen = block_sum<choosing::WARPS>(chosen, shared.counts);
    if (threadIdx.x == 0) dtau[e] += dloss * (W(c.share) * W(c.B) * W(c.T) - W(chosen));
}

template <class X>
void choose_tokens(GPU device, float* gate, int* tokens, int* rows, const float* u, const X* tau, const TokenChoice& c) {
    launch(device, choose_tokens_kernel<X>, Grid(c.NH, c.B), choosing::THREADS, sizeof(choosing::Shared), gate, tokens, rows, u,
           tau, c);
}
inline void router_backward(GPU device, float* du, const float* dgate, const float* gate, const TokenChoice& c) {
    const size_t count = size_t(c.B) * c.T * c.routed();
    launch(device, router_backward_kernel<float>, blocks_for(count, 256), 256, 0, du, dgate, gate, c, count);
}
inline void move_thresholds(GPU device, float* dtau, const int* rows, const TokenChoice& c, float dloss) {
    launch(device, move_thresholds_kernel<float>, c.routed(), choosing::THREADS, sizeof(choosing::Shared), dtau, rows, c, dloss);
}

#endif
