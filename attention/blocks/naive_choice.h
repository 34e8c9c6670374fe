// Choices of blocks or keys for the tests' oracles, in plain loops.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "attention/kernel/naive.h"
#include "attention/masks/choice.cuh"

/// Whether number r sees each of 0 .. r: the numbers that the rule forces, and the `top` others with the greatest scores, ties going to
/// the earlier; or, with a threshold, the others whose share of the softmax over the others is above it.
template <class X>
std::vector<bool> naive_choice(const X* scores, const TileChoice& rule, int r) {
    std::vector<bool> chosen(r + 1);
    std::vector<int> candidates;
    for (int c = 0; c <= r; c++) {
        chosen[c] = rule.forced(r, c);
        if (!chosen[c]) candidates.push_back(c);
    }
    std::stable_sort(candidates.begin(), candidates.end(), [&](int a, int b) { return scores[a] > scores[b]; });
    X total = 0;
    for (int c : candidates) total += std::exp(scores[c]);
    for (int n = 0; n < int(candidates.size()); n++)
        chosen[candidates[n]] = rule.threshold < 0 ? n < rule.top : std::exp(scores[candidates[n]]) / total > rule.threshold;
    return chosen;
}

/// Causal attention to whole blocks. `seen` (b, chooser, i): whether token i sees each block up to its own; NH / choosers query heads
/// choose together.
template <class X, class Seen>
void dense_softmax_of_blocks(const LayerInputs<X>& in, X* out, int block, int choosers, Seen seen) {
    for (int b = 0; b < in.B; b++) {
        std::vector<std::vector<bool>> sees;   // (choosers, T)
        for (int n = 0; n < choosers * in.T; n++) sees.push_back(seen(b, n / in.T, n % in.T));
        dense_softmax_of_sequence(
            in, b, out, [](int, int, int, int, X a) { return a; },
            [&](int h, int i, int j) { return j <= i && sees[size_t(h / (in.NH / choosers)) * in.T + i][j / block]; });
    }
}
