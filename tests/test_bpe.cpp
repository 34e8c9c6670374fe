// The parts of a byte-level BPE tokenizer by themselves: merging and its cache, NFC.
#include <algorithm>
#include <numeric>
#include <random>

#include "data/tokenizers/bpe.h"
#include "tests/catch.h"
#include "tests/tokenizer_files.h"

namespace {

using nlohmann::json;
using Ids = std::vector<uint32_t>;

// Byte-pair merging as it is defined, in quadratic time: ranks by the places of the merges in the list.
Ids merged_naively(const std::string& text, const std::vector<Merge>& merges) {
    Ids ids(text.begin(), text.end());
    while (true) {
        size_t best = merges.size(), place = 0;
        for (size_t i = 0; i + 1 < ids.size(); ++i)
            for (size_t rank = 0; rank < best; ++rank)
                if (merges[rank].left == ids[i] && merges[rank].right == ids[i + 1]) best = rank, place = i;
        if (best == merges.size()) return ids;
        ids[place] = merges[best].result;
        ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
    }
}

}  // namespace

TEST_CASE("merging: short and long pieces, against the definition", "[tokenizer]") {
    std::mt19937 generator(1);
    const auto random = [&](uint32_t below) { return generator() % below; };
    std::array<uint32_t, byte_values> bytes;
    std::iota(bytes.begin(), bytes.end(), 0u);
    for (int round = 0; round < 40; ++round) {
        std::vector<Merge> merges;
        for (uint32_t n = 0; n < 30; ++n) {
            const auto token = [&] { return static_cast<uint32_t>(random(2) && n ? 256 + random(n) : 'a' + random(3)); };
            merges.push_back({token(), token(), 256 + n});
        }
        std::erase_if(merges, [&](const Merge& m) {   // a pair counts once here
            const auto later = [&](const Merge& o) { return o.result > m.result && o.left == m.left && o.right == m.right; };
            return std::any_of(merges.begin(), merges.end(), later);
        });
        const BytePairEncoder encoder(bytes, merges, {});
        MergeScratch scratch;
        for (const size_t length : {1, 2, 3, 23, 24, 25, 47, 48, 49, 200}) {
            std::string piece;
            for (size_t i = 0; i < length; ++i) piece.push_back(static_cast<char>('a' + random(round % 2 ? 3 : 1)));
            for (int again = 0; again < 2; ++again) {   // the second time from the cache
                Ids ids = {7};
                encoder.encode(piece, scratch, ids);
                ids.erase(ids.begin());
                REQUIRE(ids == merged_naively(piece, merges));
            }
        }
    }
}

TEST_CASE("merging: a megabyte without a place to cut", "[tokenizer]") {
    json file = small_tokenizer();
    file["model"]["vocab"]["aa"] = 259;
    file["model"]["vocab"]["aaaa"] = 260;
    file["model"]["vocab"]["ĠĠ"] = 261;
    file["model"]["merges"] = {"a a", "Ġ Ġ", "aa aa"};
    file["added_tokens"][0]["id"] = 262;
    const auto tokenizer = made(file);
    const std::string text((1 << 20) + 3, 'a');
    Ids expected(1 << 18, 260);
    expected.insert(expected.end(), {259, 'a'});
    CHECK(ids_of(*tokenizer, text) == expected);
    CHECK(ids_of(*tokenizer, std::string(1 << 20, ' ')) == Ids(1 << 19, 261));
}

TEST_CASE("merging: more pieces than the cache holds, of few ids and of too many for it", "[tokenizer]") {
    const auto tokenizer = made(small_tokenizer());
    std::mt19937 generator(1);
    const auto letter = [&] { return static_cast<char>('d' + generator() % 20); };
    for (int n = 0; n < 200000; ++n) {
        std::string piece;
        Ids expected;
        for (int part = 0; part < 4; ++part) {   // "abc" is one id, other letters one each
            const std::string letters = {'x', letter(), letter()};
            const bool merges = generator() % 2;
            piece += merges ? "abc" : letters;
            if (merges) expected.push_back(258);
            else expected.insert(expected.end(), letters.begin(), letters.end());
        }
        REQUIRE(ids_of(*tokenizer, piece) == expected);
        REQUIRE(ids_of(*tokenizer, piece) == expected);
    }
}

TEST_CASE("NFC: composes, orders and keeps what has the form, without a copy", "[tokenizer]") {
    CHECK(nfc_of("e\u0301\u0301x") == "é\u0301x");
    CHECK(nfc_of("q\u0307\u0323") == "q\u0323\u0307");
    CHECK(nfc_of("\u212B\u2126") == "\u00C5\u03A9");
    CHECK(nfc_of("\u1100\u1161\u11A8\u11A8") == "\uAC01\u11A8");
    CHECK(nfc_of("\uAC00\u11A8") == "\uAC01");
    CHECK(nfc_of("\u0958") == "\u0915\u093C");       // excluded from composition
    CHECK(nfc_of("\u0301e\u0301") == "\u0301é");
    CHECK(nfc_of("").empty());
    std::string buffer = "old";
    for (const std::string text : {"plain", "naïve “quotes” 漢字 👍", "שָׁ", "नमस्ते", "\u0301", "x\u0323\u0307"}) {
        const std::string_view form = nfc(text, buffer);
        CHECK((form.data() == text.data()) == (form == text));
        CHECK(nfc_of(std::string(form)) == form);
    }
    std::string marks = "q", below, above;
    for (int n = 0; n < 100000; ++n) marks += "\u0307\u0323\u0301", below += "\u0323", above += "\u0307\u0301";
    CHECK(nfc_of(marks) == "q" + below + above);   // marks of one class keep their order
}
