// Adaptive Sparse-Geometric Attention (aardXiv 2510.00090): a learned pairwise gate times a per-head geometric scale on the logits.
//     z_ij = c_h a_ij s_ij,  a_ij = q_i.k_j / sqrt(HS),  j <= i
//     c_h  = softplus(gamma_h)                                                              the geometric scale
//     s_ij = sigmoid(b2_h + sum_f W2_hf GELU(A_if + B_jf))                                  the gate
//     A_i  = W1q_h LN(q_i) + b1_h,   B_j = W1k_h LN(k_j)        since W1 [LN q; LN k] has no cross terms
// The paper leaves open, and this file assumes: hidden width m = 16 (setting asga_hidden); biases b1 and b2; LN without affine, eps
// 1e-5; q and k after QK-norm and before RoPE; GELU in its tanh form; W1 per query head also under grouped queries.
// s multiplies the logit, not the weight: s -> 0 gives a key the relative weight e^0 and never removes it. The gate is a learned
// pairwise temperature, so there is no sparsity that saves time.
// Ablations (paper, section 4.2) are flags: no geometric scale (c constant); fixed sparsity, read as a hard window of 256 with c
// learned; neither, which is plain attention.
// The paper leaves the initial c open too (setting asga_scale). Here it is 2 with the learned gate, which starts near 1/2, so that
// logits start as the baseline's. Without the scale c is 1, as printed, and logits start at half of the baseline's; an ablation of
// learning c alone sets it to 2.
#pragma once
#include <vector>

#include "attention/kernel/layer.h"
#include "attention/scores/head_scalars.cuh"
#include "attention/scores/pair_features.cuh"

enum class AsgaGate { learned, window, none };

/// M > 0 is a twin for the GPU's kernels with m = M known at compile time, so that arrays over hidden units stay in registers.
template <bool geometric, AsgaGate gate, int M = 0>
struct Asga : Policy {
    static constexpr bool learned = gate == AsgaGate::learned;
    static constexpr Traits traits{.reads_qk_pre = learned, .gates_pairs = learned, .gate_of_units = learned};
    static constexpr int hidden_units = M;
    static constexpr bool modifies_scores = learned || geometric;   // with neither this is plain attention, and as fast
    static constexpr double eps = 1e-5;
    int m = 0;         // hidden units of the gate
    int left = 0;      // reach of the window
    double scale = 1;  // initial c, constant if it is not learned
    Slot w1_q, w1_k;   // (NH, m, HS)
    Slot b1, w2;       // (NH, m)
    Slot b2, gamma;    // (NH)
    int NH, HS;

    Asga(const Config& config, int layer) : Policy(config, layer), NH(config.NH), HS(config.HS) {
        if (learned) m = int(config.setting("asga_hidden"));
        if (gate == AsgaGate::window) left = int(config.setting("attention_window"));
        if (modifies_scores) scale = config.setting("asga_scale");
    }

    template <int OTHER>
    explicit constexpr Asga(const Asga<geometric, gate, OTHER>& general) requires(M > 0 && OTHER == 0)
        : Policy(general), m(M), left(general.left), scale(general.scale), NH(general.NH), HS(general.HS) {}

    static std::vector<Setting> settings() {
        std::vector<Setting> all;
        if (learned) all.push_back({"--asga-hidden", "asga_hidden", 16, 1, 256, WHOLE, "hidden units of the pairwise gate"});
        if (gate == AsgaGate::window)
            all.push_back({"--window", "attention_window", 256, 0, 1e9, WHOLE, "left reach in tokens: query i sees keys i-N..i", true});
        if (modifies_scores)
            all.push_back({"--asga-scale", "asga_scale", learned && geometric ? 2.0 : 1.0, 0.1, 100, REAL,
                           geometric ? "initial geometric scale c, which is learned"
                                     : "constant scale c of the gated logits; with 2 they start as the baseline's"});
        return all;
    }

    void declare(TensorList& list, const std::string& prefix) {
        if (learned) {
            w1_q = list.add(prefix + "asga.w1_q", {NH, m, HS}, normal(0.02), Decay::yes);
            w1_k = list.add(prefix + "asga.w1_k", {NH, m, HS}, normal(0.02), Decay::yes);
            b1 = list.add(prefix + "asga.b1", {NH, m}, zeros(), Decay::no);
            w2 = list.add(prefix + "asga.w2", {NH, m}, normal(0.02), Decay::yes);
            b2 = list.add(prefix + "asga.b2", {NH}, zeros(), Decay::no);
        }
        if (geometric) gamma = list.add(prefix + "asga.gamma", {NH}, constant(std::log(std::expm1(scale))), Decay::no);
    }

    // ---- score: scalars per head [c, b2, w2...], row features A_i, column features B_j

    constexpr Features features() const {
        if (learned) return {.head = 2 + units(), .row = units(), .column = units(), .reach = units() == 16};
        return {geometric ? 1 : 0, 0, 0};
    }

    template <class N>
    constexpr N score(N a, const Pair<N>& pair) const {
        if constexpr (!learned) return geometric ? pair.head(0) * a : a;
        return pair.head(0) * a * pair_gate(pair);
    }

    template <class N>
    constexpr N pair_gate(const Pair<N>& pair) const {
        N u = broadcast<N>(pair.head(1));
        each_unit([&](int f) { u += pair.head(2 + f) * gelu(pair.row(f) + pair.column(f)); });
        return sigmoid(u);
    }

    /// da = c s dz;  dc = a s dz;  du = c a dz s (1 - s);  dW2_f = du GELU(t_f);  dA_f = dB_f = du W2_f GELU'(t_f).
    template <class N, class Loss>
    constexpr N score_backward(N a, const Pair<N>& pair, PairGradients<N>& to, Loss dz_of) const {
        if constexpr (!learned) {
            const N dz = dz_of(score(a, pair));
            if (geometric) to.head(0, a * dz);
            return geometric ? pair.head(0) * dz : dz;
        }
        ValueAndSlope<N> hidden[M ? M : 256];
        N u = broadcast<N>(pair.head(1));
        each_unit([&](int f) {
            hidden[f] = gelu_and_slope(pair.row(f) + pair.column(f));
            u += pair.head(2 + f) * hidden[f].value;
        });
        const auto c = pair.head(0);
        const N s = sigmoid(u), dz = dz_of(c * a * s), du = c * a * dz * s * (Element<N>(1) - s);
        if (geometric) to.head(0, a * s * dz);
        to.head(1, du);
        each_unit([&](int f) {
            const N dt = du * pair.head(2 + f) * hidden[f].slope;
            to.head(2 + f, du * hidden[f].value);
            to.row(f, dt);
            to.column(f, dt);
        });
        return c * s * dz;
    }

    /// The GPU's kernels use the twin for the default width, and the general form for any other.
    template <class Run>
    void specialise(Run run) const {
        if constexpr (learned)
            if (m == 16) return run(Asga<geometric, gate, 16>(*this));
        run(*this);
    }

    // ---- mask: only the fixed ablation hides more than the future

    constexpr Tile tile(int h, int i0, int i1, int j0, int j1) const {
        return gate == AsgaGate::window ? window_tile(left, i0, i1, j0, j1) : Policy::tile(h, i0, i1, j0, j1);
    }
    constexpr bool visible(int, int i, int j) const { return j <= i && (gate != AsgaGate::window || i - j <= left); }

    constexpr KeptKeys kept_keys() const { return gate == AsgaGate::window ? KeptKeys{0, left + 1} : KeptKeys{}; }

    // ---- scalars per head: the weight of each, the function applied to it, and its derivative

    constexpr size_t head_weight(int h, int n) const {
        if (n == 0) return geometric ? gamma.offset + h : CONSTANT_SCALAR;
        return n == 1 ? b2.offset + h : w2.offset + size_t(h) * m + (n - 2);
    }
    constexpr double constant_scalar() const { return scale; }
    template <class N>
    static constexpr N head_scalar(N weight, int n) {
        return n == 0 ? softplus(weight) : weight;
    }
    template <class N>
    static constexpr N head_scalar_slope(N weight, int n) {
        return n == 0 ? sigmoid(weight) : N(1);
    }

    // ---- features from q and k, and their gradients

    template <class Device, class X>
    void preprocess(Device device, const LayerInputs<X>& in, const X* weights, ScoreInputs<X>& score_inputs) const {
        head_scalars_forward(device, score_inputs.head, *this, weights, NH);
        if constexpr (!learned) return;
        pair_features_forward<FeatureLayout::row>(device, score_inputs.row, query_features(in, weights));
        pair_features_forward<FeatureLayout::column>(device, score_inputs.column, key_features(in, weights));
    }
    template <class Device, class X>
    void preprocess_backward(Device device, const LayerInputs<X>& in, const X* weights, const ScoreInputs<X>&,
                             ScoreInputGradients<X>& g) const {
        head_scalars_backward(device, g.dweights, *this, weights, g.of.head, in.B, NH);
        if constexpr (!learned) return;
        pair_features_backward<FeatureLayout::row>(device, {g.dq_pre, in.qk_row}, g.dweights + w1_q.offset, g.dweights + b1.offset,
                                                   g.of.row, query_features(in, weights));
        pair_features_backward<FeatureLayout::column>(device, {g.dk_pre, in.qk_row}, g.dweights + w1_k.offset, nullptr, g.of.column,
                                                      key_features(in, weights));
    }

    // ---- the paper's formula without the hooks

    template <class X>
    void naive(const LayerInputs<X>& in, const X* weights, X* out) const {
        auto gate_of = [&](int b, int h, int i, int j) {
            std::vector<X> q(HS), k(HS);
            layernorm_row(q.data(), in.query(in.q_pre, b, i, h), HS, eps);
            layernorm_row(k.data(), in.key(in.k_pre, b, j, h), HS, eps);
            X u = weights[b2.offset + h];
            for (int f = 0; f < m; f++) {
                const size_t unit = size_t(h) * m + f;
                const X t = dot(weights + w1_q.offset + unit * HS, q.data(), HS) +
                            dot(weights + w1_k.offset + unit * HS, k.data(), HS) + weights[b1.offset + unit];
                u += weights[w2.offset + unit] * X(0.5) * t *
                     (1 + std::tanh(std::sqrt(X(2 / M_PI)) * (t + X(0.044715) * t * t * t)));
            }
            return 1 / (1 + std::exp(-u));
        };
        auto modify = [&](int b, int h, int i, int j, X a) {
            const X c = geometric ? std::log(1 + std::exp(weights[gamma.offset + h])) : X(scale);
            return c * a * (learned ? gate_of(b, h, i, j) : X(1));
        };
        dense_softmax(in, out, modify, [&](int, int i, int j) { return j <= i && (gate != AsgaGate::window || j >= i - left); });
    }

private:
    /// A = W1q LN(q) + b1 and B = W1k LN(k).
    template <class X>
    PairFeatures<X> query_features(const LayerInputs<X>& in, const X* weights) const {
        return {{in.q_pre, in.qk_row}, weights + w1_q.offset, weights + b1.offset, in.B, in.T, NH, NH, HS, m, eps};
    }
    template <class X>
    PairFeatures<X> key_features(const LayerInputs<X>& in, const X* weights) const {
        return {{in.k_pre, in.qk_row}, weights + w1_k.offset, nullptr, in.B, in.T, in.NKV, NH, HS, m, eps};
    }

    constexpr int units() const { return M ? M : m; }

    /// use(f) for every hidden unit, unrolled in the twin, where all of them are in registers.
    template <class Use>
    constexpr void each_unit(Use use) const {
        if constexpr (M == 0)
            for (int f = 0; f < m; f++) use(f);
        else
            [&]<int... f>(std::integer_sequence<int, f...>) { (use(f), ...); }(std::make_integer_sequence<int, M>());
    }
};

struct asga : Asga<true, AsgaGate::learned> {
    static constexpr const char* name = "asga";
    using Asga::Asga;
};
