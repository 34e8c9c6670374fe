// AdamW (Loshchilov and Hutter 2019) as in torch.optim.AdamW, clipping by the global norm, and learning-rate schedules.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "model/base/splitmix64.h"
#include "model/device/device.h"
#include "model/tensors.h"

struct AdamW {
    double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
    double grad_clip = 1.0;            // maximum global L2 norm of the gradient; 0: no limit
    bool stochastic_rounding = false;  // when casting fp32 master weights to bf16; else round-to-nearest
    uint64_t seed = 1;                 // random seed of stochastic rounding
};

/// The learning rate of each step of a run: a linear warm-up to `peak`, then a decay to min_frac * peak at the end.
struct Schedule {
    enum class Form {
        cosine,
        linear,
        constant,   // no decay
        wsd         // warm-up, stable, decay: constant, then 1 - sqrt of the progress over the cool-down (Haegele et al. 2024)
    };
    Form form = Form::cosine;
    double peak = 0, min_frac = 0;
    int64_t warmup = 0, cooldown = 0, steps = 0;   // cooldown: last steps, of wsd

    /// The rate of step k, counted from 0.
    double rate(int64_t k) const {
        if (k < warmup) return peak * double(k + 1) / double(warmup);
        const int64_t begin = form == Form::wsd ? steps - cooldown : warmup;
        if (k < begin || form == Form::constant) return peak;
        const double progress = std::min(1.0, double(k - begin) / double(std::max<int64_t>(1, steps - begin)));
        return peak * (min_frac + (1 - min_frac) * remaining(progress));
    }

private:
    double remaining(double progress) const {
        if (form == Form::cosine) return 0.5 * (1 + std::cos(M_PI * progress));
        return 1 - (form == Form::linear ? progress : std::sqrt(progress));
    }
};

/// Sums over one step, in device memory. The update reads them there; the host reads them once per step, after the update.
struct StepTotals {
    double loss;            // over the tokens, in nats
    double squares;         // squared gradient norm of all trained tensors
    double auxiliary = 0;   // over the tokens: the attention policy's auxiliary loss; 0 if it has none

    constexpr bool finite() const { return std::isfinite(loss) && std::isfinite(squares) && std::isfinite(auxiliary); }
};

/// Writes or adds the sum of losses (n) to *total.
template <class W>
void sum_of_losses(CPU, double* total, const W* losses, int n, Write write) {
    double sum = write == Write::add ? *total : 0;
    for (int i = 0; i < n; i++) sum += double(losses[i]);
    *total = sum;
}

/// *total = sum of squares of x (n), in double, over blocks of fixed size so that the number of threads does not change it.
template <class W>
void sum_of_squares(CPU, double* total, const W* x, size_t n) {
    const size_t block = 4096, blocks = (n + block - 1) / block;
    std::vector<double> partial(blocks);
#pragma omp parallel for
    for (size_t k = 0; k < blocks; k++) {
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t i = k * block; i < std::min(n, (k + 1) * block); i++) sum += double(x[i]) * double(x[i]);
        partial[k] = sum;
    }
    *total = 0;
    for (double sum : partial) *total += sum;
}

/// *total = weighted sum of squares of the flat buffer x over `spans` (count), in device memory; n elements in all.
template <class W>
void sum_of_squares(CPU, double* total, const W* x, size_t /*n*/, const NormSpan* spans, int count) {
    double sum = 0;
    for (int s = 0; s < count; s++) {
        sum_of_squares(CPU{}, total, x + spans[s].begin, spans[s].end - spans[s].begin);
        sum += spans[s].weight * *total;
    }
    *total = sum;
}

/// Factor that limits the gradient's global L2 norm to `limit` (0: no limit), as torch.nn.utils.clip_grad_norm_ does.
constexpr double clip_factor(double norm, double limit) {
    if (limit <= 0) return 1;
    const double factor = limit / (norm + 1e-6);
    return factor < 1 ? factor : 1;
}

/// *total = the sum of parts (count), in a fixed order.
inline void sum_of_parts(CPU, double* total, const double* parts, int count) {
    *total = 0;
    for (int p = 0; p < count; p++) *total += parts[p];
}

namespace adamw {
/// The index in `master` of element i of the flat buffers, which is element `own` of the shard's storage.
template <class X>
constexpr size_t in_master(size_t i, size_t own) {
    return std::is_same_v<X, Wide<X>> ? i : own;
}
}   // namespace adamw

/// Preconditions: `ranges` (count) in device memory; `step` counts from 1. `weights` and `gradients` are whole flat buffers. `m` and `v`
/// are the shard's storage (owned_spans(), second_moment_spans()); `master` is like `m` if `weights` is its copy rounded to X. If X is not
/// rounded, `master` is a whole flat buffer, usually `weights` itself.
///     g = clip g;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
///     w = w (1 - lr decay) - lr m' / (sqrt(v') + eps),   m' = m / (1 - beta1^step),  v' = v / (1 - beta2^step)
/// Statistics: w = w - rate g, and their moments stay zero. Changes nothing if a total is not finite.
template <class X>
void adamw_update(CPU, X* weights, Wide<X>* master, Wide<X>* m, Wide<X>* second, const Wide<X>* gradients, const UpdateRange* ranges,
                  int count, const StepTotals* totals, const AdamW& o, int64_t step) {
    if (!totals->finite()) return;
    const X b1 = X(o.beta1), b2 = X(o.beta2), rest1 = X(1 - o.beta1), rest2 = X(1 - o.beta2), eps = X(o.eps);
    const X factor = X(clip_factor(std::sqrt(totals->squares), o.grad_clip));
    const X step_size = X(o.lr / (1 - std::pow(o.beta1, double(step))));
    const X v_scale = X(1 / std::sqrt(1 - std::pow(o.beta2, double(step))));
#pragma omp parallel for schedule(static)
    for (int r = 0; r < count; r++) {
        const UpdateRange range = ranges[r];
        const size_t shift = range.held - range.begin;   // from flat index to index in the shard's storage, modulo 2^64
        X* const v = second + ptrdiff_t(range.second - range.held);   // v[own] belongs to m[own]
        if (range.role == Role::statistic) {
            for (size_t i = range.begin; i < range.end; i++)
                weights[i] = master[adamw::in_master<X>(i, i + shift)] -= X(range.rate) * gradients[i];
            continue;
        }
        const X keep = X(1 - o.lr * (range.role == Role::decays ? o.weight_decay : 0));
#pragma omp simd
        for (size_t i = range.begin; i < range.end; i++) {
            const X g = factor * gradients[i];
            const size_t own = i + shift, at = adamw::in_master<X>(i, own);
            m[own] = b1 * m[own] + rest1 * g;
            v[own] = b2 * v[own] + rest2 * g * g;
            master[at] = master[at] * keep - step_size * m[own] / (std::sqrt(v[own]) * v_scale + eps);
            weights[i] = master[at];
        }
    }
}

#ifdef WITH_GPU

namespace totals {
inline constexpr int THREADS = 512, WARPS = THREADS / WARP;
inline constexpr int BLOCKS = 1024;   // maximum; the same on every GPU, so results are bit-identical
struct Shared {
    double parts[WARPS];
};
struct Identity {
    __device__ double operator()(double x) const { return x; }
};
struct Squared {
    __device__ double operator()(double x) const { return x * x; }
};

/// This thread's part of the sum of term(x) (n).
template <class Term>
__device__ __forceinline__ double thread_total(const float* x, size_t n, Term term) {
    constexpr int N = 16;   // four loads in flight
    const size_t step = size_t(gridDim.x) * totals::THREADS * N, whole = n / N * N;
    const bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0;   // a single tensor may begin anywhere
    double sum = 0;
    for (size_t i = (size_t(blockIdx.x) * totals::THREADS + threadIdx.x) * N; i < whole; i += step) {
        float numbers[N];
        if (aligned) read_numbers<Reuse::streaming>(numbers, x + i);
        else
            for (int k = 0; k < N; k++) numbers[k] = x[i + k];
        for (int k = 0; k < N; k++) sum += term(numbers[k]);
    }
    if (blockIdx.x == 0 && threadIdx.x < n - whole) sum += term(x[whole + threadIdx.x]);
    return sum;
}

inline size_t blocks(size_t n) { return std::clamp(blocks_for(n, THREADS * 16), size_t(1), size_t(BLOCKS)); }
}   // namespace totals

/// partials (blocks) = each block's part of the sum of term(x) (n).
template <class Term>
__global__ void __launch_bounds__(totals::THREADS) partial_totals_kernel(double* partials, const float* x, size_t n, Term term) {
    auto& shared = dynamic_shared<totals::Shared>();
    const double sum = block_sum<totals::WARPS>(totals::thread_total(x, n, term), shared.parts);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

/// The same for the weighted squares of all spans (count) of x.
template <class W>
__global__ void __launch_bounds__(totals::THREADS)
    partial_squares_kernel(double* partials, const W* x, const NormSpan* spans, int count) {
    auto& shared = dynamic_shared<totals::Shared>();
    double sum = 0;
    for (int s = 0; s < count; s++) {
        const NormSpan span = spans[s];
        sum += span.weight * totals::thread_total(x + span.begin, span.end - span.begin, totals::Squared());
    }
    sum = block_sum<totals::WARPS>(sum, shared.parts);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

/// Writes or adds the sum of partials (count) to *total. One block.
template <class Sum>
__global__ void __launch_bounds__(totals::THREADS) total_kernel(Sum* total, const Sum* partials, int count, Write write) {
    auto& shared = dynamic_shared<totals::Shared>();
    Sum sum = 0;
    for (int i = threadIdx.x; i < count; i += totals::THREADS) sum += partials[i];
    sum = block_sum<totals::WARPS>(sum, shared.parts);
    if (threadIdx.x == 0) *total = (write == Write::add ? *total : 0) + sum;
}

inline void sum_of_parts(GPU device, double* total, const double* parts, int count, Write write = Write::overwrite) {
    launch(device, total_kernel<double>, 1, totals::THREADS, sizeof(totals::Shared), total, parts, count, write);
}

template <class Term>
void total_of(GPU device, double* total, const float* x, size_t n, Term term, Write write) {
    const size_t blocks = totals::blocks(n);
    double* partials = take_workspace<double>(device, "a sum", blocks);
    launch(device, partial_totals_kernel<Term>, blocks, totals::THREADS, sizeof(totals::Shared), partials, x, n, term);
    sum_of_parts(device, total, partials, int(blocks), write);
}

template <class W>
void sum_of_losses(GPU device, double* total, const W* losses, int n, Write write) {
    total_of(device, total, losses, n, totals::Identity(), write);
}

template <class W>
void sum_of_squares(GPU device, double* total, const W* x, size_t n) {
    total_of(device, total, x, n, totals::Squared(), Write::overwrite);
}

/// One launch for all spans.
template <class W>
void sum_of_squares(GPU device, double* total, const W* x, size_t n, const NormSpan* spans, int count) {
    const size_t blocks = totals::blocks(n);
    double* partials = take_workspace<double>(device, "a sum", blocks);
    launch(device, partial_squares_kernel<W>, blocks, totals::THREADS, sizeof(totals::Shared), partials, x, spans, count);
    sum_of_parts(device, total, partials, int(blocks));
}

namespace adamw {
inline constexpr int THREADS = 256;

/// The kernel's form of the options, computed in double and rounded to float once: 1 - 0.999f would be off by 1e-5.
struct Factors {
    float b1, rest1, b2, rest2;   // rest = 1 - b
    float eps, step_size, v_scale, keep_decaying;
    double grad_clip;
    bool stochastic;
    uint64_t key;   // key of this step's random numbers
};

inline Factors factors(const AdamW& o, int64_t step) {
    return {float(o.beta1),
            float(1 - o.beta1),
            float(o.beta2),
            float(1 - o.beta2),
            float(o.eps),
            float(o.lr / (1 - std::pow(o.beta1, double(step)))),
            float(1 / std::sqrt(1 - std::pow(o.beta2, double(step)))),
            float(1 - o.lr * o.weight_decay),
            o.grad_clip,
            o.stochastic_rounding,
            splitmix64::element(splitmix64::mix(o.seed), uint64_t(step - 1))};
}

/// 16 random bits for weight i, the same on any rank. Four neighbours share one element of the splitmix64 sequence.
__device__ __forceinline__ unsigned random_bits(uint64_t key, size_t i) {
    return unsigned(splitmix64::element(key, i / 4) >> (i % 4 * 16)) & 0xffffu;
}

/// Stochastic rounding to bf16 with expected value x: the 16 bits that bf16 drops, as a fraction, are the probability of rounding away
/// from 0.
__device__ __forceinline__ float round_stochastically(float x, unsigned random) {
    return std::isfinite(x) ? __uint_as_float((__float_as_uint(x) + random) & 0xffff0000u) : x;
}

struct Shared {
    float clip;
};

/// 16 bytes of float32, or one element.
__device__ __forceinline__ void read(float (&x)[4], const float* from) { read_numbers<Reuse::streaming>(x, from); }
__device__ __forceinline__ void read(float (&x)[1], const float* from) { x[0] = *from; }
__device__ __forceinline__ void write(float* to, const float (&x)[4]) { write_numbers<Reuse::streaming>(to, x); }
template <class X, int N>
__device__ __forceinline__ void write(X* to, const float (&x)[N]) {
    if constexpr (N == 1) *to = from_float<X>(x[0]);
    else write_numbers(to, x);
}

/// Updates N neighbouring weights from element i of the flat buffers on, which is element `own` of the shard's storage. N is 4, loaded at
/// once, or 1 if a range ends within 16 bytes.
template <int N, class X>
__device__ __forceinline__ void update(X* weights, float* master, float* m_, float* v_, const float* gradients, size_t i,
                                       size_t own, float clip, float keep, const Factors& f) {
    float w[N], m[N], v[N], g[N];
    const size_t at = in_master<X>(i, own);
    read(w, master + at), read(m, m_ + own), read(v, v_ + own), read(g, gradients + i);
    for (int k = 0; k < N; k++) {
        g[k] *= clip;
        m[k] = f.b1 * m[k] + f.rest1 * g[k];
        v[k] = f.b2 * v[k] + f.rest2 * g[k] * g[k];
        w[k] = w[k] * keep - f.step_size * m[k] / (sqrtf(v[k]) * f.v_scale + f.eps);
    }
    write(master + at, w), write(m_ + own, m), write(v_ + own, v);
    if constexpr (!std::is_same_v<X, float>) {
        for (int k = 0; k < N && f.stochastic; k++) w[k] = round_stochastically(w[k], random_bits(f.key, i + k));
        write(weights + i, w);
    } else if (weights != master) {   // float weights usually are the master weights
        write(weights + i, w);
    }
}

/// Updates one element of a statistic. Its bf16 copy is rounded to nearest: stochastic rounding gains nothing and makes quantiles jitter.
template <class X>
__device__ __forceinline__ void follow(X* weights, float* master, const float* gradients, size_t i, size_t own, float rate) {
    const size_t at = in_master<X>(i, own);
    master[at] -= rate * gradients[i];
    weights[i] = from_float<X>(master[at]);
}
}   // namespace adamw

/// One range per block.
template <class X>
__global__ void __launch_bounds__(adamw::THREADS)
    adamw_update_kernel(X* weights, float* master, float* m, float* v, const float* gradients, const UpdateRange* ranges,
                        const StepTotals* totals, adamw::Factors f) {
    const UpdateRange range = ranges[blockIdx.x];
    const StepTotals of_step = *totals;
    if (!of_step.finite()) return;
    auto& shared = dynamic_shared<adamw::Shared>();
    if (threadIdx.x == 0) shared.clip = float(clip_factor(sqrt(of_step.squares), f.grad_clip));
    __syncthreads();
    const float clip = shared.clip;
    const size_t shift = range.held - range.begin;   // a multiple of 4, modulo 2^64
    v += ptrdiff_t(range.second - range.held);       // v[own] belongs to m[own]
    if (range.role == Role::statistic) {
        for (size_t i = range.begin + threadIdx.x; i < range.end; i += adamw::THREADS)
            adamw::follow(weights, master, gradients, i, i + shift, float(range.rate));
        return;
    }
    const float keep = range.role == Role::decays ? f.keep_decaying : 1.0f;
    for (size_t i = range.begin / 4 * 4 + threadIdx.x * 4; i < range.end; i += adamw::THREADS * 4) {
        const size_t own = i + shift;
        if (i >= range.begin && i + 4 <= range.end) adamw::update<4>(weights, master, m, v, gradients, i, own, clip, keep, f);
        else
#pragma unroll 1
            for (int k = 0; k < 4; k++)
                if (i + k >= range.begin && i + k < range.end)
                    adamw::update<1>(weights, master, m, v, gradients, i + k, own + k, clip, keep, f);
    }
}

template <class X>
void adamw_update(GPU device, X* weights, Wide<X>* master, Wide<X>* m, Wide<X>* v, const Wide<X>* gradients,
                  const UpdateRange* ranges, int count, const StepTotals* totals, const AdamW& o, int64_t step) {
    if (count == 0) return;   // the shard is all padding
    launch(device, adamw_update_kernel<X>, count, adamw::THREADS, sizeof(adamw::Shared), weights, master, m, v, gradients, ranges,
           totals, adamw::factors(o, step));
}
#endif
