// What the training program says about attention: averages over rows, the alarm, a model whose attention is known, pictures.
#include <cmath>
#include <fstream>

#include "attention/asga_fixed.cuh"
#include "attention/causal.cuh"
#include "attention/nsa.cuh"
#include "model/mask.cuh"
#include "tests/catch.h"
#include "tests/temporary_folder.h"
#include "tests/threads.h"
#include "tests/whole_model.h"

TEST_CASE("attention report: averages per head over rows that have something to average", "[monitor]") {
    // Two sequences of two tokens, two heads. Rows (b, h, i): head 0 sees one key or two, head 1 nothing or one.
    const double ln2 = std::log(2.0);
    AttentionReport r;
    add_layer(r, {2, 2, 2, {0, ln2, 0, 0, 0, ln2 / 2, 0, 0}, {1, 2, 0, 1, 1, 2, 0, 1}, {1, 0, 1, 1}, {0, 1, 0.5, 1, 0, 0, 0, 0.5}});
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
    CHECK(mean_of(r.normalised) == 0.75);    // of what there is
    CHECK(summary_of(r).find("gate") != std::string::npos);
    r.gate = {{NAN, NAN}};
    CHECK(summary_of(r).find("gate") == std::string::npos);
}

TEST_CASE("attention report: a head that collapses is named once, one that was sharp from the start never", "[monitor]") {
    CollapseWatch watch;
    AttentionReport r;
    r.normalised = {{0.8, 0.06}, {0.9, NAN}};
    CHECK(watch.look(r) == "");
    r.normalised = {{0.8, 0.04}, {0.06, NAN}};
    CHECK(watch.look(r) == "");   // 0.04 is more than half of 0.06, and 0.06 is not below 0.05
    r.normalised = {{0.8, 0.04}, {0.01, NAN}};
    const std::string warning = watch.look(r);
    CHECK(warning.find("layer 1 head 0 (0.010 of log keys, 0.900 at first)") != std::string::npos);
    CHECK(warning.find("layer 0") == std::string::npos);
    CHECK(watch.look(r) == "");
    CHECK(watch.collapsed() == std::vector<CollapseWatch::Head>{{1, 0}});
    r.normalised = {{0.8, 0.02}, {0.5, 0.0}};
    CHECK(watch.look(r).find("layer 0 head 1") != std::string::npos);
    CHECK(watch.collapsed() == std::vector<CollapseWatch::Head>{{0, 1}});
}

TEST_CASE("a monitored model without queries attends uniformly", "[monitor]") {
    const Threads one(1);
    Trial<double, causal> trial(Form{});
    const Config& c = trial.gpt.net.config;
    for (const auto& layer : trial.gpt.net.layers)   // q_proj is the first part of the fused projection
        std::fill_n(trial.gpt.weights + layer.qkv.offset, size_t(c.NH) * c.HS * c.C, 0.0);
    Monitor<CPU, double> monitor(3, trial.T + 5, c.NH);   // room for more than is looked at
    monitor.allocate();
    for (int look = 0; look < 2; look++) {
        gpt_forward(CPU{}, trial.gpt, trial.feed.put(CPU{}, trial.tokens.data(), nullptr, trial.B, trial.T), &monitor);
        const AttentionReport r = monitor.take_report();
        REQUIRE(r.entropy.size() == size_t(c.L));
        double entropy = 0;
        for (int i = 0; i < trial.T; i++) entropy += std::log(i + 1.0) / trial.T;
        for (int l = 0; l < c.L; l++)
            for (int h = 0; h < c.NH; h++) {
                CHECK(std::abs(r.entropy[l][h] - entropy) <= 1e-12);
                CHECK(std::abs(r.normalised[l][h] - 1) <= 1e-12);
                CHECK((r.pairs[l][h] == 1 && r.tiles[l][h] == 1 && std::isnan(r.gate[l][h])));
            }
    }
}

TEST_CASE("the picture of a mask: found from outputs alone, one picture where heads agree", "[monitor]") {
    const Threads one(1);
    Trial<float, asga_fixed> trial(config_of({}), 1, 67, 1, 67);   // a window of 9, heads of 6
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
    Trial<float, nsa> trial(config, 1, 270, 1, 270);
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
