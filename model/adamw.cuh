// AdamW (Loshchilov and Hutter 2019) as torch.optim.AdamW computes it, the clip of the global norm and the schedule.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "model/device.h"
#include "model/tensors.h"

struct AdamW {
    double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
    double grad_clip = 1.0;            // largest global L2 norm of the gradient; 0: no limit
    bool stochastic_rounding = false;  // of the bf16 copy of the weights, instead of to nearest
    uint64_t seed = 1;                 // of that rounding
};

/// Learning rate of step k (from 0) of `steps`: linear warm-up to `peak`, then a cosine down to min_frac * peak.
inline double learning_rate(double peak, double min_frac, int64_t warmup, int64_t steps, int64_t k) {
    if (k < warmup) return peak * double(k + 1) / double(warmup);
    const double progress = double(k - warmup) / double(std::max<int64_t>(1, steps - warmup));
    return peak * (min_frac + (1 - min_frac) * 0.5 * (1 + std::cos(M_PI * std::min(1.0, progress))));
}

/// What a step adds up in the device's memory. The update reads it there; the host reads it once per step, afterwards.
struct StepNumbers {
    double loss;      // sum over the tokens, in nats
    double squares;   // of the gradient of all tensors
};

/// *total = or += the sum of losses (n).
template <class W>
void sum_of_losses(CPU, double* total, const W* losses, int n, Write write) {
    double sum = write == Write::add ? *total : 0;
    for (int i = 0; i < n; i++) sum += double(losses[i]);
    *total = sum;
}

/// *total = sum of squares of n numbers, in double, over fixed blocks so that the number of threads does not change it.
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

/// What the gradient is multiplied by so that its global L2 norm does not exceed `limit` (0: no limit), as
/// torch.nn.utils.clip_grad_norm_ does.
constexpr double clip_factor(double norm, double limit) {
    if (limit <= 0) return 1;
    const double factor = limit / (norm + 1e-6);
    return factor < 1 ? factor : 1;
}

/// Numbers [begin, end) of the flat buffers, all of a tensor that decays or all of one that does not.
struct DecayRange {
    size_t begin, end;
    bool decays;
};

/// The ranges of [begin, end) in pieces of at most `longest` numbers, padding between tensors left out.
std::vector<DecayRange> decay_ranges(const TensorList& list, size_t begin, size_t end, size_t longest);

/// One update of all `ranges` (count of them, in the device's memory); `step` counts from 1. weights and gradients are whole flat
/// buffers; master, m and v hold the numbers from `owned_from` on. `master` is the float32 weights that `weights` are a rounded copy
/// of, and the same memory where X is not rounded.
///     g = clip g;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
///     w = w (1 - lr decay) - lr m' / (sqrt(v') + eps),   m' = m / (1 - beta1^step),  v' = v / (1 - beta2^step)
/// A loss or norm in `numbers` that is not finite leaves everything as it is.
template <class X>
void adamw_update(CPU, X* weights, Wide<X>* master, Wide<X>* m, Wide<X>* v, const Wide<X>* gradients, size_t owned_from,
                  const DecayRange* ranges, int count, const StepNumbers* numbers, const AdamW& o, int64_t step) {
    if (!std::isfinite(numbers->loss) || !std::isfinite(numbers->squares)) return;
    const X b1 = X(o.beta1), b2 = X(o.beta2), factor = X(clip_factor(std::sqrt(numbers->squares), o.grad_clip)), eps = X(o.eps);
    const X step_size = X(o.lr / (1 - std::pow(o.beta1, double(step))));
    const X v_scale = X(1 / std::sqrt(1 - std::pow(o.beta2, double(step))));
#pragma omp parallel for schedule(static)
    for (int r = 0; r < count; r++) {
        const X keep = X(1 - o.lr * (ranges[r].decays ? o.weight_decay : 0));
#pragma omp simd
        for (size_t i = ranges[r].begin; i < ranges[r].end; i++) {
            const X g = factor * gradients[i];
            const size_t own = i - owned_from;
            m[own] = b1 * m[own] + (X(1) - b1) * g;
            v[own] = b2 * v[own] + (X(1) - b2) * g * g;
            master[own] = master[own] * keep - step_size * m[own] / (std::sqrt(v[own]) * v_scale + eps);
            weights[i] = master[own];
        }
    }
}
