// The tiled kernel's extension points (attention/mechanism.h), each with a policy made for the test, against attention in plain
// loops over all pairs. At the end the counting of pairs.
#include "attention/kernel/count.h"
#include "tests/attention_policies.h"

namespace {

/// Every `stride`-th key, or the last of every `stride` keys and those after it: no tile of the past is full or hidden.
struct Strided : Causal {
    int stride;
    bool fixed;
    Strided(int s, bool f) : stride(s), fixed(f) {}
    Tile tile(int, int i0, int i1, int j0, int j1) const { return past_or_mixed(i0, i1, j0, j1); }
    bool visible(int, int i, int j) const {
        return j <= i && (fixed ? j % stride == stride - 1 || j / stride == i / stride : (i - j) % stride == 0);
    }
};

}   // namespace

TEST_CASE("attention kernel: what both devices compute", "[attention]") {
    check_on_a_device(8, 8, [](Problem& p, const auto&... given) { check_attention(p, given...); });
}

TEST_CASE("attention kernel: head sizes from 8 to 128", "[attention]") {
    for (int HS : {8, 16, 24, 32, 64, 96, 128}) {
        Problem p(1, 66, 66, 2, 1, HS);
        check_attention(p, Causal(), raw, causal);
    }
}

TEST_CASE("attention kernel positions: one row at the first and at the last token of a tile", "[attention]") {
    for (int token : {0, 62, 63, 64, 128, 129}) {
        Problem p(1, 1, 130, 1, 1, 8);
        p.q_position = {token};
        check_attention(p, Causal(), raw, causal);
        for (int j = 0; j < p.S; j++) p.k_position.push_back(j);
        check_attention(p, Causal(), raw, causal);
    }
}

TEST_CASE("attention kernel statistics: visits the tiles that have pairs and no other, where verdicts are exact", "[attention]") {
    Problem p(2, 330, 330, 2, 1, 8, Modified().features());
    CHECK(forward(p, Causal()).tiles == by_definition(p, raw, causal).tiles);
    CHECK(forward(p, Modified(Mask::windows)).tiles == by_definition(p, raw, Windows::sees).tiles);
    draw_tile_lists(p);
    CHECK(forward(p, Causal()).tiles == by_definition(p, raw, causal).tiles);
    CHECK(forward(p, Modified(Mask::windows)).tiles == by_definition(p, raw, Windows::sees).tiles);
    CHECK(forward(p, Modified(Mask::windows)).pairs == by_definition(p, raw, Windows::sees).pairs);
}

TEST_CASE("attention kernel: scores of ten thousand stay finite and exact", "[attention]") {
    Problem p(1, 130, 130, 2, 1, 8);
    for (double& number : p.q) number *= 1e4;
    AttentionOn<CPU, double, Causal> on_cpu({}, p, Causal());
    const Results r = on_cpu.forward();
    CHECK(difference(r.out, by_definition(p, raw, causal).out, {1e-9}) == "");
    const Gradients g = on_cpu.backward();
    CHECK((all_finite(g.q) && all_finite(g.k) && all_finite(g.v)));

    AttentionOn<CPU, float, Causal> single({}, p, Causal());
    const Results rounded = single.forward();
    const Gradients of_rounded = single.backward();
    CHECK((all_finite(rounded.out) && all_finite(of_rounded.q) && all_finite(of_rounded.k) && all_finite(of_rounded.v)));
    CHECK(difference(rounded.lse, r.lse, {1e-6}) == "");
}

TEST_CASE("counting pairs: exact where it can be, within half a percent where it is an estimate", "[attention]") {
    for (int stride : {3, 64, 100, 128, 256})
        for (bool fixed : {false, true}) {
            const Strided policy(stride, fixed);
            INFO("stride " << stride << ", fixed " << fixed);
            double pairs = 0;
            for (int i = 0; i < 3000; i++)
                for (int j = 0; j <= i; j++) pairs += policy.visible(0, i, j);
            CHECK(count_pairs(policy, 2, 3000).pairs == 2 * pairs);
            CHECK(count_pairs(policy, 2, 3000).tiles == 2 * 47 * 48 / 2);
            CHECK(std::abs(count_pairs(policy, 2, 3000, 0).pairs / (2 * pairs) - 1) <= 0.005);
        }
    CHECK(count_pairs(Causal(), 3, 1001).pairs == 3 * 1001 * 1002 / 2);   // neither a multiple of 64 nor of 8
    CHECK(count_pairs(Causal(), 3, 1001).tiles == 3 * 16 * 17 / 2);
}
