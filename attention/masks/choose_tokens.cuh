// The tokens that each head chooses (MoSA), as rows (ListedRows in rows.cuh), and the gradients of the router and its thresholds.
// u (B, T, E) are the router's logits, E = NH - dense_heads per token; r = sigmoid(u).
#pragma once
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

/// Teams are (b, h).
template <class X>
struct ChooseTokens {
    using Number = Wide<X>;
    Wide<X>* gate;
    int *tokens, *rows;
    const Wide<X>* u;
    const X* tau;
    TokenChoice c;

    template <class Team>
    constexpr void operator()(const Team& team, unsigned bh) const {
        const int h = int(bh) % c.NH, b = int(bh) / c.NH;
        const Wide<X> threshold = h < c.dense_heads ? Wide<X>(0) : widened(tau[h - c.dense_heads]);
        int* const chosen = tokens + c.row(b, h);
        int count = 0;
        for (int t0 = 0; t0 < c.T; t0 += team.step()) {
            const int t = t0 + team.first();
            const bool take = t < c.T && c.takes(u, threshold, b, h, t);
            const int row = team.place(take, count);
            if (t >= c.T) continue;
            gate[(size_t(b) * c.T + t) * c.NH + h] = take ? c.gate(u, b, h, t) : Wide<X>(0);
            rows[c.row(b, h) + t] = take ? row : -1;
            if (take) chosen[row] = t;
        }
        for (int row = count + team.first(); row < c.T; row += team.step()) chosen[row] = -1;
    }
};
/// gate (B, T, NH) = r of chosen tokens, 1 in dense heads, 0 elsewhere; tokens (B, NH, T) = the chosen tokens, ascending, then -1;
/// rows (B, NH, T) = a token's index in that list, or -1. tau (E).
template <class Device, class X>
void choose_tokens(Device device, Wide<X>* gate, int* tokens, int* rows, const Wide<X>* u, const X* tau, const TokenChoice& c) {
    each_team<8>(device, size_t(c.B) * c.NH, ChooseTokens<X>{gate, tokens, rows, u, tau, c});
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

/// Teams are routed heads.
template <class W>
struct MoveThresholds {
    using Number = W;
    W* dtau;
    const int* rows;
    TokenChoice c;
    W dloss;

    template <class Team>
    constexpr void operator()(const Team& team, unsigned e) const {
        int chosen = 0;
        for (int b = 0; b < c.B; b++)
            for (int t = team.first(); t < c.T; t += team.step()) chosen += rows[c.row(b, c.dense_heads + int(e)) + t] >= 0;
        chosen = team.sum(chosen);
        if (team.first() == 0) dtau[e] += dloss * (W(c.share) * W(c.B) * W(c.T) - W(chosen));
    }
};
/// dtau (E) += dloss sum over tokens of (share - chosen): gradient descent raises the threshold where too many are chosen.
template <class Device, class W>
void move_thresholds(Device device, W* dtau, const int* rows, const TokenChoice& c, W dloss) {
    each_team<8>(device, c.routed(), MoveThresholds<W>{dtau, rows, c, dloss});
}
