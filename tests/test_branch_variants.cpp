// The mechanisms that are made of branches, beyond what every variant is tested for: what their kernels visit and report, verdicts
// on rectangles of rows, and the backward pass of LongNet's released code.
#include "attention/longnet.cuh"
#include "attention/sinks_cache.cuh"
#include "attention/strided.cuh"
#include "tests/attention_case.h"
#include "tests/catch.h"
#include "tests/check.h"
#include "tests/threads.h"

namespace {

using Values = std::map<std::string, double>;
using Numbers = std::vector<double>;

template <class P>
P variant(const Values& settings = {}) {
    Config config;
    config.NH = 4, config.NKV = 2;
    config.settings = settings;
    complete_settings(config, P::settings());
    return P(config, 0);
}

/// One layer with random q, k and v without RoPE, and the statistics of its forward pass.
template <class P>
struct Layer {
    static constexpr int B = 2, NH = 4, NKV = 2, HS = 8, QK = (NH + NKV) * HS, V = NKV * HS;
    P policy;
    int T;
    Numbers qk, v, out, lse, cosine, sine, entropy, pairs, tiles;
    std::vector<std::byte> kept, workspace;
    LayerState<double> state;

    Layer(int T_, const Values& settings)
        : policy(variant<P>(settings)), T(T_), qk(normal_numbers(size_t(B) * T * QK, 1)), v(normal_numbers(size_t(B) * T * V, 2)),
          out(size_t(B) * T * NH * HS, NAN), lse(size_t(B) * NH * T, NAN), cosine(size_t(T) * HS / 2, 1), sine(cosine.size(), 0),
          entropy(lse), pairs(lse), tiles(size_t(B) * NH * tiles_of(T), NAN), kept(policy.template kept_bytes<double>(inputs())),
          workspace(policy.template workspace_bytes<double>(CPU{}, inputs())),
          state{{}, out.data(), out.data(), lse.data(), kept.data()} {
        const Statistics<double> statistics{entropy.data(), nullptr, pairs.data(), tiles.data()};
        attention_layer_forward(CPU{}, policy, inputs(), qk.data(), state, workspace.data(), statistics);
    }

    LayerInputs<double> inputs() const {
        const double *q = qk.data(), *k = q + NH * HS;
        return {{B, T, NH * HS, NH, NKV, HS}, nullptr, q, k, q, k, v.data(), QK, V, cosine.data(), sine.data()};
    }
    /// Gradients of qk and v from that of out.
    std::pair<Numbers, Numbers> backward(const Numbers& dout) {
        Numbers dqk(qk.size(), NAN), dv(v.size(), NAN);
        ScoreInputGradients<double> none{};
        const QkvGradients<double> to{{dqk.data(), QK}, {dqk.data() + NH * HS, QK}, {dv.data(), V}};
        attention_layer_backward(CPU{}, policy, inputs(), qk.data(), state, dout.data(), to, none, workspace.data());
        return {dqk, dv};
    }
    double score(int b, int h, int i, int j) const {
        const LayerInputs<double> in = inputs();
        return dot(in.query(in.q, b, i, h), in.key(in.k, b, j, h), HS) / std::sqrt(double(HS));
    }
};

/// Whether the pair (i, j) is in branch n of LongNet, as the paper says it.
bool in_branch(int w, int n, int h, int i, int j) {
    const int length = w << n, rate = 1 << n;
    return j <= i && i / length == j / length && i % rate == h % rate && j % rate == h % rate;
}

/// `sees` (h, i, j) counts how often the kernels see a pair.
template <class P, class Sees>
void check_statistics(int T, const Values& settings, Sees sees, bool one_softmax) {
    const Layer<P> layer(T, settings);
    INFO(P::name << ", T " << T);
    Numbers pairs, entropy;
    for (int b = 0; b < layer.B; b++)
        for (int h = 0; h < layer.NH; h++)
            for (int i = 0; i < T; i++) {
                double count = 0, sum = 0, moment = 0;
                for (int j = 0; j < T; j++) {
                    const double times = sees(h, i, j), z = layer.score(b, h, i, j);
                    count += times, sum += times * std::exp(z), moment += times * std::exp(z) * z;
                }
                pairs.push_back(count), entropy.push_back(std::log(sum) - moment / sum);
            }
    const PairCount expected = layer.policy.expected_pairs(layer.NH, T);
    CHECK(bit_difference(layer.pairs, pairs) == "");
    CHECK(sum_of(layer.pairs) == layer.B * expected.pairs);
    CHECK(sum_of(layer.tiles) == layer.B * expected.tiles);
    if (one_softmax) CHECK(difference(layer.entropy, entropy, {1e-12, 1e-12}) == "");
}

/// tile() hides exactly the rectangles without a pair, and fills none that is not full.
template <class P>
void check_verdicts(const P& policy, int rows) {
    std::mt19937_64 generator(5);
    auto below = [&](int n) { return int(generator() % uint64_t(n)); };
    int wrong = 0;
    for (int n = 0; n < 3000; n++) {
        const int most = n % 3 ? 12 : 80, h = below(4), i0 = below(rows), j0 = below(rows);
        const int i1 = std::min(rows, i0 + 1 + below(most)), j1 = std::min(rows, j0 + 1 + below(most));
        const Tile exact = verdict_by_pairs({i0, i1, j0, j1}, [&](int i, int j) { return policy.visible(h, i, j); });
        const Tile verdict = policy.tile(h, i0, i1, j0, j1);
        wrong += verdict != exact && (verdict != Tile::mixed || exact == Tile::hidden);
    }
    CHECK(wrong == 0);
}

}   // namespace

// Pairs were counted elsewhere from dense masks. Tiles: strided's window of 128 is 3 tiles wide (but for the first two of 32) and
// four of its columns of 16 share a tile of their own; LongNet's 8 + 4 + 2 + 1 segments of 4 x 4 tiles have 10 causal ones each.
TEST_CASE("branch variants: pairs and tiles at T = 2048", "[attention][branches]") {
    const PairCount of_strided = variant<strided>().expected_pairs(1, 2048);
    const PairCount of_longnet = variant<longnet>().expected_pairs(1, 2048);
    CHECK(of_strided.pairs == 269376);
    CHECK(of_strided.tiles == 3 * 32 - 3 + 32);
    CHECK(of_longnet.pairs == 493440);
    CHECK(of_longnet.tiles == 15 * 10);
    CHECK(count_pairs(variant<strided>(), 1, 2048).pairs == 269376);
    CHECK(count_pairs(variant<longnet>(), 1, 2048).pairs == 377856);
    const PairCount with_sinks = variant<sinks_cache>().expected_pairs(1, 2048);
    CHECK(with_sinks.pairs == count_pairs(variant<sinks>(), 1, 2048).pairs);
}

TEST_CASE("branch variants: pairs, tiles and entropy are reported as they are", "[attention][branches]") {
    for (int T : {1, 65, 200}) {
        for (double l : {1, 7, 20, 128})
            check_statistics<strided>(
                T, {{"strided_stride", l}},
                [&](int, int i, int j) { return j <= i && (i - j <= l || (i - j) % int(l) == 0); }, true);
        for (int branches : {1, 2, 4})
            check_statistics<longnet>(
                T, {{"longnet_segment", 12}, {"longnet_branches", branches}},
                [&](int h, int i, int j) {
                    int times = 0;
                    for (int n = 0; n < branches; n++) times += in_branch(12, n, h, i, j);
                    return times;
                },
                branches == 1);
        check_statistics<sinks_cache>(   // without RoPE q' is q
            T, {{"sinks_tokens", 5}, {"attention_window", 20}},
            [](int, int i, int j) { return j <= i && (j < 5 || i - j <= 20); }, true);
    }
}

TEST_CASE("branch variants judge every rectangle of rows", "[attention][branches]") {
    for (int l : {1, 2, 3, 5, 7, 20, 66, 100, 300})
        for (int T : {200, 201, 256}) {
            const ColumnRows rows(l, T);
            check_verdicts(ColumnBranch(rows), rows.count);
            if (T == 256) check_verdicts(variant<strided>({{"strided_stride", l}}), T);
        }
    for (int w : {1, 3, 12, 64, 1000}) {
        for (int k : {0, 1, 2, 5})
            for (int T : {200, 201}) check_verdicts(SegmentBranch(DilatedRows(T, k), Divisor(w)), DilatedRows(T, k).count);
        for (int branches : {1, 3}) check_verdicts(variant<longnet>({{"longnet_segment", w}, {"longnet_branches", branches}}), 300);
    }
    for (int left : {0, 1, 20, 100}) check_verdicts(SinkBranch(10, left), 200);
}

// dz_ij = sum_n alpha_n P^n_ij (<dout_i, v_j> - <dout_i, out^n_i>): the branch's output where the one softmax has the mixture's.
TEST_CASE("longnet with constant weights has the gradients of the released code", "[attention][branches]") {
    const Threads one(1);
    const int T = 70, w = 6, N = 3;
    Layer<longnet> layer(T, {{"longnet_segment", w}, {"longnet_branches", N}, {"longnet_detach", 1}});
    using L = Layer<longnet>;
    const Numbers dout = normal_numbers(layer.out.size(), 4);
    const LayerInputs<double> in = layer.inputs();
    Numbers dqk(layer.qk.size(), 0), dv(layer.v.size(), 0);
    for (int b = 0; b < L::B; b++)
        for (int h = 0; h < L::NH; h++)
            for (int i = 0; i < T; i++) {
                const double* d = &dout[((size_t(b) * T + i) * L::NH + h) * L::HS];
                double total = 0;   // sum of exp(z) over all branches
                std::vector<double> sums(N, 0), products(N, 0);   // per branch: of exp(z), of exp(z) <dout, v>
                for (int j = 0; j <= i; j++)
                    for (int n = 0; n < N; n++) {
                        if (!in_branch(w, n, h, i, j)) continue;
                        const double weight = std::exp(layer.score(b, h, i, j));
                        total += weight, sums[n] += weight, products[n] += weight * dot(d, in.value(b, j, h), L::HS);
                    }
                for (int j = 0; j <= i; j++)
                    for (int n = 0; n < N; n++) {
                        if (!in_branch(w, n, h, i, j)) continue;
                        const double p = std::exp(layer.score(b, h, i, j)) / total;   // alpha_n P^n
                        const double dz = p * (dot(d, in.value(b, j, h), L::HS) - products[n] / sums[n]) / std::sqrt(double(L::HS));
                        const size_t q = (size_t(b) * T + i) * L::QK + h * L::HS, v = (size_t(b) * T + j) * L::V + h / 2 * L::HS;
                        const size_t k = (size_t(b) * T + j) * L::QK + (L::NH + h / 2) * L::HS;
                        for (int e = 0; e < L::HS; e++) {
                            dqk[q + e] += dz * layer.qk[k + e];
                            dqk[k + e] += dz * layer.qk[q + e];
                            dv[v + e] += p * d[e];
                        }
                    }
            }
    const auto [is_dqk, is_dv] = layer.backward(dout);
    CHECK(difference(is_dqk, dqk, {1e-12}) == "");
    CHECK(difference(is_dv, dv, {1e-12}) == "");
}
