// adaptive_sparse and seer where the generic tests of variants do not reach: sequences of many blocks of which few are chosen,
// blocks of several tiles, distillation from the dense map, what is refused.
#include "attention/adaptive_sparse.cuh"
#include "attention/causal.cuh"
#include "attention/seer.cuh"

#include "tests/attention_case.h"
#include "tests/catch.h"
#include "tests/check.h"
#include "tests/errors.h"
#include "tests/threads.h"
#include "tests/whole_model.h"

namespace {

using Settings = std::map<std::string, double>;
template <class A>
using Case = PolicyCase<double, A>;
using Numbers = std::vector<double>;

/// The worst error of the gradients of all tensors, relative to their size, along random directions.
template <class A>
double tensor_error(Case<A>& layer, const Numbers& dout) {
    layer.dweights.assign(layer.dweights.size(), 0);
    layer.forward(), layer.backward(dout);
    const Numbers gradients = layer.dweights;
    return gradient_error(layer.weights, gradients, [&] { return layer.loss(dout); });
}

/// Forward against naive(), all gradients against finite differences.
template <class A>
void check_layer(const LayerSizes& sizes) {
    INFO(text_of(sizes));
    const Threads one(1);
    Case<A> layer(sizes);
    const Numbers dout = normal_numbers(layer.out.size(), 7);
    layer.forward(), layer.backward(dout);
    CHECK(difference(layer.result(), layer.naive(), {1e-12}) == "");
    const Numbers dqkv = layer.dqkv;
    CHECK(gradient_error(layer.qkv, dqkv, [&] { return layer.loss(dout); }) <= 1e-8);
    CHECK(tensor_error(layer, dout) <= 1e-8);
}

/// The part of the objective that teaches the gate, from its definition: the teacher from the dense softmax of `teacher`, the
/// student from the scores of `student`.
template <class A>
double distillation(const Case<A>& teacher, const Case<A>& student, int block, double lambda, int dense, int first_row,
                    GateQuery query) {
    const LayerInputs<double> in = teacher.inputs();
    const A& p = student.policy;
    const int N = (in.T + block - 1) / block;
    const double* weights = student.weights.data();
    const Numbers scores = naive_block_scores(student.inputs(), weights + p.wq.offset, weights + p.wk.offset, block, query);
    double total = 0;
    for (int b = 0; b < in.B; b++)
        for (int h = dense; h < in.NH; h++) {
            Numbers map(size_t(N) * N, 0);
            for (int i = 0; i < in.T; i++) {
                Numbers weight(i + 1);
                double sum = 0;
                for (int j = 0; j <= i; j++) {
                    weight[j] = std::exp(dot(in.query(in.q, b, i, h), in.key(in.k, b, j, h), in.HS) / std::sqrt(in.HS));
                    sum += weight[j];
                }
                for (int j = 0; j <= i; j++) {
                    double& most = map[size_t(i / block) * N + j / block];
                    most = std::max(most, weight[j] / sum);
                }
            }
            for (int r = first_row; r < N; r++) {
                const double* score = &scores[((size_t(b) * in.NH + h) * N + r) * N];
                double of_teacher = 0, of_student = 0;
                for (int c = 0; c < r; c++) of_teacher += map[size_t(r) * N + c], of_student += std::exp(score[c]);
                for (int c = 0; c < r; c++) {
                    const double t = map[size_t(r) * N + c] / of_teacher;
                    total += t * std::log(t / (std::exp(score[c]) / of_student));
                }
            }
        }
    return lambda * in.T * total / ((in.NH - dense) * (N - first_row));
}

/// The sentence that the variant refuses the settings with; empty when it does not.
template <class A>
std::string refusal(int NH, int NKV, const Settings& settings) {
    return refusal(Exit::usage, [&] { Case<A>({1, 1, NH, NKV, 8, settings}); });
}
bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const std::string A = "adaptive_sparse_", S = "seer_";

}   // namespace

TEST_CASE("adaptive_sparse: few of many blocks, every mask and gate query, with a sink, with a threshold", "[attention]") {
    for (double mask : {0, 1, 2})
        for (double query : {0, 1})
            check_layer<adaptive_sparse>({1, 260, 2, 1, 8, {{A + "top_k", 1}, {A + "mask", mask}, {A + "query", query}}});
    // Without a threshold: among so many tokens, one's head gate jumps within the step of a finite difference.
    const Settings smooth = {{A + "top_k", 2}, {A + "sink", 1}, {A + "dense_heads", 1}, {A + "head_threshold", 0}};
    check_layer<adaptive_sparse>({2, 330, 2, 2, 8, smooth});
    check_layer<adaptive_sparse>({1, 330, 2, 1, 8, {{A + "threshold", 0.3}, {A + "head_threshold", -1}}});
}

TEST_CASE("adaptive_sparse: blocks of several tiles", "[attention]") {
    for (double mask : {0, 1, 2})
        check_layer<adaptive_sparse>({1, 450, 2, 1, 8, {{A + "block", 128}, {A + "top_k", 1}, {A + "mask", mask}}});
    check_layer<adaptive_sparse>({1, 600, 1, 1, 6, {{A + "block", 192}, {A + "top_k", 1}, {A + "query", 1}}});
    check_layer<adaptive_sparse>({1, 100, 1, 1, 6, {{A + "block", 128}}});
}

TEST_CASE("seer: few of many blocks; the language model's loss does not reach the gate", "[attention]") {
    const Settings few = {{S + "top_k", 1}, {S + "distil", 0}};
    check_layer<seer>({1, 260, 2, 1, 8, few});
    check_layer<seer>({1, 450, 2, 2, 8, {{S + "top_k", 1}, {S + "distil", 0}, {S + "block", 128}, {S + "query", 1}}});
    const LayerSizes published{1, 270, 2, 1, 8, {{S + "top_k", 1}, {S + "distil", 0}, {S + "query", 2}}};
    check_layer<seer>(published);
    CHECK((Case<seer>(published).policy.needs_known_text() && !Case<seer>(published).policy.form().is_causal));
    Case<seer> before(published), after(published);   // the last block's gate query has its last tokens in it
    for (double& q : after.qkv) q *= &q >= &after.qkv[after.qkv.size() * 260 / 270] ? -3 : 1;
    before.forward(), after.forward();
    CHECK(std::equal(before.out.begin(), before.out.begin() + 256 * 16, after.out.begin()));
    CHECK_FALSE(std::equal(before.out.begin(), before.out.begin() + 260 * 16, after.out.begin()));
    auto prefix = before.first_tokens(260);
    prefix.forward();
    CHECK_FALSE(std::equal(prefix.out.begin(), prefix.out.end(), before.out.begin()));
    CHECK(std::equal(prefix.out.begin(), prefix.out.begin() + 256 * 16, before.out.begin()));
    Case<seer> layer({1, 260, 2, 1, 8, few});
    CHECK((layer.policy.form().is_causal && !layer.policy.needs_known_text()));
    const auto looks_ahead = [](const Settings& settings) {
        return Case<seer>({1, 1, 2, 1, 8, settings}).policy.needs_known_text();
    };
    CHECK((looks_ahead({{S + "query", 2}, {S + "distil", 1}}) && !looks_ahead({{S + "query", 2}, {S + "distil", 2}})));
    CHECK((!looks_ahead({{S + "query", 2}, {S + "top_k", 0}}) &&   // nothing to choose
           looks_ahead({{S + "query", 2}, {S + "top_k", 0}, {S + "threshold", 0.1}})));
    layer.forward(), layer.backward(normal_numbers(layer.out.size(), 7));
    CHECK(sum_of(layer.auxiliary) == 0);
    for (double gradient : layer.dweights) CHECK(gradient == 0);
}

TEST_CASE("seer: the oracle chooses the blocks that dense attention looks at, and no gate moves it", "[attention]") {
    const Settings oracle = {{S + "top_k", 1}, {S + "distil", 0}, {S + "query", 3}};
    check_layer<seer>({1, 260, 2, 1, 8, oracle});
    check_layer<seer>({1, 450, 2, 2, 8, {{S + "threshold", 0.3}, {S + "distil", 0}, {S + "query", 3}, {S + "block", 128}}});
    Case<seer> layer({1, 260, 2, 1, 8, oracle}), all({1, 260, 2, 1, 8, {{S + "top_k", 9}, {S + "distil", 0}, {S + "query", 3}}});
    CHECK((layer.policy.needs_known_text() && !layer.policy.form().is_causal));
    CHECK(layer.policy.further_pairs(2, 260) == 260 * 261);
    layer.forward(), all.forward();
    const std::vector<double> before = layer.out;
    CHECK(before != all.out);
    for (double& weight : layer.weights) weight *= -2;
    layer.forward();
    CHECK(layer.out == before);
    CHECK(mentions(refusal<seer>(2, 1, {{S + "query", 3}}), "give --seer-distil 0"));
}

TEST_CASE("dense heads are causal attention to the bit, and four by default where there are eight", "[attention]") {
    Case<adaptive_sparse> sparse({1, 200, 8, 4, 8, {{A + "top_k", 0}}});
    Case<causal> dense({1, 200, 8, 4, 8, {}});
    dense.qkv = sparse.qkv;
    sparse.forward(), dense.forward();
    int same[8] = {};
    for (size_t n = 0; n < dense.out.size(); n++) same[n / 8 % 8] += sparse.result()[n] == dense.out[n];
    for (int h = 0; h < 8; h++) CHECK((same[h] == 200 * 8) == (h < 4));
    const std::vector<std::array<int, 3>> defaults = {{12, 12, 4}, {12, 4, 3}, {12, 2, 0}, {4, 4, 2}, {4, 2, 2}, {2, 1, 0},
                                                      {1, 1, 0}};
    for (const auto& [NH, NKV, heads] : defaults) {
        INFO(NH << " heads, " << NKV << " of keys");
        CHECK(Case<adaptive_sparse>({1, 1, NH, NKV, 8, {}}).policy.choice.dense_heads == heads);
    }
}

TEST_CASE("distillation: the loss is its definition, its gradient is exact with the teacher held still", "[attention]") {
    const double lambda = 0.75;   // exact in float
    for (const auto& [block, skip, query] : {std::tuple{64, 0.0, 0}, {64, 0.45, 1}, {128, 0.0, 0}}) {
        const LayerSizes sizes{2, 330, 2, 1, 8,
            {{S + "block", block}, {S + "top_k", 1}, {S + "query", query}, {S + "distil_weight", lambda},
             {S + "distil_skip", skip}}};
        LayerSizes without = sizes;
        without.settings[S + "distil_weight"] = 0;
        INFO(text_of(sizes));
        const Threads one(1);
        Case<seer> layer(sizes), undistilled(without);
        const Numbers dout = normal_numbers(layer.out.size(), 7);
        const int first_row = std::max(1, int(skip * ((330 + block - 1) / block)));
        layer.forward(), layer.backward(dout);
        undistilled.forward(), undistilled.backward(dout);
        CHECK(difference(layer.result(), undistilled.result(), {0}) == "");

        Case<seer> moved(sizes);
        auto loss = [&] {
            moved.forward();   // q and k before RoPE
            return distillation(layer, moved, block, lambda, 0, first_row, GateQuery(query));
        };
        CHECK(std::abs(sum_of(layer.auxiliary) - loss()) <= 1e-12 * loss());
        CHECK(loss() > 1);
        Numbers dqkv = layer.dqkv;
        for (size_t n = 0; n < dqkv.size(); n++) dqkv[n] -= undistilled.dqkv[n];
        CHECK(gradient_error(moved.qkv, dqkv, loss) <= 1e-8);
        CHECK(gradient_error(moved.weights, layer.dweights, loss) <= 1e-8);
        CHECK(tensor_error(layer, dout) <= 1e-8);
    }
}

TEST_CASE("distillation beside modulated attention leaves dense heads alone", "[attention]") {
    const LayerSizes sizes{1, 260, 4, 2, 8, {{A + "top_k", 1}, {A + "distil", 1}, {A + "dense_heads", 2}}};
    const Threads one(1);
    Case<adaptive_sparse> layer(sizes);
    const Numbers dout = normal_numbers(layer.out.size(), 7);
    layer.forward();
    CHECK(std::abs(sum_of(layer.auxiliary) - distillation(layer, layer, 64, 1, 2, 1, GateQuery::first)) <= 1e-11);
    CHECK(layer.auxiliary[0] == 0);
    CHECK(tensor_error(layer, dout) <= 1e-8);
}

TEST_CASE("distillation alone: dense attention without any gate, and only the gate is trained", "[attention]") {
    const std::string prefix = "model.layers.0.self_attn.";
    Case<adaptive_sparse> layer({1, 260, 2, 1, 8, {{A + "distil", 2}}});
    Case<seer> own({1, 260, 2, 1, 8, {{S + "distil", 2}, {S + "query", 2}}});
    Case<causal> dense({1, 260, 2, 1, 8, {}});
    const Numbers dout = normal_numbers(layer.out.size(), 7);
    layer.qkv = own.qkv = dense.qkv;
    layer.forward(), layer.backward(dout);
    own.forward(), own.backward(dout);
    dense.forward(), dense.backward(dout);
    CHECK(bit_difference(layer.result(), dense.out) == "");
    CHECK(bit_difference(layer.lse, dense.lse) == "");
    CHECK(bit_difference(own.result(), dense.out) == "");
    CHECK(sum_of(layer.auxiliary) > 1);
    const Threads one(1);
    CHECK(tensor_error(layer, dout) <= 1e-8);
    CHECK(tensor_error(own, dout) <= 1e-8);
    for (const char* name : {"adaptive_sparse.w_gq", "adaptive_sparse.w_gk"}) CHECK(layer.policy.trains(prefix + name));
    for (const char* name : {"adaptive_sparse.head.weight", "q_proj.weight"}) CHECK(!layer.policy.trains(prefix + name));
    CHECK(own.policy.trains(prefix + "seer.w_gq"));
    CHECK(Case<seer>({1, 1, 2, 1, 8, {}}).policy.trains(prefix + "q_proj.weight"));
}

TEST_CASE("distillation in a whole model: a part of the objective, per token, whatever the micro-steps", "[attention]") {
    const Threads one(1);
    Config config = config_of(ModelShape{});
    config.L = 1;   // one layer: the teacher does not depend on the gate
    config.settings = {{S + "top_k", 1}};
    Trial<double> whole(named("seer"), config, 2, 200, 2, 200), micro(named("seer"), config, 2, 200, 2, 200);
    const double loss = whole.loss_and_gradients();
    CHECK(whole.gpt.totals->auxiliary > 1);
    CHECK(std::abs(micro.loss_and_gradients(0, 1, Write::overwrite) + micro.loss_and_gradients(1, 1, Write::add) - loss) <= 1e-13 * loss);
    for (const Tensor& t : whole.gpt.net.tensors) {
        INFO(t.name);
        const Numbers gradient = whole.of(whole.gpt.gradients, t), direction = random_numbers<double>(t.slot.size, 23);
        CHECK(difference(micro.of(micro.gpt.gradients, t), gradient, {1e-12, 1e-15}) == "");
        if (t.name.find("seer.") == std::string::npos) continue;
        CHECK(std::abs(weighted_sum(gradient, direction) - slope_along(whole, t, direction)) <= 1e-8);
        CHECK(std::abs(weighted_sum(gradient, direction)) > 1e-4);
    }
}

TEST_CASE("head gate: on, off, straight-through", "[attention]") {
    const HeadGate exact{0, 0, 0.3f, false, 0}, straight{0, 0, 0.3f, true, 0};
    CHECK(std::abs(exact.gate(0.0) - 0.5) < 1e-12);
    CHECK(exact.gate(-1.0) == 0);   // sigmoid(-1) = 0.27
    CHECK(exact.slope(-1.0) == 0);
    CHECK(straight.gate(-1.0) == 0);
    for (double u : {-1.0, 0.7}) CHECK(std::abs(straight.slope(u) - sigmoid(u) * (1 - sigmoid(u))) < 1e-12);
    CHECK(exact.slope(0.7) == straight.slope(0.7));
    Case<adaptive_sparse> without({1, 100, 2, 1, 8, {}}), with({1, 100, 2, 1, 8, {{A + "ste", 1}}});
    const Numbers dout = normal_numbers(with.out.size(), 7);
    without.forward(), without.backward(dout);
    with.forward(), with.backward(dout);
    CHECK(bit_difference(with.result(), without.result()) == "");
    CHECK(with.dweights != without.dweights);
}

TEST_CASE("adaptive_sparse and seer say whether their count of pairs is only a bound", "[attention]") {
    auto seers = [](const Settings& settings) { return Case<seer>({1, 1, 2, 1, 8, settings}).policy.expects_at_most(); };
    CHECK((!seers({}) && seers({{S + "threshold", 0.1}}) && !seers({{S + "threshold", 0.1}, {S + "distil", 2}})));
    auto blocks = [](const Settings& settings) {
        return Case<adaptive_sparse>({1, 1, 2, 1, 8, settings}).policy.expects_at_most();
    };
    CHECK((!blocks({}) && blocks({{A + "threshold", 0.1}}) && !blocks({{A + "threshold", 0.1}, {A + "mask", 0}})));
}

TEST_CASE("adaptive_sparse and seer say how many pairs and tiles they expect", "[attention]") {
    const auto count = [](const Settings& settings, int T) {
        return Case<seer>({1, 1, 2, 1, 8, settings}).policy.expected_pairs(2, T);
    };
    for (const Settings& dense : {Settings{{S + "top_k", 100}}, {{S + "distil", 2}, {S + "top_k", 1}}, {{S + "threshold", 0.1}}}) {
        CHECK(count(dense, 330).pairs == 330 * 331);
        CHECK(count(dense, 330).tiles == 6 * 7);
    }
    // 5 full blocks and 10 rows: each its own triangle; one past block of 64 keys but for the first.
    CHECK(count({{S + "top_k", 1}}, 330).pairs == 2 * (5 * 64 * 65 / 2 + 10 * 11 / 2 + (4 * 64 + 10) * 64));
    CHECK(count({{S + "top_k", 1}}, 330).tiles == 2 * (6 + 5));
    CHECK(count({{S + "top_k", 1}, {S + "sink", 1}}, 330).tiles == 2 * (6 + 5 + 4));
    CHECK(count({{S + "top_k", 1}, {S + "block", 128}}, 330).tiles == 2 * (3 * 3 + 2 * 4));
}

TEST_CASE("adaptive_sparse and seer say what distillation and decoding cost", "[attention]") {
    const auto policy = [](const Settings& settings) { return Case<seer>({1, 1, 2, 1, 8, settings}).policy; };
    CHECK(policy({{S + "distil", 1}}).further_pairs(2, 330) == 330 * 331);
    for (double distil : {0, 2}) CHECK(policy({{S + "distil", distil}}).further_pairs(2, 330) == 0);
    CHECK(policy({{S + "distil", 0}}).cached_keys(129) == 129 + 2 * 0.5 + 1.5);
    CHECK(policy({{S + "distil", 0}}).cached_keys(128) == 128 + 1 * 0.5 + 1.5);
    CHECK(policy({{S + "distil", 2}}).cached_keys(129) == 129);
}

TEST_CASE("adaptive_sparse: dense heads share no key head with others, and are not more than there are", "[attention]") {
    CHECK(mentions(refusal<adaptive_sparse>(4, 2, {{A + "dense_heads", 1}}), "multiple of 2"));
    CHECK(mentions(refusal<adaptive_sparse>(4, 4, {{A + "dense_heads", 5}}), "from 0 to 4"));
    CHECK(refusal<adaptive_sparse>(4, 4, {{A + "dense_heads", 3}}) == "");
}
