// Pictures of masks: what is drawn, and the files.
#include <fstream>

#include "model/run/mask.cuh"
#include "tests/temporary_folder.h"
#include "tests/whole_model.h"

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
