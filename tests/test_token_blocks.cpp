// The choice of blocks by tokens from scores, and what seer_r trains, where the tests of every variant do not reach.
#include "attention/seer_r.cuh"
#include "tests/attention_case.h"

TEST_CASE("chosen blocks: the greatest scores between the forced blocks, ties to the earlier, above a threshold", "[attention][blocks]") {
    auto choose = [&](const std::vector<double>& scores, const TileChoice& choice, int first = 0) {
        std::vector<int> to(choice.top, 99);
        choose_blocks(ThreadTeam<double>(0), to.data(), scores.data(), choice, int(scores.size()) - 1, first);
        return to;
    };
    CHECK(choose({9, 1, 3, 2, 3, 3, 9}, {.top = 2}) == std::vector<int>{0, 2});
    CHECK(choose({9, 1, 3, 2, 3, 3, 9, 9}, {.top = 3, .leading = 1, .local = 2}) == std::vector<int>{2, 4, 5});
    CHECK(choose({9, 1, 3, 2, 3, 3, 9, 9}, {.top = 2, .leading = 1, .local = 3}) == std::vector<int>{2, 4});
    CHECK(choose({9, 1, 9}, {.top = 3}) == std::vector<int>{0, 1, -1});
    CHECK(choose({9}, {.top = 2, .leading = 1, .local = 2}) == std::vector<int>{-1, -1});
    CHECK(choose({1, NAN, 2, 9}, {.top = 2}, 40) == std::vector<int>{40, 42});
    // Shares: of three equal ones a third; of 0, 3, 1, 2 the greatest have 0.64 and 0.24.
    CHECK(choose({1, 1, 1, 9}, {.top = 2, .threshold = 0.4f}) == std::vector<int>{-1, -1});
    CHECK(choose({0, 3, 1, 2, 9}, {.top = 2, .threshold = 0.4f}) == std::vector<int>{1, -1});
    CHECK(choose({0, 3, 1, 2, 9}, {.top = 1, .threshold = 0.2f}) == std::vector<int>{1});
}

TEST_CASE("seer_r: what is trained and counted", "[attention][blocks]") {
    const std::string own = "model.layers.0.self_attn.seer_r.w_gq", other = "model.layers.0.self_attn.q_proj.weight";
    auto policy = [](double distil, double threshold = 0) {
        return PolicyCase<double, seer_r>({1, 1, 2, 1, 8, {{"seer_r_distil", distil}, {"seer_r_threshold", threshold}}}).policy;
    };
    CHECK((policy(0).trains(other) && !policy(0).trains(own)));
    CHECK((policy(1).trains(other) && policy(1).trains(own)));
    CHECK((!policy(2).trains(other) && policy(2).trains(own)));
    CHECK((policy(1).further_pairs(2, 130) == 130 * 131 && policy(0).further_pairs(2, 130) == 0));
    CHECK((!policy(0).expects_at_most() && policy(0, 0.1).expects_at_most()));
}
