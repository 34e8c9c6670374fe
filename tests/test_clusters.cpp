// Clusters of tokens on the CPU, against plain loops.
#include "tests/catch.h"
#include "tests/clusters.h"

TEST_CASE("clusters: what a token's rows find is averaged, and its gradient shared out", "[attention][clusters]") {
    check_operation(AverageRows{{2, 11, 2, 2, 8}, 24, 4});
    check_operation(AverageRows{{1, 13, 3, 3, 8}, 5, 5});    // fewer rows than tokens
    check_operation(AverageRows{{1, 3, 1, 1, 8}, 40, 1});    // many rows of each token
}

TEST_CASE("clusters: log-sum-exps and entropies are averaged, pairs and tiles added up", "[attention][clusters]") {
    const AverageRows average{{1, 4, 1, 1, 8}, 4, 2};   // the tokens 0 2 3 -
    const double nothing = -INFINITY;
    CHECK(average.tokens() == std::vector<int>{0, 2, 3, -1});
    CHECK(average.statistics<double>({5, 6, 7, 99}) == std::vector<double>{5, nothing, 6, 7, 5, 0, 6, 7, 5, 0, 6, 7, 1});

    const AverageRows repeated{{1, 2, 1, 1, 8}, 65, 1};   // the tokens 0 1 0 - 0 1 0 1 - 1 ...
    std::vector<double> numbers(65, 1);
    numbers[0] = 27;
    const double m = repeated.times(0, 0, 0), other = repeated.times(0, 0, 1);
    CHECK(m + other == 52);
    const std::vector<double> mean = {(m + 26) / m, 1}, expected = joined(joined(mean, mean), {m + 26, other, 2});
    CHECK(difference(repeated.statistics<double>(numbers), expected, {1e-14}) == "");
}

TEST_CASE("clusters: rows are sorted by cluster, and those of a document in a cluster are a group", "[attention][clusters][documents]") {
    for (const int every : {0, 1, 3, 40})
        for (const ClusterShape& s : {ClusterShape{2, 65, 3, 8, 1, 4, 0}, {1, 300, 2, 8, 0, 7, 0}, {1, 200, 2, 8, 2, 5, 0}, {2, 1, 2, 8, 1, 3, 0}}) {
            INFO("T " << s.T << ", clusters " << s.clusters << ", documents of " << every);
            const SortByCluster sort{s, every};
            CHECK(sort.rows(CPU{}) == sort.formula());
        }
}

TEST_CASE("clusters: every centroid takes the tokens with the greatest cosines, of equals the first", "[attention][clusters]") {
    for (const ClusterShape& s : {ClusterShape{2, 65, 3, 8, 1, 4, 16}, {1, 300, 2, 8, 0, 7, 42}, {1, 40, 1, 8, 0, 1, 40},
                                  {2, 3, 2, 8, 1, 5, 1}, {1, 1, 2, 8, 1, 3, 1}}) {
        INFO("T " << s.T << ", clusters " << s.clusters << " of " << s.size);
        const TakeGreatest take{s};
        CHECK(take.rows(CPU{}) == take.formula());
    }
}

TEST_CASE("clusters: a centroid without length and a diverged run still give rows", "[attention][clusters]") {
    const ClusterShape s{1, 3, 1, 2, 0, 2, 2};
    const std::vector<double> q = {1, 2, NAN, 1, 3, 1}, centroids = {0, 0, -1, 1};
    LayerInputs<double> in{};
    in.B = 1, in.T = 3, in.NH = in.NKV = 1, in.HS = 2, in.q_pre = q.data(), in.qk_row = 2;
    std::vector<double> cosines(6);
    centroid_cosines(CPU{}, cosines.data(), in, centroids.data(), s);
    CHECK(cosines[4] == -1e30f);
    cosines[4] = 0;
    CHECK(difference(cosines, std::vector<double>{0, 0, 0, std::sqrt(2.0), 0, -std::sqrt(2.0)}, {1e-10}) == "");
    cosines[4] = -1e30f;
    UsedRows<CPU> used(s);
    take_greatest(CPU{}, used.rows(), cosines.data(), s);
    CHECK(used.tokens.numbers() == std::vector<int>{0, 1, 0, 2});
}

TEST_CASE("clusters: positions of packed documents fit into an int, or the row is too long", "[clusters]") {
    const auto positions_end = [](const ClusterShape& s) {   // a document of one token at the end, in the last cluster
        return int64_t(s.rows()) + int64_t(s.clusters - 1 + s.rows() - 1) * s.rows() + 1;
    };
    for (const int T : {64, 46000, 46300, 46340, 65536}) {
        const ClusterShape s{.B = 1, .T = T, .NH = 2, .HS = 64, .local = 1, .clusters = 32, .size = 0};
        if (DivideByDocument::fits(s)) CHECK(positions_end(s) <= INT_MAX);
        CHECK(DivideByDocument::fits(s) == (T <= 46300));
    }
}
