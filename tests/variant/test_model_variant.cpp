// The whole model with each attention variant: every tensor's gradient, recomputation, accumulation.
#include "tests/catch.h"

#include "attention/attention.h"
#include "tests/whole_model.h"

#define VARIANT_NAME(variant) ATTENTION_QUOTED(variant)
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
