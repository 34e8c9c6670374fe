// What the training program says about attention: averages over rows, the alarm, a model whose attention is known.
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "attention/adaptive_sparse.cuh"
#include "attention/asga.cuh"
#include "attention/nsa.cuh"
#include "tests/whole_model.h"

/// What a monitor sees of a model on its tokens, with weights that `change` has set.
template <class Change>
AttentionReport look_at(Trial<double>& trial, Change change) {
    for (const auto& layer : trial.gpt.net.layers) change(layer);
    Monitor<CPU, double> monitor(trial.B + 1, trial.T + 5, trial.gpt.net);   // room for more than is looked at
    monitor.allocate();
    AttentionReport report;
    for (int look = 0; look < 2; look++) {   // the second is not added to the first
        observed_forward(CPU{}, trial.gpt, trial.feed.put(CPU{}, trial.tokens.data(), nullptr, trial.B, trial.T), monitor);
        report = monitor.take_report();
    }
    return report;
}

TEST_CASE("attention report: averages per head over rows that have something to average", "[monitor]") {
    // Two sequences of two tokens, two heads. Rows (b, h, i): head 0 sees one key or two, head 1 nothing or one.
    const double ln2 = std::log(2.0);
    BranchReport r;
    add_layer(r, {2, 2, 2, {0, ln2, 0, 0, 0, ln2 / 2, 0, 0}, {1, 2, 0, 1, 1, 2, 0, 1}, {1, 0, 1, 1},
                  {0.5, 0.25, 0, 1, 0.25, 0.5, 0, 0.5}, {0, 1, 0.5, 1, 0, 0, 0, 0.5}, {}, {5, 1, 4, 2}});
    CHECK(r.entropy[0][0] == 1.5 * ln2 / 4);
    CHECK(r.normalised[0][0] == 0.75);
    CHECK(std::isnan(r.normalised[0][1]));   // no row of head 1 has a choice
    CHECK(r.pairs == HeadTable{{1, 0.5 / 1.5}});     // of (T + 1) / 2 = 1.5 keys per row
    CHECK(r.tiles == HeadTable{{1, 0.5}});
    CHECK(r.gate == HeadTable{{0.125, 0.625}});      // tokens come first in a gate: of head 0 it is 0, 0.5, 0, 0
    CHECK(r.gate_off == HeadTable{{0.75, 0.25}});
    CHECK(r.pair_gate == HeadTable{{0.25, 0.75}});   // of head 0 1.5 of six pairs
    CHECK(r.gate_reach == HeadTable{{5, 2}});
    CHECK(mean_of(r.normalised) == 0.75);    // of what there is
    const std::string all = summary_of({r});
    CHECK(all == "entropy 0.13 nats (0.75 of log keys), pairs 66.7%, tiles 75.0%, gate 0.38 (50.0% off), pair gate 0.50, farthest "
                 "gate argument 5.0");
    r.gate_reach[0][1] = 9;
    CHECK(summary_of({r}) == all.substr(0, all.size() - 3) + "9.0 (beyond 8: slower kernel in bf16)");
    r.gate = r.pair_gate = r.gate_reach = {{NAN, NAN}};
    CHECK(summary_of({r}).find("gate") == std::string::npos);
    std::vector<std::string> keys;
    for (const auto& [key, table] : tables_of({r}, {})) keys.push_back(key);
    CHECK(keys == std::vector<std::string>{"entropy", "normalised_entropy", "mass_95", "mass_99", "pairs", "tiles", "gate", "gate_off",
                                           "pair_gate", "gate_reach", "collapsed"});
    r.normalised = {{NAN, NAN}};
    CHECK(summary_of({r}) == "entropy 0.13 nats, pairs 66.7%, tiles 75.0%");
}

TEST_CASE("attention report: a head that collapses is named once, one that was sharp from the start never", "[monitor]") {
    CollapseWatch watch;
    AttentionReport r(2);
    r[1].name = "slc";
    auto look = [&](const HeadTable& first, const HeadTable& second) {
        r[0].normalised = first, r[1].normalised = second;
        return watch.observe(r);
    };
    CHECK(look({{0.8, 0.06}, {0.9, NAN}}, {{0.5, 0.5}, {0.5, 0.5}}) == "");
    CHECK(look({{0.8, 0.04}, {0.06, NAN}}, {{0.5, 0.5}, {0.5, 0.5}}) == "");   // 0.04 is more than half of 0.06
    const std::string warning = look({{0.8, 0.04}, {0.01, NAN}}, {{0.5, 0.5}, {0.5, 0.5}});
    CHECK(warning.find("layer 1 head 0 (0.010 of log keys, 0.900 at first)") != std::string::npos);
    CHECK(warning.find("layer 0") == std::string::npos);
    CHECK(watch.observe(r) == "");
    CHECK(watch.collapsed() == std::vector<CollapseWatch::Head>{{0, 1, 0}});
    CHECK(look({{0.8, 0.02}, {0.5, 0.0}}, {{0.5, 0.5}, {0.5, 0.5}}).find("layer 0 head 1 (") != std::string::npos);
    CHECK(watch.collapsed() == std::vector<CollapseWatch::Head>{{0, 0, 1}});
    const std::string of_branch = look({{0.8, 0.02}, {0.5, 0.0}}, {{0.5, 0.5}, {0.5, 0.0}});
    CHECK(of_branch.ends_with(": layer 1 head 1 of slc (0.000 of log keys, 0.500 at first)"));
    CHECK(watch.collapsed() == std::vector<CollapseWatch::Head>{{0, 0, 1}, {1, 1, 1}});
    CHECK(look({{0.01, 0.02}, {0.01, 0.0}}, {{0.01, 0.01}, {0.01, 0.01}}).ends_with(" and 1 more"));   // five new ones
}

TEST_CASE("concentration: the fewest keys that hold a share of the weight, of rows that see something", "[monitor]") {
    CHECK(keys_that_hold(0.95, {0.5, 0.45, 0.03, 0.02}) == 2);
    CHECK(keys_that_hold(0.99, {0.5, 0.45, 0.03, 0.02}) == 4);
    CHECK(keys_that_hold(0.95, {5, 4.4, 0.3, 0.3}) == 3);   // of their sum
    CHECK(keys_that_hold(0.95, std::vector<double>(20, 0.05)) == 19);
    CHECK(keys_that_hold(0.95, {}) == 0);
    CHECK(rows_to_weigh(3, 64) == std::vector<int32_t>{0, 1, 2});
    CHECK(rows_to_weigh(10, 4) == std::vector<int32_t>{1, 4, 6, 9});

    // Four rows and two heads, of which rows 1 and 3 are weighed; the second head's row 1 sees nothing, its row 3 three keys.
    BranchReport r;
    const std::vector<double> weights = {0.2, 0.8, 0, 0, 0, 0, 0, 0, 0.01, 0.94, 0.02, 0.03, 0, 0.05, 0.05, 0.9};
    const std::vector<double> some(8, 1), pairs = {1, 2, 3, 4, 1, 0, 3, 3};
    add_layer(r, {1, 2, 4, some, pairs, {1, 1}, some, {}, weights});
    CHECK((r.mass_95[0][0] == (2 / 2.0 + 2 / 4.0) / 2 && r.mass_99[0][0] == (2 / 2.0 + 3 / 4.0) / 2));
    CHECK((r.mass_95[0][1] == 2 / 3.0 && r.mass_99[0][1] == 1));
    add_layer(r, {1, 2, 4, some, pairs, {1, 1}, some, {}, {}});
    CHECK((std::isnan(r.mass_95[1][0]) && std::isnan(r.mass_99[1][1])));   // not measured
    add_layer(r, {1, 1, 1, {0}, {1}, {1}, {0}, {}, {NAN}});
    CHECK(std::isnan(r.mass_95[2][0]));                                    // of a model that has diverged
}

namespace {

/// The fewest keys that row i of head h gives `share` of its weight, by the softmax of its scores, as a share of its i + 1 keys.
double share_of_keys(double share, const LayerInputs<double>& in, int h, int i) {
    std::vector<double> p;
    for (int j = 0; j <= i; j++)
        p.push_back(std::exp(dot(in.query(in.q, 0, i, h), in.key(in.k, 0, j, h), in.HS) / std::sqrt(double(in.HS))));
    std::sort(p.rbegin(), p.rend());
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    int keys = 0;
    for (double held = 0; held < share * sum; held += p[keys++]) {}
    return keys / (i + 1.0);
}

}   // namespace

TEST_CASE("a monitor's concentration is that of the softmax of the scores, computed directly", "[monitor]") {
    const Threads one(1);
    for (int T : {37, 130}) {   // all rows are weighed, or 64; T is no multiple of the head size
        Trial<double> trial(named("causal"), config_of({}), 2, T, 2, T);
        const BranchReport report = look_at(trial, [](const Layer&) {})[0];
        const Config& c = trial.gpt.net.config;
        const std::vector<int32_t> rows = rows_to_weigh(T, 64);
        for (int l = 0; l < c.L; l++)
            for (int h = 0; h < c.NH; h++) {
                const LayerInputs<double> in = trial.gpt.attention_inputs(l, 1, T);
                double mass_95 = 0, mass_99 = 0;
                for (int i : rows) mass_95 += share_of_keys(0.95, in, h, i), mass_99 += share_of_keys(0.99, in, h, i);
                CHECK(std::abs(report.mass_95[l][h] - mass_95 / rows.size()) <= 1e-9);
                CHECK(std::abs(report.mass_99[l][h] - mass_99 / rows.size()) <= 1e-9);
                CHECK((0 < mass_95 && mass_95 < mass_99 && mass_99 < rows.size()));
            }
    }
}

/// Whether every head has this number in each of these layers (L), and NaN in the others.
bool in_layers(const std::vector<bool>& layers, const HeadTable& table, const Config& c, double expected) {
    bool same = table.size() == layers.size();
    for (size_t l = 0; same && l < layers.size(); l++) {
        same = table[l].size() == size_t(c.NH);
        for (double number : table[l])
            same = same && (!layers[l] || std::isnan(expected) ? std::isnan(number) : std::abs(number - expected) <= 1e-12);
    }
    return same;
}
bool everywhere(const HeadTable& table, const Config& c, double expected) {
    return in_layers(std::vector<bool>(c.L, true), table, c, expected);
}

/// Checks those of layers whose queries are all zero, so that each row weighs its keys alike.
void check_uniform_causal(const BranchReport& r, const std::vector<bool>& layers, const Config& c, int T) {
    double entropy = 0;
    for (int i = 0; i < T; i++) entropy += std::log(i + 1.0) / T;
    CHECK((r.name.empty() && r.in_layer == layers));
    CHECK((in_layers(layers, r.entropy, c, entropy) && in_layers(layers, r.normalised, c, 1)));
    CHECK((in_layers(layers, r.pairs, c, 1) && in_layers(layers, r.tiles, c, 1)));
    CHECK((everywhere(r.gate, c, NAN) && everywhere(r.gate_off, c, NAN) && everywhere(r.pair_gate, c, NAN)));
}

TEST_CASE("a monitor shows the gates on pairs: of asga, of adaptive_sparse's blocks", "[monitor]") {
    const Threads one(1);
    Trial<double> pairs(named("asga"), ModelShape{});
    const AttentionReport of_pairs = look_at(pairs, [&](const auto& layer) {   // s = sigmoid(b2)
        const asga& policy = policy_of<asga>(*layer.attention);
        std::fill_n(pairs.gpt.weights + policy.w2.offset, policy.w2.size, 0.0);
        std::fill_n(pairs.gpt.weights + policy.b2.offset, policy.b2.size, std::log(3.0));
    });
    const Config& c = pairs.gpt.net.config;
    CHECK((everywhere(of_pairs[0].pair_gate, c, 0.75) && everywhere(of_pairs[0].gate, c, NAN)));

    // Two blocks: a score of 0 opens the gate between them by half. The first of four heads is dense.
    Config config = config_of({.NKV = 4});
    config.settings["adaptive_sparse_dense_heads"] = 1;
    Trial<double> blocks(named("adaptive_sparse"), config, 1, 128, 1, 128);
    const AttentionReport of_blocks = look_at(blocks, [&](const auto& layer) {
        const Slot wq = policy_of<adaptive_sparse>(*layer.attention).wq;
        std::fill_n(blocks.gpt.weights + wq.offset, wq.size, 0.0);
    });
    const double all = 128 * 129 / 2, between = 64 * 64;
    for (const auto& layer : of_blocks[0].pair_gate)
        for (size_t h = 0; h < layer.size(); h++) CHECK(std::abs(layer[h] - (h == 0 ? 1 : 1 - between / 2 / all)) <= 1e-12);
}

namespace {

const int FEW_TILES = 330;   // tokens: five query tiles and a partial one

/// What a monitor sees with uniform weights and, in nsa's layers, one gate of 1/2 in each branch n, that of head n + 1.
AttentionReport look_at_uniform(const Variant& variant, const Config& config) {
    Trial<double> trial(variant, config, 2, FEW_TILES, 2, FEW_TILES);
    return look_at(trial, [&](const Layer& layer) {
        std::fill_n(trial.gpt.weights + layer.qkv.offset, size_t(config.NH) * config.HS * config.C, 0.0);
        const auto* of_nsa = dynamic_cast<const LayerOf<nsa>*>(layer.attention.get());
        for (int n = 0; of_nsa && n < 3; n++)
            std::fill_n(trial.gpt.weights + of_nsa->policy.w_g.offset + (n * config.NH + n + 1) * config.C, config.C, 0.0);
    });
}

/// Checks branch n of nsa in these layers. With three tiles chosen what each branch sees can be counted.
void check_uniform_nsa(const BranchReport& r, int n, const std::vector<bool>& layers, const Config& config) {
    const int T = FEW_TILES;
    double seen = 0, entropy = 0;
    for (int i = 0; i < T; i++) {
        const int keys[] = {i < 3 ? 0 : (i - 3) / 2 + 1, i < 192 ? i + 1 : 128 + i % 64 + 1, std::min(i, 9) + 1};
        seen += keys[n], entropy += keys[n] ? std::log(keys[n]) / T : 0;
    }
    // Of six query tiles; cmp has half as many keys.
    const double tiles[] = {1 + 1 + 2 + 2 + 3 + 3, 1 + 2 + 3 + 3 + 3 + 3, 1 + 5 * 2};
    INFO(r.name);
    CHECK((r.name == std::vector<std::string>{"cmp", "slc", "win"}[n] && r.in_layer == layers));
    CHECK(in_layers(layers, r.pairs, config, seen / (T * (T + 1) / 2)));
    CHECK(in_layers(layers, r.tiles, config, tiles[n] / 21));
    CHECK((in_layers(layers, r.entropy, config, entropy) && in_layers(layers, r.normalised, config, 1)));
    CHECK((in_layers(layers, r.gate_off, config, 0) && everywhere(r.pair_gate, config, NAN)));
    CHECK((everywhere(r.mass_95, config, NAN) && everywhere(r.mass_99, config, NAN)));   // its values are not the model's
    for (size_t l = 0; l < layers.size(); l++)
        for (int h = 0; h < config.NH; h++)
            CHECK((layers[l] ? (std::abs(r.gate[l][h] - 0.5) <= 1e-12) == (h == n + 1) : std::isnan(r.gate[l][h])));
}

// A layer of three softmaxes before one of a single softmax, and behind it.
constexpr const char* NSA_FIRST[] = {"nsa", "causal"};
constexpr const char* CAUSAL_FIRST[] = {"causal", "nsa"};

}   // namespace

TEST_CASE("a monitor of layers with one softmax and with three: each branch in its layers, by name", "[monitor]") {
    const Threads one(1);
    Config config = config_of({});   // blocks of 4 every 2, a window of 9
    config.settings["nsa_selected"] = 3;
    config.L = 3;
    const AttentionReport nsa_first = look_at_uniform(in_turn<NSA_FIRST>(), config);
    REQUIRE(nsa_first.size() == 4);
    for (int n = 0; n < 3; n++) check_uniform_nsa(nsa_first[n], n, {true, false, true}, config);
    check_uniform_causal(nsa_first[3], {false, true, false}, config, FEW_TILES);

    const AttentionReport causal_first = look_at_uniform(in_turn<CAUSAL_FIRST>(), config);
    REQUIRE(causal_first.size() == 4);
    check_uniform_causal(causal_first[0], {true, false, true}, config, FEW_TILES);
    for (int n = 0; n < 3; n++) check_uniform_nsa(causal_first[n + 1], n, {false, true, false}, config);

    const double all = FEW_TILES * (FEW_TILES + 1) / 2;   // of a layer the sum is that of its own branches
    const PairCount of_nsa = Qwen(named("nsa"), config).layers[0].attention->expected_pairs(1, FEW_TILES);
    const HeadTable pairs = sum_of(causal_first, &BranchReport::pairs), tiles = sum_of(causal_first, &BranchReport::tiles);
    for (int l : {0, 1, 2}) {
        CHECK(std::abs(pairs[l][0] - (l == 1 ? of_nsa.pairs / all : 1)) <= 1e-12);
        CHECK(std::abs(tiles[l][0] - (l == 1 ? of_nsa.tiles / 21 : 1)) <= 1e-12);
    }
}

TEST_CASE("a monitor has room for one layer, of whichever has the most branches", "[monitor]") {
    const Config config = config_of({});
    auto bytes = [&](const Variant& variant, int B) { return Monitor<CPU, float>(B, 67, Qwen(variant, config)).bytes(); };
    auto of_two_more = [&](const Variant& variant) { return bytes(variant, 4) - bytes(variant, 2); };   // unit values are for one
    CHECK(of_two_more(named("nsa")) > 2 * of_two_more(named("causal")));
    CHECK(bytes(in_turn<NSA_FIRST>(), 2) == bytes(named("nsa"), 2));
    CHECK(bytes(in_turn<CAUSAL_FIRST>(), 2) == bytes(named("nsa"), 2));
    CHECK(bytes(in_turn<NSA_FIRST>(), 0) == 0);
}

TEST_CASE("attention report: of layers with branches of their own, null where a layer lacks one", "[monitor]") {
    // Of each branch its number in every layer that has it. All statistics of two heads and three tokens are that, but the sink's pairs.
    const std::pair<const char*, std::array<double, 3>> branches[] = {
        {"near", {0.5, NAN, 3}}, {"far", {0.25, NAN, 1}}, {"", {NAN, 0.125, NAN}}, {"sink", {NAN, NAN, 2}}};
    AttentionReport report;
    for (const auto& [name, numbers] : branches) {
        BranchReport& r = report.emplace_back();
        r.name = name;
        for (int l = 0; l < 3; l++) {
            INFO("layer " << l << " " << name);
            const std::vector<double> rows(6, numbers[l]), pairs(6, r.name == "sink" ? NAN : numbers[l]), expected(2, numbers[l]);
            if (std::isnan(numbers[l])) add_layer_without(r, 2);
            else add_layer(r, {1, 2, 3, rows, pairs, expected, rows, rows});
            CHECK(r.in_layer[l] == !std::isnan(numbers[l]));
            CHECK((bit_difference(r.entropy[l], expected) == "" && bit_difference(r.gate[l], expected) == ""));
        }
    }

    std::map<std::string, HeadTable> logged;
    const auto tables = tables_of(report, {{2, 1, 1}});
    for (const auto& [key, table] : tables) logged[key] = table;
    CHECK(logged.size() == tables.size());   // no key twice
    CHECK((logged["tiles"][0][0] == 0.75 && logged["tiles"][1][0] == 0.125 && logged["tiles"][2][0] == 6));
    CHECK((logged["pairs"][0][0] == 0.375 && logged["pairs"][1][0] == 0.0625 && std::isnan(logged["pairs"][2][0])));   // not known
    CHECK((logged["tiles.far"][0][0] == 0.25 && std::isnan(logged["tiles.far"][1][0]) && logged["tiles.far"][2][0] == 1));
    CHECK((std::isnan(logged["entropy"][0][0]) && logged["entropy"][1][0] == 0.125 && std::isnan(logged["entropy"][2][0])));
    CHECK((logged["collapsed"] == HeadTable{{1, 1}} && logged["collapsed.far"].empty()));
    CHECK(summary_of(report).find("; far: entropy 0.62 nats") != std::string::npos);
    CHECK(summary_of(report).find("; one softmax: entropy 0.12 nats") != std::string::npos);
    CollapseWatch watch;
    CHECK((watch.observe(report) + watch.observe(report)).empty());   // what is not there does not collapse
}
