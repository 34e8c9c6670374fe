// Relative position representations (Shaw, Uszkoreit, Vaswani 2018, arXiv 1803.02155): a learned key for every distance.
//     z_ij = q_i.(k_j + a_r) / sqrt(HS),   r = min(i - j, K),   j <= i
// with one table a (K + 1, HS) per layer that all heads share. The paper's table has 2K + 1 rows, for both directions; a language
// model needs one. So the scores are those of plain attention plus a row feature that the pair's distance selects:
//     z_ij = a_ij + F_ir,   F = q a^T / sqrt(HS)   (B, NH, T, K + 1)
// The kernel computes a_ij + F_ir - F_iK, which has the same softmax, so that pairs from distance K on need no feature.
// Assumptions:
// - The paper's second table, added to the values, is left out: its own ablation finds the keys' table sufficient.
// - There is no RoPE: distances enter through the table alone, as in the paper. q and k are after QK-norm.
// - K = 16 (the paper's choice for translation), setting shaw_clip.
#pragma once
#include "attention/kernel/layer.h"
#include "attention/scores/each_element.cuh"
#include "attention/scores/pair_features.cuh"

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
        return a + (pair.row_by_distance(Entry{K}) - pair.row(K));
    }
    constexpr bool is_plain(int i0, int, int, int j1) const { return i0 - (j1 - 1) >= K; }
    template <class N, class Loss>
    constexpr N score_backward(N a, const Pair<N>& pair, PairGradients<N>& to, Loss dz_of) const {
        const N dz = dz_of(score(a, pair));
        to.row_by_distance(pair, Entry{K}, dz);
        to.row(K, -dz);
        return dz;
    }

    // ---- F = q a^T / sqrt(HS); backward dq = dF a / sqrt(HS), da = dF^T q / sqrt(HS)

    template <class Device, class X>
    void preprocess(Device device, const LayerInputs<X>& in, const X* weights, ScoreInputs<X>& score_inputs) const {
        pair_features_forward<FeatureLayout::row>(device, score_inputs.row, query_features(in, weights));
    }
    template <class Device, class X>
    void preprocess_backward(Device device, const LayerInputs<X>& in, const X* weights, const ScoreInputs<X>&,
                             ScoreInputGradients<X>& g) const {
        pair_features_backward<FeatureLayout::row>(device, {g.dq_pre, in.qk_row}, g.dweights + a_k.offset, nullptr, g.of.row,
                                                   query_features(in, weights));
        clear_heads(device, Heads<Wide<X>>{g.dk_pre, in.qk_row}, in.B * in.T, in.NKV, HS);   // the features do not read keys
    }

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
    PairFeatures<X> query_features(const LayerInputs<X>& in, const X* weights) const {
        PairFeatures<X> p{{in.q_pre, in.qk_row}, weights + a_k.offset, nullptr, in.B, in.T, NH, NH, HS, K + 1, 0};
        p.factor = 1 / std::sqrt(Wide<X>(HS));
        p.shared_weight = true;
        return p;
    }
};
