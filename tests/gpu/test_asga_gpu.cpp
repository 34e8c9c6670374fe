// ASGA's preprocessing on the GPU (attention/asga.cuh, attention/scores/pair_features.cuh) against the CPU's in double.
#include "attention/asga.cuh"

#include "attention/asga_fixed.cuh"
#include "attention/asga_no_geometry.cuh"
#include "tests/attention_case.h"
#include "tests/catch.h"
#include "tests/gpu/device_array.h"

namespace {

constexpr double BEFORE = 0.25;   // what the gradients of tensors hold, which are added to

template <class Attention>
struct AsgaSizes {
    LayerSizes layer;
    Config config;
    TensorList tensors;
    Attention policy;
    Features features;

    explicit AsgaSizes(const LayerSizes& sizes) : layer(sizes), config(config_of(sizes)), policy(config, 0) {
        policy.declare(tensors, "model.layers.0.self_attn.");
        features = policy.features();
    }
    static Config config_of(const LayerSizes& sizes) {
        Config config;
        config.C = 24, config.L = 1, config.NH = sizes.NH, config.NKV = sizes.NKV, config.HS = sizes.HS;
        config.variant = Attention::name;
        config.settings = sizes.settings;
        complete_settings(config, Attention::settings());
        return config;
    }
    int qk_row() const { return (layer.NH + layer.NKV) * layer.HS; }
    size_t qk_size() const { return size_t(layer.B) * layer.T * qk_row(); }
    size_t row_size() const { return size_t(layer.B) * layer.NH * layer.T * features.row; }
    size_t column_size() const { return size_t(layer.B) * layer.NH * features.column * padded(layer.T); }
    size_t head_size() const { return size_t(layer.NH) * features.head; }

    template <class X>
    LayerInputs<X> inputs(const X* qk) const {
        return {{layer.B, layer.T, config.C, layer.NH, layer.NKV, layer.HS}, nullptr, qk, qk + layer.NH * layer.HS, nullptr, nullptr,
                nullptr, size_t(qk_row()), 0, nullptr, nullptr};
    }
};

/// Inputs as X holds them, and what forward and backward make of them.
struct AsgaNumbersCase {
    std::vector<double> weights, qk, dhead, drow, dcolumn;
    std::vector<double> head, row, column, dqk, dweights;
};

template <class X, class Attention>
AsgaNumbersCase draw(const AsgaSizes<Attention>& sizes) {
    AsgaNumbersCase c;
    c.weights = rounded<X>(normal_numbers<double>(sizes.tensors.size(), 1, 0.3));
    c.qk = rounded<X>(normal_numbers<double>(sizes.qk_size(), 2));
    c.dhead = rounded<float>(normal_numbers<double>(sizes.layer.B * sizes.head_size(), 3));
    c.drow = rounded<float>(normal_numbers<double>(sizes.row_size(), 4));
    c.dcolumn = rounded<float>(normal_numbers<double>(sizes.column_size(), 5));
    return c;
}

/// The CPU's results in double.
template <class Attention>
void run_on_cpu(const AsgaSizes<Attention>& sizes, AsgaNumbersCase& c) {
    c.head.resize(sizes.head_size()), c.row.resize(sizes.row_size()), c.column.resize(sizes.column_size());
    c.dqk.resize(sizes.qk_size()), c.dweights.assign(c.weights.size(), BEFORE);
    const LayerInputs<double> in = sizes.inputs(c.qk.data());
    ScoreInputs<double> score_inputs{c.head.data(), c.row.data(), c.column.data(), nullptr};
    sizes.policy.preprocess(CPU{}, in, c.weights.data(), score_inputs);
    ScoreInputGradients<double> g{{c.dhead.data(), c.drow.data(), c.dcolumn.data(), nullptr}, c.dqk.data(),
                             c.dqk.data() + sizes.layer.NH * sizes.layer.HS, nullptr, c.dweights.data()};
    sizes.policy.preprocess_backward(CPU{}, in, c.weights.data(), score_inputs, g);
}

/// The same inputs on the GPU, in X. Everything that is to be overwritten starts as NaN.
template <class X, class Attention>
AsgaNumbersCase run_on_gpu(const AsgaSizes<Attention>& sizes, const AsgaNumbersCase& c) {
    const LayerSizes& layer = sizes.layer;
    DeviceArray<X> weights(c.weights), qk(c.qk);
    DeviceArray<float> dhead(c.dhead), drow(c.drow), dcolumn(c.dcolumn), head(sizes.head_size(), NAN), row(sizes.row_size(), NAN),
        column(sizes.column_size(), NAN), dqk(sizes.qk_size(), NAN), dweights(c.weights.size(), BEFORE),
        workspace(sizes.policy.preprocess_workspace(GPU{}, layer.B, layer.T, layer.NKV) / sizeof(float), NAN);
    const GPU device{nullptr, {reinterpret_cast<std::byte*>(workspace.data()), workspace.size() * sizeof(float)}};
    const LayerInputs<X> in = sizes.inputs(static_cast<const X*>(qk.data()));
    ScoreInputs<X> score_inputs{head.data(), row.data(), column.data(), nullptr};
    sizes.policy.preprocess(device, in, static_cast<const X*>(weights.data()), score_inputs);
    ScoreInputGradients<X> g{{dhead.data(), drow.data(), dcolumn.data(), nullptr}, dqk.data(), dqk.data() + layer.NH * layer.HS, nullptr,
                        dweights.data()};
    sizes.policy.preprocess_backward(device, in, static_cast<const X*>(weights.data()), score_inputs, g);
    AsgaNumbersCase result;
    result.head = head.numbers(), result.row = row.numbers(), result.column = column.numbers();
    result.dqk = dqk.numbers(), result.dweights = dweights.numbers();
    return result;
}

/// Features, gradients and the padding of the columns, which must be zero.
template <class X, class Attention>
void check_preprocessing(const LayerSizes& layer) {
    const AsgaSizes<Attention> sizes(layer);
    INFO("B " << layer.B << ", T " << layer.T << ", NH " << layer.NH << ", NKV " << layer.NKV << ", HS " << layer.HS << ", m "
              << sizes.features.row << ", " << sizeof(X) << " bytes a number");
    AsgaNumbersCase expected = draw<X>(sizes);
    const AsgaNumbersCase actual = run_on_gpu<X>(sizes, expected);
    run_on_cpu(sizes, expected);
    const int tokens = layer.B * layer.T, group = layer.NH / layer.NKV;
    CHECK(difference(actual.head, expected.head, rounding<float>(1)) == "");
    CHECK(difference(actual.dweights, expected.dweights, rounding<float>(tokens)) == "");
    if (!Attention::learned) return;
    CHECK(difference(actual.row, expected.row, rounding<float>(layer.HS)) == "");
    CHECK(difference(actual.column, expected.column, rounding<float>(layer.HS)) == "");
    CHECK(difference(actual.dqk, expected.dqk, rounding<float>(group * sizes.features.row)) == "");
}

template <class X>
void check_head_sizes(int NH, int NKV) {
    for (int HS : {32, 64, 128}) {
        for (int T : {1, 63, 65, 130}) check_preprocessing<X, asga>({T < 100 ? 2 : 1, T, NH, NKV, HS, {{"asga_hidden", 16}}});
        check_preprocessing<X, asga>({2, 65, NH, NKV, HS, {{"asga_hidden", 5}}});
    }
}

}   // namespace

TEST_CASE("ASGA's features and their gradients on the GPU, bf16, one query head per key head", "[gpu][asga]") {
    check_head_sizes<bf16>(2, 2);
}
TEST_CASE("ASGA's features and their gradients on the GPU, bf16, two query heads per key head", "[gpu][asga]") {
    check_head_sizes<bf16>(4, 2);
}
TEST_CASE("ASGA's features and their gradients on the GPU, bf16, four query heads per key head", "[gpu][asga]") {
    check_head_sizes<bf16>(4, 1);
}
TEST_CASE("ASGA's features and their gradients on the GPU, float32", "[gpu][asga]") {
    check_head_sizes<float>(2, 2);
    check_head_sizes<float>(4, 1);
}
TEST_CASE("ASGA's features on the GPU: more hidden units than a block has in hand at a time", "[gpu][asga]") {
    check_preprocessing<float, asga>({1, 70, 2, 1, 64, {{"asga_hidden", 37}}});
}
TEST_CASE("ASGA's features on the GPU: blocks that take several tiles", "[gpu][asga]") {
    check_preprocessing<float, asga>({9, 65, 64, 64, 32, {{"asga_hidden", 3}}});
}
TEST_CASE("ASGA's features and their gradients on the GPU are the same bits again", "[gpu][asga]") {
    const AsgaSizes<asga> sizes({2, 130, 4, 2, 64, {{"asga_hidden", 16}}});
    const AsgaNumbersCase inputs = draw<bf16>(sizes);
    const AsgaNumbersCase once = run_on_gpu<bf16>(sizes, inputs), again = run_on_gpu<bf16>(sizes, inputs);
    CHECK(bit_difference(again.row, once.row) == "");
    CHECK(bit_difference(again.column, once.column) == "");
    CHECK(bit_difference(again.dqk, once.dqk) == "");
    CHECK(bit_difference(again.dweights, once.dweights) == "");
}
TEST_CASE("ASGA's ablations on the GPU: a scale without a gate, a gate without a scale", "[gpu][asga]") {
    check_preprocessing<bf16, asga_fixed>({2, 65, 4, 2, 32, {}});
    check_preprocessing<bf16, asga_no_geometry>({2, 65, 4, 2, 32, {}});
    check_preprocessing<bf16, asga_no_geometry>({2, 65, 4, 2, 32, {{"asga_scale", 2}}});
}

namespace {

/// GELU and its derivative at the sums of two features, as the kernels for bf16 compute them.
__global__ void hidden_units_kernel(float* values, float* slopes, const float* a, const float* b, int n) {
    for (int at = 2 * threadIdx.x; at < n; at += 2 * blockDim.x) {
        const HiddenUnits units(make_halves(UnitGate::feature(a[at]), UnitGate::feature(a[at + 1])),
                                make_halves(UnitGate::feature(b[at]), UnitGate::feature(b[at + 1])));
        const float2 value = floats_of(units.value), slope = floats_of(units.slope());
        values[at] = value.x / (2 * UnitGate::R), values[at + 1] = value.y / (2 * UnitGate::R);
        slopes[at] = (1 + slope.x) / 2, slopes[at + 1] = (1 + slope.y) / 2;
    }
}

}   // namespace

TEST_CASE("ASGA's hidden units in half precision: GELU to three digits, and no NaN however large the features", "[gpu][asga]") {
    std::vector<double> a, b;
    for (int n = -60; n <= 60; n++)
        for (double more : {0.0, 0.3, -1.1, 2.0}) a.push_back(n / 10.0 - more), b.push_back(more);
    const size_t usual = a.size();
    for (double large : {20.0, 150.0, 212.0, 1e3, 1e5, 1e38})
        for (double sign : {-1.0, 1.0})
            for (double other : {-large, 0.0, 1.0, large}) a.push_back(sign * large), b.push_back(other);
    a.push_back(NAN), a.push_back(1), b.push_back(1), b.push_back(1);
    const int n = int(a.size());
    const DeviceArray<float> on_a(a), on_b(b), values(a.size(), NAN), slopes(a.size(), NAN);
    launch(test_gpu(), hidden_units_kernel, Grid(1), 128, 0, values.data(), slopes.data(), static_cast<const float*>(on_a.data()),
           static_cast<const float*>(on_b.data()), n);
    const std::vector<double> value = values.numbers(), slope = slopes.numbers();
    double worst = 0, worst_slope = 0;
    CHECK(std::isnan(value[n - 2]));
    for (int at = 0; at < n - 2; at++) {
        const auto bounded = [](double x) { return std::clamp(x, -70 / double(UnitGate::R), 70 / double(UnitGate::R)); };
        const auto should = gelu_and_slope(bounded(a[at]) + bounded(b[at]));
        const double off = std::abs(value[at] - should.value), off_slope = std::abs(slope[at] - should.slope);
        if (size_t(at) < usual) worst = std::max(worst, off), worst_slope = std::max(worst_slope, off_slope);
        else CHECK((off <= 2e-3 * (1 + std::abs(a[at]) + std::abs(b[at])) && off_slope <= 2e-3));
    }
    CHECK(worst <= 5e-3);
    CHECK(worst_slope <= 8e-3);   // where tanh is nearly 1, which it is rounded away from: 0.0073 on an H200
}
