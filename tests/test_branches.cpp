// Rows of branches and the merging of branches on the CPU, against plain loops.
#include "tests/branches.h"
#include "tests/catch.h"

TEST_CASE("branches: rows are gathered and sent back, added up over the heads of a group", "[attention][branches]") {
    for (int step : {1, 2, 3, 70})
        for (auto [NH, heads] : {std::pair{2, 2}, {4, 2}, {4, 1}}) {
            const int T = 65;
            check_operation(GatherRows{{2, T, NH, heads, 8}, SomeRows(T, step), false, Write::overwrite});
            check_operation(GatherRows{{2, T, NH, heads, 8}, SomeRows(T, step), true, Write::add});
        }
}

TEST_CASE("branches: numbers of rows are gathered and sent back", "[attention][branches]") {
    for (int step : {1, 3}) check_operation(GatherNumbers{2, 65, 3, SomeRows(65, step)});
}

TEST_CASE("branches: merged outputs and the gradients of outputs and log-sum-exps", "[attention][branches]") {
    const RowShape s{2, 11, 2, 2, 8};
    check_operation(Merge{s, {SomeRows(11, 1)}});
    check_operation(Merge{s, {SomeRows(11, 1), SomeRows(11, 1)}});
    check_operation(Merge{s, {SomeRows(11, 2), SomeRows(11, 3), SomeRows(11, 11)}});
}

TEST_CASE("branches: a row that sees nothing weighs nothing, far apart log-sum-exps are no trouble", "[attention][branches]") {
    const Merge merge{{1, 4, 1, 1, 8}, {SomeRows(4, 1), SomeRows(4, 1)}};
    const std::vector<double> ones(32, 1), twos(32, 2);
    const double nothing = -INFINITY;   // SomeRows counts from the end: row 0 is token 3
    const Arrays<double> in = {ones, twos, {nothing, 1, nothing, 2000}, {nothing, nothing, -5, -2000}};
    const std::vector<double> out = merge.forward<double>(in);
    for (auto [token, expected] : {std::pair{3, 0.0}, {2, 1.0}, {1, 2.0}, {0, 1.0}})
        for (int d = 0; d < 8; d++) CHECK(out[token * 8 + d] == expected);
    const Arrays<double> gradients = merge.backward<double>(in, ones);
    for (const std::vector<double>& gradient : gradients)
        for (double number : gradient) CHECK(std::isfinite(number));
    for (int d = 0; d < 8; d++) CHECK(gradients[0][d] == 0);
}

/// A softmax over six keys per token, cut in two in a way that depends on the token.
TEST_CASE("branches: entropy, pairs and tiles are those of one softmax over all keys", "[attention][branches]") {
    const int T = 130, keys = 6;
    const SomeRows rows(T, 1);
    const std::vector<double> scores = random_numbers<double>(size_t(T) * keys, 3);
    Arrays<double> in(8);
    in[0] = in[1] = std::vector<double>(T * 8, 1);
    for (int part = 0; part < 2; part++) in[6 + part] = {double(3 + part), 5, 7};   // tiles of the branches
    std::vector<double> lse(T), entropy(T), pairs(T, keys);
    auto softmax = [&](int t, int first, int end, double& log_sum, double& spread) {
        double sum = 0, moment = 0;
        for (int k = first; k < end; k++) sum += std::exp(scores[t * keys + k]);
        log_sum = std::log(sum);
        for (int k = first; k < end; k++) moment += std::exp(scores[t * keys + k]) / sum * scores[t * keys + k];
        spread = end > first ? log_sum - moment : 0;
    };
    for (int r = 0; r < T; r++) {
        const int t = rows.token(0, 0, r), cut = t % (keys + 1);
        softmax(t, 0, keys, lse[t], entropy[t]);
        for (int part = 0; part < 2; part++) {
            double log_sum = 0, spread = 0;
            softmax(t, part ? cut : 0, part ? keys : cut, log_sum, spread);
            in[2 + part].push_back(log_sum), in[4 + part].push_back(spread);
        }
    }
    // Statistics are ordered entropy, pairs, tiles, branch by branch.
    Arrays<double> all = {in[0], in[1], in[2], in[3], in[4], in[5], {}, {}, in[6], in[7]};
    for (int r = 0; r < T; r++) {
        const int cut = rows.token(0, 0, r) % (keys + 1);
        all[6].push_back(cut), all[7].push_back(keys - cut);
    }
    const Merge merge{{1, T, 1, 1, 8}, {rows, rows}};
    const std::vector<double> expected = joined(joined(lse, entropy), joined(pairs, {7, 10, 14}));
    CHECK(difference(merge.statistics<double>(all), expected, {1e-12, 1e-12}) == "");
}

TEST_CASE("branches: every tile of a branch is counted once, whatever the branch's length", "[attention][branches]") {
    for (int step : {1, 2, 3, 5, 400}) {
        const int T = 400;
        const SomeRows rows(T, step);
        const size_t size = rows.count;
        const std::vector<double> some(size, 1), tiles(tiles_of(rows.count), 1);
        const Merge merge{{1, T, 1, 1, 8}, {rows}};
        const std::vector<double> all = merge.statistics<double>({std::vector<double>(8 * size, 1), some, some, some, tiles});
        double sum = 0;
        for (size_t n = 3 * T; n < all.size(); n++) sum += all[n];
        CHECK(sum == tiles_of(rows.count));
    }
}
