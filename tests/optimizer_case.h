// AdamW's formula in double precision, matrices that Muon moves, and cases for both and for the sums that they read, on every device.
#pragma once
#include <cmath>

#include <omp.h>

#include "model/operations/muon.cuh"
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
    /// The weights in full precision.
    std::vector<W> numbers() const { return rounds ? master_copy.numbers() : std::vector<W>(weights.numbers()); }

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
        CHECK(difference(tested.numbers(), expected.weights, rounding<W>(step)) == "");
        CHECK(difference(tested.m.numbers(), expected.m, rounding<W>(step)) == "");
        CHECK(difference(tested.v.numbers(), expected.v, rounding<W>(step)) == "");
    }
}

/// Three steps give the same bits for any cut into ranges, and on one thread.
template <class X, class Device>
void check_cuts(const AdamW& o, Device device) {
    using W = Wide<X>;
    const size_t n = 5003;
    const std::vector<UpdateRange> all = {{0, n, Role::decays}};
    const std::vector<UpdateRange> cuts = {{0, 16, Role::decays}, {16, 17, Role::decays}, {17, 402, Role::decays},
                                           {402, 4999, Role::decays}, {4999, n, Role::decays}};
    const std::vector<W> start = random_numbers<W>(n, 1);
    Optimized<X, Device> whole(start, device), parts(start, device), alone(start, device);
    for (int step = 1; step <= 3; step++) {
        const std::vector<W> gradients = gradients_of<W>(n, step);
        whole.update(gradients, all, o, numbers_for(0.7, o), step);
        parts.update(gradients, cuts, o, numbers_for(0.7, o), step);
        const Threads one(1);
        alone.update(gradients, all, o, numbers_for(0.7, o), step);
    }
    for (const Optimized<X, Device>* other : {&parts, &alone}) {
        CHECK(bit_difference(other->weights.numbers(), whole.weights.numbers()) == "");
        CHECK(bit_difference(other->master_copy.numbers(), whole.master_copy.numbers()) == "");
        CHECK(bit_difference(other->v.numbers(), whole.v.numbers()) == "");
    }
}

/// It replaces or joins what is there.
template <class Device>
void check_sum_of_losses(Device device) {
    On<Device, float> losses({1, 2.5f, 0, 4, 100});
    On<Device, double> total({NAN});
    sum_of_losses(device, total.data(), losses.data(), 4, Write::overwrite);
    CHECK(total.numbers()[0] == 7.5);
    sum_of_losses(device, total.data(), losses.data(), 2, Write::add);
    CHECK(total.numbers()[0] == 11);
}

template <class Device>
double squares_of(Device device, const std::vector<float>& x) {
    On<Device, float> numbers(x);
    On<Device, double> total({NAN});
    sum_of_squares(device, total.data(), numbers.data(), x.size());
    return total.numbers()[0];
}

/// None, one number, partial blocks, more than one block; the same bits again and for any number of threads.
template <class Device>
void check_sum_of_squares(Device device) {
    for (size_t n : {1, 15, 16, 17, 4095, 4096, 4097, 8191, 8192, 8193, 50001}) {
        const std::vector<float> x = random_numbers<float>(n, n);
        long double exact = 0;
        for (float number : x) exact += static_cast<long double>(number) * number;
        const double once = squares_of(device, x);
        INFO(n << " numbers");
        CHECK(std::abs(once - double(exact)) <= rounding<double>(int(n)).relative * once);
        for (int count : {1, 2, 3}) {
            const Threads threads(count);
            CHECK(squares_of(device, x) == once);
        }
    }
    CHECK(squares_of(device, {}) == 0);
}

/// Of spans by their weight, at any place; one span is the whole, to the bit.
template <class Device>
void check_squares_of_spans(Device device) {
    std::vector<float> x = random_numbers<float>(20001, 1);
    const auto part = [&](size_t begin, size_t end) { return squares_of(device, {x.begin() + long(begin), x.begin() + long(end)}); };
    const auto total_of = [&](const std::vector<NormSpan>& given) {
        On<Device, float> numbers(x);
        On<Device, NormSpan> spans(given);
        On<Device, double> total({NAN});
        sum_of_squares(device, total.data(), numbers.data(), x.size(), spans.data(), int(given.size()));
        return total.numbers()[0];
    };
    CHECK(total_of({{0, 20001, 1}}) == squares_of(device, x));
    const double expected = part(3, 7) + part(20, 9000) + part(9001, 20001);
    CHECK(std::abs(total_of({{3, 7, 1}, {10, 20, 0}, {20, 9000, 1}, {9001, 20001, 1}}) - expected) <= 1e-12 * expected);
    CHECK(total_of({}) == 0);
    x[8] = NAN;   // in no span
    CHECK(std::isfinite(total_of({{3, 7, 1}, {10, 20, 0}})));
    for (float broken : {NAN, INFINITY}) {
        x[15] = broken;   // where only what is not finite counts
        CHECK(std::isnan(total_of({{3, 7, 1}, {10, 20, 0}})));
    }
}

/// NaN and infinity show, a large float does not overflow.
template <class Device>
void check_squares_of_extremes(Device device) {
    std::vector<float> x(5001, 1);
    for (size_t at : {size_t(3), x.size() - 1}) {
        x[at] = NAN;
        CHECK(std::isnan(squares_of(device, x)));
        x[at] = INFINITY;
        CHECK(std::isinf(squares_of(device, x)));
        x[at] = 1e30f;
        CHECK(std::isfinite(squares_of(device, x)));
    }
}

/// Weights that are a list of Muon's matrices of these shapes. They have no second moments: v stays as it is.
template <class X, class Device = CPU>
struct MuonMatrices : Optimized<X, Device> {
    using W = Wide<X>;
    using Base = Optimized<X, Device>;
    using Base::device, Base::weights, Base::m, Base::master;
    TensorList list{Stored::as_computed, Optimizer::muon};
    std::vector<UpdateRange> host_ranges;
    On<Device, X> work;
    On<Device, UpdateRange> ranges;
    On<Device, double> squares;
    Muon<X> muon;

    MuonMatrices(const std::vector<std::vector<int64_t>>& shapes, const std::vector<W>& start, Device device_ = {})
        : Base(start, device_), host_ranges(listed(shapes)), work(std::vector<W>(8 * list.size() * THREADS)), ranges(host_ranges),
          squares(std::vector<double>(THREADS)) {
        muon.ranges = ranges.data(), muon.range_count = int(host_ranges.size());
        muon.matrices = muon_matrices(list, host_ranges);
        for (int n = 0; n < (std::is_same_v<Device, CPU> ? THREADS : 1); n++) {
            X* const own = work.data() + 8 * list.size() * size_t(n);
            muon.workspaces.push_back({own, own + 2 * list.size(), own + 4 * list.size(), own + 6 * list.size(), squares.data() + n});
        }
    }

    /// One step; whether a total is finite is up to `totals`.
    void update(const std::vector<W>& of_step, const AdamW& o, StepTotals totals, int64_t step) {
        On<Device, W> g(of_step);
        On<Device, StepTotals> sums({totals});
        muon_momentum(device, m.data(), g.data(), muon, sums.data(), o);
        muon_update(device, weights.data(), master(), g.data(), muon, sums.data(), o, step);
        weights.numbers();   // waits for a GPU before the arrays are freed
    }

private:
    static constexpr int THREADS = 3;

    std::vector<UpdateRange> listed(const std::vector<std::vector<int64_t>>& shapes) {
        int number = 0;
        for (const auto& shape : shapes) list.add_hidden_matrix(std::to_string(number++), shape, zeros());
        return muon_ranges(list, Shards(list.size(), 0, 1), 33);
    }
};

/// A loss or a norm that is not finite leaves everything as it is.
template <class X, class Device>
void check_broken_totals(Device device) {
    using W = Wide<X>;
    const size_t n = 24 * 16;
    const std::vector<W> start = random_numbers<W>(n, 1), gradients = gradients_of<W>(n, 1), zeros(n);
    Optimized<X, Device> by_adamw(start, device);
    MuonMatrices<X, Device> by_muon({{24, 16}}, start, device);
    const std::vector<W> weights = by_adamw.weights.numbers(), master = by_adamw.master_copy.numbers();
    const auto check_unchanged = [&](const auto& tested) {
        CHECK(bit_difference(tested.weights.numbers(), weights) == "");
        CHECK(bit_difference(tested.master_copy.numbers(), master) == "");
        CHECK(bit_difference(tested.m.numbers(), zeros) == "");
    };
    for (const StepTotals& totals : {StepTotals{NAN, 1}, {INFINITY, 1}, {1, NAN}, {1, INFINITY}}) {
        by_adamw.update(gradients, {{0, n - 7, Role::decays}}, {}, totals, 1);   // a part of a pack, too
        by_muon.update(gradients, {}, totals, 1);
        check_unchanged(by_adamw);
        check_unchanged(by_muon);
        CHECK(bit_difference(by_adamw.v.numbers(), zeros) == "");
    }
}
