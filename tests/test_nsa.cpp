// What the tests of every variant do not reach: which blocks NSA chooses, the parts that it is made of, and what it says about its own
// costs.
#include "attention/nsa.cuh"

#include "tests/attention_case.h"
#include "tests/catch.h"
#include "tests/check.h"
#include "tests/compression.h"

namespace {

using Layer = PolicyCase<double, nsa>;
using Settings = std::map<std::string, double>;

constexpr double BY_TOKEN = 0, BY_TILE = 1;

Settings settings(double block, double stride, double selected, double window, double shared = 0, double choice = BY_TOKEN) {
    return {{"nsa_block", block}, {"nsa_stride", stride}, {"nsa_selected", selected}, {"attention_window", window},
            {"nsa_shared_kv", shared}, {"nsa_choice", choice}};
}

/// Six and eight tiles; blocks that overlap, that touch, that leave gaps, and whose sizes do not divide 64; one choice among three
/// and one among five, and no choice at all; made by tokens and by tiles.
std::vector<LayerSizes> sizes_with_a_choice() {
    std::vector<LayerSizes> all;
    for (double choice : {BY_TOKEN, BY_TILE}) {
        all.push_back({1, 340, 4, 2, 8, settings(8, 4, 4, 20, 0, choice)});
        all.push_back({2, 340, 2, 1, 8, settings(32, 16, 5, 100, 1, choice)});
        all.push_back({1, 500, 3, 1, 8, settings(12, 5, 4, 0, 0, choice)});
        all.push_back({1, 340, 2, 2, 8, settings(3, 7, 4, 1000, 0, choice)});
        all.push_back({1, 340, 2, 1, 8, settings(300, 16, 4, 9, 0, choice)});   // early queries see no complete block: equal scores
        all.push_back({1, 400, 2, 1, 8, settings(150, 10, 4, 9, 0, choice)});   // a key that is not complete yet reaches far back
        all.push_back({1, 340, 2, 1, 8, settings(8, 8, 3, 9, 0, choice)});
    }
    return all;
}

}   // namespace

TEST_CASE("nsa: the picture of the mask shows the window and what was chosen", "[attention][nsa]") {
    for (const LayerSizes& sizes : sizes_with_a_choice()) {
        INFO(text_of(sizes));
        Layer layer(sizes);
        layer.forward();
        const LayerInputs<double> in = layer.inputs();
        const NaiveNsa<nsa, double> sequence(layer.policy, in, layer.weights.data(), 0);
        int wrong = 0;
        for (int h = 0; h < sizes.NH; h++)
            for (int i = 0; i < sizes.T; i += 3) {
                const std::vector<bool> chosen = sequence.choice(h / (sizes.NH / sizes.NKV), i);
                for (int j = 0; j < sizes.T; j++) {
                    const bool seen = j <= i && (i - j <= layer.policy.left || chosen[j / TILE]);
                    wrong += layer.policy.sees(in, layer.kept_state(), h, i, j) != seen;
                }
            }
        CHECK(wrong == 0);
    }
}

TEST_CASE("nsa: the branches' tiles are exactly hidden and full where visible() says so", "[attention][nsa]") {
    const Layer layer({1, 1, 2, 1, 8, settings(7, 3, 4, 11)});
    std::mt19937_64 generator(5);
    auto below = [&](int n) { return int(generator() % uint64_t(n)); };
    int wrong = 0;
    for (int n = 0; n < 6000; n++) {
        const NsaBranch branch = layer.policy.branch(n % 2 ? WIN : CMP);
        const int i0 = below(60), i1 = i0 + 1 + below(8), j0 = below(60) / branch.stride, j1 = j0 + 1 + below(8);
        const auto seen = [&](int i, int j) { return branch.visible(0, i, j); };
        wrong += branch.tile(0, i0, i1, j0, j1) != verdict_by_pairs({i0, i1, j0, j1}, seen);
    }
    CHECK(wrong == 0);
}

TEST_CASE("nsa: compression of blocks", "[attention][nsa]") {
    check_operation(Compression{1, 9, 1, 2, 3, 4, 2, Write::overwrite});
    check_operation(Compression{2, 13, 2, 3, 5, 4, 3, Write::add});    // the last tokens are in no block
    check_operation(Compression{2, 10, 2, 2, 2, 3, 4, Write::add});    // gaps
    check_operation(Compression{1, 3, 2, 2, 2, 5, 2, Write::overwrite});   // shorter than a block
    check_operation(Compression{1, 1, 1, 2, 1, 1, 1, Write::overwrite});
}

// p_slc[j] = sum over m < l'/d and n < l/d of p_cmp[(l'/d) j + m - n], counted from 0.
TEST_CASE("nsa: the importance of blocks is the paper's equation 9", "[attention][nsa]") {
    for (auto [l, d] : {std::pair{32, 16}, {16, 16}, {64, 8}, {128, 32}, {4, 1}}) {
        const int T = 330, R = (T - l) / d + 1;
        const std::vector<double> p = normal_numbers(R, 3);
        const Importance<double> importance{1, T, 1, 1, 8, {l, d}, 1, {nullptr, 0}, nullptr, nullptr, nullptr};
        for (int j = 0; j < 4; j++) {
            double expected = 0;
            for (int m = 0; m < 64 / d; m++)
                for (int n = 0; n < l / d; n++) {
                    const int c = 64 / d * j + m - n;
                    if (c >= 0 && c < R) expected += p[c];
                }
            INFO("l " << l << ", d " << d << ", block " << j);
            CHECK(std::abs(importance.score(p.data(), 0, 0, R, j) - expected) <= 1e-13 * R);
            const int half = R / 2;
            const double in_parts = importance.score(p.data(), 0, 0, half, j) + importance.score(p.data() + half, 0, half, R, j);
            CHECK(std::abs(in_parts - expected) <= 1e-13 * R);
        }
    }
}

TEST_CASE("nsa: counts of pairs, tiles and cached keys", "[attention][nsa]") {
    for (const LayerSizes& sizes : sizes_with_a_choice()) {
        const Layer layer(sizes);
        const nsa& a = layer.policy;
        const int T = sizes.T, l = a.grid.l, d = a.grid.d;
        PairCount expected;
        for (int i = 0; i < T; i++) {
            for (int c = 0; c * d + l <= T; c++) expected.pairs += c * d + l - 1 <= i;
            for (int j = 0; j <= i; j++) expected.pairs += i - j <= a.left;
            for (int block = 0; block <= i / 64; block++)
                if (block + a.selection.blocks > i / 64) expected.pairs += std::min(64, i + 1 - 64 * block);   // as many as are chosen
        }
        const PairCount count = a.expected_pairs(sizes.NH, T);
        CHECK(count.pairs == expected.pairs * sizes.NH);
        CHECK(count.tiles >= count.pairs / (64 * 64));
        if (sizes.settings.at("nsa_choice") != BY_TILE) continue;
        double tiles = 0;
        for (int i0 = 0; i0 < T; i0 += 64) {
            const int i = std::min(i0 + 63, T - 1);   // the last row of the tile sees the farthest key, the first the nearest
            for (int c0 = 0; c0 * d + l - 1 <= i && c0 * d + l <= T; c0 += 64) tiles++;
            tiles += i0 / 64 - std::max(0, i0 - a.left) / 64 + 1;
            tiles += std::min(i0 / 64 + 1, a.selection.blocks);
        }
        CHECK(count.tiles == tiles * sizes.NH);
    }
    // One tile of queries: one of every branch. At the paper's length the pairs are the specification's share of dense ones.
    CHECK(Layer({1, 64, 2, 1, 8, settings(32, 16, 16, 512)}).policy.expected_pairs(1, 64).tiles == 3);
    const nsa paper = Layer({1, 1, 2, 1, 8, settings(32, 16, 16, 511)}).policy;
    auto share = [&](double T) { return paper.expected_pairs(1, int(T)).pairs / (T * (T + 1) / 2); };
    CHECK(std::abs(share(2048) - 1.23) < 0.02);
    CHECK(std::abs(share(8192) - 0.41) < 0.01);
    CHECK(std::abs(share(32768) - 0.15) < 0.01);
    CHECK(paper.cached_keys(1024) == 1024 + 511 + 63 + 32);
}
