// Clusters of tokens on the CPU, beyond the cases of routing: statistics of tokens in several clusters, numbers at their limits.
#include "attention/branches/repeated_rows.cuh"
#include "attention/masks/balanced_clusters.cuh"
#include "tests/catch.h"
#include "tests/check.h"

// Token 0 has rows 0 and 64, token 1 has row 2, token 2 none. Rows are attributed to query tiles by their place: 65 rows to one tile.
TEST_CASE("clusters: log-sum-exps and entropies are averaged, pairs and tiles added up", "[attention][clusters]") {
    using Numbers = std::vector<double>;
    const int R = 65, T = 3, HS = 8;
    std::vector<int> tokens(R, -1), following(R, 99), first(T, 99);
    tokens[0] = tokens[64] = 0, tokens[2] = 1;
    const RepeatedRows rows{R, T, 1, tokens.data(), following.data(), first.data()};
    link_rows(CPU{}, rows, 1, 64);
    Numbers row_out(R * HS), numbers(R, NAN), row_tiles{3, 4}, out(T * HS, NAN), lse(T, NAN), entropy(T, NAN), pairs(T, NAN), tiles(1, NAN);
    std::fill_n(&row_out[0], HS, 1.0), std::fill_n(&row_out[64 * HS], HS, 4.0), std::fill_n(&row_out[2 * HS], HS, 7.0);
    numbers[0] = 5, numbers[64] = 8, numbers[2] = 6;
    Branch<double, RepeatedRows> branch{rows, row_out.data(), numbers.data()};
    branch.statistics.entropy = branch.statistics.pairs = numbers.data(), branch.statistics.tiles = row_tiles.data();
    Statistics<double> to;
    to.entropy = entropy.data(), to.pairs = pairs.data(), to.tiles = tiles.data();
    average_rows(CPU{}, out.data(), lse.data(), branch, {1, T, 1, 1, HS}, to);
    CHECK((out[0] == 2.5 && out[HS] == 7 && out[2 * HS] == 0));
    CHECK(lse == Numbers{6.5, 6, -INFINITY});
    CHECK(entropy == Numbers{6.5, 6, 0});
    CHECK(pairs == Numbers{13, 6, 0});
    CHECK(tiles == Numbers{7});
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
    std::vector<int> tokens(4), queries(4), keys(4), ends(2);
    take_greatest(CPU{}, {tokens.data(), queries.data(), keys.data(), ends.data()}, cosines.data(), s);
    CHECK(tokens == std::vector<int>{0, 1, 0, 2});
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
