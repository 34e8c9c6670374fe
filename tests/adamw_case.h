// AdamW's formula in double precision, and a test case for adamw_update() on every device.
#pragma once
#include <cmath>

#include "model/operations/adamw.cuh"
#include "tests/operation.h"

/// torch.optim.AdamW, parameter by parameter.
struct PlainAdamW {
    std::vector<double> weights, m, v;

    void update(const std::vector<double>& gradients, const AdamW& o, double decay, double clip, int step) {
        const double correction1 = 1 - std::pow(o.beta1, step), correction2 = 1 - std::pow(o.beta2, step);
        for (size_t n = 0; n < weights.size(); n++) {
            const double g = clip * gradients[n];
            weights[n] -= o.lr * decay * weights[n];
            m[n] = o.beta1 * m[n] + (1 - o.beta1) * g;
            v[n] = o.beta2 * v[n] + (1 - o.beta2) * g * g;
            weights[n] -= o.lr * (m[n] / correction1) / (std::sqrt(v[n] / correction2) + o.eps);
        }
    }
};

/// The totals of a step whose gradient is to be multiplied by `clip`.
inline StepTotals numbers_for(double clip, const AdamW& o) { return {1.0, std::pow(o.grad_clip / clip - 1e-6, 2)}; }

/// n weights, and of the numbers [owned_from, n) the moments.
template <class X, class Device = CPU>
struct Optimized {
    using W = Wide<X>;
    static constexpr bool rounds = !std::is_same_v<X, W>;
    Device device;
    size_t owned_from;
    On<Device, X> weights;
    On<Device, W> master_copy, m, v;

    explicit Optimized(const std::vector<W>& start, Device device_ = {}, size_t owned_from_ = 0)
        : device(device_), owned_from(owned_from_), weights(start),
          master_copy(std::vector<W>(start.begin() + long(owned_from), start.end())),
          m(std::vector<W>(start.size() - owned_from)), v(std::vector<W>(start.size() - owned_from)) {}

    W* master() {
        if constexpr (rounds) return master_copy.data();
        else return weights.data();
    }
    void update(const std::vector<W>& gradients, std::vector<UpdateRange> ranges, const AdamW& o, StepTotals numbers, int step) {
        for (UpdateRange& range : ranges) range.held = range.second = range.begin - owned_from;
        On<Device, W> g(gradients);
        On<Device, UpdateRange> r(ranges);
        On<Device, StepTotals> sums({numbers});
        adamw_update(device, weights.data(), master(), m.data(), v.data(), g.data(), r.data(), int(ranges.size()), sums.data(), o,
                     step);
        weights.numbers();   // waits for a GPU before the arrays are freed
    }
};

template <class X>
std::vector<X> gradients_of(size_t n, int step) {
    std::vector<X> gradients = random_numbers<X>(n, 100 + step);
    gradients[0] = 0;            // never a gradient: only decay moves the weight
    gradients[1] *= X(1e-9);     // comparable with eps
    return gradients;
}

/// Twelve steps of torch's formula for all elements, with one decay and one clip factor.
template <class X, class Device = CPU>
void follows_the_formula(const AdamW& options, double decay, double clip, Device device = {}) {
    using W = Wide<X>;
    const Threads one(1);
    const size_t n = 37;
    Optimized<X, Device> tested(random_numbers<W>(n, 1), device);
    PlainAdamW expected{random_numbers<double>(n, 1), std::vector<double>(n), std::vector<double>(n)};
    for (int step = 1; step <= 12; step++) {
        AdamW o = options;
        o.lr *= 1.0 / step;
        o.weight_decay = decay;
        const std::vector<W> gradients = gradients_of<W>(n, step);
        tested.update(gradients, {{0, n, Role::decays}}, o, numbers_for(clip, o), step);
        expected.update(std::vector<double>(gradients.begin(), gradients.end()), o, decay, clip, step);
        INFO("step " << step);
        const std::vector<W> master = tested.rounds ? tested.master_copy.numbers() : std::vector<W>(tested.weights.numbers());
        CHECK(difference(master, expected.weights, rounding<W>(step)) == "");
        CHECK(difference(tested.m.numbers(), expected.m, rounding<W>(step)) == "");
        CHECK(difference(tested.v.numbers(), expected.v, rounding<W>(step)) == "");
    }
}
