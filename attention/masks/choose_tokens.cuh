// The tokens that each head chooses (MoSA), as rows (ListedRows in rows.cuh), and the gradients of the router and its thresholds.
// u (B, T, E) are the router's logits, E = NH - dense_heads per token; r = sigmoid(u).
#pragma once
#include "attention/masks/place_among.cuh"
#include "attention/scores/each_element.cuh"
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

template <class W>
struct RouterBackward {
    W* du;
    const W *dgate, *gate;
    int NH, dense_heads;
    constexpr void operator()(unsigned token, int e) const {
        const size_t at = size_t(token) * NH + dense_heads + e;
        du[size_t(token) * (NH - dense_heads) + e] = dgate[at] * gate[at] * (1 - gate[at]);
    }
};
/// du (B, T, E) from the gradient of gate (B, T, NH), which is zero where the gate is.
template <class Device, class W>
void router_backward(Device device, W* du, const W* dgate, const W* gate, const TokenChoice& c) {
    each_element(device, size_t(c.B) * c.T, c.routed(), RouterBackward<W>{du, dgate, gate, c.NH, c.dense_heads});
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

/// One block per head and sequence; THREADS tokens at a time.
template <class X>
__global__ void __launch_bounds__(choosing::THREADS)
    choose_tokens_kernel(float* gate, int* tokens, int* rows, const float* u, const X* tau, const TokenChoice c) {
    auto& shared = dynamic_shared<choosing::Shared>();
    const int h = blockIdx.x, b = blockIdx.y;
    const float threshold = h < c.dense_heads ? 0.0f : to_float(tau[h - c.dense_heads]);
    int count = 0;
    for (int t0 = 0; t0 < c.T; t0 += choosing::THREADS) {
        const int t = t0 + int(threadIdx.x);
        const bool take = t < c.T && c.takes(u, threshold, b, h, t);
        int row = count;
        row += choosing::place_among(take, count, shared);
        if (t >= c.T) continue;
        gate[(size_t(b) * c.T + t) * c.NH + h] = take ? c.gate(u, b, h, t) : 0.0f;
        rows[c.row(b, h) + t] = take ? row : -1;
        if (take) tokens[c.row(b, h) + row] = t;
    }
    for (int row = count + int(threadIdx.x); row < c.T; row += choosing::THREADS) tokens[c.row(b, h) + row] = -1;
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
inline void move_thresholds(GPU device, float* dtau, const int* rows, const TokenChoice& c, float dloss) {
    launch(device, move_thresholds_kernel<float>, c.routed(), choosing::THREADS, sizeof(choosing::Shared), dtau, rows, c, dloss);
}

#endif
