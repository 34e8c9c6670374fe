// The CPU's kernel (cpu.h) for further keys of a softmax: out and log-sum-exp hold the result of earlier calls.
#pragma once
#include "attention/kernel/cpu.h"

/// Adds keys to a softmax: out, lse and the statistics hold the result over other keys and are updated. They and q, k and v are over the
/// rows.T tokens of a sequence. Positions and lists are over the T == S == rows.count rows, each of which reads and writes its token.
/// Preconditions: no two rows of a head hold the same token; no features but biases of tiles, which are by rows, as tile_max is.
template <class X, class P, class Rows>
void attention_forward_more(CPU, const P& policy, const AttentionForward<X>& a, const Rows& rows) {
    attention_rows_forward(policy, a, rows, rows, Write::add);
}

/// The same with rows for queries only: a token may have several rows, and the S keys have rows of their own.
template <class X, class P, class Rows, class KeyRows>
void attention_forward_queries(CPU, const P& policy, const AttentionForward<X>& a, const Rows& rows, const KeyRows& keys) {
    attention_rows_forward(policy, a, rows, keys, Write::add);
}

/// Gradients of attention_forward_more(): out and lse are the results over all keys; adds to dq, dk and dv.
template <class X, class P, class Rows>
void attention_backward_more(CPU, const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g, const Rows& rows) {
    attention_rows_backward(policy, a, g, rows, rows, Write::add);
}

/// Gradients of attention_forward_queries(), likewise.
template <class X, class P, class Rows, class KeyRows>
void attention_backward_queries(CPU, const P& policy, const AttentionForward<X>& a, const AttentionBackward<X>& g, const Rows& rows,
                                const KeyRows& keys) {
    attention_rows_backward(policy, a, g, rows, keys, Write::add);
}
