// Tools for the tests' oracles: attention as in the papers, in dense loops over all pairs, without the kernel's hooks.
#pragma once
#include <cmath>
#include <cstddef>
#include <vector>

#include "attention/mechanism.h"

template <class X>
X dot(const X* a, const X* b, int n) {
    X total = 0;
    for (int d = 0; d < n; d++) total += a[d] * b[d];
    return total;
}

/// dense_softmax() of sequence b.
template <class X, class Modify, class Visible>
void dense_softmax_of_sequence(const LayerInputs<X>& in, int b, X* out, Modify modify, Visible visible) {
    const X scale = X(1) / std::sqrt(X(in.HS));
    std::vector<X> weight(in.T);
    for (int h = 0; h < in.NH; h++)
        for (int i = 0; i < in.T; i++) {
            X* o = out + (in.token(b, i) * in.NH + h) * in.HS;
            for (int d = 0; d < in.HS; d++) o[d] = 0;
            X largest = -INFINITY, total = 0;
            for (int j = 0; j < in.T; j++) {
                weight[j] = -INFINITY;
                if (visible(h, i, j))
                    weight[j] = modify(b, h, i, j, scale * dot(in.query(in.q, b, i, h), in.key(in.k, b, j, h), in.HS));
                largest = std::max(largest, weight[j]);
            }
            if (largest == -INFINITY) continue;
            for (int j = 0; j < in.T; j++) total += weight[j] = std::exp(weight[j] - largest);
            for (int j = 0; j < in.T; j++)
                for (int d = 0; d < in.HS; d++) o[d] += weight[j] / total * in.value(b, j, h)[d];
        }
}

/// out (B, T, NH, HS) = softmax over the visible j of modify(b, h, i, j, q_i.k_j / sqrt(HS)), times v; 0 for a row that sees nothing.
template <class X, class Modify, class Visible>
void dense_softmax(const LayerInputs<X>& in, X* out, Modify modify, Visible visible) {
    for (int b = 0; b < in.B; b++) dense_softmax_of_sequence(in, b, out, modify, visible);
}

/// The same of q_i.k_j / sqrt(HS) itself.
template <class X, class Visible>
void dense_softmax(const LayerInputs<X>& in, X* out, Visible visible) {
    dense_softmax(in, out, [](int, int, int, int, X a) { return a; }, visible);
}
