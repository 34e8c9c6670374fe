// What the training program says about attention: averages over rows, the alarm, a model whose attention is known, pictures.
#include <cmath>
#include <fstream>

#include "attention/adaptive_sparse.cuh"
#include "attention/asga.cuh"
#include "attention/nsa.cuh"
#include "model/mask.cuh"
#include "tests/catch.h"
#include "tests/temporary_folder.h"
#include "tests/threads.h"
#include "tests/whole_model.h"

TEST_CASE("attention report: averages per head over rows that have something to average", "[monitor]") {
    // Two sequences of two tokens, two heads. Rows (b, h, i): head 0 sees one key or two, head 1 nothing or one.
    const double ln2 = std::log(2.0);
    BranchReport r;
    add_layer(r, {2, 2, 2, {0, ln2, 0, 0, 0, ln2 / 2, 0, 0}, {1, 2, 0, 1, 1, 2, 0, 1}, {1, 0, 1, 1},
                  {0.5, 0.25, 0, 1, 0.25, 0.5, 0, 0.5}, {0, 1, 0.5, 1, 0, 0, 0, 0.5}});
    CHECK(r.entropy[0][0] == 1.5 * ln2 / 4);
    CHECK(r.normalised[0][0] == 0.75);
    CHECK(std::isnan(r.normalised[0][1]));   // no row of head 1 has a choice
    CHECK(r.pairs[0][0] == 1);               // of (T + 1) / 2 = 1.5 keys per row
    CHECK(r.pairs[0][1] == 0.5 / 1.5);
    CHECK(r.tiles[0][0] == 1);
    CHECK(r.tiles[0][1] == 0.5);
    CHECK(r.gate[0][0] == 0.125);            // tokens come first in a gate: 0, 0.5, 0, 0
    CHECK(r.gate_off[0][0] == 0.75);
    CHECK(r.gate[0][1] == 0.625);
    CHECK(r.gate_off[0][1] == 0.25);
    CHECK(r.pair_gate[0][0] == 0.25);        // 1.5 of six pairs
    CHECK(r.pair_gate[0][1] == 0.75);
    CHECK(mean_of(r.normalised) == 0.75);    // of what there is
    const std::string all = summary_of({r});
    CHECK(all == "entropy 0.13 nats (0.75 of log keys), pairs 66.7%, tiles 75.0%, gate 0.38 (50.0% off), pair gate 0.50");
    r.gate = r.pair_gate = {{NAN, NAN}};
    CHECK(summary_of({r}).find("gate") == std::string::npos);
    r.normalised = {{NAN, NAN}};
    CHECK(summary_of({r}) == "entropy 0.13 nats, pairs 66.7%, tiles 75.0%");
}

TEST_CASE("attention report: branches have tables of their own, pairs and tiles add up", "[monitor]") {
    auto report_of = [](const char* name, double number) {
        const HeadTable table = {{number, number / 2}};
        return BranchReport{name, table, table, table, table, table, table, table};
    };
    const AttentionReport r = {report_of("near", 0.5), report_of("far", 0.25)};
    CHECK(sum_of(r, &BranchReport::pairs) == HeadTable{{0.75, 0.375}});
    CHECK(summary_of(r).substr(0, 44) == "pairs 56.2%, tiles 56.2%; near: entropy 0.38");
    CHECK(summary_of(r).find("; far: entropy 0.19 nats (0.19 of log keys), pairs 18.8%") != std::string::npos);

    const std::vector<CollapseWatch::Head> collapsed = {{1, 0, 1}};
    std::vector<std::string> keys;
    for (const auto& [key, table] : tables_of(r, collapsed)) {
        keys.push_back(key);
        if (key == "pairs" || key == "tiles") CHECK(table == HeadTable{{0.75, 0.375}});
        else if (key == "collapsed.near") CHECK(table.empty());
        else if (key == "collapsed.far") CHECK(table == HeadTable{{0, 1}});
        else CHECK(table == (key.ends_with(".near") ? r[0].pairs : r[1].pairs));
    }
    const std::vector<std::string> of_one = {"entropy", "normalised_entropy", "pairs",     "tiles",
                                             "gate",    "gate_off",           "pair_gate", "collapsed"};
    std::vector<std::string> expected = {"pairs", "tiles"};
    for (const char* branch : {".near", ".far"})
        for (const std::string& key : of_one) expected.push_back(key + branch);
    CHECK(keys == expected);
    keys.clear();
    for (const auto& [key, table] : tables_of({report_of("", 1)}, {})) keys.push_back(key);
    CHECK(keys == of_one);
}

TEST_CASE("attention report: a head that collapses is named once, one that was sharp from the start never", "[monitor]") {
    CollapseWatch watch;
    AttentionReport r(2);
    r[1].name = "slc";
    auto look = [&](const HeadTable& first, const HeadTable& second) {
        r[0].normalised = first, r[1].normalised = second;
        return watch.look(r);
    };
    CHECK(look({{0.8, 0.06}, {0.9, NAN}}, {{0.5, 0.5}, {0.5, 0.5}}) == "");
    CHECK(look({{0.8, 0.04}, {0.06, NAN}}, {{0.5, 0.5}, {0.5, 0.5}}) == "");   // 0.04 is more than half of 0.06
    const std::string warning = look({{0.8, 0.04}, {0.01, NAN}}, {{0.5, 0.5}, {0.5, 0.5}});
    CHECK(warning.find("layer 1 head 0 (0.010 of log keys, 0.900 at first)") != std::string::npos);
    CHECK(warning.find("layer 0") == std::string::npos);
    CHECK(watch.look(r) == "");
    CHECK(watch.collapsed() == std::vector<CollapseWatch::Head>{{0, 1, 0}});
    CHECK(look({{0.8, 0.02}, {0.5, 0.0}}, {{0.5, 0.5}, {0.5, 0.5}}).find("layer 0 head 1 (") != std::string::npos);
    CHECK(watch.collapsed() == std::vector<CollapseWatch::Head>{{0, 0, 1}});
    const std::string of_branch = look({{0.8, 0.02}, {0.5, 0.0}}, {{0.5, 0.5}, {0.5, 0.0}});
    CHECK(of_branch.ends_with(": layer 1 head 1 of slc (0.000 of log keys, 0.500 at first)"));
    CHECK(watch.collapsed() == std::vector<CollapseWatch::Head>{{0, 0, 1}, {1, 1, 1}});
    CHECK(look({{0.01, 0.02}, {0.01, 0.0}}, {{0.01, 0.01}, {0.01, 0.01}}).ends_with(" and 1 more"));   // five new ones
}

TEST_CASE("statistics of branches lie one behind the other", "[monitor]") {
    std::vector<double> numbers(400);
    double* const p = numbers.data();
    const Statistics<double> all{p, p + 100, p + 200, p + 300, nullptr}, last = all.of_branch(2, 10, 3);
    CHECK((last.entropy == p + 20 && last.pairs == p + 220 && last.tiles == p + 306));
    CHECK((last.tile_max == nullptr && last.pair_gate == nullptr && all.of_branch(0, 10, 3).pairs == p + 200));
}

/// What a monitor sees of a model on its tokens, with weights that `change` has set.
template <class Change>
AttentionReport look_at(Trial<double>& trial, Change change) {
    const Config& c = trial.gpt.net.config;
    for (const auto& layer : trial.gpt.net.layers) change(layer);
    Monitor<CPU, double> monitor(trial.B + 1, trial.T + 5, c.NH, trial.gpt.net.variant.branch_names());   // room for more than is looked at
    monitor.allocate();
    AttentionReport report;
    for (int look = 0; look < 2; look++) {   // the second is not added to the first
        gpt_forward(CPU{}, trial.gpt, trial.feed.put(CPU{}, trial.tokens.data(), nullptr, trial.B, trial.T), &monitor);
        report = monitor.take_report();
    }
    return report;
}

/// Whether every layer and head has this number.
bool everywhere(const HeadTable& table, const Config& c, double expected) {
    bool same = table.size() == size_t(c.L);
    for (const auto& layer : table) {
        same = same && layer.size() == size_t(c.NH);
        for (double number : layer)
            same = same && (std::isnan(expected) ? std::isnan(number) : std::abs(number - expected) <= 1e-12);
    }
    return same;
}

TEST_CASE("a monitored model without queries attends uniformly", "[monitor]") {
    const Threads one(1);
    Trial<double> trial(named("causal"), Form{});
    const Config& c = trial.gpt.net.config;
    const AttentionReport report = look_at(trial, [&](const auto& layer) {   // q_proj is the first part of the fused projection
        std::fill_n(trial.gpt.weights + layer.qkv.offset, size_t(c.NH) * c.HS * c.C, 0.0);
    });
    REQUIRE(report.size() == 1);
    double entropy = 0;
    for (int i = 0; i < trial.T; i++) entropy += std::log(i + 1.0) / trial.T;
    const BranchReport& r = report[0];
    CHECK((r.name.empty() && everywhere(r.entropy, c, entropy) && everywhere(r.normalised, c, 1)));
    CHECK((everywhere(r.pairs, c, 1) && everywhere(r.tiles, c, 1)));
    CHECK((everywhere(r.gate, c, NAN) && everywhere(r.gate_off, c, NAN) && everywhere(r.pair_gate, c, NAN)));
}

TEST_CASE("a monitor shows the gates on pairs: of asga, of adaptive_sparse's blocks", "[monitor]") {
    const Threads one(1);
    Trial<double> pairs(named("asga"), Form{});
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

TEST_CASE("a monitor shows each of nsa's branches: entropy, pairs, tiles and gate", "[monitor]") {
    const Threads one(1);
    Config config = config_of({});   // blocks of 4 every 2, a window of 9
    config.settings["nsa_selected"] = 3;
    const int T = 330;
    Trial<double> trial(named("nsa"), config, 2, T, 2, T);
    const AttentionReport report = look_at(trial, [&](const auto& layer) {   // uniform weights; one gate of 1/2 in each branch
        std::fill_n(trial.gpt.weights + layer.qkv.offset, size_t(config.NH) * config.HS * config.C, 0.0);
        for (int n = 0; n < 3; n++)
            std::fill_n(trial.gpt.weights + policy_of<nsa>(*layer.attention).w_g.offset + (n * config.NH + n + 1) * config.C, config.C, 0.0);
    });
    REQUIRE(report.size() == 3);
    CHECK((report[0].name == "cmp" && report[1].name == "slc" && report[2].name == "win"));
    double seen[3] = {}, entropy[3] = {};
    for (int i = 0; i < T; i++) {
        const int keys[] = {i < 3 ? 0 : (i - 3) / 2 + 1, i < 192 ? i + 1 : 128 + i % 64 + 1, std::min(i, 9) + 1};
        for (int n = 0; n < 3; n++) seen[n] += keys[n], entropy[n] += keys[n] ? std::log(keys[n]) / T : 0;
    }
    // Of six query tiles; cmp has half as many keys.
    const double tiles[] = {1 + 1 + 2 + 2 + 3 + 3, 1 + 2 + 3 + 3 + 3 + 3, 1 + 5 * 2};
    for (int n = 0; n < 3; n++) {
        const BranchReport& r = report[n];
        INFO(r.name);
        CHECK(everywhere(r.pairs, config, seen[n] / (T * (T + 1) / 2)));
        CHECK(everywhere(r.tiles, config, tiles[n] / 21));
        CHECK((everywhere(r.entropy, config, entropy[n]) && everywhere(r.normalised, config, 1)));
        CHECK((everywhere(r.gate_off, config, 0) && everywhere(r.pair_gate, config, NAN)));
        for (const auto& layer : r.gate)
            for (int h = 0; h < config.NH; h++) CHECK((std::abs(layer[h] - 0.5) <= 1e-12) == (h == n + 1));
    }
    const PairCount expected = trial.gpt.net.layers[0].attention->expected_pairs(1, T);
    CHECK(everywhere(sum_of(report, &BranchReport::pairs), config, expected.pairs / (T * (T + 1) / 2)));
    CHECK(everywhere(sum_of(report, &BranchReport::tiles), config, expected.tiles / 21));
}

TEST_CASE("the picture of a mask: found from outputs alone, one picture where heads agree", "[monitor]") {
    const Threads one(1);
    Trial<float> trial(named("asga_fixed"), config_of({}), 1, 67, 1, 67);   // a window of 9, heads of 6
    trial.loss();
    const int T = trial.T, NH = trial.gpt.net.config.NH;
    std::vector<uint8_t> expected;
    for (int h = 0; h < NH; h++)
        for (int i = 0; i < T; i++)
            for (int j = 0; j < T; j++) expected.push_back(j <= i && i - j <= 9);
    CHECK(seen_pairs(trial.gpt, T) == expected);
    const Picture all = draw_mask(expected, NH, T);
    CHECK((all.width == 3 * T && all.height == 3 * T));            // enlarged to about 256
    CHECK((all.grey[0] == 0 && all.grey[3] == 255 && all.grey[size_t(3) * 3 * T] == 0));
    expected[0] = 0;
    const Picture apart = draw_mask(expected, NH, T);              // two by two, with lines of four pixels
    CHECK((apart.width == 6 * T + 4 && apart.height == 6 * T + 4));
    CHECK((apart.grey[0] == 255 && apart.grey[3 * T] == 160 && apart.grey[3 * T + 4] == 0));
}

TEST_CASE("the picture of a mask: of nsa the keys that are read one by one", "[monitor]") {
    const Threads one(1);
    Config config = config_of({});
    config.settings["nsa_selected"] = 3;   // the first block, the own one and the one before; the window of 9 reaches no further
    Trial<float> trial(named("nsa"), config, 1, 270, 1, 270);
    trial.loss();
    const int T = trial.T;
    std::vector<uint8_t> expected;
    for (int h = 0; h < config.NH; h++)
        for (int i = 0; i < T; i++)
            for (int j = 0; j < T; j++) expected.push_back(j <= i && (j / 64 == 0 || j / 64 >= i / 64 - 1));
    CHECK(seen_pairs(trial.gpt, T) == expected);
}

TEST_CASE("pictures: a graymap as it is, a PNG with right checksums and all its pixels", "[monitor]") {
    const TemporaryFolder folder;
    auto bytes_of = [&](const std::string& name, const Picture& p) {
        const std::string path = (folder / name).string();
        write_picture(path, p);
        std::ifstream file(path, std::ios::binary);
        return std::string(std::istreambuf_iterator<char>(file), {});
    };
    Picture small(2, 1, 255);
    small.at(1, 0) = 7;
    CHECK(bytes_of("a.pgm", small) == "P5\n2 1\n255\n\xff\x07");
    // Made with Python's zlib and binascii: the row 00 ff 07.
    const std::string png = bytes_of("a.png", small);
    CHECK(png.substr(0, 8) == "\x89PNG\r\n\x1a\n");
    CHECK(png.substr(12, 13) == std::string("IHDR\0\0\0\2\0\0\0\1\x08", 13));
    CHECK(png.substr(29, 4) == std::string("\321\111\040\126", 4));
    CHECK(png.substr(41, 14) == std::string("\170\001\001\003\000\374\377\000\377\007\002\010\001\007", 14));
    CHECK(bytes_of("b.png", Picture(300, 400, 9)).size() == 8 + 25 + 12 + 2 + 2 * 5 + 400 * 301 + 4 + 12);   // two blocks
    CHECK_THROWS(write_picture((folder / "no/such/folder.png").string(), small));
    CHECK_THROWS(write_picture((folder / "a.jpg").string(), small));
}
