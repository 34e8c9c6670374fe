// Relative position representations (Shaw, Uszkoreit, Vaswani 2018, arXiv 1803.02155): a learned key for every distance.
//     z_ij = q_i.(k_j + a_r) / sqrt(HS),   r = min(i - j, K),   j <= i
// with one table a (K + 1, HS) per layer that all heads share. The paper's table has 2K + 1 rows, for both directions; a language
// model needs one. So the scores are those of plain attention plus a row feature that the pair's distance selects:
//     z_ij = a_ij + F_ir,   F = q a^T / sqrt(HS)   (B, NH, T, K + 1)
// Assumptions:
// - The paper's second table, added to the values, is left out: its own ablation finds the keys' table sufficient.
// - There is no RoPE: distances enter through the table alone, as in the paper. q and k are after QK-norm.
// - K = 16 (the paper's choice for translation), setting shaw_clip.
#pragma once
#include "attention/kernel/layer.h"
#include "attention/scores/each_element.cuh"
#ifdef WITH_GPU
#include "attention/scores/pair_features.cuh"
#endif

struct shaw : Policy {
    static constexpr const char* name = "shaw";
    static constexpr Traits traits{.reads_qk_pre = true};   // so that its backward may write a gradient of q
    int K;      // distances from K on share a row
    Slot a_k;   // (K + 1, HS)
    int NH, HS;

    shaw(const Config& config, int layer)
        : Policy(config, layer), K(int(config.setting("shaw_clip"))), NH(config.NH), HS(config.HS) {}

    static std::vector<Setting> settings() {
        return {{"--shaw-clip", "shaw_clip", 16, 1, MOST_FEATURES - 1, WHOLE, "distance from which all pairs share one key, K"}};
    }

    void declare(TensorList& list, const std::string& prefix) {
        a_k = list.add(prefix + "shaw.a_k", {K + 1, HS}, normal(0.02), Decay::yes);
    }

    Form form() const { return {.rotates = false}; }

    // ---- score: row features F

    constexpr Features features() const { return {0, K + 1, 0}; }

    /// The feature that a pair reads; feature 0 for a hidden key after the query.
    struct Entry {
        int K;
        constexpr int operator()(int distance) const { return distance < 0 ? 0 : distance < K ? distance : K; }
    };
    template <class N>
    constexpr N score(N a, const Pair<N>& pair) const {
        return a + pair.row_by_distance(Entry{K});
    }
    template <class N, class Loss>
    constexpr N score_backward(N a, const Pair<N>& pair, PairGradients<N>& to, Loss dz_of) const {
        const N dz = dz_of(score(a, pair));
        to.row_by_distance(pair, Entry{K}, dz);
        return dz;
    }

    // ---- F = q a^T / sqrt(HS); backward dq = dF a / sqrt(HS), da = dF^T q / sqrt(HS)

    template <class X>
    void preprocess(CPU, const LayerInputs<X>& in, const X* weights, ScoreInputs<X>& score_inputs) const {
        const X scale = X(1) / std::sqrt(X(HS));
#pragma omp parallel for collapse(2)
        for (int b = 0; b < in.B; b++)
            for (int h = 0; h < NH; h++)
                gemm(Transpose::no, Transpose::yes, in.T, K + 1, HS, scale, in.query(in.q_pre, b, 0, h), in.qk_row,
                     weights + a_k.offset, HS, X(0), score_inputs.row + features_at(in, b, h), K + 1);
    }

    template <class X>
    void preprocess_backward(CPU, const LayerInputs<X>& in, const X* weights, const ScoreInputs<X>&,
                             ScoreInputGradients<X>& g) const {
        const X scale = X(1) / std::sqrt(X(HS));
        std::vector<X> parts(size_t(NH) * a_k.size);   // (NH, K + 1, HS), to be summed in the order of heads
#pragma omp parallel for
        for (int h = 0; h < NH; h++)
            for (int b = 0; b < in.B; b++) {
                const X* drow = g.of.row + features_at(in, b, h);
                gemm(Transpose::no, Transpose::no, in.T, HS, K + 1, scale, drow, K + 1, weights + a_k.offset, HS, X(0),
                     g.dq_pre + in.token(b, 0) * in.qk_row + size_t(h) * HS, in.qk_row);
                gemm(Transpose::yes, Transpose::no, K + 1, HS, in.T, scale, drow, K + 1, in.query(in.q_pre, b, 0, h), in.qk_row,
                     X(1), &parts[h * a_k.size], HS);
            }
        for (size_t n = 0; n < parts.size(); n++) g.dweights[a_k.offset + n % a_k.size] += parts[n];
        clear_heads(CPU{}, Heads<X>{g.dk_pre, in.qk_row}, in.B * in.T, in.NKV, HS);   // the features do not read keys
    }

#ifdef WITH_GPU
    template <class X>
    void preprocess(GPU device, const LayerInputs<X>& in, const X* weights, ScoreInputs<X>& score_inputs) const {
        pair_features_forward<FeatureLayout::row>(device, score_inputs.row, query_features(in, weights));
    }
    template <class X>
    void preprocess_backward(GPU device, const LayerInputs<X>& in, const X* weights, const ScoreInputs<X>&,
                             ScoreInputGradients<X>& g) const {
        pair_features_backward<FeatureLayout::row>(device, {g.dq_pre, in.qk_row}, g.dweights + a_k.offset, nullptr, g.of.row,
                                                   query_features(in, weights));
        clear_heads(device, Heads<float>{g.dk_pre, in.qk_row}, in.B * in.T, in.NKV, HS);
    }
#endif

    // ---- the paper's formula without the hooks

    template <class X>
    void naive(const LayerInputs<X>& in, const X* weights, X* out) const {
        LayerInputs<X> plain = in;
        plain.q = in.q_pre, plain.k = in.k_pre;
        auto modify = [&](int b, int h, int i, int j, X a) {
            const X* key = weights + a_k.offset + size_t(std::clamp(i - j, 0, K)) * HS;
            return a + dot(in.query(in.q_pre, b, i, h), key, HS) / std::sqrt(X(HS));
        };
        dense_softmax(plain, out, modify, [](int, int i, int j) { return j <= i; });
    }

private:
    template <class X>
    size_t features_at(const LayerInputs<X>& in, int b, int h) const {
        return (size_t(b) * NH + h) * in.T * (K + 1);
    }

#ifdef WITH_GPU
    template <class X>
    PairFeatures<X> query_features(const LayerInputs<X>& in, const X* weights) const {
        PairFeatures<X> p{{in.q_pre, in.qk_row}, weights + a_k.offset, nullptr, in.B, in.T, NH, NH, HS, K + 1, 0};
        p.factor = 1 / std::sqrt(float(HS));
        p.shared_weight = true;
        return p;
    }
#endif
};
