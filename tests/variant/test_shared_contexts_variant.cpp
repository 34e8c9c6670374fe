// Multiple choice with each context computed once, against a pass over every answer with its context, for each attention variant.
#include "tests/items.h"

namespace {

/// A model of room_B x 67 tokens.
template <class X>
void check_scores(const Variants& variants, const Config& config, int room_B, Tolerance tolerance) {
    const Threads one(1);
    Trial<X> trial(variants, config, 2, 67, room_B, 67, Recompute::nothing, 0, 1, Mode::inference);
    const std::vector<EvaluationItem> items = random_items(MIXED_ITEMS, trial.gpt.net.config.V);
    const std::vector<double> alone = one_by_one(trial, items);
    SharedContexts<CPU, X> shared(CPU{}, trial.gpt, trial.feed);
    shared.allocate();
    const std::vector<EvaluationItem> single = {{{items[1].answers[2]}}};
    CHECK(difference(shared.log_likelihoods(single), std::vector{alone[4]}, tolerance) == "");
    if (!shared.is_causal()) return;
    for (const EvaluationItem& item : items) CHECK(shared.can_share(item));
    CHECK(difference(shared.log_likelihoods(items), alone, tolerance) == "");
    const std::vector<double> turned = {alone[2], alone[3], alone[4], alone[0], alone[1]};
    CHECK(difference(shared.log_likelihoods(std::vector{items[1], items[0]}), turned, tolerance) == "");

    CHECK(shared.rows_of(items[1]) == 64 + 1 + 0 + 3);   // of the model
    CHECK(shared.rows_of(items[2]) == 2);                // of the head: its one token of context predicts both answers
    CHECK(shared.fit(room_B * 67));
    CHECK_FALSE(shared.fit(room_B * 67 + 1));
    const std::vector<EvaluationItem> full(room_B * 67 / 2, items[2]);   // many answers behind few tokens
    const std::vector<double> many = shared.log_likelihoods(full);
    REQUIRE(many.size() == 2 * full.size());
    const std::vector<double> last(many.end() - 2, many.end()), of_one = {alone[5], alone[6]};
    CHECK(difference(last, of_one, tolerance) == "");
}

}   // namespace

VARIANT_CASE(" evaluation: contexts that are computed once give the scores of contexts computed for every answer", "[evaluation][variant]") {
    check_scores<double>(variant, config_of({}), 3, rounding<double>(1000));   // texts in several parts, the last of them not full
    check_scores<double>(variant, config_of({true, false, 4, 1}), 6, rounding<double>(1000));
    check_scores<float>(variant, config_of({}), 3, {1e-4});
}

VARIANT_CASE(" evaluation: and so in a hybrid", "[evaluation][variant][hybrid]") {
    Config config = config_of({});
    config.layers = {{variant.name, {}}, {"causal", {}}};
    check_scores<double>(Variants(variant, all_variants()), config, 4, rounding<double>(1000));
}
