// AdamW, the clip of the global norm and the learning rate's schedule against their formulas.
#include "catch.h"

#include <cmath>

#include "model/adamw.cuh"
#include "tests/operation.h"

namespace {

/// torch.optim.AdamW, one parameter after the other, in double.
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

template <class X>
struct Optimized {
    std::vector<X> weights, m, v;
    explicit Optimized(size_t n) : weights(random_numbers<X>(n, 1)), m(n), v(n) {}

    /// Numbers [begin, end) alone.
    void update(const std::vector<X>& gradients, size_t begin, size_t end, const AdamW& o, double decay, double clip, int step) {
        adamw_update(CPU{}, &weights[begin], &m[begin], &v[begin], &gradients[begin], end - begin, o, decay, clip, step);
    }
};

template <class X>
std::vector<X> gradients_of(size_t n, int step) {
    std::vector<X> gradients = random_numbers<X>(n, 100 + step);
    gradients[0] = 0;            // never a gradient: only decay moves the weight
    gradients[1] *= X(1e-9);     // comparable with eps
    return gradients;
}

template <class X>
void follows_the_formula(const AdamW& options, double decay, double clip) {
    const Threads one(1);
    const size_t n = 37;
    Optimized<X> tested(n);
    PlainAdamW expected{random_numbers<double>(n, 1), std::vector<double>(n), std::vector<double>(n)};
    for (int step = 1; step <= 12; step++) {
        AdamW o = options;
        o.lr *= 1.0 / step;
        tested.update(gradients_of<X>(n, step), 0, n, o, decay, clip, step);
        const std::vector<X> same = gradients_of<X>(n, step);
        expected.update(std::vector<double>(same.begin(), same.end()), o, decay, clip, step);
        INFO("step " << step);
        CHECK(difference(tested.weights, expected.weights, rounding<X>(step)) == "");
        CHECK(difference(tested.m, expected.m, rounding<X>(step)) == "");
        CHECK(difference(tested.v, expected.v, rounding<X>(step)) == "");
    }
}

}   // namespace

TEST_CASE("adamw: several steps follow torch's formula, with decay and clipping and without", "[optimizer]") {
    for (double decay : {0.0, 0.1})
        for (double clip : {1.0, 0.3}) {
            follows_the_formula<double>({}, decay, clip);
            follows_the_formula<float>({}, decay, clip);
            follows_the_formula<double>({1e-2, 0.8, 0.999, 1e-6, 0.1}, decay, clip);
        }
}

TEST_CASE("adamw: a weight without gradient only decays", "[optimizer]") {
    Optimized<double> tested(5);
    const double before = tested.weights[0];
    AdamW o;
    o.lr = 0.5;
    tested.update(gradients_of<double>(5, 1), 0, 5, o, 0.1, 1, 1);
    CHECK(std::abs(tested.weights[0] - before * 0.95) < 1e-15);
}

TEST_CASE("adamw: same bits for any number of threads and any cut into parts", "[optimizer]") {
    const size_t n = 1003, cuts[] = {0, 16, 17, 400, 997, n};
    Optimized<float> whole(n), parts(n), alone(n);
    for (int step = 1; step <= 3; step++) {
        const std::vector<float> gradients = gradients_of<float>(n, step);
        whole.update(gradients, 0, n, {}, 0.1, 0.7, step);
        for (size_t k = 0; k + 1 < std::size(cuts); k++) parts.update(gradients, cuts[k], cuts[k + 1], {}, 0.1, 0.7, step);
        const Threads threads(1);
        alone.update(gradients, 0, n, {}, 0.1, 0.7, step);
    }
    CHECK(bit_difference(parts.weights, whole.weights) == "");
    CHECK(bit_difference(parts.v, whole.v) == "");
    CHECK(bit_difference(alone.weights, whole.weights) == "");
}

TEST_CASE("learning rate: warm-up, cosine and end as documented", "[optimizer]") {
    const double lr = 3e-3, f = 0.1;
    for (int64_t warmup : {0, 1, 5})
        for (int64_t steps : {6, 20})
            for (int64_t k = 0; k < steps; k++) {
                const double cosine = lr * (f + (1 - f) * 0.5 * (1 + std::cos(M_PI * double(k - warmup) / double(steps - warmup))));
                const double expected = k < warmup ? lr * double(k + 1) / double(warmup) : cosine;
                INFO("warm-up " << warmup << ", step " << k << " of " << steps);
                CHECK(std::abs(learning_rate(lr, f, warmup, steps, k) - expected) <= 1e-15);
            }
    CHECK(learning_rate(lr, f, 0, 20, 0) == lr);
    CHECK(learning_rate(lr, f, 5, 20, 4) == lr);
    CHECK(learning_rate(lr, f, 5, 20, 5) == lr);
    CHECK(std::abs(learning_rate(lr, f, 5, 20, 20) - lr * f) < 1e-15);
    CHECK(std::abs(learning_rate(lr, 0, 5, 20, 20)) < 1e-15);
    CHECK(std::abs(learning_rate(lr, f, 5, 20, 1000) - lr * f) < 1e-15);   // past the end it stays there
    CHECK(learning_rate(lr, 1, 0, 20, 7) == lr);
}

TEST_CASE("learning rate: a warm-up as long as the run", "[optimizer]") {
    for (int64_t k = 0; k < 4; k++) CHECK(std::abs(learning_rate(1, 0.1, 4, 4, k) - 0.25 * double(k + 1)) < 1e-15);
    CHECK(std::isfinite(learning_rate(1, 0.1, 4, 4, 4)));
}

TEST_CASE("clipping: off, below the limit, above it", "[optimizer]") {
    CHECK(clip_factor(1e6, 0) == 1);
    CHECK(clip_factor(0.5, 1) == 1);
    CHECK(clip_factor(0, 1) == 1);
    for (double norm : {1.0, 1.5, 40.0}) {
        CHECK(clip_factor(norm, 1) == std::min(1.0, 1 / (norm + 1e-6)));
        CHECK(clip_factor(norm, 1) * norm <= 1);
        CHECK(clip_factor(norm, 1) * norm >= 1 - 1e-5);
    }
}

TEST_CASE("sum of squares: one number, one block, partial blocks; same bits for any number of threads", "[optimizer]") {
    for (size_t n : {1, 15, 4095, 4096, 4097, 50001}) {
        const std::vector<float> x = random_numbers<float>(n, n);
        long double exact = 0;
        for (float number : x) exact += static_cast<long double>(number) * number;
        const double once = sum_of_squares(CPU{}, x.data(), n);
        INFO(n << " numbers");
        CHECK(std::abs(once - double(exact)) <= rounding<double>(int(n)).relative * once);
        for (int count : {1, 2, 3}) {
            const Threads threads(count);
            CHECK(sum_of_squares(CPU{}, x.data(), n) == once);
        }
    }
    CHECK(sum_of_squares(CPU{}, static_cast<const float*>(nullptr), 0) == 0);
}

TEST_CASE("sum of squares: NaN and infinity show, a large float does not overflow", "[optimizer]") {
    std::vector<float> x(5000, 1);
    x[4999] = NAN;
    CHECK(std::isnan(sum_of_squares(CPU{}, x.data(), x.size())));
    x[4999] = INFINITY;
    CHECK(std::isinf(sum_of_squares(CPU{}, x.data(), x.size())));
    x[4999] = 1e30f;
    CHECK(std::isfinite(sum_of_squares(CPU{}, x.data(), x.size())));
}
