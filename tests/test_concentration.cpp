// Concentration of attention, the fewest keys that hold 95% and 99% of a row's weight: counted by hand, and by the softmax itself.
#include <cmath>
#include <numeric>

#include "tests/catch.h"
#include "tests/monitored.h"
#include "tests/threads.h"

TEST_CASE("concentration: the fewest keys that hold a share of the weight, of rows that see something", "[monitor]") {
    CHECK(keys_that_hold(0.95, {0.5, 0.45, 0.03, 0.02}) == 2);
    CHECK(keys_that_hold(0.99, {0.5, 0.45, 0.03, 0.02}) == 4);
    CHECK(keys_that_hold(0.95, {5, 4.4, 0.3, 0.3}) == 3);   // of their sum
    CHECK(keys_that_hold(0.95, std::vector<double>(20, 0.05)) == 19);
    CHECK(keys_that_hold(0.95, {}) == 0);
    CHECK(rows_to_weigh(3, 64) == std::vector<int32_t>{0, 1, 2});
    CHECK(rows_to_weigh(10, 4) == std::vector<int32_t>{1, 4, 6, 9});

    // Four rows and two heads, of which rows 1 and 3 are weighed; the second head's row 1 sees nothing, its row 3 three keys.
    BranchReport r;
    const std::vector<double> weights = {0.2, 0.8, 0, 0, 0, 0, 0, 0, 0.01, 0.94, 0.02, 0.03, 0, 0.05, 0.05, 0.9};
    const std::vector<double> some(8, 1), pairs = {1, 2, 3, 4, 1, 0, 3, 3};
    add_layer(r, {1, 2, 4, some, pairs, {1, 1}, some, {}, weights});
    CHECK((r.mass_95[0][0] == (2 / 2.0 + 2 / 4.0) / 2 && r.mass_99[0][0] == (2 / 2.0 + 3 / 4.0) / 2));
    CHECK((r.mass_95[0][1] == 2 / 3.0 && r.mass_99[0][1] == 1));
    add_layer(r, {1, 2, 4, some, pairs, {1, 1}, some, {}, {}});
    CHECK((std::isnan(r.mass_95[1][0]) && std::isnan(r.mass_99[1][1])));   // not measured
    add_layer(r, {1, 1, 1, {0}, {1}, {1}, {0}, {}, {NAN}});
    CHECK(std::isnan(r.mass_95[2][0]));                                    // of a model that has diverged
}

namespace {

/// The fewest keys that row i of head h gives `share` of its weight, by the softmax of its scores, as a share of its i + 1 keys.
double share_of_keys(double share, const LayerInputs<double>& in, int h, int i) {
    std::vector<double> p;
    for (int j = 0; j <= i; j++)
        p.push_back(std::exp(dot(in.query(in.q, 0, i, h), in.key(in.k, 0, j, h), in.HS) / std::sqrt(double(in.HS))));
    std::sort(p.rbegin(), p.rend());
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    int keys = 0;
    for (double held = 0; held < share * sum; held += p[keys++]) {}
    return keys / (i + 1.0);
}

}   // namespace

TEST_CASE("a monitor's concentration is that of the softmax of the scores, computed directly", "[monitor]") {
    const Threads one(1);
    for (int T : {37, 130}) {   // all rows are weighed, or 64; T is no multiple of the head size
        Trial<double> trial(named("causal"), config_of({}), 2, T, 2, T);
        const BranchReport report = look_at(trial, [](const Layer&) {})[0];
        const Config& c = trial.gpt.net.config;
        const std::vector<int32_t> rows = rows_to_weigh(T, 64);
        for (int l = 0; l < c.L; l++)
            for (int h = 0; h < c.NH; h++) {
                const LayerInputs<double> in = attention_inputs(trial.gpt, l, 1, T);
                double mass_95 = 0, mass_99 = 0;
                for (int i : rows) mass_95 += share_of_keys(0.95, in, h, i), mass_99 += share_of_keys(0.99, in, h, i);
                CHECK(std::abs(report.mass_95[l][h] - mass_95 / rows.size()) <= 1e-9);
                CHECK(std::abs(report.mass_99[l][h] - mass_99 / rows.size()) <= 1e-9);
                CHECK((0 < mass_95 && mass_95 < mass_99 && mass_99 < rows.size()));
            }
    }
}
