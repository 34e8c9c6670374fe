// The lightning indexer of DeepSeek Sparse Attention: each token has a query and a weight per indexer head and one key, from the
// block's normed input x:
//     q_th = R(Wq_h x_t)     k_s = R(LayerNorm(Wk x_s))     w_t = Ww x_t     I_ts = (heads D)^-1/2 sum_h w_th ReLU(q_th.k_s)
// R is RoPE on the first `rotated` of the D numbers, by halves. Its frequencies are every (HS / rotated)-th of RoPE's table for heads
// of HS, which are those of heads of size `rotated`.
#pragma once
#include <cmath>

#include "attention/kernel/call.h"
#include "attention/scores/each_element.cuh"
#include "attention/scores/projection.cuh"
#include "attention/scores/rotate_heads.cuh"
#include "model/rope.h"
#include "model/tensors.h"

struct IndexShape {
    int B, T, heads, D, HS;
    /// The greatest common divisor of D / 2, which is a power of two, and HS.
    constexpr int rotated() const {
        const int power = HS & -HS;
        return power < D / 2 ? power : D / 2;
    }
    constexpr size_t tokens() const { return size_t(B) * T; }
    constexpr size_t row() const { return size_t(heads + 1) * D; }   // a token's queries, then its key
};

/// Tensors of the indexer: wq (heads D, C) and wk (D, C), contiguous; LayerNorm's weight and bias (D each), contiguous; ww (heads, C).
struct IndexTensors {
    size_t wqk, norm, ww;
};

/// Results of a forward pass.
template <class X>
struct Index {
    IndexShape s;
    X* raw;             // (B, T, heads + 1, D) before LayerNorm and RoPE
    Wide<X>* moments;   // (B, T, 2) mean and 1 / deviation of raw keys
    X* qk;              // (B, T, heads + 1, D)
    X* w;               // (B, T, heads)

    Index(BumpAllocator& allocator, const IndexShape& shape) : s(shape) {
        raw = allocator.take<X>(s.tokens() * s.row()), moments = allocator.take<Wide<X>>(s.tokens() * 2);
        qk = allocator.take<X>(s.tokens() * s.row()), w = allocator.take<X>(s.tokens() * s.heads);
    }
    constexpr const X* query(int b, int t, int h) const { return qk + (size_t(b) * s.T + t) * s.row() + size_t(h) * s.D; }
    constexpr const X* key(int b, int t) const { return query(b, t, s.heads); }
    /// w_th times the scale of the sum.
    constexpr Wide<X> weight(int b, int t, int h, Wide<X> scale) const {
        return scale * widened(w[(size_t(b) * s.T + t) * s.heads + h]);
    }
    Wide<X> scale() const { return 1 / std::sqrt(Wide<X>(s.heads) * Wide<X>(s.D)); }
};

template <class X>
struct KeyMoments {
    Index<X> x;
    constexpr void operator()(unsigned token, int) const {
        const X* const k = x.raw + token * x.s.row() + size_t(x.s.heads) * x.s.D;
        Wide<X> sum = 0, squares = 0;
        for (int d = 0; d < x.s.D; d++) sum += widened(k[d]);
        const Wide<X> mean = sum / Wide<X>(x.s.D);
        for (int d = 0; d < x.s.D; d++) squares += (widened(k[d]) - mean) * (widened(k[d]) - mean);
        x.moments[2 * token] = mean;
        x.moments[2 * token + 1] = 1 / std::sqrt(squares / Wide<X>(x.s.D) + Wide<X>(1e-6));
    }
};

/// Processes two numbers of a head: a pair to rotate, or two neighbours after the rotated part.
template <class X>
struct RotateIndex {
    Index<X> x;
    const X* norm;   // LayerNorm's weight and bias
    const Wide<X>*cosine, *sine;   // (T, HS / 2)
    RowPositions position;         // in that table

    constexpr void operator()(unsigned row, int d) const {
        const unsigned token = row / (x.s.heads + 1), h = row % (x.s.heads + 1);
        const size_t head = size_t(row) * x.s.D;
        const int half = x.s.rotated() / 2;
        const int first = d < half ? d : 2 * d, second = d < half ? d + half : 2 * d + 1;
        Wide<X> x1 = value(head, first, token, h), x2 = value(head, second, token, h);
        const size_t angle = size_t(position(token, x.s.T)) * (x.s.HS / 2) + d * (x.s.HS / x.s.rotated());
        if (d < half) rotate_pair(x1, x2, cosine[angle], sine[angle]);
        x.qk[head + first] = narrowed<X>(x1), x.qk[head + second] = narrowed<X>(x2);
    }
    constexpr Wide<X> value(size_t head, int d, unsigned token, unsigned h) const {
        const Wide<X> raw = widened(x.raw[head + d]);
        if (int(h) < x.s.heads) return raw;
        return (raw - x.moments[2 * token]) * x.moments[2 * token + 1] * widened(norm[d]) + widened(norm[x.s.D + d]);
    }
};

/// `position`: each token's position in RoPE's table, if not its index in the sequence.
template <class Device, class X>
void index_forward(Device device, const Index<X>& x, const LayerInputs<X>& in, const X* weights, const IndexTensors& at,
                   const RowPositions& position = {}) {
    const int BT = in.B * in.T;
    projection_forward(device, x.raw, in.x, weights + at.wqk, nullptr, BT, in.C, int(x.s.row()));
    projection_forward(device, x.w, in.x, weights + at.ww, nullptr, BT, in.C, x.s.heads);
    each_element(device, BT, 1, KeyMoments<X>{x});
    each_element(device, size_t(BT) * (x.s.heads + 1), x.s.D / 2, RotateIndex<X>{x, weights + at.norm, in.cosine, in.sine, position});
}

// ---- backward, up to the projections' outputs

/// Computes the gradient of `raw` from dqk, in which it leaves the gradient before RoPE of queries and normed keys. One thread per head.
template <class X>
struct IndexGradient {
    Index<X> x;
    Wide<X>* dqk;
    X* draw;
    const X* norm;
    const Wide<X>*cosine, *sine;

    constexpr void operator()(unsigned row, int) const {
        const unsigned token = row / (x.s.heads + 1);
        const size_t head = size_t(row) * x.s.D, angle = size_t(token % x.s.T) * (x.s.HS / 2);
        Wide<X>* const g = dqk + head;
        const int half = x.s.rotated() / 2;
        for (int d = 0; d < half; d++) {
            const size_t at = angle + d * (x.s.HS / x.s.rotated());
            rotate_pair(g[d], g[d + half], cosine[at], -sine[at]);
        }
        const bool is_key = int(row % (x.s.heads + 1)) == x.s.heads;
        const Wide<X> mean = x.moments[2 * token], rstd = x.moments[2 * token + 1];
        Wide<X> sum = 0, product = 0;
        for (int d = 0; is_key && d < x.s.D; d++) {
            const Wide<X> through = widened(norm[d]) * g[d];
            sum += through, product += through * (widened(x.raw[head + d]) - mean) * rstd;
        }
        for (int d = 0; d < x.s.D; d++) {
            Wide<X> to = g[d];
            if (is_key) {
                const Wide<X> normed = (widened(x.raw[head + d]) - mean) * rstd;
                to = rstd * (widened(norm[d]) * g[d] - (sum + normed * product) / Wide<X>(x.s.D));
            }
            draw[head + d] = narrowed<X>(to);
        }
    }
};

/// Sums over CHUNK tokens of the gradients of LayerNorm's weight and bias, from dqk as IndexGradient leaves it.
template <class X>
struct NormSums {
    static constexpr int CHUNK = 64;
    Index<X> x;
    const Wide<X>* dqk;
    Wide<X>* sums;   // (chunks, 2, D)

    static size_t chunks(const IndexShape& s) { return (s.tokens() + CHUNK - 1) / CHUNK; }
    constexpr void operator()(unsigned chunk, int n) const {
        const int d = n % x.s.D, last = int(std::min(x.s.tokens(), size_t(chunk + 1) * CHUNK));
        Wide<X> sum = 0;
        for (int token = int(chunk) * CHUNK; token < last; token++) {
            const size_t at = token * x.s.row() + size_t(x.s.heads) * x.s.D + d;
            const Wide<X> normed = (widened(x.raw[at]) - x.moments[2 * token]) * x.moments[2 * token + 1];
            sum += n < x.s.D ? dqk[at] * normed : dqk[at];
        }
        sums[size_t(chunk) * 2 * x.s.D + n] = sum;
    }
};

/// to (rows, width) = factor from.
template <class Y, class X>
struct Scaled {
    Y* to;
    const X* from;
    Wide<X> factor;
    int width;
    constexpr void operator()(unsigned row, int n) const {
        const size_t at = size_t(row) * width + n;
        to[at] = narrowed<Y>(factor * widened(from[at]));
    }
};

/// to (width) += factor times the sum of from (chunks, width).
template <class W>
struct AddChunks {
    W* to;
    const W* from;
    size_t chunks;
    int width;
    W factor;
    constexpr void operator()(unsigned, int n) const {
        W sum = 0;
        for (size_t chunk = 0; chunk < chunks; chunk++) sum += from[chunk * width + n];
        to[n] += factor * sum;
    }
};

/// Gradients of the loss per unit of a token's weight, kept by a forward pass that distils.
template <class X>
struct IndexGradients {
    X *raw, *w;      // as in Index
    Wide<X>* norm;   // (chunks, 2, D)
    IndexGradients(BumpAllocator& allocator, const IndexShape& s) {
        raw = allocator.take<X>(s.tokens() * s.row()), w = allocator.take<X>(s.tokens() * s.heads);
        norm = allocator.take<Wide<X>>(NormSums<X>::chunks(s) * 2 * s.D);
    }
};

/// Fills `to` from dqk, which is overwritten, and dw (B, T, heads).
template <class Device, class X>
void index_gradients(Device device, const IndexGradients<X>& to, const Index<X>& x, Wide<X>* dqk, const Wide<X>* dw,
                     const LayerInputs<X>& in, const X* weights, const IndexTensors& at) {
    const X* const norm = weights + at.norm;
    each_element(device, x.s.tokens() * (x.s.heads + 1), 1, IndexGradient<X>{x, dqk, to.raw, norm, in.cosine, in.sine});
    each_element(device, NormSums<X>::chunks(x.s), 2 * x.s.D, NormSums<X>{x, dqk, to.norm});
    each_element(device, x.s.tokens(), x.s.heads, Scaled<X, Wide<X>>{to.w, dw, Wide<X>(1), x.s.heads});
}

/// dweights += dloss times them. `scaled` has s.tokens() * s.row() numbers.
template <class Device, class X>
void index_weight_gradients(Device device, Wide<X>* dweights, const IndexGradients<X>& from, const IndexShape& s,
                            const LayerInputs<X>& in, const IndexTensors& at, Wide<X> dloss, X* scaled) {
    const int BT = in.B * in.T, row = int(s.row());
    each_element(device, BT, row, Scaled<X, X>{scaled, from.raw, dloss, row});
    projection_backward_weight(device, dweights + at.wqk, nullptr, scaled, in.x, BT, in.C, row);
    each_element(device, BT, s.heads, Scaled<X, X>{scaled, from.w, dloss, s.heads});
    projection_backward_weight(device, dweights + at.ww, nullptr, scaled, in.x, BT, in.C, s.heads);
    each_element(device, 1, 2 * s.D, AddChunks<Wide<X>>{dweights + at.norm, from.norm, NormSums<X>::chunks(s), 2 * s.D, dloss});
}
