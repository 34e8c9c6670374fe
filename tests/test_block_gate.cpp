// adaptive_sparse and seer where the tests of every variant do not reach: forms that look ahead, dense heads, costs, what is refused.
#include "attention/adaptive_sparse.cuh"
#include "attention/seer.cuh"

#include "tests/attention_case.h"

namespace {

using Settings = std::map<std::string, double>;
template <class A>
using Case = PolicyCase<double, A>;

/// The sentence that the variant refuses the settings with; empty when it does not.
template <class A>
std::string refusal(int NH, int NKV, const Settings& settings) {
    return refusal(Exit::usage, [&] { Case<A>({1, 1, NH, NKV, 8, settings}); });
}
bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const std::string A = "adaptive_sparse_", S = "seer_";

}   // namespace

TEST_CASE("seer: forms that look ahead say so", "[attention]") {
    const auto looks_ahead = [](const Settings& settings) {
        const Form form = Case<seer>({1, 1, 2, 1, 8, settings}).policy.form();
        CHECK(form.needs_known_text != form.is_causal);
        return form.needs_known_text;
    };
    CHECK((looks_ahead({{S + "query", 2}, {S + "distil", 1}}) && !looks_ahead({{S + "query", 2}, {S + "distil", 2}})));
    CHECK((!looks_ahead({{S + "query", 2}, {S + "top_k", 0}}) &&   // nothing to choose
           looks_ahead({{S + "query", 2}, {S + "top_k", 0}, {S + "threshold", 0.1}})));
    CHECK((!looks_ahead({}) && looks_ahead({{S + "query", 3}, {S + "distil", 0}})));
    CHECK(mentions(refusal<seer>(2, 1, {{S + "query", 3}}), "give --seer-distil 0"));
}

TEST_CASE("adaptive_sparse: the number of dense heads by default", "[attention]") {
    const std::vector<std::array<int, 3>> defaults = {{12, 12, 4}, {12, 4, 3}, {12, 2, 0}, {4, 4, 2}, {4, 2, 2}, {2, 1, 0},
                                                      {1, 1, 0}};
    for (const auto& [NH, NKV, heads] : defaults) {
        INFO(NH << " heads, " << NKV << " of keys");
        CHECK(Case<adaptive_sparse>({1, 1, NH, NKV, 8, {}}).policy.choice.dense_heads == heads);
    }
}

TEST_CASE("head gate: on, off, straight-through", "[attention]") {
    const HeadGate exact{0, 0, 0.3f, false, 0}, straight{0, 0, 0.3f, true, 0};
    CHECK(std::abs(exact.gate(0.0) - 0.5) < 1e-12);
    CHECK(exact.gate(-1.0) == 0);   // sigmoid(-1) = 0.27
    CHECK(exact.slope(-1.0) == 0);
    CHECK(straight.gate(-1.0) == 0);
    for (double u : {-1.0, 0.7}) CHECK(std::abs(straight.slope(u) - sigmoid(u) * (1 - sigmoid(u))) < 1e-12);
    CHECK(exact.slope(0.7) == straight.slope(0.7));
}

TEST_CASE("adaptive_sparse and seer say how many tiles they expect", "[attention]") {
    const auto tiles = [](const Settings& settings, int T) {
        return Case<seer>({1, 1, 2, 1, 8, settings}).policy.expected_pairs(2, T).tiles;
    };
    CHECK(tiles({{S + "distil", 2}, {S + "top_k", 1}}, 330) == 6 * 7);
    // 5 full blocks and 10 rows: each its own triangle; one past block of 64 keys but for the first.
    CHECK(tiles({{S + "top_k", 1}}, 330) == 2 * (6 + 5));
    CHECK(tiles({{S + "top_k", 1}, {S + "sink", 1}}, 330) == 2 * (6 + 5 + 4));
    CHECK(tiles({{S + "top_k", 1}, {S + "block", 128}}, 330) == 2 * (3 * 3 + 2 * 4));
}

TEST_CASE("adaptive_sparse and seer say what distillation and decoding cost", "[attention]") {
    const auto policy = [](const Settings& settings) { return Case<seer>({1, 1, 2, 1, 8, settings}).policy; };
    CHECK(policy({{S + "distil", 1}}).further_pairs(2, 330) == 330 * 331);
    CHECK(policy({{S + "distil", 0}, {S + "query", 3}}).further_pairs(2, 330) == 330 * 331);
    for (double distil : {0, 2}) CHECK(policy({{S + "distil", distil}}).further_pairs(2, 330) == 0);
    CHECK(policy({{S + "distil", 0}}).cached_keys(129) == 129 + 2 * 0.5 + 1.5);
    CHECK(policy({{S + "distil", 0}}).cached_keys(128) == 128 + 1 * 0.5 + 1.5);
    CHECK(policy({{S + "distil", 2}}).cached_keys(129) == 129);
}

TEST_CASE("adaptive_sparse: dense heads share no key head with others, and are not more than there are", "[attention]") {
    CHECK(mentions(refusal<adaptive_sparse>(4, 2, {{A + "dense_heads", 1}}), "multiple of 2"));
    CHECK(mentions(refusal<adaptive_sparse>(4, 4, {{A + "dense_heads", 5}}), "from 0 to 4"));
    CHECK(refusal<adaptive_sparse>(4, 4, {{A + "dense_heads", 3}}) == "");
}
