// Backward, rung 3: the kernel that trains, attention/kernel/backward.cuh, with the policy of plain causal attention.
// A block owns 128 keys and computes S^T and dP^T once: five products. dS^T goes through shared memory to become the left factor of
// dQ = dS K, which the blocks of a query tile add to in memory one after the other, in an order that does not depend on which is
// fast. Q and dO of the next tile arrive meanwhile, and each warp owns 32 keys, as rung_6.cuh's own 32 queries (heads of 128: 16).
#pragma once
#include "attention/kernel/backward.cuh"
#include "dev/ladder/rung_6.cuh"

namespace backward_3 {

inline size_t workspace(const LadderProblem& p) { return attention_workspace(GPU{}, causal(Config{}, 0), p.B, p.T, p.T, p.NH); }

inline void gradients(GPU device, const LadderProblem& p) {
    AttentionBackward<bf16> g{};
    g.dout = p.dout;
    g.dq = {p.dq, p.row()}, g.dk = {p.dk, p.row()}, g.dv = {p.dv, p.row()};
    g.workspace = p.workspace;
    attention_backward(device, causal(Config{}, 0), rung_6::arguments(p), g);
}

}   // namespace backward_3
