// Models whose matrices, and keys and values of a text, are kept as bf16 (./generate --weights bf16), against the same model in whole
// numbers, for each attention variant.
#include <cmath>

#include "model/operations/matrix.h"
#include "tests/whole_text.h"

namespace {

/// A model of whole numbers, and one that keeps its matrices as bf16. Those of the first are rounded, so that both are the same.
template <class X>
struct RoundedTwins {
    Trial<X> whole;
    GPT<CPU, X> rounded;

    RoundedTwins(const Variant& variant, const Config& config, int tokens, int room)
        : whole(variant, config, 1, tokens, 1, room, Recompute::nothing, 0, 1, Mode::inference),
          rounded(variant, config, 1, room, Stored::as_bf16) {
        rounded.allocate(CPU{});
        for (const Tensor& to : rounded.net.tensors) {
            X* const from = whole.gpt.weights + whole.gpt.net.tensors.find(to.name)->slot.offset;
            for (size_t n = 0; n < to.slot.size; n++)
                if (to.stored == Stored::as_computed) rounded.weights[to.slot.offset + n] = from[n];
                else from[n] = X(rounded.bf16_matrices[to.slot.offset + n] = StoredBf16(from[n]));
        }
        rounded.weights_loaded(CPU{});
    }
};

/// Logits (T, V) of one pass over T tokens.
template <class X>
std::vector<X> logits(GPT<CPU, X>& gpt, BatchFeed<CPU>& feed, const std::vector<int32_t>& tokens, int T) {
    gpt.forward(CPU{}, feed.put(CPU{}, tokens.data(), nullptr, 1, T));
    const X* const all = gpt.logits(CPU{}, 0, T);
    return {all, all + size_t(T) * gpt.net.config.V};
}

template <class X>
void check_logits(const Variant& variant, const ModelShape& form, double tolerance) {
    const Threads one(1);
    RoundedTwins<X> twins(variant, config_of(form), 67, 67);
    for (int T : {1, 2, 5, FEW_ROWS, FEW_ROWS + 1, 67}) {
        INFO("tokens: " << T);
        const std::vector<X> expected = logits(twins.whole.gpt, twins.whole.feed, twins.whole.tokens, T);
        CHECK(difference(logits(twins.rounded, twins.whole.feed, twins.whole.tokens, T), expected, {tolerance}) == "");
    }
}

}   // namespace

VARIANT_CASE(" bf16: a model with rounded matrices computes what the same matrices in whole numbers do", "[bf16][variant]") {
    check_logits<double>(variant, ModelShape{}, 1e-11);
    check_logits<double>(variant, ModelShape{true, false, 4, 1}, 1e-11);
    check_logits<float>(variant, ModelShape{}, 1e-4);
}

VARIANT_CASE(" bf16: a text from rounded keys and values, and half the memory for them", "[bf16][variant]") {
    const Threads one(1);
    const int prompt = 40, T = 200;
    RoundedTwins<float> twins(variant, config_of_long_text(), prompt, T);
    const int V = twins.rounded.net.config.V;
    Decoder<CPU, float> whole(CPU{}, twins.whole.gpt), rounded(CPU{}, twins.rounded);
    whole.allocate(), rounded.allocate();
    CHECK(rounded.cache_bytes() < whole.cache_bytes());
    CHECK(twins.rounded.weight_memory.bytes() < twins.whole.gpt.weight_memory.bytes());

    std::vector<int32_t> text = twins.whole.tokens;
    std::vector<float> actual, expected;
    const float *a = rounded.begin(0, text), *e = whole.begin(0, text);
    CHECK(difference(std::vector<float>(a, a + V), std::vector<float>(e, e + V), {1e-4}) == "");   // the prompt's keys are not rounded
    while (int(text.size()) < T) {
        text.push_back(sample_token(e, V, GREEDY, 0));
        a = rounded.next({{0, &text}}), e = whole.next({{0, &text}});
        actual.insert(actual.end(), a, a + V), expected.insert(expected.end(), e, e + V);
    }
    double squares = 0, errors = 0;
    for (size_t n = 0; n < expected.size(); n++) {
        REQUIRE(std::isfinite(actual[n]));
        squares += double(expected[n]) * expected[n], errors += std::pow(double(actual[n]) - expected[n], 2);
    }
    // A number is rounded by up to 1 / 256 of it. Where tokens choose their keys, another choice is another row.
    const double allowed = twins.rounded.net.layers[0].attention->facts.tokens_choose ? 0.1 : 0.01;
    CHECK(errors < allowed * allowed * squares);
    CHECK(errors > 0);
}
