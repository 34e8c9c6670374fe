// Text that appears while it is written, against the same text at once.
#include <random>

#include "model/generate/text_stream.h"
#include "tests/catch.h"

namespace {

/// What a stream writes of the pieces; `before` gets what stands there before finish().
std::string written(const std::vector<std::string>& pieces, std::string* before = nullptr) {
    std::FILE* const file = std::tmpfile();
    auto content = [&] {
        std::string all(size_t(std::ftell(file)), '\0');
        std::rewind(file);
        return all.resize(std::fread(all.data(), 1, all.size(), file)), all;
    };
    TextStream stream(file);
    for (const std::string& piece : pieces) stream.add(piece);
    if (before) *before = content();
    stream.finish();
    const std::string all = content();
    std::fclose(file);
    return all;
}

}   // namespace

TEST_CASE("stream: a character appears when it is complete", "[stream]") {
    std::string before;
    CHECK(written({"a", "\xe2\x82"}, &before) == "a\xef\xbf\xbd");
    CHECK(before == "a");
    CHECK(written({"\xe2", "\x82", "\xac!"}, &before) == "\xe2\x82\xac!");
    CHECK(before == "\xe2\x82\xac!");
    CHECK(written({"\xf0\x9f\x98", "x"}, &before) == "\xef\xbf\xbdx");
    CHECK(before == "\xef\xbf\xbdx");
}

TEST_CASE("stream: however text is cut into pieces, the same bytes come out as of the whole", "[stream]") {
    std::mt19937 random(1);
    const std::string bytes = "a\n\x80\xbf\xc2\xa9\xc3\xe2\x82\xac\xed\xa0\x80\xf0\x9f\x98\x80\xf5\xff";
    for (int trial = 0; trial < 2000; trial++) {
        std::string whole;
        for (unsigned n = random() % 20; n > 0; n--) whole += bytes[random() % bytes.size()];
        std::vector<std::string> pieces;
        for (size_t at = 0; at < whole.size(); at += pieces.back().size()) pieces.push_back(whole.substr(at, 1 + random() % 4));
        REQUIRE(written(pieces) == replace_invalid_utf8(whole));
    }
}

TEST_CASE("stream: a disk that is full is told", "[stream]") {
    std::FILE* const full = std::fopen("/dev/full", "w");
    TextStream stream(full);
    CHECK_THROWS_AS(stream.add("text"), Error);
    std::fclose(full);
}
