// One attention layer of each variant on the GPU, preprocessing included, against the same layer on the CPU in double from the same
// rounded inputs. On a machine without a GPU it runs on the emulator.
#include "tests/attention_case.h"
#include "tests/gpu/device_array.h"

namespace {

using Numbers = std::vector<double>;

/// DeviceArray's twin in the host's memory.
template <class Y>
class HostArray {
public:
    explicit HostArray(const Numbers& numbers) : numbers_(numbers.begin(), numbers.end()) {}
    HostArray(size_t size, double value) : numbers_(size, Y(value)) {}
    Y* data() { return numbers_.data(); }
    Numbers numbers() const { return {numbers_.begin(), numbers_.end()}; }

private:
    std::vector<Y> numbers_;
};
template <class Device, class Y>
using Array = std::conditional_t<std::is_same_v<Device, GPU>, DeviceArray<Y>, HostArray<Y>>;

CPU device_of(CPU) { return {}; }
GPU device_of(GPU) { return test_gpu(); }

/// What a layer reads, as X can hold it.
struct LayerNumbers {
    Numbers x, qk_pre, qk, qkv, weights, dout;
};
template <class X>
LayerNumbers numbers_for(AttentionCase<double>& layer) {
    layer.forward();   // RoPE
    const LayerInputs<double> in = layer.inputs();
    const size_t size = size_t(in.B) * in.T * in.qk_row;
    return {rounded<X>(layer.x), rounded<X>({in.q_pre, in.q_pre + size}), rounded<X>({in.q, in.q + size}), rounded<X>(layer.qkv),
            rounded<X>(layer.weights), rounded<X>(normal_numbers(layer.out.size(), 7))};
}

struct LayerResults {
    Numbers out, lse;
    Numbers dqk, dv, dqk_pre, dweights, dx, auxiliary;
    Numbers entropy, pairs, tiles, pair_gate;   // of packed documents
};

/// Forward and backward pass of one layer. What has to be overwritten starts as NaN.
template <class Device, class X>
LayerResults run_layer(const Variant& variant, const AttentionCase<double>& layer, const LayerNumbers& numbers) {
    using W = Wide<X>;
    const Config& c = layer.config;
    const LayerFacts& facts = layer.facts;
    const Features f = facts.features;
    TensorList tensors;   // which the layer's own passes have to know, too
    const std::unique_ptr<AttentionLayer> attention = variant.make_layer(c, 0);
    attention->declare(tensors, "model.layers.0.self_attn.");
    const LayerPasses<Device, X>& passes = passes_of<Device, X>(*attention);
    const size_t B = layer.B, T = layer.T, NH = c.NH, HS = c.HS;
    const size_t k_at = NH * HS, qk_row = layer.heads * HS, v_row = qk_row + c.NKV * HS;
    const Device device = device_of(Device{});

    Array<Device, X> x(numbers.x), qk_pre(numbers.qk_pre), qk(numbers.qk), qkv(numbers.qkv), dout(numbers.dout);
    Numbers some_weights = numbers.weights;
    some_weights.resize(some_weights.size() + 8);   // no array is empty
    Array<Device, X> weights(some_weights), out(numbers.dout.size(), NAN), gated_out(numbers.dout.size(), NAN);
    const size_t rows = B * NH * T * f.row + 1, columns = B * NH * f.column * padded(T) + 4;
    Array<Device, W> lse(B * NH * T, NAN), head(NH * f.head + 1, NAN), row(rows, NAN), column(columns, 3), gate(B * T * NH, NAN);
    Array<Device, W> token(B * T * f.token + 1, NAN), dtoken(B * T * f.token + 1, NAN);
    Array<Device, W> dhead(B * NH * f.head + 1, NAN), drow(rows, NAN), dcolumn(columns, NAN), dgate(B * T * NH, NAN);
    Array<Device, W> dqk(numbers.qk.size(), NAN), dqk_pre(numbers.qk.size(), NAN), dweights(some_weights.size(), 0.25);
    Array<Device, X> dqkv(numbers.qkv.size(), 0), dx(numbers.x.size(), 0);
    const LayerShape shape{int(B), int(T), c.C, c.NH, c.NKV, c.HS};
    Array<Device, W> workspace(passes.workspace_bytes(device, shape) / sizeof(W) + 1, NAN);
    Array<Device, W> kept(passes.kept_bytes(shape) / sizeof(W) + 1, NAN), cosine(T * HS / 2, NAN), sine(T * HS / 2, NAN);
    rope_table(device, cosine.data(), sine.data(), int(T), c.rope());
    std::byte* const scratch = reinterpret_cast<std::byte*>(workspace.data());

    auto extras_of = [&](auto& h, auto& r, auto& col, auto& t, auto& g) {
        ScoreInputs<X> e;
        if (f.head) e.head = h.data();
        if (f.row) e.row = r.data();
        if (f.column) e.column = col.data();
        if (f.token) e.token = t.data();
        if (facts.gated) e.gate = g.data();
        return e;
    };
    LayerState<X> state{extras_of(head, row, column, token, gate), out.data(), facts.gated ? gated_out.data() : out.data(), lse.data(),
                        reinterpret_cast<std::byte*>(kept.data())};
    Array<Device, W> auxiliary(B * NH, facts.has_auxiliary_loss ? NAN : 0);
    if (facts.has_auxiliary_loss) state.score_inputs.auxiliary = auxiliary.data();
    const ScoreInputs<X> dscore_inputs = extras_of(dhead, drow, dcolumn, dtoken, dgate);
    LayerInputs<X> in{shape, x.data(), qk_pre.data(), qk_pre.data() + k_at, qk.data(), qk.data() + k_at,
                      qkv.data() + qk_row, qk_row, v_row, cosine.data(), sine.data()};
    Array<Device, int32_t> starts(layer.documents ? Numbers(layer.documents.start, layer.documents.start + B * T) : Numbers{0});
    Array<Device, W> entropy(B * NH * T, 0), pairs(B * NH * T, 0), tiles(B * NH * tiles_of(int(T)), 0), pair_gate(B * NH * T, 0);
    Statistics<X> statistics;
    if (layer.documents) {
        in.documents = {starts.data(), int(T)};
        statistics.entropy = entropy.data(), statistics.pairs = pairs.data();
        statistics.tiles = tiles.data(), statistics.pair_gate = pair_gate.data();
    }
    passes.forward(device, in, weights.data(), state, scratch, statistics);
    ScoreInputGradients<X> gradients{dscore_inputs, facts.reads_qk_pre ? dqk_pre.data() : nullptr,
                                facts.reads_qk_pre ? dqk_pre.data() + k_at : nullptr,
                                facts.reads_x ? dx.data() : nullptr, dweights.data()};
    const QkvGradients<X> to{{dqk.data(), qk_row}, {dqk.data() + k_at, qk_row}, {dqkv.data() + qk_row, v_row}};
    passes.backward(device, in, weights.data(), state, dout.data(), to, gradients, scratch);

    LayerResults r{facts.gated ? gated_out.numbers() : out.numbers(), lse.numbers(), dqk.numbers(), dqkv.numbers(),
                   dqk_pre.numbers(), dweights.numbers(), dx.numbers(), auxiliary.numbers(),
                   entropy.numbers(), pairs.numbers(), tiles.numbers(), pair_gate.numbers()};
    r.dweights.resize(numbers.weights.size());
    if (!facts.reads_qk_pre) r.dqk_pre.clear();
    return r;
}

constexpr std::pair<Numbers LayerResults::*, const char*> GRADIENTS[] = {{&LayerResults::dqk, "q and k"}, {&LayerResults::dv, "v"},
    {&LayerResults::dqk_pre, "q and k before RoPE"}, {&LayerResults::dweights, "weights"}, {&LayerResults::dx, "x"}};

/// Rows that see nothing have a log-sum-exp of -infinity, which has no difference to itself.
Numbers no_infinity(Numbers numbers) {
    std::replace(numbers.begin(), numbers.end(), double(-INFINITY), -10.0);
    return numbers;
}

/// With the first token of each token's document (B, T), where a row has several.
template <class X>
void check_layer(const Variant& variant, const LayerSizes& sizes, const std::vector<int32_t>& starts = {}) {
    INFO((std::is_same_v<X, bf16> ? "bf16" : "float"));
    INFO(text_of(sizes));
    const Variant& twin = named(variant.name);   // the CPU's
    AttentionCase<double> layer(twin, sizes);
    if (!starts.empty()) layer.documents = {starts.data(), sizes.T};
    const LayerNumbers numbers = numbers_for<X>(layer);
    const LayerResults gpu = run_layer<GPU, X>(variant, layer, numbers);
    const LayerResults cpu = run_layer<CPU, double>(twin, layer, numbers);

    // Sums of HS and T products, and exp() turns absolute errors of the scores into relative ones; bf16 rounds P, dS and the
    // results, and computes GELUs to 1e-3. The absolute part: gradients that vanish as the difference of sums.
    const double exact = 4 * rounding<float>(sizes.HS + sizes.T).relative;
    const double choices = layer.facts.tokens_choose ? 2 : 1;   // near a tie bf16 takes another key, or another side of a ReLU
    const Tolerance of_result = std::is_same_v<X, float> ? Tolerance{exact, 1e-6} : Tolerance{0.01 * choices, 1e-3};
    const Tolerance of_gradient = std::is_same_v<X, float> ? Tolerance{exact, 1e-5} : Tolerance{0.02 * choices, 4e-3};
    CHECK(difference(gpu.out, cpu.out, of_result) == "");
    CHECK(difference(no_infinity(gpu.lse), no_infinity(cpu.lse), of_result) == "");
    CHECK(difference(gpu.auxiliary, cpu.auxiliary, of_result) == "");
    CHECK((gpu.pairs == cpu.pairs && gpu.tiles == cpu.tiles));
    CHECK(difference(gpu.entropy, cpu.entropy, of_result) == "");
    CHECK(difference(gpu.pair_gate, cpu.pair_gate, of_result) == "");
    for (const auto& [which, name] : GRADIENTS) {
        INFO("gradient of " << name);
        if (!(cpu.*which).empty()) CHECK(difference(gpu.*which, cpu.*which, of_gradient) == "");
    }
}

void check_layer_in_both_types(const Variant& variant, const LayerSizes& sizes) {
    check_layer<float>(variant, sizes);
    check_layer<bf16>(variant, sizes);
}

template <class X>
void check_repeats(const Variant& variant, const LayerSizes& sizes) {
    INFO((std::is_same_v<X, bf16> ? "bf16" : "float"));
    AttentionCase<double> layer(named(variant.name), sizes);
    const LayerNumbers numbers = numbers_for<X>(layer);
    const LayerResults once = run_layer<GPU, X>(variant, layer, numbers), again = run_layer<GPU, X>(variant, layer, numbers);
    CHECK(bit_difference(again.out, once.out) == "");
    for (const auto& [which, name] : GRADIENTS) {
        INFO("gradient of " << name);
        if (!(once.*which).empty()) CHECK(bit_difference(again.*which, once.*which) == "");
    }
}

/// Every mode of a setting with few; 4 and 20 of one with many, or twice its lowest value where that is larger.
std::vector<double> other_values(const Setting& setting) {
    if (setting.step == REAL) return {};
    if (setting.highest < 4) return {0, 1, 2, 3};
    return {4, 20, 2 * setting.lowest};
}

/// Whether it counts keys that a query chooses one by one: bf16 chooses otherwise near a tie, and so many choices have ties.
bool chooses_keys(const Setting& setting) { return std::string(setting.key).ends_with("top_k") && setting.of_sequence && !setting.part_key; }

}   // namespace

GPU_VARIANT_CASE(" attention on the GPU: one token, one tile, partial tiles, many tiles, grouped queries", "[gpu][attention][variant]") {
    check_layer_in_both_types(variant, {2, 1, 4, 4, 32, {}});
    check_layer_in_both_types(variant, {1, 63, 4, 2, 64, {}});
    check_layer_in_both_types(variant, {2, 64, 4, 1, 32, {}});
    check_layer_in_both_types(variant, {1, 65, 2, 1, 128, {}});
    check_layer_in_both_types(variant, {1, 130, 2, 1, 64, {}});
    check_layer_in_both_types(variant, {1, 300, 2, 1, 32, {}});   // more tokens than a thread block has threads
    check_layer_in_both_types(variant, {1, 65, 12, 6, 32, {}});   // more numbers in a row, of queries and of keys
}

GPU_VARIANT_CASE(" attention on the GPU: the same bits again", "[gpu][attention][variant]") {
    check_repeats<float>(variant, {1, 300, 2, 1, 32, {}});
    check_repeats<bf16>(variant, {1, 300, 2, 1, 32, {}});
}

GPU_VARIANT_CASE(" attention on the GPU: other settings", "[gpu][attention][variant]") {
    for (const Setting& setting : variant.settings())
        for (double value : other_values(setting))
            if (const LayerSizes sizes{1, 130, 2, 1, 32, {{setting.key, value}}};
                value != setting.value && value >= setting.lowest && value <= setting.highest &&
                AttentionCase<double>::accepts(named(variant.name), sizes))
                chooses_keys(setting) ? check_layer<float>(variant, sizes) : check_layer_in_both_types(variant, sizes);
}

// bf16 may choose otherwise where two scores are almost equal, and is then far from double without being wrong.
GPU_VARIANT_CASE(" attention on the GPU: sequences so long that a mechanism which chooses tiles has to leave some out, float32", "[gpu][attention][variant]") {
    for (const Setting& setting : variant.settings()) {
        const double few = setting.step == TILE ? TILE : 4;   // the smallest blocks
        const LayerSizes sizes{1, 340, 2, 1, 32, {{setting.key, few}}};
        if (setting.step != REAL && few != setting.value && few >= setting.lowest && few <= setting.highest && AttentionCase<double>::accepts(named(variant.name), sizes))
            check_layer<float>(variant, sizes);
    }
}

// adaptive_sparse and seer, and what moba and seer_r have of it: short documents, several that begin within 64 tokens, few blocks of many.
// At most four blocks of each token: a GPU's passes take no more at once, and others count other tiles.
GPU_VARIANT_CASE(" attention on the GPU: packed documents with blocks of queries that choose among their own, float32", "[gpu][attention][variant][documents]") {
    std::vector<int32_t> starts;   // rows of 330
    for (const auto& [begin, end] : {std::pair{0, 30}, {30, 31}, {31, 230}, {230, 233}, {233, 330}, {0, 330}})
        starts.insert(starts.end(), end - begin, begin);
    using Settings = std::map<std::string, double>;
    for (const Settings& modes : {Settings{{"top_k", 2}}, {{"top_k", 2}, {"block", 128}, {"query", 1}}, {{"mask", 0}, {"query", 1}},
                                  {{"mask", 1}, {"distil", 1}, {"top_k", 1}, {"sink", 1}}, {{"distil", 1}, {"distil_skip", 0.4}},
                                  {{"threshold", 0.3}, {"top_k", 4}}, {{"distil", 2}}}) {
        LayerSizes sizes{2, 330, 2, 1, 32};
        bool has_blocks = false;
        for (const Setting& setting : variant.settings()) {
            has_blocks = has_blocks || setting.key == std::string(variant.name) + "_block";
            for (const auto& [mode, value] : modes)
                if (setting.key == variant.name + ("_" + mode)) sizes.settings[setting.key] = value;
        }
        if (has_blocks && sizes.settings.size() == modes.size()) check_layer<float>(variant, sizes, starts);
    }
}
