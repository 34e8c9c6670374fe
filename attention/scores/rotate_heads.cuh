// RoPE inside a mechanism: for keys that it projects itself or pooled blocks, at positions of their own. (The model's queries and
// keys: model/operations/qk_rope.cuh.)
#pragma once
#include <algorithm>
#include <climits>
#include <cstdint>

#include "attention/scores/each_element.cuh"
#include "model/rope.h"

/// The RoPE position of row t of a sequence: min(stride t, last), or min(of_token, last). With `documents` t and `last` count from the
/// first token of t's document, as in the model's own RoPE.
struct RowPositions {
    int stride = 1, last = INT_MAX;
    const int32_t* of_token = nullptr;   // (B, T)
    Documents documents = {};
    constexpr int operator()(unsigned token, int T) const {
        if (of_token) return std::min(of_token[token], last);
        const int begin = documents ? documents.start[token] : 0, inside = std::min(stride * (int(token % T) - begin), last);
        return documents.restart_positions ? inside : begin + inside;
    }
};

template <class Y, class X>
struct RotateHeads {
    Heads<Y> to;
    Heads<const X> from;
    Angles<Wide<X>> angles;
    int T, heads, HS;
    Wide<X> direction;
    RowPositions position;

    constexpr void operator()(unsigned row, int d) const {
        const unsigned token = row / heads, h = row % heads;
        const size_t angle = size_t(position(token, T)) * (HS / 2) + d;
        const size_t first = size_t(h) * HS + d, second = first + HS / 2;
        const X* x = from.data + token * from.row;
        Y* y = to.data + token * to.row;
        Wide<X> x1 = widened(x[first]), x2 = widened(x[second]);
        rotate_pair(x1, x2, angles.cosine[angle], direction * angles.sine[angle]);
        y[first] = narrowed<Y>(x1), y[second] = narrowed<Y>(x2);
    }
};

/// to (B, T, heads, HS) = from (B, T, heads, HS) rotated; both may be the same memory. `angles` covers every position used; direction is
/// 1, or -1 for the gradient.
template <class Device, class Y, class X>
void rotate_heads(Device device, Heads<Y> to, Heads<const X> from, Angles<Wide<X>> angles, int B, int T, int heads, int HS,
                  int direction, RowPositions position = {}) {
    each_element(device, size_t(B) * T * heads, HS / 2,
                RotateHeads<Y, X>{to, from, angles, T, heads, HS, Wide<X>(direction), position});
}
