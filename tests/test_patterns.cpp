// What mechanisms cost: pairs and tiles at T = 2048 against numbers counted elsewhere from dense masks. The random blocks of BigBird.
#include <set>

#include "attention/bigbird.cuh"
#include "attention/causal.cuh"
#include "attention/deepspeed_fixed.cuh"
#include "attention/dsa_fixed_window.cuh"
#include "attention/dsa_no_window.cuh"
#include "attention/fixed_factorized.cuh"
#include "attention/longformer.cuh"
#include "attention/longnet.cuh"
#include "attention/nsa.cuh"
#include "attention/sinks_cache.cuh"
#include "attention/sliding_window.cuh"
#include "attention/strided.cuh"
#include "tests/attention_case.h"

namespace {

using Values = std::map<std::string, double>;

template <class P>
P pattern(const Values& settings = {}, int layer = 0) {
    Config config;
    config.settings = settings;
    complete_settings(config, P::settings());
    return P(config, layer);
}

template <class P>
void check_cost(const P& policy, int pairs, int tiles) {
    INFO(P::name);
    const PairCount count = count_pairs(policy, 1, 2048);
    CHECK(count.pairs == pairs);
    CHECK(count.tiles == tiles);
}

}   // namespace

TEST_CASE("static patterns cost what their masks have: pairs and tiles at T = 2048", "[attention]") {
    check_cost(pattern<causal>(), 2098176, 528);
    check_cost(pattern<sliding_window>(), 493440, 150);
    check_cost(pattern<sinks>({{"attention_window", 255}}), 498810, 177);   // of 256 keys, as papers count
    check_cost(pattern<longformer>({{"attention_window", 255}}), 604320, 177);
    check_cost(pattern<fixed_factorized>({{"fixed_factorized_summary", 8}}), 254976, 288);
    check_cost(pattern<fixed_factorized>(), 623616, 288);
    check_cost(pattern<deepspeed_fixed>(), 721920, 192);
    check_cost(pattern<dsa>(), 526080, 156);   // aardXiv 2510.00061, its table under each reading of the window
    check_cost(pattern<dsa_fixed_window>(), 493440, 150);
    check_cost(pattern<dsa_no_window>(), 2098176, 528);
}

// Tiles: strided's window of 128 is 3 tiles wide (but for the first two of 32) and four of its columns of 16 share a tile of their own;
// LongNet's 8 + 4 + 2 + 1 segments of 4 x 4 tiles have 10 causal ones each.
TEST_CASE("branches cost what their masks have: pairs and tiles at T = 2048", "[attention][branches]") {
    const PairCount of_strided = pattern<strided>().expected_pairs(1, 2048), of_longnet = pattern<longnet>().expected_pairs(1, 2048);
    CHECK((of_strided.pairs == 269376 && of_strided.tiles == 3 * 32 - 3 + 32));
    CHECK((of_longnet.pairs == 493440 && of_longnet.tiles == 15 * 10));
    CHECK(count_pairs(pattern<strided>(), 1, 2048).pairs == 269376);
    CHECK(count_pairs(pattern<longnet>(), 1, 2048).pairs == 377856);
    CHECK(pattern<sinks_cache>().expected_pairs(1, 2048).pairs == count_pairs(pattern<sinks>(), 1, 2048).pairs);
}

TEST_CASE("nsa costs the specification's share of dense attention", "[attention][nsa]") {
    const nsa paper = pattern<nsa>();
    auto share = [&](double T) { return paper.expected_pairs(1, int(T)).pairs / (T * (T + 1) / 2); };
    CHECK(std::abs(share(2048) - 1.23) < 0.02);
    CHECK(std::abs(share(8192) - 0.41) < 0.01);
    CHECK(std::abs(share(32768) - 0.15) < 0.01);
    CHECK(paper.expected_pairs(1, 64).tiles == 3);   // one tile of queries: one of every branch
    CHECK(paper.cached_keys(1024) == 1024 + 511 + 63 + 32);
}

// Random blocks differ between generators, so that only their number can be compared. A draw from [0, r) adds a tile when it misses
// the window and the globals: with one draw per row 93 tiles become 116.9 on average (one drawn layout has 116), and with two
// globals and three draws 122 become 186.3 (one layout that also draws from its own block has 179).
TEST_CASE("bigbird costs its window and globals, and about as many random tiles as it should", "[attention]") {
    check_cost(pattern<bigbird>({{"bigbird_random", 0}}), 32 * 2080 + 61 * 4096, 93);
    const Values larger = {{"bigbird_globals", 2}, {"bigbird_random", 3}};
    double tiles = 0, tiles_of_larger = 0;
    for (int layer = 0; layer < 200; layer++) {
        const PairCount count = count_pairs(pattern<bigbird>({}, layer), 1, 2048);
        CHECK(count.pairs == 32 * 2080 + (count.tiles - 32) * 4096);
        tiles += count.tiles / 200;
        tiles_of_larger += count_pairs(pattern<bigbird>(larger, layer), 1, 2048).tiles / 200;
    }
    CHECK(std::abs(tiles - 116.9) < 1);
    CHECK(std::abs(tiles_of_larger - 186.3) < 1.5);
}

TEST_CASE("a divisor divides every number exactly", "[attention]") {
    const int largest = std::numeric_limits<int>::max();
    int wrong = 0;
    for (int d : {1, 2, 3, 5, 7, 63, 64, 65, 641, 6700417, (1 << 29) + 1, 1 << 30, largest}) {
        const Divisor divisor(d);
        auto check = [&](int n) { wrong += divisor.quotient(n) != n / d || divisor.remainder(n) != n % d; };
        for (int n = 0; n < 5000; n++) check(n), check(largest - n);
        for (int64_t n = d; n <= largest && n < 5000 * int64_t(d); n += d) check(int(n)), check(int(n - 1));
    }
    CHECK(wrong == 0);
}

TEST_CASE("bigbird draws distinct earlier blocks, each equally often, another row, head, layer or seed others", "[attention]") {
    const auto policy = pattern<bigbird>({{"bigbird_random", 3}});
    for (int r = 0; r < 40; r++) {
        std::set<int> drawn;
        for (int n = 0; n < 3; n++)
            if (const int c = policy.random_block(1, r, n); c >= 0) drawn.insert(c);
        CHECK(int(drawn.size()) == std::min(3, r));
        CHECK((drawn.empty() || (*drawn.begin() >= 0 && *drawn.rbegin() < r)));
    }

    const int heads = 30000, blocks = 30;
    std::vector<int> times(blocks);
    for (int h = 0; h < heads; h++)
        for (int n = 0; n < 3; n++) times[policy.random_block(h, blocks, n)]++;
    const double expected = heads * 3.0 / blocks;
    double chi_squared = 0;   // 27 degrees of freedom
    for (int each : times) chi_squared += (each - expected) * (each - expected) / expected;
    CHECK(chi_squared < 60);

    // How many of 400 rows draw the same block as another policy: about 400 / 100 by chance.
    const auto single = pattern<bigbird>();
    auto agree = [&](const bigbird& other, int h, int row) {
        int same = 0;
        for (int r = 100; r < 500; r++) same += single.random_block(0, r, 0) == other.random_block(h, r + row, 0);
        return same;
    };
    CHECK(agree(pattern<bigbird>(), 0, 0) == 400);
    CHECK(agree(single, 1, 0) < 20);
    CHECK(agree(single, 0, 1) < 20);
    CHECK(agree(pattern<bigbird>({}, 1), 0, 0) < 20);
    CHECK(agree(pattern<bigbird>({{"bigbird_seed", 2}}), 0, 0) < 20);
}

TEST_CASE("static patterns refuse settings that make no sense together, naming the range", "[attention]") {
    CHECK(refusal(Exit::usage, [] { pattern<fixed_factorized>({{"fixed_factorized_chunk", 16}, {"fixed_factorized_summary", 17}}); })
              .find("must be from 0 to 16") != std::string::npos);
    for (int globals : {3, 8})
        CHECK(refusal(Exit::usage, [&] { pattern<deepspeed_fixed>({{"deepspeed_fixed_globals", globals}}); })
                  .find("must be from 1 to 4 and divide 4") != std::string::npos);
    CHECK(refusal(Exit::usage, [] { pattern<fixed_factorized>({{"fixed_factorized_chunk", 16}, {"fixed_factorized_summary", 16}}); }) == "");
}

TEST_CASE("documents begin where the token between them stands, and at the row's first token", "[attention][documents]") {
    const std::vector<int32_t> tokens = {5, 9, 5, 5, 9, /**/ 9, 9, 5, 5, 5};
    std::vector<int32_t> starts(tokens.size());
    find_documents(tokens.data(), 2, 5, 9, starts.data());
    CHECK(starts == std::vector<int32_t>{0, 1, 1, 1, 4, /**/ 0, 1, 1, 1, 1});
}
