// Decode steps on the GPU, one layer of each variant: against one pass of the CPU, in double and from the same rounded inputs, over
// the whole sequences. On a machine without a GPU it runs on the emulator.
#include "tests/attention_case.h"
#include "tests/gpu/device_array.h"
#include "tests/threads.h"

namespace {

using Numbers = std::vector<double>;

/// What a layer reads of some texts of one length, as X can hold it.
struct TextNumbers {
    Numbers x, qk_pre, qk, qkv, weights;
};
template <class X>
TextNumbers numbers_for(AttentionCase<double>& layer) {
    layer.forward();   // RoPE
    const LayerInputs<double> in = layer.inputs();
    const size_t size = size_t(in.B) * in.T * in.qk_row;
    TextNumbers numbers{rounded<X>(layer.x), rounded<X>({in.q_pre, in.q_pre + size}), rounded<X>({in.q, in.q + size}),
                        rounded<X>(layer.qkv), rounded<X>(layer.weights)};
    numbers.weights.resize(numbers.weights.size() + 8);   // no array is empty
    return numbers;
}

/// A layer of a variant and its memory on a device, for texts as `numbers` has them.
template <class Device, class X>
struct LayerOn {
    using W = Wide<X>;
    const Config& config;
    const int B, T;
    Device device;
    TensorList tensors;
    std::unique_ptr<AttentionLayer> attention;
    Arena<Device> memory;
    X *x, *qk_pre, *qk, *qkv, *weights;
    W *cosine, *sine;
    LayerState<X> state;
    std::byte* workspace;

    LayerOn(const Variant& variant, const AttentionCase<double>& layer, const TextNumbers& numbers, Device on)
        : config(layer.config), B(layer.B), T(layer.T), device(on), attention(variant.make_layer(layer.config, 0)) {
        attention->declare(tensors, "model.layers.0.self_attn.");
        for (int pass = 0; pass < 2; pass++) {   // the first learns the size
            take(numbers);
            if (pass == 0) memory.allocate();
        }
        copy(x, numbers.x), copy(qk_pre, numbers.qk_pre), copy(qk, numbers.qk), copy(qkv, numbers.qkv), copy(weights, numbers.weights);
        rope_table(device, cosine, sine, T, config.rope());
    }

    const LayerPasses<Device, X>& passes() const { return passes_of<Device, X>(*attention); }
    LayerShape shape(int B_, int T_) const { return {B_, T_, config.C, config.NH, config.NKV, config.HS}; }

    /// The first `tokens` tokens of `texts` texts from text b on. More than one text has to be whole.
    LayerInputs<X> inputs(int b, int texts, int tokens) const {
        const size_t k_at = size_t(config.NH) * config.HS, qk_row = k_at + size_t(config.NKV) * config.HS,
                     v_row = qk_row + size_t(config.NKV) * config.HS, first = size_t(b) * T;
        const X *of_qk_pre = qk_pre + first * qk_row, *of_qk = qk + first * qk_row;
        return {shape(texts, tokens), x + first * config.C, of_qk_pre, of_qk_pre + k_at, of_qk, of_qk + k_at,
                qkv + first * v_row + qk_row, qk_row, v_row, cosine, sine};
    }

    /// Copies rows to rows: row n becomes the token at position[n] of text[n] of `from`.
    void gather(const TextNumbers& from, const std::vector<int>& text, const std::vector<int>& position) {
        auto rows = [&](X* to, const Numbers& all) {
            const size_t width = all.size() / (size_t(B) * T);
            Numbers some;
            for (size_t n = 0; n < text.size(); n++) {
                const auto row = all.begin() + (size_t(text[n]) * T + position[n]) * width;
                some.insert(some.end(), row, row + width);
            }
            copy(to, some);
        };
        rows(x, from.x), rows(qk_pre, from.qk_pre), rows(qk, from.qk), rows(qkv, from.qkv);
    }

    /// What forward() has left for `rows` rows.
    Numbers result(int rows) const {
        std::vector<X> out(size_t(rows) * config.NH * config.HS);
        to_host(device, out.data(), state.gated_out, out.size());
        Numbers wide;
        for (X number : out) wide.push_back(double(widened(number)));
        return wide;
    }

private:
    void copy(X* to, const Numbers& numbers) {
        std::vector<X> narrow;
        for (double number : numbers) narrow.push_back(narrowed<X>(W(number)));
        to_device(device, to, narrow.data(), narrow.size());
    }
    void take(const TextNumbers& numbers) {
        const LayerFacts& facts = attention->facts;
        x = memory.template take<X>(numbers.x.size()), qkv = memory.template take<X>(numbers.qkv.size());
        qk_pre = memory.template take<X>(numbers.qk_pre.size()), qk = memory.template take<X>(numbers.qk.size());
        weights = memory.template take<X>(numbers.weights.size());
        cosine = memory.template take<W>(size_t(T) * config.HS / 2), sine = memory.template take<W>(size_t(T) * config.HS / 2);
        state.score_inputs = take_score_inputs<X>(memory, facts.features, facts.gated, B, T, config.NH, 1);
        if (facts.has_auxiliary_loss) state.score_inputs.auxiliary = memory.template take<W>(size_t(B) * config.NH);
        const size_t size = size_t(B) * T * config.NH * config.HS;
        state.out = memory.template take<X>(size);
        state.gated_out = facts.gated ? memory.template take<X>(size) : state.out;
        state.lse = memory.template take<W>(size_t(B) * T * config.NH);
        state.kept = memory.template take<std::byte>(passes().kept_bytes(shape(B, T)));
        workspace = memory.template take<std::byte>(passes().workspace_bytes(device, shape(B, T)));
    }
};

/// Rows of texts that are read up to a prompt and then written, `steps` tokens each.
template <class X>
struct WrittenRows {
    std::vector<int> prompts;
    int steps;
    LayerOn<GPU, X> layer;
    std::unique_ptr<LayerCache<GPU, X>> kept;

    WrittenRows(const Variant& variant, const AttentionCase<double>& of, const TextNumbers& numbers, std::vector<int> prompts_, int steps_)
        : prompts(std::move(prompts_)), steps(steps_), layer(variant, of, numbers, test_gpu()),
          kept(layer.passes().make_cache({layer.shape(of.B, of.T)})) {
        kept->allocate();
    }

    /// Those of the texts in `text`, one step after the other; once with the prompts read.
    std::vector<Numbers> write(const TextNumbers& numbers, const std::vector<int>& text) {
        for (int b : text) {
            const LayerInputs<X> in = layer.inputs(b, 1, prompts[b]);
            layer.passes().forward(layer.device, in, layer.weights, layer.state, layer.workspace, {});
            kept->prefill(layer.device, b, in, layer.weights, layer.state);
        }
        std::vector<Numbers> rows;
        for (int step = 0; step < steps; step++) {
            std::vector<int> position;
            for (int b : text) position.push_back(prompts[b] + step);
            layer.gather(numbers, text, position);
            const DeviceMemory<int32_t> texts({text.begin(), text.end()}), positions({position.begin(), position.end()});
            const LayerInputs<X> in = layer.inputs(0, int(text.size()), 1);
            kept->decode(layer.device, {texts.data(), positions.data()}, in, layer.weights, layer.state);
            rows.push_back(layer.result(int(text.size())));
        }
        return rows;
    }
};

/// Settings with which two hundred tokens have keys that no later row sees, and something to select.
const std::map<std::string, double> SMALL = {
    {"attention_window", 20}, {"attention_dense_until", 30}, {"sinks_tokens", 3},  {"longformer_globals", 5}, {"strided_stride", 7},
    {"longnet_segment", 16},  {"bigbird_block", 8},          {"moba_block", 64},   {"moba_top_k", 2},         {"mosa_rho", 2},
    {"shaw_clip", 7},         {"asga_hidden", 5},            {"routing_clusters", 3},  {"seer_top_k", 1},         {"seer_distil", 0},
    {"seer_r_top_k", 1},      {"seer_r_distil", 0},          {"adaptive_sparse_top_k", 1}, {"nsa_selected", 4},
    {"infllm_v2_kernel", 12}, {"infllm_v2_stride", 8},       {"infllm_v2_top_k", 2}, {"infllm_v2_local", 1},
    {"deepseek_sparse_dim", 32},
    {"deepseek_sparse_top_k", 150}};   // in bf16 all are chosen: where rows choose, rounding may change the choice

/// Three texts side by side, and the second alone.
template <class X>
void check_rows(const Variant& variant, const LayerSizes& sizes, const std::vector<int>& prompts, int steps) {
    INFO((std::is_same_v<X, bf16> ? "bf16" : "float") << ", NH " << sizes.NH << ", NKV " << sizes.NKV << ", HS " << sizes.HS);
    const Threads one(1);
    const Variant& twin = named(variant.name);   // the CPU's
    AttentionCase<double> layer(twin, sizes);
    REQUIRE(variant.make_layer(layer.config, 0)->facts.decodes);
    const TextNumbers numbers = numbers_for<X>(layer);
    LayerOn<CPU, double> whole(twin, layer, numbers, CPU{});
    whole.passes().forward(CPU{}, whole.inputs(0, sizes.B, sizes.T), whole.weights, whole.state, whole.workspace, {});
    const Numbers expected = whole.result(sizes.B * sizes.T);

    WrittenRows<X> texts(variant, layer, numbers, prompts, steps);
    const std::vector<int> all{2, 0, 1};
    const std::vector<Numbers> rows = texts.write(numbers, all);
    // As in test_attention_variant_gpu.cpp: sums of HS and T products; bf16 rounds gates, features and results.
    const double choices = layer.facts.tokens_choose ? 2 : 1;
    const Tolerance tolerance = std::is_same_v<X, float> ? Tolerance{4 * rounding<float>(sizes.HS + sizes.T).relative, 1e-6}
                                                         : Tolerance{0.01 * choices, 1e-3};
    const size_t width = size_t(sizes.NH) * sizes.HS;
    for (int step = 0; step < steps; step++)
        for (size_t n = 0; n < all.size(); n++) {
            INFO("row " << prompts[all[n]] + step);
            const size_t at = (size_t(all[n]) * sizes.T + prompts[all[n]] + step) * width;
            const Numbers is(rows[step].begin() + n * width, rows[step].begin() + (n + 1) * width);
            const Numbers should(expected.begin() + at, expected.begin() + at + width);
            REQUIRE(difference(is, should, tolerance) == "");
        }
    WrittenRows<X> single(variant, layer, numbers, prompts, steps);
    const std::vector<Numbers> alone = single.write(numbers, {1});
    // Products with matrices of the mechanism's own are the library's, whose order of sums may depend on the number of rows.
    const std::string name = variant.name;
    const bool has_products = name == "nsa" || name == "deepseek_sparse" || name == "gated";
    for (int step = 0; step < steps; step++) {
        const Numbers beside(rows[step].begin() + 2 * width, rows[step].end());
        CHECK((has_products ? difference(alone[step], beside, tolerance) : bit_difference(alone[step], beside)) == "");
    }
}

}   // namespace

GPU_VARIANT_CASE(" layer texts on the GPU: rows across tiles, whatever heads share keys, beside other texts and alone", "[gpu][decode][variant]") {
    check_rows<float>(variant, {3, 200, 4, 1, 32, SMALL}, {61, 126, 190}, 5);
    check_rows<bf16>(variant, {3, 132, 4, 2, 64, SMALL}, {62, 1, 127}, 4);
    check_rows<float>(variant, {3, 70, 2, 2, 128, SMALL}, {3, 64, 20}, 2);
    check_rows<bf16>(variant, {3, 70, 6, 1, 32}, {63, 1, 7}, 2);   // more heads than a block has at a time
}

GPU_VARIANT_CASE(" layer texts on the GPU: longer texts, of which more is chosen", "[gpu][decode][variant]") {
    if (std::string(variant.name) == "deepseek_sparse") check_rows<float>(variant, {3, 330, 4, 2, 32, SMALL}, {318, 64, 255}, 3);
    if (std::string(variant.name) != "nsa") return;   // the others have a choice in the shorter texts
    auto shared = SMALL, by_tile = SMALL;
    shared["nsa_shared_kv"] = 1, by_tile["nsa_choice"] = 1;
    check_rows<float>(variant, {3, 330, 4, 2, 32, SMALL}, {318, 12, 255}, 3);
    check_rows<float>(variant, {3, 330, 4, 1, 32, shared}, {318, 30, 261}, 3);
    check_rows<float>(variant, {3, 330, 4, 4, 32, by_tile}, {319, 46, 300}, 3);
}
