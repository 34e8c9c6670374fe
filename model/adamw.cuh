// AdamW (Loshchilov and Hutter 2019) as torch.optim.AdamW computes it, the clip of the global norm and the schedule.
#pragma once
#include <cmath>
#include <cstdint>

#include "model/device.h"
#include "model/tensors.h"

struct AdamW {
    double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
};

/// Learning rate of step k (from 0) of `steps`: linear warm-up to `peak`, then a cosine down to min_frac * peak.
inline double learning_rate(double peak, double min_frac, int64_t warmup, int64_t steps, int64_t k) {
    if (k < warmup) return peak * double(k + 1) / double(warmup);
    const double progress = double(k - warmup) / double(std::max<int64_t>(1, steps - warmup));
    return peak * (min_frac + (1 - min_frac) * 0.5 * (1 + std::cos(M_PI * std::min(1.0, progress))));
}

/// Sum of squares of n numbers, in double, over fixed blocks so that the number of threads does not change it.
template <class X>
double sum_of_squares(CPU, const X* x, size_t n) {
    const size_t block = 4096, blocks = (n + block - 1) / block;
    double total = 0;
    std::vector<double> partial(blocks);
#pragma omp parallel for
    for (size_t k = 0; k < blocks; k++) {
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (size_t i = k * block; i < std::min(n, (k + 1) * block); i++) sum += double(x[i]) * double(x[i]);
        partial[k] = sum;
    }
    for (double sum : partial) total += sum;
    return total;
}

/// What the gradient is multiplied by so that its global L2 norm does not exceed `limit` (0: no limit), as
/// torch.nn.utils.clip_grad_norm_ does.
inline double clip_factor(double norm, double limit) { return limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0; }

/// One update of n consecutive parameters; `step` counts from 1.
///     m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
///     w = w (1 - lr decay) - lr m' / (sqrt(v') + eps),   m' = m / (1 - beta1^step),  v' = v / (1 - beta2^step)
template <class X>
void adamw_update(CPU, X* weights, X* m, X* v, const X* gradients, size_t n, const AdamW& o, double decay, double clip,
                  int64_t step) {
    const X keep = X(1 - o.lr * decay), b1 = X(o.beta1), b2 = X(o.beta2), factor = X(clip), eps = X(o.eps);
    const X step_size = X(o.lr / (1 - std::pow(o.beta1, double(step))));
    const X v_scale = X(1 / std::sqrt(1 - std::pow(o.beta2, double(step))));
#pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) {
        const X g = factor * gradients[i];
        m[i] = b1 * m[i] + (X(1) - b1) * g;
        v[i] = b2 * v[i] + (X(1) - b2) * g * g;
        weights[i] = weights[i] * keep - step_size * m[i] / (std::sqrt(v[i]) * v_scale + eps);
    }
}
