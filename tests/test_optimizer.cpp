// AdamW, Muon, the clip of the global norm and the learning rate's schedule against their formulas.
#include <cmath>

#include "model/base/disk.h"
#include "model/base/json.h"
#include "model/base/process.h"
#include "tests/optimizer_case.h"

TEST_CASE("adamw: several steps follow torch's formula, with decay and clipping and without", "[optimizer]") {
    const double decay = GENERATE(0.0, 0.1), clip = GENERATE(1.0, 0.3);
    follows_the_formula<double>({}, decay, clip);
    follows_the_formula<float>({}, decay, clip);
    follows_the_formula<double>({1e-2, 0.8, 0.999, 1e-6, 0.1}, decay, clip);
}

TEST_CASE("adamw: a weight without gradient only decays, in ranges that decay", "[optimizer]") {
    Optimized<double> tested(random_numbers<double>(5, 1));
    const double before = tested.weights.numbers()[0];
    AdamW o;
    o.lr = 0.5;
    o.weight_decay = 0.1;
    tested.update(gradients_of<double>(5, 1), {{0, 5, Role::decays}}, o, numbers_for(1, o), 1);
    CHECK(std::abs(tested.weights.numbers()[0] - before * 0.95) < 1e-15);
    tested.update(gradients_of<double>(5, 2), {{0, 5, Role::plain}}, o, numbers_for(1, o), 2);
    CHECK(std::abs(tested.weights.numbers()[0] - before * 0.95) < 1e-15);
}

TEST_CASE("adamw: same bits for any number of threads and any cut into parts", "[optimizer]") { check_cuts<float>({}, CPU{}); }

namespace {

/// Steps of tests/fixtures/muon on one matrix; weights and momentum after each step within `tolerance`.
template <class X>
void follows_torch(const nlohmann::json& fixture, const nlohmann::json& matrix, double tolerance) {
    const auto numbers = [](const nlohmann::json& list) {
        const auto wide = list.get<std::vector<double>>();
        return std::vector<X>(wide.begin(), wide.end());
    };
    AdamW o;
    o.lr = fixture["lr"], o.weight_decay = fixture["weight_decay"], o.grad_clip = 2;
    MuonMatrices<X> tested({matrix["shape"].get<std::vector<int64_t>>()}, numbers(matrix["start"]));
    int step = 0;
    for (const auto& expected : matrix["steps"]) {
        std::vector<X> clipped = numbers(expected["gradient"]);
        for (X& g : clipped) g *= 4;   // which the clip makes good
        tested.update(clipped, o, numbers_for(0.25, o), ++step);
        INFO("step " << step);
        CHECK(difference(tested.numbers(), expected["weights"].get<std::vector<double>>(), Tolerance{0, tolerance}) == "");
        CHECK(difference(tested.m.numbers(), expected["momentum"].get<std::vector<double>>(), rounding<X>(step)) == "");
    }
    CHECK(step == 4);
}

}   // namespace

TEST_CASE("muon: steps on a tall, a wide and a square matrix are torch's formula", "[optimizer]") {
    const std::string path = program_folder() + "/../../tests/fixtures/muon/fixture.json";
    const nlohmann::json fixture = parse_json_object(read_text(path), path);
    for (const char* shape : {"tall", "wide", "square"}) {
        INFO(shape);
        follows_torch<double>(fixture, fixture["matrices"][shape], 1e-9);   // the coefficients are floats
        follows_torch<float>(fixture, fixture["matrices"][shape], 1e-6);
    }
}

TEST_CASE("muon: same bits for any number of threads; a matrix without gradient only decays", "[optimizer]") {
    const std::vector<std::vector<int64_t>> shapes = {{40, 24}, {24, 40}, {16, 16}, {8, 72}};
    const size_t n = 40 * 24 * 2 + 16 * 16 + 8 * 72, last = n - 8 * 72;
    const std::vector<float> start = random_numbers<float>(n, 1);
    const AdamW o;
    MuonMatrices<float> many(shapes, start), alone(shapes, start);
    for (int step = 1; step <= 3; step++) {
        std::vector<float> gradients = random_numbers<float>(n, 100 + step);
        std::fill(gradients.begin() + long(last), gradients.end(), 0.0f);
        {
            const Threads three(3);
            many.update(gradients, o, numbers_for(0.7, o), step);
        }
        const Threads one(1);
        alone.update(gradients, o, numbers_for(0.7, o), step);
    }
    CHECK(bit_difference(many.numbers(), alone.numbers()) == "");
    std::vector<double> decayed(start.begin() + long(last), start.end());
    for (double& w : decayed) w *= std::pow(1 - o.lr * o.weight_decay, 3);
    const std::vector<float> all = many.numbers();
    CHECK(difference(std::vector<float>(all.begin() + long(last), all.end()), decayed, rounding<float>(3)) == "");
}

TEST_CASE("adamw and muon: a loss or a norm that is not finite leaves everything as it is", "[optimizer]") {
    check_broken_totals<float>(CPU{});
}

TEST_CASE("learning rate: warm-up, decay and end as documented", "[optimizer]") {
    using enum Schedule::Form;
    const double lr = 3e-3, f = 0.1;
    for (int64_t warmup : {0, 1, 5})
        for (int64_t steps : {6, 20})
            for (int64_t k = 0; k < steps; k++) {
                const int64_t cooldown = (steps - warmup) / 2, begin = steps - cooldown;
                const double part = double(k - warmup) / double(steps - warmup);
                const double last = k < begin ? 0 : double(k - begin) / double(cooldown);
                INFO("warm-up " << warmup << ", step " << k << " of " << steps);
                for (auto [form, left] : {std::pair{cosine, 0.5 * (1 + std::cos(M_PI * part))}, {linear, 1 - part}, {constant, 1.0},
                                          {wsd, 1 - std::sqrt(last)}}) {
                    const double expected = k < warmup ? lr * double(k + 1) / double(warmup) : lr * (f + (1 - f) * left);
                    CHECK(std::abs(Schedule{form, lr, f, warmup, cooldown, steps}.rate(k) - expected) <= 1e-15);
                }
            }
    for (auto form : {cosine, linear, constant, wsd}) {
        CHECK(Schedule{form, lr, f, 0, 5, 20}.rate(0) == lr);
        CHECK(Schedule{form, lr, f, 5, 5, 20}.rate(4) == lr);
        CHECK(Schedule{form, lr, f, 5, 5, 20}.rate(5) == lr);
        for (int64_t past : {20, 1000}) CHECK(std::abs(Schedule{form, lr, f, 5, 5, 20}.rate(past) - (form == constant ? lr : lr * f)) < 1e-15);
        CHECK(Schedule{form, lr, 1, 0, 5, 20}.rate(7) == lr);
        for (int64_t k = 0; k < 4; k++) CHECK(std::abs(Schedule{form, 1, 0.1, 4, 0, 4}.rate(k) - 0.25 * double(k + 1)) < 1e-15);
        CHECK(std::isfinite(Schedule{form, 1, 0.1, 4, 0, 4}.rate(4)));
    }
    for (int64_t k = 3; k < 15; k++) CHECK(Schedule{wsd, 0.3, 0.37, 3, 5, 20}.rate(k) == 0.3);   // to the bit, as a trunk's
}

TEST_CASE("clipping: off, below the limit, above it", "[optimizer]") {
    CHECK(clip_factor(1e6, 0) == 1);
    CHECK(clip_factor(0.5, 1) == 1);
    CHECK(clip_factor(0, 1) == 1);
    for (double norm : {1.0, 1.5, 40.0}) CHECK(clip_factor(norm, 1) == std::min(1.0, 1 / (norm + 1e-6)));
}

TEST_CASE("sums of losses and of squares: their sizes, spans, what is not finite", "[optimizer]") {
    check_sum_of_losses(CPU{});
    check_sum_of_squares(CPU{});
    check_squares_of_spans(CPU{});
    check_squares_of_extremes(CPU{});
}
