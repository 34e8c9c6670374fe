// Sampling of the next token against its definition, which puts all tokens in order.
#include "model/generate/sampler.h"
#include "tests/catch.h"
#include <random>

namespace {

/// The tokens that sampling may give and their probabilities.
std::vector<double> by_definition(const std::vector<float>& logits, const Sampling& how) {
    std::vector<int> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
    if (how.top_k > 0 && how.top_k < int(order.size())) order.resize(how.top_k);
    std::vector<double> p(logits.size());
    double total = 0, mass = 0;
    for (int token : order) total += p[token] = std::exp(double(logits[token]) / how.temperature);
    size_t kept = 0;
    while (kept < order.size() && (kept == 0 || mass < how.top_p * total)) mass += p[order[kept++]];
    for (size_t n = kept; n < order.size(); n++) p[order[n]] = 0;
    for (double& x : p) x /= mass;
    return p;
}

std::vector<float> logits_of(int vocabulary, double spread, int values) {
    std::mt19937_64 generator(uint64_t(vocabulary) + uint64_t(values));
    std::normal_distribution<double> normal(0, spread);
    std::vector<float> logits(vocabulary);
    for (float& x : logits) x = values ? float(std::round(normal(generator) * values) / values) : float(normal(generator));
    return logits;
}

}   // namespace

TEST_CASE("sampling: the tokens of the definition, as often as it says", "[generate]") {
    const int count = 20000;
    for (const Sampling& how : {Sampling{}, Sampling{0.7}, Sampling{1, 5}, Sampling{1.3, 400}, Sampling{1, 0, 0.9}, Sampling{2, 0, 0.99},
                                Sampling{1, 20, 0.5}, Sampling{1, 1}, Sampling{1, 699}, Sampling{1, 0, 0}})
        for (int values : {0, 2}) {   // 2: of halves, with ties
            const std::vector<float> logits = logits_of(700, 1.5, values);
            const std::vector<double> p = by_definition(logits, how);
            std::vector<int> seen(logits.size());
            for (int n = 0; n < count; n++) seen[sample_token(logits.data(), int(logits.size()), how, n)]++;
            INFO("temperature " << how.temperature << ", top_k " << how.top_k << ", top_p " << how.top_p << ", values " << values);
            int strangers = 0;
            double squares = 0;
            for (size_t token = 0; token < p.size(); token++) {
                strangers += p[token] == 0 && seen[token];
                if (p[token] > 0) squares += (seen[token] - count * p[token]) * (seen[token] - count * p[token]) / (count * p[token]);
            }
            const double freedom = double(std::count_if(p.begin(), p.end(), [](double x) { return x > 0; })) - 1;
            CHECK(strangers == 0);
            CHECK(squares <= freedom + 5 * std::sqrt(2 * freedom));   // chi-squared, five standard deviations
        }
}

TEST_CASE("sampling: the likeliest token, the first of equals; the same for the same seed and index", "[generate]") {
    const std::vector<float> logits = {1, 3, -INFINITY, 3, 2};
    for (int n = 0; n < 50; n++) {
        CHECK(sample_token(logits.data(), 5, {0}, n) == 1);
        CHECK(sample_token(logits.data(), 5, {1, 1}, n) == 1);
        CHECK(sample_token(logits.data(), 5, {}, n) != 2);
        CHECK(sample_token(logits.data(), 5, {}, n) == sample_token(logits.data(), 5, {}, n));
    }
    CHECK(sample_token(std::vector<float>{1, 2, 4, 3}.data(), 4, {0}, 0) == 2);
    CHECK(sample_token(std::vector<double>{7}.data(), 1, {1, 3, 0.5}, 0) == 0);
}

TEST_CASE("sampling: another seed gives other tokens", "[generate]") {
    const std::vector<float> logits = logits_of(700, 0.5, 0);
    int same = 0;
    for (int n = 0; n < 50; n++)
        same += sample_token(logits.data(), 700, {1, 0, 1, 1}, n) == sample_token(logits.data(), 700, {1, 0, 1, 2}, n);
    CHECK(same < 10);
}

TEST_CASE("sampling: logits that are no numbers give no token", "[generate]") {
    const float inf = INFINITY;
    for (const std::vector<float>& logits : {std::vector<float>{1, NAN, 2}, {NAN, NAN, NAN}, {1, inf, 2}, {-inf, -inf, -inf}})
        for (const Sampling& how : {Sampling{0}, Sampling{}, Sampling{1, 2}, Sampling{1, 0, 0.9}})
            CHECK(sample_token(logits.data(), 3, how, 0) == NO_TOKEN);
}
