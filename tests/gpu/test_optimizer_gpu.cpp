// AdamW, Muon, their stochastic rounding and the sums that it reads, on the GPU.
#include <bit>
#include <cmath>

#include "tests/gpu/on_gpu.h"
#include "tests/optimizer_case.h"

namespace {

template <class X>
using OnGpu = Optimized<X, GPU>;

/// Ranges as tensors of odd sizes leave them: whole packs, parts of one, one number, a gap of padding; two are statistics.
const std::vector<UpdateRange> ODD_RANGES = {{0, 16, Role::decays}, {16, 17, Role::plain}, {17, 18, Role::decays},
                                             {18, 19, Role::statistic, 2}, {19, 39, Role::statistic, 0.3},
                                             {48, 70, Role::plain}, {70, 1001, Role::decays}};
constexpr size_t ODD_SIZE = 1008;

/// Weights (n) after one update without a step or decay: `value` rounded stochastically.
std::vector<float> rounded_weights(size_t n, float value, uint64_t seed, int step, const std::vector<UpdateRange>& ranges,
                                   size_t owned_from = 0) {
    AdamW o;
    o.lr = 0, o.stochastic_rounding = true, o.seed = seed;
    OnGpu<bf16> tested(std::vector<float>(n, value), test_gpu(), owned_from);
    tested.update(std::vector<float>(n, 1), ranges, o, numbers_for(1, o), step);
    return tested.weights.numbers();
}

/// Whether as many numbers are equal as two fair coins agree.
bool agrees_by_chance(const std::vector<float>& a, const std::vector<float>& b) {
    const int same = std::inner_product(a.begin(), a.end(), b.begin(), 0, std::plus<>(), std::equal_to<>());
    return std::abs(same - int(a.size()) / 2) <= 4 * std::sqrt(double(a.size())) / 2;
}

}   // namespace

TEST_CASE("GPU adamw: several steps follow torch's formula, with decay and clipping and without", "[gpu][optimizer]") {
    const double decay = GENERATE(0.0, 0.1), clip = GENERATE(1.0, 0.3);
    follows_the_formula<float>({}, decay, clip, test_gpu());
    follows_the_formula<bf16>({}, decay, clip, test_gpu());
    follows_the_formula<bf16>({1e-2, 0.8, 0.999, 1e-6, 0.1}, decay, clip, test_gpu());
}

TEST_CASE("GPU adamw: ranges of any size and role are updated as on the CPU, padding is left alone", "[gpu][optimizer]") {
    const std::vector<float> start = random_numbers<float>(ODD_SIZE, 1);
    Optimized<float> expected(start);
    OnGpu<float> wide(start, test_gpu());
    OnGpu<bf16> narrow(start, test_gpu());
    AdamW o;
    for (int step = 1; step <= 3; step++) {
        const std::vector<float> gradients = gradients_of<float>(ODD_SIZE, step);
        o.stochastic_rounding = step == 3;
        expected.update(gradients, ODD_RANGES, o, numbers_for(0.7, o), step);
        wide.update(gradients, ODD_RANGES, o, numbers_for(0.7, o), step);
        narrow.update(gradients, ODD_RANGES, o, numbers_for(0.7, o), step);
        const std::vector<float> weights = narrow.weights.numbers(), nearest = rounded<bf16>(wide.weights.numbers());
        if (step < 3) CHECK(bit_difference(weights, nearest) == "");
        else CHECK(std::equal(weights.begin() + 18, weights.begin() + 48, nearest.begin() + 18));   // statistics are not rounded at random
    }
    CHECK(difference(wide.weights.numbers(), expected.weights.numbers(), rounding<float>(3)) == "");
    CHECK(difference(wide.m.numbers(), expected.m.numbers(), rounding<float>(3)) == "");
    CHECK(difference(wide.v.numbers(), expected.v.numbers(), rounding<float>(3)) == "");
    CHECK(bit_difference(narrow.master_copy.numbers(), wide.weights.numbers()) == "");
    for (size_t n = 39; n < 48; n++) CHECK(wide.weights.numbers()[n] == start[n]);
    for (size_t n = 1001; n < ODD_SIZE; n++) CHECK(wide.weights.numbers()[n] == start[n]);
}

TEST_CASE("GPU adamw: same bits again, and for any cut into ranges", "[gpu][optimizer]") {
    AdamW o;
    o.stochastic_rounding = true;
    check_cuts<bf16>(o, test_gpu());
}

TEMPLATE_TEST_CASE("GPU adamw: a shard of the buffers is updated as it is in the whole, rounding included",
                   "[gpu][optimizer]", bf16, float) {
    const size_t n = 1000, from = 336;
    const std::vector<float> start = random_numbers<float>(n, 1), gradients = gradients_of<float>(n, 1);
    AdamW o;
    o.stochastic_rounding = true;
    OnGpu<TestType> whole(start, test_gpu()), shard(start, test_gpu(), from);
    whole.update(gradients, {{0, n, Role::decays}}, o, numbers_for(0.7, o), 1);
    shard.update(gradients, {{from, n, Role::decays}}, o, numbers_for(0.7, o), 1);
    const std::vector<float> weights = whole.weights.numbers(), master = whole.master_copy.numbers();
    std::vector<float> expected = rounded<TestType>(start);
    std::copy(weights.begin() + from, weights.end(), expected.begin() + from);
    CHECK(bit_difference(shard.weights.numbers(), expected) == "");
    CHECK(bit_difference(shard.master_copy.numbers(), std::vector<float>(master.begin() + from, master.end())) == "");
}

TEST_CASE("GPU adamw and muon: a loss or a norm that is not finite leaves everything as it is", "[gpu][optimizer]") {
    check_broken_totals<bf16>(test_gpu());
}

TEST_CASE("GPU adamw: stochastic rounding takes one of the two neighbours and is right on average", "[gpu][optimizer]") {
    const size_t n = 1 << 14;
    for (const auto& [value, below, spacing] : {std::tuple{1 + 0.3 * 0x1p-7, 1.0, 0x1p-7}, {-2 - 0.9 * 0x1p-6, -2 - 0x1p-6, 0x1p-6},
                                                {0x1.03p-90, 0x1.02p-90, 0x1p-97}, {0.5, 0.5, 0x1p-8}}) {
        const std::vector<float> rounded = rounded_weights(n, float(value), 1, 1, {{0, n, Role::decays}});
        double mean = 0;
        size_t wrong = 0;
        for (float x : rounded) {
            mean += x / double(n);
            wrong += x != below && x != below + spacing;
        }
        const double p = (value - below) / spacing, deviation = spacing * std::sqrt(p * (1 - p) / double(n));
        INFO(value);
        CHECK(wrong == 0);
        CHECK(std::abs(mean - value) <= 4 * deviation + 1e-7 * std::abs(value));
    }
}

TEST_CASE("GPU adamw: stochastic rounding repeats with seed and step, and changes with either", "[gpu][optimizer]") {
    const size_t n = 1 << 12;
    const float value = 1 + 0x1p-8f;
    const std::vector<UpdateRange> all = {{0, n, Role::decays}};
    const std::vector<float> once = rounded_weights(n, value, 1, 1, all);
    CHECK(bit_difference(rounded_weights(n, value, 1, 1, all), once) == "");
    CHECK(agrees_by_chance(rounded_weights(n, value, 2, 1, all), once));
    CHECK(agrees_by_chance(rounded_weights(n, value, 1, 2, all), once));
    for (size_t distance = 1; distance <= 16; distance++) {   // neighbours share a random number, not its bits
        std::vector<float> shifted = once;
        std::rotate(shifted.begin(), shifted.begin() + long(distance), shifted.end());
        INFO("weights " << distance << " apart");
        CHECK(agrees_by_chance(shifted, once));
    }
}

TEST_CASE("GPU adamw: what is not finite stays so when it is rounded", "[gpu][optimizer]") {
    for (float value : {INFINITY, -INFINITY}) CHECK(rounded_weights(1, value, 1, 1, {{0, 1, Role::plain}})[0] == value);
    const float all_bits = std::bit_cast<float>(0x7fffffff);   // the NaN that a GPU's arithmetic gives
    for (float nan : {NAN, all_bits})
        for (float x : rounded_weights(16, nan, 1, 1, {{0, 16, Role::plain}})) CHECK(std::isnan(x));
}

TEST_CASE("GPU muon: steps on tall, wide and square matrices are those of the CPU, bf16 to its rounding", "[gpu][optimizer]") {
    const std::vector<std::vector<int64_t>> shapes = {{48, 16}, {16, 40}, {32, 32}};
    const size_t n = 48 * 16 + 16 * 40 + 32 * 32;
    const std::vector<float> start = rounded<bf16>(random_numbers<float>(n, 1));
    AdamW o;
    o.lr = 1e-2;
    MuonMatrices<double> exact(shapes, std::vector<double>(start.begin(), start.end()));
    MuonMatrices<float, GPU> wide(shapes, start, test_gpu());
    MuonMatrices<bf16, GPU> narrow(shapes, start, test_gpu()), again(shapes, start, test_gpu());
    for (int step = 1; step <= 3; step++) {
        const std::vector<float> gradients = random_numbers<float>(n, 100 + step);
        exact.update(std::vector<double>(gradients.begin(), gradients.end()), o, numbers_for(0.7, o), step);
        wide.update(gradients, o, numbers_for(0.7, o), step);
        for (auto* each : {&narrow, &again}) each->update(gradients, o, numbers_for(0.7, o), step);
    }
    CHECK(difference(wide.numbers(), exact.numbers(), rounding<float>(64)) == "");
    CHECK(difference(wide.m.numbers(), exact.m.numbers(), rounding<float>(3)) == "");
    CHECK(bit_difference(narrow.m.numbers(), wide.m.numbers()) == "");
    CHECK(bit_difference(narrow.weights.numbers(), rounded<bf16>(narrow.master_copy.numbers())) == "");
    CHECK(bit_difference(again.master_copy.numbers(), narrow.master_copy.numbers()) == "");
    const std::vector<float> moved = narrow.master_copy.numbers();
    double error = 0, length = 0;   // of the way from the start
    for (size_t i = 0; i < n; i++) {
        error += std::pow(moved[i] - exact.weights.numbers()[i], 2);
        length += std::pow(exact.weights.numbers()[i] - start[i], 2);
    }
    CHECK(std::sqrt(error / length) < 0.03);
}

TEST_CASE("GPU muon: weights are rounded stochastically as AdamW's are", "[gpu][optimizer]") {
    const size_t n = 24 * 16;
    const float value = 1 + 0.3f * 0x1p-7f;
    AdamW o;
    o.lr = 0, o.stochastic_rounding = true, o.seed = 5;
    MuonMatrices<bf16, GPU> tested({{24, 16}}, std::vector<float>(n, value), test_gpu());
    tested.update(random_numbers<float>(n, 2), o, numbers_for(1, o), 3);
    CHECK(bit_difference(tested.weights.numbers(), rounded_weights(n, value, 5, 3, {{0, n, Role::decays}})) == "");
}

TEST_CASE("GPU sum of parts: of one, of several and of more than a block has threads", "[gpu][optimizer]") {
    for (int count : {1, 3, 8, 1000}) {
        std::vector<double> parts(static_cast<size_t>(count));
        for (size_t p = 0; p < parts.size(); p++) parts[p] = double(p) + 0.5;
        On<GPU, double> on_gpu(parts), total({NAN});
        double expected = NAN;
        sum_of_parts(test_gpu(), total.data(), on_gpu.data(), count);
        sum_of_parts(CPU{}, &expected, parts.data(), count);
        CHECK(total.numbers()[0] == count * double(count) / 2);
        CHECK(expected == count * double(count) / 2);
    }
}

TEST_CASE("GPU sum of squares: a tensor that begins at any number", "[gpu][optimizer]") {
    const std::vector<float> x = random_numbers<float>(1003, 1);
    On<GPU, float> numbers(x);
    On<GPU, double> total({NAN});
    for (size_t first : {1, 2, 3}) {
        sum_of_squares(test_gpu(), total.data(), numbers.data() + first, 1000);
        CHECK(total.numbers()[0] == squares_of(test_gpu(), {x.begin() + first, x.begin() + first + 1000}));
    }
}

TEST_CASE("GPU sums of losses and of squares: their sizes, spans, what is not finite", "[gpu][optimizer]") {
    check_sum_of_losses(test_gpu());
    check_sum_of_squares(test_gpu());
    check_squares_of_spans(test_gpu());
    check_squares_of_extremes(test_gpu());
}
