// Text written with a cache against text computed anew for every token, for each attention variant.
#include "model/generate/sample.cuh"
#include "tests/errors.h"
#include "tests/whole_text.h"

#include <malloc.h>

namespace {

/// Bytes that are in use of what malloc() gives.
size_t allocated() {
#if __GLIBC_PREREQ(2, 33)
    const struct mallinfo2 now = mallinfo2();
#else
    const struct mallinfo now = mallinfo();
#endif
    return size_t(now.uordblks) + size_t(now.hblkhd);
}

/// Prompts and what is written behind them, `counts` tokens each, greedily.
template <class X>
std::vector<std::vector<int32_t>> written(Decoder<CPU, X>& decoder, const std::vector<std::vector<int32_t>>& prompts, const std::vector<int>& counts) {
    std::vector<std::vector<int32_t>> texts(prompts.size());
    write_greedily(decoder, prompts, counts, [&](const Text& text) { texts[text.number] = text.ids; });
    return texts;
}

/// Five texts of different lengths in three places against each of them alone.
void check_side_by_side(const Variant& variant, const ModelShape& form, int room) {
    const Threads one(1);
    Trial<double> trial(variant, config_of(form), 1, 90, 1, room, Recompute::nothing, 0, 1, Mode::inference);
    const std::vector<int> lengths = {3, 70, 1, 66, 90}, counts = {40, 1, 12, 20, 8};
    std::vector<std::vector<int32_t>> prompts;
    for (size_t n = 0; n < lengths.size(); n++)
        prompts.push_back({trial.tokens.begin() + ptrdiff_t(n % 2), trial.tokens.begin() + lengths[n]});
    Decoder<CPU, double> together(CPU{}, trial.gpt, 3), alone(CPU{}, trial.gpt);
    together.allocate(), alone.allocate();
    CHECK(together.cache_bytes() <= 3 * alone.cache_bytes());
    CHECK(2 * together.cache_bytes() > 3 * alone.cache_bytes());   // sequences share scratch memory
    const auto texts = written(together, prompts, counts);
    for (size_t n = 0; n < prompts.size(); n++) {
        INFO("text " << n);
        CHECK(int(texts[n].size()) == int(prompts[n].size()) + counts[n]);
        CHECK(written(alone, {prompts[n]}, {counts[n]}).front() == texts[n]);
    }
}

/// Logits after each of `count` new tokens, and the tokens, against whole passes of a model with 24 positions.
void check_same_text(const Variant& variant, int prompt, int count) {
    const Threads one(1);
    INFO("prompt " << prompt);
    Trial<double> trial(variant, config_of({}), 1, prompt, 1, 24, Recompute::nothing, 0, 1, Mode::inference);
    std::vector<int32_t> text = trial.tokens;
    const std::vector<std::vector<double>> expected = write_by_passes(CPU{}, trial, text, count, 24);
    Decoder<CPU, double> decoder(CPU{}, trial.gpt);
    decoder.allocate();
    for (int n = 0; n < count; n++) {
        const std::vector<int32_t> so_far(text.begin(), text.begin() + prompt + n);
        const double* logits = n ? decoder.next({{0, &so_far}}) : decoder.begin(0, so_far);
        REQUIRE(difference(std::vector<double>(logits, logits + expected[n].size()), expected[n], {1e-11}) == "");
    }
    CHECK(written(decoder, {trial.tokens}, {count}).front() == text);
}

}   // namespace

// What a decoder has taken from the allocator behind a long text, against what it has told before.
VARIANT_CASE(" decode: what is kept of a text takes as much memory as it has told", "[decode][variant]") {
    const Threads one(1);
    Trial<float> trial(variant, config_of_long_text(), 1, 70, 1, 2000, Recompute::nothing, 0, 1, Mode::inference);
    const auto write = [&](Decoder<CPU, float>& decoder) {
        decoder.allocate();
        written(decoder, {trial.tokens}, {200});
    };
    {
        Decoder<CPU, float> first(CPU{}, trial.gpt);   // what threads keep for all later calls
        write(first);
    }
    const size_t before = allocated();
    Decoder<CPU, float> decoder(CPU{}, trial.gpt);
    write(decoder);
    const double taken = double(allocated() - before), told = double(decoder.cache_bytes() + decoder.row_bytes());
    if (allocated() == 0) return;   // a sanitizer's allocator, which does not count
    INFO("taken " << taken << ", told " << told);
    CHECK(std::abs(taken - told) <= 0.02 * told + 16384);   // logits, and what is small
}

VARIANT_CASE(" decode: every row of a long text is that of a whole pass, whatever heads share keys", "[decode][variant]") {
    check_whole_text<double>(variant, config_of_long_text(), 3, 500, 1e-10);
    check_whole_text<double>(variant, config_of_long_text({false, true, 4, 4}), 3, 300, 1e-10);
    check_whole_text<double>(variant, config_of_long_text({true, false, 4, 1}), 64, 300, 1e-10);
    check_whole_text<float>(variant, config_of_long_text(), 70, 300, 1e-5);
}

// The prompt has begun a tile of queries, which may have chosen what it reads.
VARIANT_CASE(" decode: every row of a long text is that of a whole pass, at every value of a setting", "[decode][variant]") {
    for (const Setting& setting : variant.settings())
        for (double value : small_values(setting)) {
            const Config config = config_of_long_text({}, {{setting.key, value}});
            bool decodes = false;   // some values are refused, and some look ahead
            const Error error = error_of([&] { decodes = Qwen(variant, config).all(&LayerFacts::decodes); });
            INFO(setting.key << " " << value);
            CHECK((error.code == Exit::done || error.code == Exit::usage));
            if (decodes) check_whole_text<double>(variant, config, 270, 330, 1e-10);
        }
}

VARIANT_CASE(" decode: texts side by side are what each is alone, in whatever place and whenever they begin", "[decode][variant]") {
    check_side_by_side(variant, ModelShape{}, 110);
    check_side_by_side(variant, ModelShape{true, false, 4, 1}, 80);   // shorter than the last text becomes
}

VARIANT_CASE(" decode: a text longer than the model's positions goes on as without a cache", "[decode][variant]") {
    check_same_text(variant, 20, 8);
    check_same_text(variant, 30, 3);
}

// A model in training, with what its passes have left in memory, against passes of another over the whole text.
VARIANT_CASE(" decode: samples during training are the text that passes over the whole write", "[decode][variant]") {
    const Threads one(1);
    for (const Recompute recompute : {Recompute::nothing, Recompute::layers}) {
        Trial<double> training(variant, config_of({}), 2, 80, 2, 80, recompute), plain(variant, config_of({}), 1, 80, 1, 80);
        training.loss_and_gradients();   // a sample is written behind a step
        std::vector<int32_t> text(plain.tokens.begin(), plain.tokens.begin() + 70), expected = text;
        sample_text(CPU{}, training.gpt, text, 14, GREEDY);   // longer than the model's positions
        write_by_passes(CPU{}, plain, expected, 14, 80);
        CHECK(text == expected);
    }
}
