// One attention layer of each variant on the GPU, preprocessing included, against the same layer on the CPU in double from the same
// rounded inputs. On a machine without a GPU it runs on the emulator.
#include "tests/arrays_on.h"
#include "tests/attention_case.h"
#include "tests/gpu/by_kernels.h"

namespace {

/// The inputs of a layer, token by token, and its tensors.
struct LayerNumbers {
    Numbers x, qk_pre, qk, qkv, weights;
};
template <class X>
LayerNumbers numbers_for(AttentionCase<double>& layer) {
    layer.forward();   // RoPE
    const LayerInputs<double> in = layer.inputs();
    const size_t size = size_t(in.B) * in.T * in.qk_row;
    return {rounded<X>(layer.x), rounded<X>({in.q_pre, in.q_pre + size}), rounded<X>({in.q, in.q + size}), rounded<X>(layer.qkv),
            rounded<X>(layer.weights)};
}

/// One attention layer of a variant with its memory on a device. What a pass has to overwrite starts as NaN.
template <class Device, class X>
struct LayerOn {
    using W = Wide<X>;
    const LayerShape shape;
    Device device;
    ArraysOn<Device> arrays;
    TensorList tensors;
    std::unique_ptr<AttentionLayer> attention;
    const LayerFacts& facts;
    const LayerPasses<Device, X>& passes;
    X *x, *qk_pre, *qk, *qkv, *weights;
    W *cosine, *sine;
    LayerState<X> state;
    std::byte* workspace;

    LayerOn(const Variant& variant, const Config& c, int B, int T, const LayerNumbers& numbers, Device on)
        : shape{B, T, c.C, c.NH, c.NKV, c.HS}, device(on), arrays{on}, attention(variant.make_layer(c, 0)), facts(attention->facts),
          passes(passes_of<Device, X>(*attention)), x(put<X>(arrays, numbers.x)), qk_pre(put<X>(arrays, numbers.qk_pre)),
          qk(put<X>(arrays, numbers.qk)), qkv(put<X>(arrays, numbers.qkv)), weights(put<X>(arrays, numbers.weights)),
          cosine(put<W>(arrays, size_t(T) * c.HS / 2)), sine(put<W>(arrays, size_t(T) * c.HS / 2)) {
        attention->declare(tensors, "model.layers.0.self_attn.");
        rope_table(device, cosine, sine, T, c.rope());
        state.score_inputs = put_score_inputs(1, 3);   // padding of columns is not written on every device
        if (facts.has_auxiliary_loss) state.score_inputs.auxiliary = put<W>(arrays, size_t(B) * c.NH);
        state.out = put<X>(arrays, outputs());
        state.gated_out = facts.gated ? put<X>(arrays, outputs()) : state.out;
        state.lse = put<W>(arrays, rows());
        state.kept = put_bytes(passes.kept_bytes(shape));
        workspace = put_bytes(passes.workspace_bytes(device, shape));
    }

    /// Gradients of scalars per head have `copies` = B parts.
    ScoreInputs<X> put_score_inputs(int copies, double value) {
        const auto take = [&](BumpAllocator memory) {
            const ScoreInputs<X> taken = take_score_inputs<X>(memory, facts.features, facts.gated, shape.B, shape.T, shape.NH, copies);
            return std::pair(taken, memory.bytes());
        };
        const size_t bytes = take(BumpAllocator(nullptr)).second;
        return take(BumpAllocator(put_bytes(bytes, value))).first;
    }
    std::byte* put_bytes(size_t bytes, double value = NAN) {
        return reinterpret_cast<std::byte*>(put<W>(arrays, bytes / sizeof(W), value));
    }

    size_t rows() const { return size_t(shape.B) * shape.NH * shape.T; }
    size_t outputs() const { return rows() * shape.HS; }
    size_t qk_row() const { return size_t(shape.NH + shape.NKV) * shape.HS; }
    size_t k_at() const { return size_t(shape.NH) * shape.HS; }
    size_t v_row() const { return qk_row() + size_t(shape.NKV) * shape.HS; }
    LayerInputs<X> inputs() const {
        return {shape, x, qk_pre, qk_pre + k_at(), qk, qk + k_at(), qkv + qk_row(), qk_row(), v_row(), cosine, sine};
    }
};

struct LayerResults {
    Numbers out, lse;
    Numbers dqk, dv, dqk_pre, dweights, dx, auxiliary;
    Numbers entropy, pairs, tiles, pair_gate;   // of packed documents
};

/// Forward and backward pass of one layer.
template <class Device, class X>
LayerResults run_layer(Device device, const Variant& variant, const AttentionCase<double>& of, const LayerNumbers& numbers) {
    using W = Wide<X>;
    LayerOn<Device, X> layer(variant, of.config, of.B, of.T, numbers, device);
    const LayerFacts& facts = layer.facts;
    const size_t B = of.B, T = of.T, NH = of.config.NH, rows = layer.rows(), branches = facts.branch_names.size();
    const size_t of_rows = branches * rows, tiles = branches * B * NH * tiles_of(of.T);   // statistics
    LayerInputs<X> in = layer.inputs();
    Statistics<X> statistics;
    if (of.documents) {
        in.documents = {put<int32_t>(layer.arrays, {of.documents.start, of.documents.start + B * T}), int(T)};
        statistics.entropy = put<W>(layer.arrays, of_rows, 0), statistics.pairs = put<W>(layer.arrays, of_rows, 0);
        statistics.tiles = put<W>(layer.arrays, tiles, 0), statistics.pair_gate = put<W>(layer.arrays, of_rows, 0);
    }
    layer.passes.forward(device, in, layer.weights, layer.state, layer.workspace, statistics);

    W *dqk = put<W>(layer.arrays, numbers.qk.size()), *dqk_pre = put<W>(layer.arrays, numbers.qk.size());
    W* const dweights = put<W>(layer.arrays, numbers.weights.size(), 0.25);
    X *dqkv = put<X>(layer.arrays, numbers.qkv.size(), 0), *dx = put<X>(layer.arrays, numbers.x.size(), 0);
    const X* const dout = put<X>(layer.arrays, rounded<X>(normal_numbers(layer.outputs(), 7)));
    const size_t k_at = layer.k_at(), qk_row = layer.qk_row();
    ScoreInputGradients<X> gradients{layer.put_score_inputs(of.B, NAN), facts.reads_qk_pre ? dqk_pre : nullptr,
                                     facts.reads_qk_pre ? dqk_pre + k_at : nullptr, facts.reads_x ? dx : nullptr, dweights};
    const QkvGradients<X> to{{dqk, qk_row}, {dqk + k_at, qk_row}, {dqkv + qk_row, layer.v_row()}};
    layer.passes.backward(device, in, layer.weights, layer.state, dout, to, gradients, layer.workspace);

    const auto some = [&](const auto* from, size_t count) { return numbers_at(layer.arrays, from, count); };
    return {some(layer.state.gated_out, layer.outputs()), some(layer.state.lse, rows), some(dqk, numbers.qk.size()), some(dqkv, numbers.qkv.size()),
            some(gradients.dq_pre, numbers.qk.size()), some(dweights, numbers.weights.size()), some(dx, numbers.x.size()),
            some(layer.state.score_inputs.auxiliary, B * NH), some(statistics.entropy, of_rows), some(statistics.pairs, of_rows),
            some(statistics.tiles, tiles), some(statistics.pair_gate, of_rows)};
}

constexpr std::pair<Numbers LayerResults::*, const char*> GRADIENTS[] = {{&LayerResults::dqk, "q and k"}, {&LayerResults::dv, "v"},
    {&LayerResults::dqk_pre, "q and k before RoPE"}, {&LayerResults::dweights, "weights"}, {&LayerResults::dx, "x"}};

/// Compares both devices. `starts`: the first token of each token's document (B, T), where a row has several and the layer keeps them
/// apart.
template <class X>
void check_layer(const Variant& variant, const LayerSizes& sizes, const std::vector<int32_t>& starts = {}, bool repeats = false) {
    INFO((std::is_same_v<X, bf16> ? "bf16" : "float"));
    INFO(text_of(sizes));
    const Variant& twin = named(variant.name);   // the CPU's
    AttentionCase<double> layer(twin, sizes);
    if (!starts.empty() && !layer.facts.keeps_documents_apart) return;
    if (!starts.empty()) layer.documents = {starts.data(), sizes.T};
    const LayerNumbers numbers = numbers_for<X>(layer);
    const LayerResults gpu = run_layer<GPU, X>(test_gpu(), variant, layer, numbers);
    const LayerResults cpu = run_layer<CPU, double>({}, twin, layer, numbers);

    // Sums of HS and T products, and exp() turns absolute errors of the scores into relative ones; bf16 rounds P, dS and the
    // results, and computes GELUs to 1e-3. The absolute part: gradients that vanish as the difference of sums.
    const double exact = 4 * rounding<float>(sizes.HS + sizes.T).relative;
    const double choices = layer.facts.tokens_choose ? 2 : 1;   // near a tie bf16 takes another key, or another side of a ReLU
    const Tolerance of_result = std::is_same_v<X, float> ? Tolerance{exact, 1e-6} : Tolerance{0.01 * choices, 1e-3};
    const Tolerance of_gradient = std::is_same_v<X, float> ? Tolerance{exact, 1e-5} : Tolerance{0.02 * choices, 4e-3};
    CHECK(difference(gpu.out, cpu.out, of_result) == "");
    CHECK(difference(no_infinity(gpu.lse), no_infinity(cpu.lse), of_result) == "");
    CHECK((gpu.pairs == cpu.pairs && gpu.tiles == cpu.tiles));
    for (const auto which : {&LayerResults::auxiliary, &LayerResults::entropy, &LayerResults::pair_gate})
        if (!(cpu.*which).empty()) CHECK(difference(gpu.*which, cpu.*which, of_result) == "");
    for (const auto& [which, name] : GRADIENTS) {
        INFO("gradient of " << name);
        if (!(cpu.*which).empty()) CHECK(difference(gpu.*which, cpu.*which, of_gradient) == "");
    }
    if (!repeats) return;
    INFO("the same bits again");
    const LayerResults again = run_layer<GPU, X>(test_gpu(), variant, layer, numbers);
    CHECK(bit_difference(again.out, gpu.out) == "");
    for (const auto& [which, name] : GRADIENTS) {
        INFO("gradient of " << name);
        if (!(gpu.*which).empty()) CHECK(bit_difference(again.*which, gpu.*which) == "");
    }
}

void check_layer_in_both_types(const Variant& variant, const LayerSizes& sizes, bool repeats = false) {
    check_layer<float>(variant, sizes, {}, repeats);
    by_all_kernels(sizes.HS >= 64, [&] { check_layer<bf16>(variant, sizes, {}, repeats); });
}

/// Every mode of a setting with few; 4 and 20 of one with many, or twice its lowest value where that is larger.
std::vector<double> other_values(const Setting& setting) {
    if (setting.step == REAL) return {};
    if (setting.highest < 4) return {0, 1, 2, 3};
    return {4, 20, 2 * setting.lowest};
}

/// check(sizes, setting) with each setting at each of values_of(setting), where it is not the default and the variant accepts it.
template <class Values, class Check>
void for_each_value(const Variant& variant, LayerSizes sizes, Values values_of, Check check) {
    for (const Setting& setting : variant.settings())
        for (double value : values_of(setting)) {
            if (value == setting.value || value < setting.lowest || value > setting.highest) continue;
            sizes.settings = {{setting.key, value}};
            if (AttentionCase<double>::accepts(named(variant.name), sizes)) check(sizes, setting);
        }
}

/// Whether it counts keys that a query chooses one by one: bf16 chooses otherwise near a tie, and so many choices have ties.
bool chooses_keys(const Setting& setting) { return std::string(setting.key).ends_with("top_k") && setting.of_sequence && !setting.part_key; }

}   // namespace

GPU_VARIANT_CASE(" attention on the GPU: one token, one tile, partial tiles, grouped queries", "[gpu][attention][variant]") {
    check_layer_in_both_types(variant, {2, 1, 4, 4, 32, {}});
    check_layer_in_both_types(variant, {1, 63, 4, 2, 64, {}});
    check_layer_in_both_types(variant, {2, 64, 4, 1, 32, {}});
    check_layer_in_both_types(variant, {1, 65, 2, 1, 128, {}});
    check_layer_in_both_types(variant, {1, 3, 12, 6, 32, {}});   // more numbers in a row, of queries and of keys
}

GPU_VARIANT_CASE(" attention on the GPU: many tiles and the same bits again", "[gpu][attention][variant]") {
    check_layer_in_both_types(variant, {1, 200, 2, 1, 64, {}}, true);
    check_layer_in_both_types(variant, {1, 300, 2, 1, 32, {}}, true);   // more tokens than a thread block has threads
}

GPU_VARIANT_CASE(" attention on the GPU: other settings", "[gpu][attention][variant]") {
    for_each_value(variant, {1, 130, 2, 1, 32}, other_values, [&](const LayerSizes& sizes, const Setting& setting) {
        chooses_keys(setting) ? check_layer<float>(variant, sizes) : check_layer_in_both_types(variant, sizes);
    });
    if (variant.name == std::string("asga"))   // features in blocks that take several tiles (pair_features.cuh)
        check_layer<float>(variant, {17, 1, 64, 64, 32, {{"asga_hidden", 3}}});
    if (variant.name == std::string("seer_r"))   // tokens that choose fewer blocks than they may
        check_layer<float>(variant, {1, 272, 2, 1, 32, {{"seer_r_top_k", 4}, {"seer_r_threshold", 0.3}}});
}

// bf16 may choose otherwise where two scores are almost equal, and is then far from double without being wrong.
GPU_VARIANT_CASE(" attention on the GPU: sequences so long that a mechanism which chooses tiles has to leave some out, float32", "[gpu][attention][variant]") {
    const auto few = [](const Setting& setting) {   // the smallest blocks
        return std::vector<double>(setting.step != REAL, setting.step == TILE ? TILE : 4);
    };
    for_each_value(variant, {1, 340, 2, 1, 32}, few, [&](const LayerSizes& sizes, const Setting&) { check_layer<float>(variant, sizes); });
}

// Short documents, several that begin within 64 tokens, and one of four blocks: a GPU's passes take no more blocks of a token at once,
// and more count other tiles.
GPU_VARIANT_CASE(" attention on the GPU: packed documents in every mode, float32", "[gpu][attention][variant][documents]") {
    const auto modes = [](const Setting& setting) {
        if (setting.step == TILE) return std::vector<double>{TILE, 2 * TILE};
        return setting.highest < 4 ? other_values(setting) : std::vector<double>();
    };
    std::vector<int32_t> starts;
    for (const auto& [begin, end] : {std::pair{0, 30}, {30, 31}, {31, 250}, {250, 253}, {253, 340}})
        starts.insert(starts.end(), end - begin, begin);
    for_each_value(variant, {1, 340, 2, 1, 32}, modes,
                   [&](const LayerSizes& sizes, const Setting&) { check_layer<float>(variant, sizes, starts); });
}
