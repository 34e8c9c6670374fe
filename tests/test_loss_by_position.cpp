// Validation loss by position (model/run/loss_by_position.h), against plain loops over rows that are all kept.
#include "model/run/loss_by_position.h"

#include <cmath>
#include <random>

#include "tests/catch.h"

namespace {

/// Rows of T losses; targets, of which a mask hides some.
struct Rows {
    int T;
    std::vector<std::vector<float>> losses;
    std::vector<std::vector<int32_t>> targets;

    Rows(int T_, int rows, bool masked) : T(T_) {
        std::mt19937 generator(9);
        std::uniform_real_distribution<float> uniform(0, 5);
        for (int r = 0; r < rows; r++) {
            losses.emplace_back(), targets.emplace_back();
            for (int t = 0; t < T; t++) {
                losses.back().push_back(uniform(generator) + float(t) / float(T));
                targets.back().push_back(masked && generator() % 3 ? -1 : int32_t(generator() % 100));
            }
        }
    }
    LossByPosition summed(int bins) const {
        LossByPosition sums(T, bins);
        for (size_t r = 0; r < losses.size(); r++) sums.add_row(losses[r].data(), targets[r].data());
        return sums;
    }
    /// Mean and standard error of positions first .. last by their definition.
    PositionBin by_definition(int first, int last) const {
        double loss = 0, counted = 0, squares = 0, rows = 0;
        std::vector<std::pair<double, double>> of_rows;
        for (size_t r = 0; r < losses.size(); r++) {
            of_rows.emplace_back();
            for (int t = first; t <= last; t++)
                if (targets[r][t] >= 0) of_rows.back().first += losses[r][t], of_rows.back().second++;
            loss += of_rows.back().first, counted += of_rows.back().second;
            rows += of_rows.back().second > 0;
        }
        for (const auto& [sum, n] : of_rows) squares += std::pow(sum - loss / counted * n, 2);
        return {first, last, int64_t(counted), loss / counted, std::sqrt(rows / (rows - 1) * squares) / counted};
    }
};

}   // namespace

TEST_CASE("loss by position: means and standard errors over rows, with and without a mask, in bins that need not divide the row") {
    for (const bool masked : {false, true})
        for (const int bins : {1, 3, 16, 50}) {
            const Rows rows(50, 40, masked);
            const LossByPosition sums = rows.summed(bins);
            const std::vector<PositionBin> found = sums.means();
            REQUIRE(int(found.size()) == bins);
            int next = 0;
            double loss = 0;
            int64_t targets = 0;
            for (const PositionBin& bin : found) {
                INFO("masked " << masked << ", " << bins << " bins, position " << bin.first);
                REQUIRE(bin.first == next);
                next = bin.last + 1;
                const PositionBin expected = rows.by_definition(bin.first, bin.last);
                CHECK(bin.targets == expected.targets);
                CHECK(bin.loss == Approx(expected.loss).epsilon(1e-12));
                CHECK(bin.standard_error == Approx(expected.standard_error).epsilon(1e-9));
                CHECK((bin.last - bin.first + 1 == 50 / bins || bin.last - bin.first + 1 == 50 / bins + 1));
                loss += bin.loss * double(bin.targets), targets += bin.targets;
            }
            CHECK(next == 50);
            CHECK(double(targets) == sums.targets());
            CHECK(loss / double(targets) == Approx(sums.loss()).epsilon(1e-14));
        }
    CHECK(Rows(7, 3, false).summed(1000).means().size() == 7);
}

TEST_CASE("loss by position: a position without targets has no loss, one row no error, and equal rows an error of 0") {
    const std::vector<float> losses = {1, 2, 3, 4};
    const std::vector<int32_t> targets = {5, -1, -1, 6};
    LossByPosition sums(4, 4);
    CHECK(std::isnan(sums.loss()));
    sums.add_row(losses.data(), targets.data());
    std::vector<PositionBin> bins = sums.means();
    CHECK(sums.loss() == 2.5);
    CHECK((bins[0].loss == 1 && bins[0].targets == 1 && std::isnan(bins[0].standard_error)));
    CHECK((std::isnan(bins[1].loss) && bins[1].targets == 0));
    CHECK(as_json({bins[0], bins[1]}) == "[{\"first\":0,\"last\":0,\"targets\":1,\"loss\":1.0,\"stderr\":null},"
                                         "{\"first\":1,\"last\":1,\"targets\":0,\"loss\":null,\"stderr\":null}]");
    sums.add_row(losses.data(), targets.data());
    bins = sums.means();
    CHECK((bins[3].loss == 4 && bins[3].standard_error == 0));
    const auto table = rows_of_table(bins);
    CHECK(table[3] == std::pair<std::string, std::string>{"3 to 3", "4.0000 +- 0.0000, 2 targets"});
    CHECK(table[1].second == "-, 0 targets");
}
