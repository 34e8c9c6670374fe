// Rung 6: the kernel that trains, attention/kernel/forward.cuh, with the policy of plain causal attention.
// Each warp owns 32 rows instead of 16, so that a fragment of K or V that it has loaded is multiplied twice: half the reads of
// shared memory per operation. Tiles in which every pair is visible skip the mask; the parts of a tile above the diagonal skip
// the arithmetic. The output leaves through shared memory, 16 bytes a thread, where rung 4 writes two. It also writes the
// log-sum-exp of every row (4 bytes), which the backward pass reads. Everything else in it is for other variants and costs nothing
// here: what the policy does not ask for is not compiled.
#pragma once
#include "attention/causal.cuh"
#include "attention/kernel/forward.cuh"
#include "dev/ladder/problem.h"

namespace rung_6 {

inline AttentionForward<bf16> arguments(const LadderProblem& p) {
    AttentionForward<bf16> a{};
    a.B = p.B, a.T = a.S = p.T, a.NH = a.NKV = p.NH, a.HS = p.HS;
    a.q = {p.q, p.row()}, a.k = {p.k, p.row()}, a.v = {p.v, p.row()};
    a.out = p.out, a.lse = p.lse;
    return a;
}
inline void attention(GPU device, const LadderProblem& p) { attention_forward(device, causal(Config{}, 0), arguments(p)); }

}   // namespace rung_6
