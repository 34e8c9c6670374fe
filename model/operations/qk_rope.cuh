// Queries and keys between projection and attention: Qwen3's QK-norm (RMSNorm over each head, one weight (HS) shared by all heads)
// and rotary position embedding in the rotate-half layout of Qwen and Llama (Su et al. 2021):
//     (x1, x2) = (x[d], x[d + HS/2])  ->  (x1 cos - x2 sin, x2 cos + x1 sin),   angle = position * frequency of d (model/rope.h)
// YaRN's attention factor is part of the tables, so it reaches every rotation and its gradient.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "model/device/device.h"
#include "model/operations/rmsnorm.cuh"
#include "model/rope.h"

/// Entry (t, d) of both tables.
template <class X>
constexpr void rope_entry(X* cosine, X* sine, int t, int d, const Rope& rope, bool rotates) {
    const double angle = rotates ? t * rope.frequency(d) : 0, scale = rotates ? rope.scaling.attention_factor : 1;
    cosine[size_t(t) * (rope.HS / 2) + d] = X(scale * std::cos(angle));
    sine[size_t(t) * (rope.HS / 2) + d] = X(scale * std::sin(angle));
}

/// cos, sin (T, HS/2) of positions 0 .. T-1 times YaRN's attention factor, with angles in double. Without `rotates` all angles are 0,
/// and rotation by them is exactly the identity.
template <class X>
void rope_table(CPU, X* cosine, X* sine, int T, const Rope& rope, bool rotates = true) {
#pragma omp parallel for
    for (int t = 0; t < T; t++)
        for (int d = 0; d < rope.HS / 2; d++) rope_entry(cosine, sine, t, d, rope, rotates);
}

/// Rotates one head (HS); direction is 1, or -1 for the gradient. `to` may be `x`.
template <class X>
inline void rotate(X* to, const X* x, const X* cosine, const X* sine, int HS, X direction) {
#pragma omp simd
    for (int d = 0; d < HS / 2; d++) {
        X x1 = x[d], x2 = x[d + HS / 2];
        rotate_pair(x1, x2, cosine[d], direction * sine[d]);
        to[d] = x1, to[d + HS / 2] = x2;
    }
}

/// Arguments shared by the forward and backward passes below.
template <class X>
struct QkShape {
    int B, T, NH, NKV, HS;
    const X *q_weight, *k_weight;          // (HS) of QK-norm; null: no norm
    Angles<Wide<X>> angles;
    const int32_t* origin = nullptr;       // (B, T) each token's position 0, as an index in its row; null: the row's beginning
    constexpr int position(int row) const { return row % T - (origin ? origin[row] : 0); }
    constexpr int heads() const { return NH + NKV; }
    constexpr size_t qkv_heads() const { return NH + 2 * NKV; }
};

/// QK-norm and RoPE in one pass over q and k of the fused projection qkv (B, T, NH + 2 NKV, HS). Outputs (B, T, NH + NKV, HS):
/// `pre` is normed, `out` also rotated; either may be null. rstd (B, T, NH + NKV) is for the backward pass and not written without a
/// norm.
template <class X>
void qk_norm_rope_forward(CPU, X* out, X* pre, Wide<X>* rstd, const X* qkv, const QkShape<X>& s, double eps) {
    const int heads = s.heads(), HS = s.HS;
#pragma omp parallel for
    for (int row = 0; row < s.B * s.T; row++) {
        std::vector<X> own(HS);
        for (int h = 0; h < heads; h++) {
            const size_t at = size_t(row) * heads + h, angle = size_t(s.position(row)) * (HS / 2);
            const X* from = qkv + (row * s.qkv_heads() + h) * HS;
            X* normed = pre ? pre + at * HS : own.data();
            if (s.q_weight) rstd[at] = rmsnorm_row(normed, from, h < s.NH ? s.q_weight : s.k_weight, HS, eps);
            else std::copy_n(from, HS, normed);
            if (out) rotate(out + at * HS, normed, s.angles.cosine + angle, s.angles.sine + angle, HS, X(1));
        }
    }
}

/// Computes the q and k parts of dqkv from dqk (B, T, NH + NKV, HS), the gradient of `out`, and dpre, the gradient of `pre`, which may be
/// null. Leaves dqkv's v part unchanged.
template <class X>
void qk_norm_rope_backward(CPU, X* dqkv, Wide<X>* dq_weight, Wide<X>* dk_weight, const Wide<X>* dqk, const Wide<X>* dpre,
                           const X* qkv, const Wide<X>* rstd, const QkShape<X>& s, Write write_weight) {
    const int heads = s.heads(), HS = s.HS;
    ThreadSums<X> q_sums(HS), k_sums(HS);
#pragma omp parallel for schedule(static)
    for (int row = 0; row < s.B * s.T; row++) {
        std::vector<X> dnormed(HS);
        for (int h = 0; h < heads; h++) {
            const size_t at = size_t(row) * heads + h, angle = size_t(s.position(row)) * (HS / 2);
            const size_t to = (row * s.qkv_heads() + h) * HS;
            rotate(dnormed.data(), dqk + at * HS, s.angles.cosine + angle, s.angles.sine + angle, HS, X(-1));
            for (int d = 0; d < HS && dpre; d++) dnormed[d] += dpre[at * HS + d];
            if (!s.q_weight)
                std::copy_n(dnormed.data(), HS, dqkv + to);
            else
                rmsnorm_row_backward(dqkv + to, (h < s.NH ? q_sums : k_sums).mine(), dnormed.data(), qkv + to,
                                     h < s.NH ? s.q_weight : s.k_weight, rstd[at], HS, Write::overwrite);
        }
    }
    if (!s.q_weight) return;
    q_sums.reduce_to(dq_weight, write_weight);
    k_sums.reduce_to(dk_weight, write_weight);
}

#ifdef WITH_GPU

template <class X>
__global__ void rope_table_kernel(X* cosine, X* sine, int T, Rope rope, bool rotates) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x, t = i / (rope.HS / 2), d = i % (rope.HS / 2);
    if (t < T) rope_entry(cosine, sine, t, d, rope, rotates);
}

template <class X>
void rope_table(GPU device, X* cosine, X* sine, int T, const Rope& rope, bool rotates = true) {
    launch(device, rope_table_kernel<X>, blocks_for(size_t(T) * (rope.HS / 2), 256), 256, 0, cosine, sine, T, rope, rotates);
}

namespace qk_rope {
inline constexpr int THREADS = 256, WARPS = THREADS / WARP;
inline constexpr int BLOCKS = 512;     // at most, in the backward pass; the same on every GPU, so results are bit-identical
inline constexpr int LARGEST = 256;    // maximum head size

/// A thread's part of one head: N elements of the first half and the N of the second half that rotation pairs them with.
template <int N>
struct Part {
    float first[N] = {}, second[N] = {};
};

/// The distribution of heads over threads: `lanes` threads, a power of 2, share one head.
template <int N>
struct Lanes {
    int lanes, half;
    explicit Lanes(int HS) : lanes(1), half(HS / 2) {
        while (lanes * N < half) lanes *= 2;
    }
    int heads_per_block() const { return THREADS / lanes; }

    /// Index of this thread's head among those of the grid.
    __device__ unsigned head() const { return (blockIdx.x * THREADS + threadIdx.x) / lanes; }
    /// This thread's first element; beyond the half if there are more lanes than needed.
    __device__ int d() const { return threadIdx.x % lanes * N; }
    __device__ bool beyond() const { return d() >= half; }

    template <class X>
    __device__ Part<N> read(const X* head) const {
        Part<N> x;
        read_numbers(x.first, head + d());
        read_numbers(x.second, head + half + d());
        return x;
    }
    template <class X>
    __device__ void write(X* head, const Part<N>& x) const {
        write_numbers(head + d(), x.first);
        write_numbers(head + half + d(), x.second);
    }

    /// Sum over the threads of a head, returned on all of them.
    __device__ float sum(float x) const {
        for (int distance = lanes / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(ALL_LANES, x, distance);
        return x;
    }

    /// The angles of position t, cosines first.
    __device__ Part<N> read_angles(const Angles<float>& angles, int t) const {
        Part<N> x;
        read_numbers(x.first, angles.cosine + size_t(t) * half + d());
        read_numbers(x.second, angles.sine + size_t(t) * half + d());
        return x;
    }
    /// Rotates by these angles; direction is 1, or -1 for the gradient. rotate_pair() is inlined by hand: a call costs the forward kernel
    /// two registers (sm_90), and so one of six blocks per multiprocessor.
    __device__ void rotate(Part<N>& x, const Part<N>& angles, float direction) const {
        for (int n = 0; n < N; n++) {
            const float x1 = x.first[n], x2 = x.second[n], c = angles.first[n], s = direction * angles.second[n];
            x.first[n] = x1 * c - x2 * s;
            x.second[n] = x2 * c + x1 * s;
        }
    }

    /// The norm's backward pass: turns d from the gradient of its output into that of its input x, and adds to dweight.
    __device__ void norm_backward(Part<N>& d, Part<N>& dweight, Part<N> x, const Part<N>& weight, float rstd) const {
        float product = 0;
        for (int n = 0; n < N; n++) {
            x.first[n] *= rstd, x.second[n] *= rstd;
            dweight.first[n] += d.first[n] * x.first[n], dweight.second[n] += d.second[n] * x.second[n];
            d.first[n] *= weight.first[n], d.second[n] *= weight.second[n];
            product += d.first[n] * x.first[n] + d.second[n] * x.second[n];
        }
        const float mean = sum(product) / (2 * half);
        for (int n = 0; n < N; n++) {
            d.first[n] = rstd * (d.first[n] - x.first[n] * mean);
            d.second[n] = rstd * (d.second[n] - x.second[n] * mean);
        }
    }
};

/// Calls launch_with(N): 16 bytes per access if half a head is a multiple of that, else 8. Exit::usage on unsupported head sizes.
template <class X, class Launch>
void choose_width(int HS, Launch launch_with) {
    require_multiple_of_8("RoPE", "the head size", HS);
    if (HS > LARGEST) fail(Exit::usage, "RoPE on the GPU supports head sizes up to ", LARGEST, ", not ", HS);
    if (HS / 2 % Packed<X>::size == 0) launch_with(std::integral_constant<int, Packed<X>::size>());
    else launch_with(std::integral_constant<int, 4>());
}

/// Each warp's sums for the weights of queries and of keys.
struct Shared {
    float dweight[WARPS][2][LARGEST];
};

/// partials (2, blocks, HS) = the block's sums for the weights of queries (of_keys 0) and of keys (1).
template <int N>
__device__ void write_partials(float* partials, const Part<N>& dweight, int of_keys, const Lanes<N>& own) {
    auto& shared = dynamic_shared<Shared>();
    const int HS = 2 * own.half, lane = threadIdx.x % WARP;
    for (int i = 0; i < 2 * 2 * N; i++) {   // query and key, first and second half, N elements
        const int kind = i / (2 * N), n = i % N, second = i / N % 2;
        float sum = kind == of_keys ? (second ? dweight.second[n] : dweight.first[n]) : 0;
        for (int distance = WARP / 2; distance >= own.lanes; distance /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, distance);
        if (lane < own.lanes && !own.beyond()) shared.dweight[threadIdx.x / WARP][kind][second * own.half + own.d() + n] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * HS; i += THREADS) {
        float total = 0;
        for (int w = 0; w < WARPS; w++) total += shared.dweight[w][i / HS][i % HS];
        partials[(size_t(i / HS) * gridDim.x + blockIdx.x) * HS + i % HS] = total;
    }
}
}   // namespace qk_rope

template <class X, int N>
__global__ void __launch_bounds__(qk_rope::THREADS)
    qk_norm_rope_forward_kernel(X* out, X* pre, float* rstd, const X* qkv, QkShape<X> s, qk_rope::Lanes<N> own, float eps) {
    const unsigned at = own.head(), row = at / s.heads(), h = at % s.heads();   // at: (B, T, NH + NKV)
    const bool idle = own.beyond() || row >= unsigned(s.B * s.T);
    qk_rope::Part<N> x;
    if (!idle) x = own.read(qkv + (row * s.qkv_heads() + h) * s.HS);
    if (s.q_weight) {
        float squares = 0;
        for (int n = 0; n < N; n++) squares += x.first[n] * x.first[n] + x.second[n] * x.second[n];
        const float scale = 1 / sqrtf(own.sum(squares) / s.HS + eps);
        if (idle) return;
        const qk_rope::Part<N> weight = own.read(h < unsigned(s.NH) ? s.q_weight : s.k_weight);
        for (int n = 0; n < N; n++) x.first[n] *= scale * weight.first[n], x.second[n] *= scale * weight.second[n];
        if (own.d() == 0) rstd[at] = scale;
    }
    if (idle) return;
    if (pre) own.write(pre + size_t(at) * s.HS, x);
    if (!out) return;
    own.rotate(x, own.read_angles(s.angles, s.position(row)), 1);
    own.write(out + size_t(at) * s.HS, x);
}

template <class X>
void qk_norm_rope_forward(GPU device, X* out, X* pre, Wide<X>* rstd, const X* qkv, const QkShape<X>& s, double eps) {
    qk_rope::choose_width<X>(s.HS, [&](auto width) {
        const qk_rope::Lanes<width()> lanes(s.HS);
        const size_t blocks = blocks_for(size_t(s.B) * s.T * s.heads(), lanes.heads_per_block());
        launch(device, qk_norm_rope_forward_kernel<X, width()>, blocks, qk_rope::THREADS, 0, out, pre, rstd, qkv, s, lanes,
               float(eps));
    });
}

/// The grid processes `step` whole rows at a time, so that a thread has the same head in each of its rows.
template <class X, int N>
__global__ void __launch_bounds__(qk_rope::THREADS)
    qk_norm_rope_backward_kernel(X* dqkv, float* partials, const float* dqk, const float* dpre, const X* qkv, const float* rstd,
                                 QkShape<X> s, qk_rope::Lanes<N> own) {
    const int heads = s.heads(), h = own.head() % heads, rows = s.B * s.T;
    const int row_in_hand = own.head() / heads, step = gridDim.x * (qk_rope::THREADS / own.lanes) / heads;
    qk_rope::Part<N> weight, dweight;
    if (s.q_weight && !own.beyond()) weight = own.read(h < s.NH ? s.q_weight : s.k_weight);
    for (int first = 0; first < rows; first += step) {   // by all lanes together: they shuffle
        const int row = first + row_in_hand;
        const bool idle = own.beyond() || row_in_hand >= step || row >= rows;
        const size_t at = size_t(row) * heads + h, to = (row * s.qkv_heads() + h) * s.HS;
        qk_rope::Part<N> x, d, angles, more;
        float scale = 0;
        if (!idle) {
            d = own.read(dqk + at * s.HS);
            angles = own.read_angles(s.angles, s.position(row));
            if (s.q_weight) x = own.read(qkv + to), scale = rstd[at];
            if (dpre) more = own.read(dpre + at * s.HS);
        }
        own.rotate(d, angles, -1);
        for (int n = 0; n < N; n++) d.first[n] += more.first[n], d.second[n] += more.second[n];
        if (s.q_weight) own.norm_backward(d, dweight, x, weight, scale);
        if (!idle) own.write(dqkv + to, d);
    }
    if (s.q_weight) qk_rope::write_partials(partials, dweight, h < s.NH ? 0 : 1, own);
}

template <class X>
void qk_norm_rope_backward(GPU device, X* dqkv, Wide<X>* dq_weight, Wide<X>* dk_weight, const Wide<X>* dqk, const Wide<X>* dpre,
                           const X* qkv, const Wide<X>* rstd, const QkShape<X>& s, Write write_weight) {
    qk_rope::choose_width<X>(s.HS, [&](auto width) {
        const qk_rope::Lanes<width()> lanes(s.HS);
        const size_t blocks = std::min(blocks_for(size_t(s.B) * s.T * s.heads(), lanes.heads_per_block()), size_t(qk_rope::BLOCKS));
        float* partials = take_workspace<float>(device, "the backward of QK-norm", s.q_weight ? 2 * blocks * s.HS : 0);
        launch(device, qk_norm_rope_backward_kernel<X, width()>, blocks, qk_rope::THREADS, sizeof(qk_rope::Shared), dqkv, partials,
               dqk, dpre, qkv, rstd, s, lanes);
        if (!s.q_weight) return;
        sum_partials<2>(device, {{dq_weight, dk_weight}}, partials, blocks, s.HS, write_weight);
    });
}
#endif
