// The whole model with each attention variant: every tensor's gradient, recomputation, accumulation.
#include "tests/catch.h"

#include "attention/attention.h"
#include "tests/whole_model.h"

#define VARIANT_NAME(variant) ATTENTION_QUOTED(variant)
#undef VARIANT_CASE   // another file of this folder may be in the same translation unit
#define VARIANT_CASE(what) TEST_CASE(VARIANT_NAME(ATTENTION) " model: " what, "[model][variant]")

namespace {

using Double = Trial<double, Attention>;
using Float = Trial<float, Attention>;

template <class X>
void require_same_bits(const Trial<X, Attention>& a, const Trial<X, Attention>& b) {
    for (const Tensor& t : a.gpt.net.tensors) {
        INFO(t.name);
        CHECK(bit_difference(a.of(a.gpt.gradients, t), b.of(b.gpt.gradients, t)) == "");
    }
}

}   // namespace

VARIANT_CASE("gradient of the whole model, head groups of 2, a full and a partial tile") {
    Double trial(Form{});
    CHECK(model_gradient_difference(trial) == "");
}

VARIANT_CASE("gradient of the whole model, Qwen2 form, untied, one key head, one sequence, a partial tile") {
    Double trial(Form{true, false, 4, 1, 1, 21});
    CHECK(model_gradient_difference(trial) == "");
}

VARIANT_CASE("recomputing activations changes no bit of loss and gradients") {
    const Threads one(1);
    Float keeping(Form{});
    for (Recompute what : {Recompute::cheap, Recompute::layers}) {
        Float recomputing(Form{}, what);
        CHECK(keeping.loss_and_gradients() == recomputing.loss_and_gradients());
        require_same_bits(keeping, recomputing);
    }
}

VARIANT_CASE("two micro-steps add up to one batch, and overwriting leaves nothing of what was there") {
    const Threads one(1);
    Double whole(Form{}), micro(Form{});
    for (const Tensor& t : micro.gpt.net.tensors) fill(CPU{}, micro.gpt.gradients + t.slot.offset, t.slot.size, double(NAN));
    const double expected = whole.loss_and_gradients();
    const double first = micro.loss_and_gradients(0, 1, Write::overwrite), second = micro.loss_and_gradients(1, 1, Write::add);
    CHECK(std::abs(first + second - expected) <= 1e-14 * expected);
    for (const Tensor& t : whole.gpt.net.tensors) {
        INFO(t.name);
        CHECK(difference(micro.of(micro.gpt.gradients, t), whole.of(whole.gpt.gradients, t), Tolerance{1e-12, 1e-15}) == "");
    }
}

VARIANT_CASE("loss and gradients are the same bits in a second run, after another batch") {
    Float once(Form{}), again(Form{});
    again.loss_and_gradients(1, 1, Write::overwrite);
    const double expected = once.loss_and_gradients();
    CHECK(again.loss_and_gradients() == expected);
    require_same_bits(again, once);
}

VARIANT_CASE("being watched changes no bit; entropy is between 0 and that of uniform weights") {
    const Threads one(1);
    Float alone(Form{}), watched(Form{});
    alone.loss();
    const Config& c = watched.gpt.net.config;
    Monitor<CPU, float> monitor(watched.B, watched.T, c.NH, Attention::branch_names());
    monitor.allocate();
    gpt_forward(CPU{}, watched.gpt, watched.feed.put(CPU{}, watched.tokens.data(), nullptr, watched.B, watched.T), &monitor);
    const size_t numbers = size_t(watched.B) * watched.T * c.C;
    CHECK(std::equal(alone.gpt.final_normed, alone.gpt.final_normed + numbers, watched.gpt.final_normed));
    const AttentionReport report = monitor.take_report();
    REQUIRE(report.size() == Attention::branch_names().size());
    for (const BranchReport& r : report)
        for (int l = 0; l < c.L; l++)
            for (int h = 0; h < c.NH; h++) {
                CHECK((r.entropy[l][h] >= -1e-5 && r.pairs[l][h] > 0 && r.tiles[l][h] > 0));
                CHECK_FALSE((r.normalised[l][h] < -1e-5 || r.normalised[l][h] > 1 + 1e-5));   // NaN where no row has two keys
                CHECK(std::isnan(r.gate[l][h]) == (report.size() == 1 && !watched.gpt.net.layers[l].attention.gated()));
                CHECK_FALSE((r.pair_gate[l][h] < 0 || r.pair_gate[l][h] > 1 + 1e-5));
                CHECK((!Attention::gates_pairs || r.pair_gate[l][h] > 0));
            }
}

VARIANT_CASE("float agrees with double") {
    Float rounded(Form{});
    Double exact(Form{});
    const double expected = exact.loss_and_gradients();
    CHECK(std::abs(rounded.loss_and_gradients() - expected) <= rounding<float>(64).relative * expected);
    for (const Tensor& t : exact.gpt.net.tensors) {
        INFO(t.name);
        CHECK(difference(rounded.of(rounded.gpt.gradients, t), exact.of(exact.gpt.gradients, t), Tolerance{rounding<float>(134).relative, 1e-6}) == "");
    }
}
