// The output gate outside of the kernel, on results in memory: where a GPU gathers rows, the gate's order is not the kernel's.
#pragma once
#include "attention/scores/each_element.cuh"

template <class X>
struct GateRows {
    X* gated;
    const X* out;
    const Wide<X>* gate;
    int HS;
    constexpr void operator()(unsigned n, int d) const {
        const size_t at = size_t(n) * HS + d;
        gated[at] = narrowed<X>(gate[n] * widened(out[at]));
    }
};
/// gated (heads, HS) = gate out; `heads` counts the heads of all tokens.
template <class Device, class X>
void gate_rows_forward(Device device, X* gated, const X* out, const Wide<X>* gate, size_t heads, int HS) {
    each_element(device, heads, HS, GateRows<X>{gated, out, gate, HS});
}

/// Teams are heads of tokens.
template <class X>
struct GateRowsBackward {
    using Number = Wide<X>;
    X* dout;
    Number* dgate;
    const X *dgated, *out;
    const Number* gate;
    int HS;
    template <class Team>
    constexpr void operator()(const Team& team, unsigned n) const {
        const size_t head = size_t(n) * HS;
        Number sum = 0;
        for (int d = team.first(); d < HS; d += team.step()) {
            const Number gradient = widened(dgated[head + d]);
            sum += gradient * widened(out[head + d]);
            dout[head + d] = narrowed<X>(gate[n] * gradient);
        }
        sum = team.sum(sum);
        if (team.first() == 0) dgate[n] = sum;
    }
};
/// dout (heads, HS) = gate dgated;  dgate (heads) = <dgated, out>.
template <class Device, class X>
void gate_rows_backward(Device device, X* dout, Wide<X>* dgate, const X* dgated, const X* out, const Wide<X>* gate, size_t heads, int HS) {
    each_team<1>(device, heads, GateRowsBackward<X>{dout, dgate, dgated, out, gate, HS});
}
