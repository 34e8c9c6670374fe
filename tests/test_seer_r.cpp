// The gate for single tokens of seer_r: its choice of blocks and what it learns, where the generic tests of variants do not reach.
#include "attention/causal.cuh"
#include "attention/seer_r.cuh"
#include "tests/attention_case.h"
#include "tests/catch.h"
#include "tests/check.h"
#include "tests/threads.h"

namespace {

using Case = PolicyCase<double, seer_r>;
using Settings = std::map<std::string, double>;
using Numbers = std::vector<double>;

Settings of(double top, double distil, double block = 64, double threshold = 0) {
    return {{"seer_r_top_k", top}, {"seer_r_distil", distil}, {"seer_r_block", block}, {"seer_r_threshold", threshold}};
}

/// The gate's choices from made-up scores, of two key/value heads and blocks of two tokens: those of each token in order, -1 left out.
struct ChoiceOf {
    std::vector<std::byte> memory;
    std::vector<int> choice;
    BlockChoice c;

    ChoiceOf(const std::vector<Numbers>& scores, int slots, float threshold, const std::vector<int>& starts = {}) {
        const int T = int(scores.size());
        c = {1, T, 4, 2, 2, slots};
        GateShape s{1, T, 4, 2, 2, 2, GateQuery::first};
        if (!starts.empty()) s.documents = {starts.data(), T};
        BumpAllocator measure(nullptr);
        const TokenGate<double> sizes(measure, s);
        memory.resize(measure.bytes());
        BumpAllocator allocator(memory.data());
        const TokenGate<double> gate(allocator, s);
        std::fill_n(gate.scores, gate.rows() * s.blocks(), 99);   // what is not past has great scores
        for (int kv : {0, 1})
            for (int t = 0; t < T; t++)   // the second head prefers what the first does not
                for (size_t n = 0; n < scores[t].size(); n++)
                    gate.scores[(size_t(kv) * T + t) * s.blocks() + gate.first(0, t) + n] = kv ? -scores[t][n] : scores[t][n];
        choice.assign(c.size(), 77);
        choose_by_gate(CPU{}, choice.data(), gate, c, threshold);
    }
    std::vector<int> of_token(int kv, int t) const {
        const int* const mine = &choice[c.of_token(0, kv, t)];
        return {mine, std::find(mine, mine + c.slots, -1)};
    }
};

/// The distillation loss from its definition: teacher from the dense softmax, student from the dense loops' scores.
double divergence(const Case& layer, int block) {
    const LayerInputs<double> in = layer.inputs();
    const int N = (in.T + block - 1) / block, group = in.NH / in.NKV;
    const double* const w = layer.weights.data();
    const Numbers scores = naive_token_scores(in, w + layer.policy.wq.offset, w + layer.policy.wk.offset, block);
    double total = 0;
    for (int b = 0; b < in.B; b++)
        for (int kv = 0; kv < in.NKV; kv++)
            for (int t = block; t < in.T; t++) {
                Numbers peaks(N);
                for (int h = kv * group; h < (kv + 1) * group; h++) {
                    Numbers weight(t + 1);
                    for (int j = 0; j <= t; j++)
                        weight[j] = std::exp(dot(in.query(in.q, b, t, h), in.key(in.k, b, j, h), in.HS) / std::sqrt(in.HS));
                    for (int j = 0; j <= t; j++) peaks[j / block] = std::max(peaks[j / block], weight[j] / sum_of(weight));
                }
                const int past = t / block;
                const double* const score = &scores[((size_t(b) * in.NKV + kv) * in.T + t) * N];
                double of_teacher = 0, of_student = 0;
                for (int c = 0; c < past; c++) of_teacher += peaks[c], of_student += std::exp(score[c]);
                for (int c = 0; c < past; c++)
                    total += peaks[c] / of_teacher * std::log(peaks[c] / of_teacher / (std::exp(score[c]) / of_student)) / in.NKV;
            }
    return total;
}

}   // namespace

TEST_CASE("seer_r: computes what its naive() prints where blocks have to be chosen", "[attention][blocks]") {
    for (const LayerSizes& sizes : {LayerSizes{1, 400, 4, 2, 8, of(2, 0)}, {2, 330, 2, 1, 8, of(1, 1)}, {1, 500, 2, 2, 8, of(1, 0, 128)},
                                    {1, 400, 4, 1, 8, of(5, 0, 64, 0.3)}, {1, 200, 2, 1, 8, of(0, 1)}, {1, 200, 4, 2, 8, of(1, 2)}})
        check_against_naive(named("seer_r"), sizes);
}

TEST_CASE("seer_r: chosen are the greatest scores, ties to the earlier, above a threshold, in the own document", "[attention][blocks]") {
    const std::vector<Numbers> scores{{}, {}, {5}, {-5}, {1, 2}, {2, 1}, {3, 1, 3}, {1, 1, 1}, {0, 3, 1, 2}};
    const std::vector<std::vector<int>> first{{}, {}, {0}, {0}, {0, 1}, {0, 1}, {0, 2}, {0, 1}, {1, 3}};
    const std::vector<std::vector<int>> second{{}, {}, {0}, {0}, {0, 1}, {0, 1}, {0, 1}, {0, 1}, {0, 2}};
    const ChoiceOf by_rank(scores, 2, -1);
    for (int t = 0; t < 9; t++) CHECK((by_rank.of_token(0, t) == first[t] && by_rank.of_token(1, t) == second[t]));

    // Shares: e / (1 + e) is 0.73; of three equal ones a third; of 0, 3, 1, 2 the greatest have 0.64 and 0.24.
    const std::vector<std::vector<int>> above{{}, {}, {0}, {0}, {1}, {0}, {0, 2}, {}, {1}};
    const ChoiceOf large(scores, 2, 0.4f);
    for (int t = 0; t < 9; t++) CHECK(large.of_token(0, t) == above[t]);

    // Documents from tokens 0, 3 and 8: blocks 3..4 and 5..6 are numbers 1 and 2 of the row.
    const ChoiceOf packed({{}, {}, {7}, {}, {}, {1}, {1}, {1, 2}, {}}, 1, -1, {0, 0, 0, 3, 3, 3, 3, 3, 8});
    const std::vector<std::vector<int>> own{{}, {}, {0}, {}, {}, {1}, {1}, {2}, {}};
    for (int t = 0; t < 9; t++) CHECK(packed.of_token(0, t) == own[t]);
}

TEST_CASE("seer_r: its loss is the definition's, with exact gradients of the gate and none of q, k and the task", "[attention][blocks]") {
    const Threads one(1);
    for (const LayerSizes& sizes : {LayerSizes{2, 330, 4, 2, 8, of(1, 1)}, {1, 330, 2, 2, 8, of(2, 2)}, {1, 420, 4, 1, 8, of(1, 1, 128)}}) {
        INFO("T " << sizes.T << ", NKV " << sizes.NKV);
        LayerSizes twice = sizes;
        twice.settings["seer_r_distil_weight"] = 2;
        Case layer(sizes), weighted(twice), without(sizes);
        without.auxiliary_weight = 0;
        const Numbers dout = normal_numbers(layer.out.size(), 7);
        for (Case* each : {&layer, &weighted, &without}) each->forward(), each->backward(dout);
        const double expected = divergence(layer, layer.policy.block);
        CHECK(expected > 1);
        CHECK(std::abs(sum_of(layer.auxiliary) - expected) <= 1e-11 * expected);
        CHECK(std::abs(sum_of(weighted.auxiliary) - 2 * expected) <= 1e-11 * expected);

        const Numbers gradients = layer.dweights;
        CHECK(gradient_error(layer.weights, gradients, [&] { return layer.forward(), sum_of(layer.auxiliary); }) <= 1e-8);
        CHECK(sum_of(without.dweights) == 0);
        CHECK(bit_difference(layer.dqkv, without.dqkv) == "");
        CHECK(slope_error(without.qkv, without.dqkv, [](size_t) { return true; }, [&] { return without.loss(dout); }) <= 1e-6);
    }
}

TEST_CASE("seer_r: the gate alone learns beside dense attention; what is trained and counted", "[attention][blocks]") {
    Case alone({1, 260, 2, 1, 8, of(1, 2)}), off({1, 260, 2, 1, 8, of(1, 0)});
    PolicyCase<double, causal> dense({1, 260, 2, 1, 8, {}});
    dense.qkv = alone.qkv;
    alone.forward(), dense.forward(), off.forward();
    CHECK(bit_difference(alone.result(), dense.out) == "");
    CHECK((sum_of(alone.auxiliary) > 1 && sum_of(off.auxiliary) == 0));

    const std::string own = "model.layers.0.self_attn.seer_r.w_gq", other = "model.layers.0.self_attn.q_proj.weight";
    auto policy = [](const Settings& settings) { return Case({1, 1, 2, 1, 8, settings}).policy; };
    CHECK((policy(of(1, 0)).trains(other) && !policy(of(1, 0)).trains(own)));
    CHECK((policy(of(1, 1)).trains(other) && policy(of(1, 1)).trains(own)));
    CHECK((!policy(of(1, 2)).trains(other) && policy(of(1, 2)).trains(own)));
    CHECK(policy(of(1, 0)).expected_pairs(2, 130).pairs == 2 * (2 * 64 * 65 / 2 + 3 + 64 * 64 + 2 * 64));
    CHECK(policy(of(1, 2)).expected_pairs(2, 130).pairs == 2 * 130 * 131 / 2);
    CHECK((policy(of(1, 1)).further_pairs(2, 130) == 130 * 131 && policy(of(1, 0)).further_pairs(2, 130) == 0));
    CHECK((!policy(of(1, 0)).expects_at_most() && policy(of(1, 0, 64, 0.1)).expects_at_most()));
}
