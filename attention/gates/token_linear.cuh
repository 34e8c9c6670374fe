// A few logits per token, linear in the block's normed input, for head gates and routers:
//     u_tn = sum_c W_nc x_tc + b_n
// with u in Wide<X>, so that bf16 rounds neither the logits nor their gradients. Callers
// apply sigmoid, softmax or top-k to u; a gate's sigmoid is here too.
// On the CPU this is a linear layer. On the GPU it has its own kernels: N is a dozen or two, narrow for a matrix product, which
// would also need the gradient of u rounded to bf16.
#pragma once
#include <algorithm>

#include "attention/scores/each_element.cuh"
#include "model/device/math.h"
#include "model/operations/linear.cuh"

template <class X>
struct TokenLinear {
    const X* x;        // (rows, C); on the GPU C is a multiple of 8
    const X* weight;   // (N, C), on the GPU at a multiple of 16 bytes
    const X* bias;     // (N), or null
    int rows, C, N;
};

/// u (rows, N).
template <class X>
void token_linear_forward(CPU device, X* u, const TokenLinear<X>& p) {
    linear_forward(device, u, p.x, p.weight, p.bias, p.rows, p.C, p.N);
}

/// dx (rows, C), dweight (N, C) and, where it is not null, dbias (N) are added to.
template <class X>
void token_linear_backward(CPU device, X* dx, X* dweight, X* dbias, const X* du, const TokenLinear<X>& p) {
    linear_backward_input(device, dx, du, p.weight, p.rows, p.C, p.N, Write::add);
    linear_backward_weight(device, dweight, dbias, du, p.x, p.rows, p.C, p.N, Write::add);
}

template <class W>
struct Sigmoid {
    W* g;
    constexpr void operator()(unsigned n, int) const { g[n] = sigmoid(g[n]); }
};
/// g (n) = sigmoid(g).
template <class Device, class W>
void sigmoid_forward(Device device, W* g, size_t n) {
    each_element(device, n, 1, Sigmoid<W>{g});
}

template <class W>
struct SigmoidBackward {
    W* dg;
    const W* g;
    constexpr void operator()(unsigned n, int) const { dg[n] *= g[n] * (1 - g[n]); }
};
/// dg (n), the gradient of g = sigmoid(u), becomes that of u: du = dg g (1 - g).
template <class Device, class W>
void sigmoid_backward(Device device, W* dg, const W* g, size_t n) {
    each_element(device, n, 1, SigmoidBackward<W>{dg, g});
}

#ifdef WITH_GPU

namespace token_linear {
inline constexpr int WARPS = 4, THREADS = WARPS * WARP;
inline constexpr int TOKENS = 4, OUTPUTS = 4;   // of a thread at a time, so that each value loaded is used four times
}   // namespace token_linear

/// A warp has TOKENS tokens, and computes OUTPUTS logits of each at a time.
template <class X>
__global__ void __launch_bounds__(token_linear::THREADS) token_linear_forward_kernel(float* u, const TokenLinear<X> p) {
    using namespace token_linear;
    constexpr int SIZE = Packed<X>::size;
    const int lane = threadIdx.x % WARP, t0 = (blockIdx.x * WARPS + threadIdx.x / WARP) * TOKENS;
    if (t0 >= p.rows) return;
    for (int n0 = 0; n0 < p.N; n0 += OUTPUTS) {
        float sums[TOKENS][OUTPUTS] = {};
        for (int c = lane * SIZE; c < p.C; c += WARP * SIZE) {
            Packed<X> x[TOKENS], w[OUTPUTS];   // past the end, those of the last
            for (int i = 0; i < TOKENS; i++) x[i] = load_packed(p.x + size_t(min(t0 + i, p.rows - 1)) * p.C + c);
            for (int o = 0; o < OUTPUTS; o++) w[o] = load_packed(p.weight + size_t(min(n0 + o, p.N - 1)) * p.C + c);
            for (int i = 0; i < TOKENS; i++)
                for (int o = 0; o < OUTPUTS; o++)
                    for (int k = 0; k < SIZE; k++) sums[i][o] += x[i][k] * w[o][k];
        }
        for (int i = 0; i < TOKENS; i++)
            for (int o = 0; o < OUTPUTS; o++) {
                const float sum = warp_sum(sums[i][o]);
                if (lane != 0 || t0 + i >= p.rows || n0 + o >= p.N) continue;
                u[size_t(t0 + i) * p.N + n0 + o] = sum + (p.bias ? to_float(p.bias[n0 + o]) : 0);
            }
    }
}

template <class X>
void token_linear_forward(GPU device, float* u, const TokenLinear<X>& p) {
    require_multiple_of_8("a linear function of tokens", "the number of channels", p.C);
    launch(device, token_linear_forward_kernel<X>, Grid(blocks_for(p.rows, token_linear::WARPS * token_linear::TOKENS)),
           token_linear::THREADS, 0, u, p);
}

/// dx += du W. A thread has 16 bytes of channels of TOKENS tokens.
template <class X>
__global__ void __launch_bounds__(token_linear::THREADS)
    token_linear_input_kernel(X* dx, const float* du, const TokenLinear<X> p) {
    using namespace token_linear;
    constexpr int SIZE = Packed<X>::size;
    const size_t thread = size_t(blockIdx.x) * THREADS + threadIdx.x, packs = p.C / SIZE;
    const int t0 = int(thread / packs) * TOKENS, c = int(thread % packs) * SIZE;
    if (t0 >= p.rows) return;
    float sums[TOKENS][SIZE] = {};
    for (int n = 0; n < p.N; n++) {
        const Packed<X> w = load_packed(p.weight + size_t(n) * p.C + c);
        for (int i = 0; i < TOKENS; i++) {
            const float d = du[size_t(min(t0 + i, p.rows - 1)) * p.N + n];
            for (int k = 0; k < SIZE; k++) sums[i][k] += d * w[k];
        }
    }
    for (int i = 0; i < TOKENS && t0 + i < p.rows; i++) {
        X* to = dx + size_t(t0 + i) * p.C + c;
        Packed<X> d = load_packed(to);
        for (int k = 0; k < SIZE; k++) d.set(k, d[k] + sums[i][k]);
        store_packed(to, d);
    }
}

/// Sums over the block's chunk of tokens: dweights (chunks, N, C) of du^T x, dbiases (chunks, N) of du. A thread has 16 bytes
/// of channels for OUTPUTS logits.
template <class X>
__global__ void __launch_bounds__(token_linear::THREADS)
    token_linear_weight_kernel(float* dweights, float* dbiases, const float* du, const TokenLinear<X> p, int tokens) {
    using namespace token_linear;
    constexpr int SIZE = Packed<X>::size;
    const int c = (blockIdx.x * THREADS + threadIdx.x) * SIZE, n0 = blockIdx.y * OUTPUTS, outputs = min(OUTPUTS, p.N - n0);
    if (c >= p.C) return;
    float sums[OUTPUTS][SIZE] = {}, bias_sums[OUTPUTS] = {};
    const int first = blockIdx.z * tokens, end = min(first + tokens, p.rows);
    for (int t = first; t < end; t++) {
        const Packed<X> x = load_packed(p.x + size_t(t) * p.C + c);
        for (int o = 0; o < OUTPUTS; o++) {
            const float d = o < outputs ? du[size_t(t) * p.N + n0 + o] : 0;
            bias_sums[o] += d;
            for (int k = 0; k < SIZE; k++) sums[o][k] += d * x[k];
        }
    }
    for (int o = 0; o < outputs; o++) {
        const size_t n = size_t(blockIdx.z) * p.N + n0 + o;
        write_numbers(dweights + n * p.C + c, sums[o]);
        if (c == 0) dbiases[n] = bias_sums[o];
    }
}

/// Chunks that the sums over tokens are split into: enough to fill a GPU, but no more than 16 MiB of partial sums. Depends on the
/// sizes alone, since other chunks would sum in another order.
template <class X>
size_t token_linear_chunks(const TokenLinear<X>& p) {
    const size_t most = std::clamp<size_t>((size_t(16) << 20) / (sizeof(float) * p.N * (p.C + 1)), 1, 256);
    return blocks_for(p.rows, blocks_for(p.rows, std::min(most, blocks_for(p.rows, 64))));   // so that none is empty
}

/// dx, dweight and, where it is not null, dbias are added to.
template <class X>
void token_linear_backward(GPU device, X* dx, float* dweight, float* dbias, const float* du, const TokenLinear<X>& p) {
    using namespace token_linear;
    require_multiple_of_8("a linear function of tokens", "the number of channels", p.C);
    const size_t packs = p.C / Packed<X>::size, chunks = token_linear_chunks(p), weights = size_t(p.N) * p.C;
    const int tokens = int(blocks_for(p.rows, chunks));   // of one chunk
    launch(device, token_linear_input_kernel<X>, Grid(blocks_for(blocks_for(p.rows, TOKENS) * packs, THREADS)), THREADS, 0, dx, du,
           p);
    float* dweights = take_workspace<float>(device, "the backward of a linear function of tokens", chunks * (weights + p.N));
    float* dbiases = dweights + chunks * weights;
    launch(device, token_linear_weight_kernel<X>, Grid(blocks_for(packs, THREADS), blocks_for(p.N, OUTPUTS), chunks), THREADS, 0,
           dweights, dbiases, du, p, tokens);
    sum_partials(device, dweight, dweights, chunks, weights, Write::add);
    if (dbias) sum_partials(device, dbias, dbiases, chunks, p.N, Write::add);
}

#endif

/// A linear function of a layer's normed input, with tensors of its own.
struct InputLinear {
    Slot weight, bias;   // (N, C), (N) or none
    int N = 0;

    template <class X>
    TokenLinear<X> of(const LayerInputs<X>& in, const X* weights) const {
        return {in.x, weights + weight.offset, bias ? weights + bias.offset : nullptr, in.B * in.T, in.C, N};
    }
    /// Adds to to.dx and to the gradients of the tensors.
    template <class Device, class X>
    void backward(Device device, const ScoreInputGradients<X>& to, const Wide<X>* du, const LayerInputs<X>& in, const X* weights) const {
        Wide<X>* const dbias = bias ? to.dweights + bias.offset : nullptr;
        token_linear_backward(device, to.dx, to.dweights + weight.offset, dbias, du, of(in, weights));
    }
};
