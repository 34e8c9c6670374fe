// Text written with a cache against text computed anew for every token, for each attention variant.
#include "model/generate/generate.cuh"
#include "tests/whole_text.h"

namespace {

/// Logits after each of `count` new tokens, chosen greedily, and the tokens; once with the decoder, once with whole passes.
template <class X>
void check_same_text(const Variant& variant, const Form& form, int prompt, int count, int room, double tolerance) {
    const Threads one(1);
    INFO("prompt " << prompt << ", room " << room);
    Trial<X> trial(variant, config_of(form), 1, prompt, 1, room, Recompute::nothing, 0, 1, Mode::inference);
    auto& gpt = trial.gpt;
    const int V = gpt.net.config.V;
    BatchFeed<CPU> feed(1, room, V);
    Decoder<X> decoder(gpt, {});
    decoder.allocate();
    std::vector<int32_t> text = trial.tokens;
    for (int n = 0; n < count; n++) {
        const X* cached = decoder.logits_after(text);
        const std::vector<X> actual(cached, cached + V);
        const int T = std::min(int(text.size()), room);
        gpt_forward(CPU{}, gpt, feed.put(CPU{}, text.data() + text.size() - T, nullptr, 1, T));
        const X* whole = gpt_logits(CPU{}, gpt, T - 1, 1);
        const std::vector<X> expected(whole, whole + V);
        REQUIRE(difference(actual, expected, {tolerance}) == "");
        text.push_back(sample_token(expected.data(), V, GREEDY, n));
    }

    std::vector<int32_t> with_cache = trial.tokens, without = trial.tokens;
    Decoder<X> fresh(gpt, {});
    fresh.allocate();
    generate_with_cache(fresh, V, with_cache, count, GREEDY, [](int32_t) { return true; });
    generate(CPU{}, gpt, without, count, GREEDY);
    CHECK(with_cache == text);
    CHECK(without == text);
}

}   // namespace

VARIANT_CASE(" decode: every row of a long text is that of a whole pass, whatever heads share keys", "[decode][variant]") {
    check_whole_text<double>(variant, Form{}, 3, 500, 1e-10);
    check_whole_text<double>(variant, Form{false, true, 4, 4}, 130, 300, 1e-10);
    check_whole_text<double>(variant, Form{true, false, 4, 1}, 64, 300, 1e-10);
    check_whole_text<float>(variant, Form{}, 70, 300, 1e-4);
}

VARIANT_CASE(" decode: a cache changes no token and no logit: one tile and several, prompts of one token and of many", "[decode][variant]") {
    check_same_text<double>(variant, Form{}, 1, 12, 80, 1e-11);
    check_same_text<double>(variant, Form{}, 60, 12, 80, 1e-11);
    check_same_text<double>(variant, Form{true, false, 4, 1}, 127, 8, 150, 1e-11);
    check_same_text<float>(variant, Form{}, 67, 8, 80, 1e-4);
}

VARIANT_CASE(" decode: a text longer than the model's positions goes on as without a cache", "[decode][variant]") {
    check_same_text<double>(variant, Form{}, 20, 8, 24, 1e-11);
    check_same_text<double>(variant, Form{}, 30, 3, 24, 1e-11);
}
