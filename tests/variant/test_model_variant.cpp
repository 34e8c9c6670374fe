// The whole model with each attention variant: every tensor's gradient, recomputation, accumulation.
#include "tests/whole_model.h"

namespace {

using Double = Trial<double>;
using Float = Trial<float>;

/// Checks that documents packed into two rows of T tokens get the losses and gradients that they get alone; begins: their first tokens
/// and the end, of which the first of a row continues from an earlier one.
void check_packed(const Variant& variant, const Config& config, int T, const std::vector<int>& begins) {
    const int B = 2, border = 0;
    Double packed(variant, config, B, T, B, T);
    if (!packed.gpt.net.all(&LayerFacts::keeps_documents_apart)) return;   // the trainer refuses (tests/end_to_end.sh)
    for (int32_t& token : packed.tokens) token = 1 + token % (config.V - 1);
    for (const int begin : begins)
        if (begin % T > 0) packed.tokens[begin] = border;
    std::vector<double> losses, gradients(packed.gpt.net.tensors.size(), 0.0);
    for (size_t n = 0; n + 1 < begins.size(); n++) {
        const int begin = begins[n], length = begins[n + 1] - begin;
        Double alone(variant, config, 1, length, 1, length);
        alone.tokens.assign(&packed.tokens[begin], &packed.tokens[begin] + length);
        alone.targets.assign(&packed.targets[begin], &packed.targets[begin] + length);
        alone.loss_and_gradients();
        losses.insert(losses.end(), alone.gpt.scratch.losses, alone.gpt.scratch.losses + length);
        for (size_t k = 0; k < gradients.size(); k++) gradients[k] += alone.gpt.gradients[k] * length / (B * T);
    }
    for (const bool restart : {false, true}) {
        packed.feed = BatchFeed<CPU>(B, T, config.V, {border, restart});
        packed.feed.allocate(CPU{});
        packed.loss_and_gradients();
        CHECK(difference(std::vector<double>(packed.gpt.scratch.losses, packed.gpt.scratch.losses + B * T), losses, {1e-9, 0}) == "");
        CHECK(tensor_difference(packed.gpt.net.tensors, [&](const Tensor& t) {
            return difference(packed.of(packed.gpt.gradients, t), part_of(gradients, t), {1e-9, 1e-14});
        }) == "");
    }
}

}   // namespace

// Head groups of 2, a full and a partial tile; the form of Qwen2, untied, one key head, one sequence, a partial tile.
VARIANT_CASE(" model: gradient of the whole model", "[model][variant]") {
    const ModelShape shape = GENERATE(ModelShape{}, ModelShape{true, false, 4, 1, 1, 21});
    Double trial(variant, shape);
    CHECK(model_gradient_difference(trial) == "");
}

VARIANT_CASE(" model: recomputing activations changes no bit of loss and gradients", "[model][variant]") {
    const Threads one(1);
    Float keeping(variant, ModelShape{});
    for (Recompute what : {Recompute::cheap, Recompute::layers}) {
        Float recomputing(variant, ModelShape{}, what);
        CHECK(keeping.loss_and_gradients() == recomputing.loss_and_gradients());
        CHECK(gradient_bit_difference(recomputing, keeping) == "");
    }
}

VARIANT_CASE(" model: two micro-steps add up to one batch, and overwriting leaves nothing of what was there", "[model][variant]") {
    const Threads one(1);
    const ModelShape shape = GENERATE(ModelShape{}, ModelShape{true, false, 4, 2, 2, 13});
    Double whole(variant, shape), micro(variant, shape);
    for (const Tensor& t : micro.gpt.net.tensors) fill(CPU{}, micro.gpt.gradients + t.slot.offset, t.slot.size, double(NAN));
    const double expected = whole.loss_and_gradients();
    const double first = micro.loss_and_gradients(0, 1, Write::overwrite), second = micro.loss_and_gradients(1, 1, Write::add);
    CHECK(std::abs(first + second - expected) <= 1e-14 * expected);
    CHECK(gradient_difference(micro.gradients(), whole, {1e-12, 1e-15}) == "");
}

VARIANT_CASE(" model: loss and gradients are the same bits in a second run, after another batch", "[model][variant]") {
    Float once(variant, ModelShape{}), again(variant, ModelShape{});
    again.loss_and_gradients(1, 1, Write::overwrite);
    const double expected = once.loss_and_gradients();
    CHECK(again.loss_and_gradients() == expected);
    CHECK(gradient_bit_difference(again, once) == "");
}

VARIANT_CASE(" model: many short documents in a row get what they get alone", "[model][variant][documents]") {
    std::vector<int> begins = {0, 140};
    for (const int row : {0, 140})
        for (int t = 1, n = 0; t < 140; t += 1 + n++ * 5 % 17) begins.push_back(row + t);
    begins.push_back(280);
    std::sort(begins.begin(), begins.end());
    Config config = config_of({});
    config.settings["moh_balance"] = 0;   // a loss of whole rows
    config.settings["deepseek_sparse_top_k"] = 7;
    check_packed(variant, config, 140, begins);
}

VARIANT_CASE(" model: being watched changes no bit; entropy is between 0 and that of uniform weights", "[model][variant]") {
    const Threads one(1);
    Float alone(variant, ModelShape{}), watched(variant, ModelShape{});
    alone.loss();
    const Config& c = watched.gpt.net.config;
    Monitor<CPU, float> monitor(watched.B, watched.T, watched.gpt.net);
    monitor.allocate();
    observed_forward(CPU{}, watched.gpt, watched.feed.put(CPU{}, watched.tokens.data(), nullptr, watched.B, watched.T), monitor);
    const size_t numbers = size_t(watched.B) * watched.T * c.C;
    CHECK(std::equal(alone.gpt.final_normed, alone.gpt.final_normed + numbers, watched.gpt.final_normed));
    const AttentionReport report = monitor.take_report();
    REQUIRE(report.size() == watched.gpt.net.layers[0].attention->facts.branch_names.size());
    for (const BranchReport& r : report)
        for (int l = 0; l < c.L; l++)
            for (int h = 0; h < c.NH; h++) {
                CHECK((r.entropy[l][h] >= -1e-5 && r.pairs[l][h] > 0 && r.tiles[l][h] > 0));
                CHECK_FALSE((r.normalised[l][h] < -1e-5 || r.normalised[l][h] > 1 + 1e-5));   // NaN where no row has two keys
                CHECK(std::isnan(r.gate[l][h]) == (report.size() == 1 && !watched.gpt.net.layers[l].attention->facts.gated));
                CHECK(std::isnan(r.mass_95[l][h]) == (report.size() > 1));
                CHECK_FALSE((r.mass_95[l][h] <= 0 || r.mass_99[l][h] < r.mass_95[l][h] || r.mass_99[l][h] > 1));
                CHECK_FALSE((r.pair_gate[l][h] < 0 || r.pair_gate[l][h] > 1 + 1e-5));
                CHECK((!watched.gpt.net.layers[l].attention->facts.gates_pairs || r.pair_gate[l][h] > 0));
            }
}

VARIANT_CASE(" model: float agrees with double", "[model][variant]") {
    Float rounded(variant, ModelShape{});
    Double exact(variant, ModelShape{});
    const double expected = exact.loss_and_gradients();
    CHECK(std::abs(rounded.loss_and_gradients() - expected) <= rounding<float>(64).relative * expected);
    CHECK(gradient_difference(rounded.gradients(), exact, {rounding<float>(134).relative, 1e-6}) == "");
}
