// The static patterns of attention/: pairs and tiles at T = 2048 against numbers counted elsewhere from dense masks, verdicts that
// are exact and not only true, and the random blocks of BigBird.
#include <set>

#include "attention/bigbird.cuh"
#include "attention/causal.cuh"
#include "attention/deepspeed_fixed.cuh"
#include "attention/fixed_factorized.cuh"
#include "attention/longformer.cuh"
#include "attention/sinks.cuh"
#include "attention/sliding_window.cuh"
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

/// tile() is the verdict by pairs, of the kernel's tiles and of any other rectangle.
template <class P>
void check_exact(const Values& settings) {
    const P policy = pattern<P>(settings);
    INFO(P::name);
    for (const auto& [key, value] : settings) INFO(key << " " << value);
    std::mt19937 generator(3);
    auto below = [&](int n) { return int(generator() % unsigned(n)); };
    int wrong = 0;
    auto check = [&](int h, const Rectangle& r) {
        wrong += policy.tile(h, r.i0, r.i1, r.j0, r.j1) != verdict_by_pairs(r, [&](int i, int j) { return policy.visible(h, i, j); });
    };
    for (int h = 0; h < 3; h++) {
        for (int i = 0; i < 640; i += TILE)
            for (int j = 0; j < 640; j += TILE) check(h, {i, i + TILE, j, j + TILE});
        for (int n = 0; n < 3000; n++) {
            const int i = below(500), j = below(500), most = n % 3 ? 10 : 140;
            check(h, {i, i + 1 + below(most), j, j + 1 + below(most)});
        }
    }
    CHECK(wrong == 0);
}

/// The kernel's verdicts on rows of several documents, some of a single token, are exact too, and every document has the pattern
/// from its own beginning.
template <class P>
void check_documents(const Values& settings) {
    const P policy = pattern<P>(settings);
    INFO(P::name);
    std::mt19937 generator(5);
    auto below = [&](int n) { return int(generator() % unsigned(n)); };
    std::vector<int32_t> tokens(2 * 640), starts(tokens.size());
    for (int32_t& token : tokens) token = below(40);
    tokens[700] = tokens[701] = 0;
    find_documents(tokens.data(), 2, 640, 0, starts.data());
    AttentionForward<double> a{};
    a.B = 2, a.T = a.S = 640, a.NH = a.NKV = 1, a.documents = {starts.data(), 640};
    const TileWalk<double, P> walk(policy, a, 1, 0);
    auto seen = [&](int i, int j) {
        const int start = starts[640 + i];
        return j >= start && policy.visible(0, i - start, j - start);
    };
    int wrong = 0;
    for (int n = 0; n < 3000; n++) {
        const int most = n % 3 ? 10 : 140, i = below(500), j = below(i + 1), rows = 1 + below(most), columns = 1 + below(most);
        for (int r = i; r < i + rows; r++)
            for (int c = j; c < j + columns; c++) wrong += walk.visible(r, c) != seen(r, c);
        wrong += walk.judge({1, 0, i, j, rows, columns}) != verdict_by_pairs({i, i + rows, j, j + columns}, seen);
    }
    CHECK(wrong == 0);
}

/// A window of w keys, as papers count it.
Values window(int keys, Values others = {}) {
    others["attention_window"] = keys - 1;
    return others;
}

}   // namespace

TEST_CASE("static patterns cost what their masks have: pairs and tiles at T = 2048", "[attention]") {
    check_cost(pattern<causal>(), 2098176, 528);
    check_cost(pattern<sliding_window>(), 493440, 150);
    check_cost(pattern<sinks>(window(256)), 498810, 177);
    check_cost(pattern<longformer>(window(256)), 604320, 177);
    check_cost(pattern<fixed_factorized>({{"fixed_factorized_summary", 8}}), 254976, 288);
    check_cost(pattern<fixed_factorized>(), 623616, 288);
    check_cost(pattern<deepspeed_fixed>(), 721920, 192);
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

TEST_CASE("static patterns judge every rectangle exactly", "[attention]") {
    for (int left : {0, 1, 63, 64, 200}) {
        check_exact<sliding_window>({{"attention_window", left}});
        check_exact<sinks>({{"attention_window", left}, {"sinks_tokens", 4}});
        check_exact<longformer>({{"attention_window", left}, {"longformer_globals", 70}});
    }
    for (auto [length, summary] : {std::pair{1, 0}, {1, 1}, {7, 2}, {64, 64}, {100, 0}, {128, 32}})
        check_exact<fixed_factorized>({{"fixed_factorized_chunk", length}, {"fixed_factorized_summary", summary}});
    for (auto [block, local, globals] : {std::array{64, 4, 1}, {16, 4, 2}, {1, 6, 3}, {10, 3, 1}})
        for (int per_head : {0, 1})
            check_exact<deepspeed_fixed>({{"deepspeed_fixed_block", block}, {"deepspeed_fixed_local", local},
                                          {"deepspeed_fixed_globals", globals}, {"deepspeed_fixed_per_head", per_head}});
    for (auto [block, random] : {std::pair{64, 1}, {16, 3}, {10, 2}, {1, 0}})
        check_exact<bigbird>({{"bigbird_block", block}, {"bigbird_random", random}});
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

TEST_CASE("deepspeed_fixed: heads with layouts of their own see every block of the past between them", "[attention]") {
    const auto policy = pattern<deepspeed_fixed>({{"deepspeed_fixed_per_head", 1}});
    for (int c = 0; c < 28; c++) {
        int heads = 0;
        for (int h = 0; h < 4; h++) heads += policy.visible(h, 2047, c * 64);
        CHECK(heads == 1);
    }
    CHECK(policy.visible(0, 2047, 3 * 64));   // the first head takes the last block of every chunk
    CHECK(policy.visible(3, 2047, 0));
    CHECK(policy.visible(5, 2047, 2 * 64));   // the fifth head takes its turn again
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

TEST_CASE("patterns within documents: verdicts on tiles are those of their pairs", "[attention][documents]") {
    check_documents<causal>({});
    check_documents<sinks>(window(9, {{"sinks_tokens", 3}}));
    check_documents<fixed_factorized>({{"fixed_factorized_chunk", 16}, {"fixed_factorized_summary", 3}});
    check_documents<bigbird>({{"bigbird_block", 8}});
}
