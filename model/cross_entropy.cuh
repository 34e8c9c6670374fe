// Cross-entropy of next-token prediction, in nats, with its gradient in place of the logits.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "model/device.h"
#include "model/math.h"

/// losses (rows) = log sum exp(logits (rows, V)) - logits[target]; then logits = dloss (softmax(logits) - onehot(target)) when
/// `dloss` is not 0. A negative target is ignored: loss 0, gradient 0.
template <class X>
void cross_entropy(CPU, Wide<X>* losses, X* logits, const int32_t* targets, int rows, int V, Wide<X> dloss) {
#pragma omp parallel for
    for (int row = 0; row < rows; row++) {
        X* z = logits + size_t(row) * V;
        losses[row] = 0;
        if (targets[row] < 0) {
            std::fill(z, z + V, X(0));
            continue;
        }
        X largest = z[0], total = 0;
#pragma omp simd reduction(max : largest)
        for (int v = 0; v < V; v++) largest = std::max(largest, z[v]);
        const X target = z[targets[row]];
#pragma omp simd reduction(+ : total)
        for (int v = 0; v < V; v++) total += exp_of(z[v] - largest);
        losses[row] = largest + std::log(total) - target;
        if (dloss == X(0)) continue;
        const X factor = dloss / total;
#pragma omp simd
        for (int v = 0; v < V; v++) z[v] = factor * exp_of(z[v] - largest);
        z[targets[row]] -= dloss;
    }
}
