// Byte-level BPE tokenizers: the ids of the tokenizers library (tests/fixtures/tokenizers), added tokens, every tokenizer.json
// that is refused, and where shards have theirs.
#include <fstream>
#include <thread>

#include "data/manifest.h"
#include "data/stream.h"
#include "tests/shards.h"
#include "tests/tokenizer_files.h"

namespace {

using nlohmann::json;
using Ids = std::vector<uint32_t>;

const std::string fixtures = (std::filesystem::path(__FILE__).parent_path() / "fixtures/tokenizers/").string();

std::unique_ptr<Tokenizer> fixture(const std::string& name) { return open_tokenizer(fixtures + name + "_tokenizer.json"); }

std::vector<json> fixture_lines() {
    std::vector<json> lines;
    std::ifstream file(fixtures + "texts.jsonl");
    for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
    return lines;
}

std::string text_of(const json& line) {
    if (line.contains("text")) return line["text"];
    const std::string hex = line["hex"];
    std::string bytes;
    for (size_t i = 0; i < hex.size(); i += 2) bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    return bytes;
}

}  // namespace

TEST_CASE("tokenizers: the ids of the tokenizers library, and the text back", "[tokenizer]") {
    const std::vector<json> lines = fixture_lines();
    REQUIRE(lines.size() > 300);
    for (const std::string name : {"gpt2", "qwen", "llama", "prefix"}) {
        const auto tokenizer = fixture(name);
        for (const json& line : lines) {
            const std::string text = text_of(line), valid = replace_invalid_utf8(text);
            INFO(name << ": " << line.dump().substr(0, 300));
            const Ids ids = ids_of(*tokenizer, text);
            REQUIRE(ids == line[name].get<Ids>());
            if (name == "gpt2" || name == "llama") REQUIRE(text_of(*tokenizer, ids) == valid);
            if (name == "qwen") REQUIRE(nfc_of(text_of(*tokenizer, ids)) == nfc_of(valid));
            size_t bytes = 0;
            for (const uint32_t id : ids) bytes += size_t(tokenizer->bytes(id));
            REQUIRE(bytes == text_of(*tokenizer, ids).size());
        }
    }
}

TEST_CASE("tokenizers: many threads share one, and what was encoded before makes no difference", "[tokenizer]") {
    const auto tokenizer = fixture("qwen");
    const std::vector<json> lines = fixture_lines();
    std::vector<int> wrong(4, 0);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < wrong.size(); ++t)
        threads.emplace_back([&, t] {
            for (size_t i = 0; i < 3 * lines.size(); ++i) {
                const json& line = lines[(i * 7 + t * 31) % lines.size()];
                wrong[t] += ids_of(*tokenizer, text_of(line)) != line["qwen"].get<Ids>();
            }
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == std::vector<int>(4, 0));
}

TEST_CASE("tokenizers: both ways of writing merges; the order of the list is the order of merging", "[tokenizer]") {
    json file = small_tokenizer();
    CHECK(ids_of(*made(file), "abc bcab") == Ids{258, 32, 257, 256});
    file["model"]["merges"] = json::parse(R"([["a", "b"], ["b", "c"], ["ab", "c"]])");
    CHECK(ids_of(*made(file), "abc bcab") == Ids{258, 32, 257, 256});
    file["model"]["merges"] = {"b c", "a b", "ab c"};
    CHECK(ids_of(*made(file), "abc") == Ids{'a', 257});
    file["model"]["merges"] = {"#version: 0.2", "a b", "b c", "a b"};   // of two entries for a pair the last counts
    CHECK(ids_of(*made(file), "abc") == Ids{'a', 257});
    file["model"]["merges"] = {"b c"};
    CHECK(ids_of(*made(file), "abc") == Ids{'a', 257});
    file["model"]["ignore_merges"] = true;
    CHECK(ids_of(*made(file), "abc") == Ids{258});
    CHECK(ids_of(*made(file), "abca") == Ids{'a', 257, 'a'});
}

TEST_CASE("tokenizers: specials are no text, other added tokens are, the longest at the leftmost place", "[tokenizer]") {
    json file = small_tokenizer();
    file["added_tokens"].push_back(added_token(260, "<x>", false));
    file["added_tokens"].push_back(added_token(261, "<x>ab", false));
    file["added_tokens"].push_back(added_token(262, "<y>", true));
    const auto tokenizer = made(file);
    CHECK(tokenizer->vocabulary() == 263);
    CHECK(tokenizer->end_of_text() == 259);
    CHECK(ids_of(*tokenizer, "ab<x>ab<x>a<<x>") == Ids{256, 261, 260, 'a', '<', 260});
    CHECK(ids_of(*tokenizer, "<y>") == Ids{'<', 'y', '>'});
    CHECK(ids_of(*tokenizer, "<|endoftext|>").size() == 13);
    CHECK(tokenizer->decode(std::vector<int32_t>{259, 256, 262, 261, 258}) == "ab<x>ababc");
    CHECK(tokenizer->decode(std::vector<int32_t>{97, -1, 263, 98}) == "a\xEF\xBF\xBD\xEF\xBF\xBD" "b");
    CHECK(tokenizer->bytes(258) == 3);
    CHECK(tokenizer->bytes(261) == 5);
    CHECK(tokenizer->bytes(259) == 0);
    CHECK(tokenizer->bytes(263) == 0);
    CHECK(tokenizer->name() == "t.json");
    CHECK(json::parse(tokenizer->json()) == file);
    file["added_tokens"][2]["normalized"] = true;   // looked for in what the others leave
    CHECK(ids_of(*made(file), "<x>ab") == Ids{260, 256});
}

TEST_CASE("tokenizers: no token is found within a special one or across its end", "[tokenizer]") {
    json file = small_tokenizer();
    file["added_tokens"].push_back(added_token(260, "<|s<t>|>", true));
    file["added_tokens"].push_back(added_token(261, "<t>", false));
    file["added_tokens"].push_back(added_token(262, ">|>b", false));
    file["added_tokens"].push_back(added_token(263, "<|s<t>|>!", false));
    const auto tokenizer = made(file);
    CHECK(ids_of(*tokenizer, "a<|s<t>|>b<t>") == Ids{97, 60, 124, 115, 60, 116, 62, 124, 62, 98, 261});
    CHECK(ids_of(*tokenizer, "<t>|>b") == Ids{261, 124, 62, 98});
    CHECK(ids_of(*tokenizer, "<|s<t>|>!") == Ids{263});   // the longer one
    file["added_tokens"][2]["normalized"] = true;   // looked for in what the others leave, of which the special one is a part
    CHECK(ids_of(*made(file), "a<|s<t>|>b") == Ids{97, 60, 124, 115, 261, 124, 62, 98});
}

TEST_CASE("tokenizers: a special token inside the vocabulary cannot be typed", "[tokenizer]") {
    json file = small_tokenizer();
    file["model"]["vocab"]["<|endoftext|>"] = 259;
    file["model"]["ignore_merges"] = true;
    file["pre_tokenizer"] = byte_level(false);   // the whole text is one piece
    CHECK(ids_of(*made(file), "<|endoftext|>").size() == 13);
    CHECK(made(file)->bytes(259) == 0);
    file["added_tokens"][0]["special"] = false;   // what stands between documents never is text
    CHECK(ids_of(*made(file), "<|endoftext|>").size() == 13);
}

TEST_CASE("tokenizers: which token stands in front of documents", "[tokenizer]") {
    json file = small_tokenizer();
    file["added_tokens"] = {added_token(259, "<s>", true), added_token(260, "</s>", true)};
    CHECK(made(file, R"({"eos_token": "</s>"})")->end_of_text() == 260);
    CHECK(made(file, R"({"eos_token": {"content": "<s>", "lstrip": false}})")->end_of_text() == 259);
    CHECK(made(file, R"({"eos_token": "</s>"})")->config_json() == R"({"eos_token": "</s>"})");
    CHECK(says(error_of([&] { made(file); }), {"t.json", "<|endoftext|>", "tokenizer_config.json", "eos_token"}));
    CHECK(says(error_of([&] { made(file, R"({"eos_token": "</e>"})"); }), {"t.json", "eos_token </e>"}));
    CHECK(says(error_of([&] { made(file, "{"); }), {"t.json: its tokenizer_config.json", "not JSON"}));
    file["added_tokens"].push_back(added_token(261, "<|endoftext|>", true));
    CHECK(made(file, R"({"eos_token": "</s>"})")->end_of_text() == 261);
    CHECK(json::parse(made(file)->config_json())["eos_token"] == "<|endoftext|>");
}

TEST_CASE("tokenizers: what is not supported is refused with field, value and what is", "[tokenizer]") {
    const json split = split_by("a+")["pretokenizers"][0];
    const auto sequence = [](const json& parts) { return json{{"type", "Sequence"}, {"pretokenizers", parts}}; };
    struct Case {
        const char* pointer;
        json value;
        std::vector<std::string> expected;
    };
    const std::vector<Case> cases = {
        {"/version", "2.0", {"version is \"2.0\"", "\"1.0\""}},
        {"/normalizer", {{"type", "NFKC"}}, {"normalizer.type is \"NFKC\"", "NFC"}},
        {"/normalizer", 7, {"normalizer is 7", "an object"}},
        {"/pre_tokenizer", nullptr, {"pre_tokenizer is missing or null", "ByteLevel, or a Sequence"}},
        {"/pre_tokenizer", {{"type", "Whitespace"}}, {"pre_tokenizer.type is \"Whitespace\"", "ByteLevel, or a Sequence"}},
        {"/pre_tokenizer/add_prefix_space", nullptr, {"pre_tokenizer.add_prefix_space is missing or null", "true or false"}},
        {"/pre_tokenizer", sequence(json::array()), {"pretokenizers is an array"}},
        {"/pre_tokenizer", sequence({split, split}), {"pretokenizers[1].type is \"Split\""}},
        {"/pre_tokenizer", sequence({{{"type", "Digits"}}, byte_level(true)}), {"[0].type is \"Digits\""}},
        {"/pre_tokenizer", sequence({split, byte_level(false, true)}), {"[1].add_prefix_space is true"}},
        {"/decoder", {{"type", "WordPiece"}}, {"decoder.type is \"WordPiece\"", "ByteLevel"}},
        {"/model/type", "Unigram", {"model.type is \"Unigram\"", "BPE"}},
        {"/model/dropout", 0.1, {"model.dropout is 0.1", "null"}},
        {"/model/unk_token", "<unk>", {"model.unk_token is \"<unk>\"", "null"}},
        {"/model/byte_fallback", true, {"model.byte_fallback is true", "false"}},
        {"/model/end_of_word_suffix", "</w>", {"model.end_of_word_suffix is \"</w>\""}},
        {"/model/continuing_subword_prefix", "##", {"model.continuing_subword_prefix is \"##\""}},
        {"/model/vocab", json::array(), {"model.vocab is an array"}},
        {"/model/vocab/ab", -1, {"model.vocab.ab is -1", "an id"}},
        {"/model/vocab/ab", 4e9, {"model.vocab.ab is 4000000000.0"}},
        {"/model/vocab/ab", 257, {"model.vocab: id 257 is both \"ab\" and \"bc\""}},
        {"/model/merges", nullptr, {"model.merges is missing or null", "a list"}},
        {"/model/merges/1", "b  c", {"model.merges[1] is \"b  c\"", "[\"left\", \"right\"]"}},
        {"/model/merges/1", {"b"}, {"model.merges[1] is an array"}},
        {"/model/merges/1", {"b", 7}, {"model.merges[1][1] is 7"}},
        {"/model/merges/1", "b d", {"model.merges[1]: \"b\" and \"d\" need \"bd\""}},
        {"/added_tokens/0/id", 300, {"added_tokens[0].id is 300", "259"}},
        {"/added_tokens/0/content", "", {"added_tokens[0].content is \"\""}},
        {"/added_tokens/0/content", "ab", {"added_tokens[0].id is 259", "256", "\"ab\""}},
        {"/added_tokens/1", added_token(260, "<|endoftext|>", true), {"added_tokens[1].content", "once"}},
        {"/added_tokens/1", {{"id", 260}, {"content", "<x>"}, {"lstrip", true}}, {"added_tokens[1].lstrip is true", "not special"}},
    };
    for (const Case& bad : cases) {
        json file = small_tokenizer();
        file[json::json_pointer(bad.pointer)] = bad.value;
        const Error error = error_of([&] { made(file); });
        INFO(bad.pointer);
        CHECK(says(error, Exit::data, {"t.json: "}));
        CHECK(says(error, bad.expected));
    }
    json without_z = small_tokenizer();
    without_z["model"]["vocab"].erase("z");
    CHECK(says(error_of([&] { made(without_z); }), {"model.vocab", "\"z\" for the byte 122", "all 256 bytes"}));
    CHECK_NOTHROW(made(small_tokenizer()));
}

TEST_CASE("tokenizers: regular expressions that Oniguruma and PCRE2 read differently are refused", "[tokenizer]") {
    for (const char* regex : {"^a", "a$", "\\w+", "\\bx", "\\h", "[[:alpha:]]", "[a[b]]", "[a&&b]", "[]a]", "[^]a]", "(?i)a",
                              "(?m:a)", "(?<n>a)", "(*FAIL)", "a{,3}", "a{x}", "a{1,3}+", "a{2}?", "a{2", "\\p{Han}", "\\p{^L}", "\\pL",
                              "\\p{L", "\\x41", "\\1", "a\\"}) {
        json file = small_tokenizer();
        file["pre_tokenizer"] = split_by(regex);
        INFO(regex);
        CHECK(says(error_of([&] { made(file); }), Exit::data, {"t.json: pre_tokenizer", regex, "not supported"}));
    }
    json file = small_tokenizer();
    file["pre_tokenizer"] = split_by("(a|b");
    CHECK(says(error_of([&] { made(file); }), {"t.json: pre_tokenizer", "(a|b", "wrong near", "parenthesis"}));
    for (const char* regex : {"a{2}", "a{2,}|b{1,3}", "(?>a+)b", "(?<!a)b", "a++b?+", "[^a\\]\\-b]", "\\.\\[", "\\P{Lu}"}) {
        file["pre_tokenizer"] = split_by(regex);
        CHECK_NOTHROW(made(file));
    }
}

TEST_CASE("tokenizers: pieces are the matches and what lies between them", "[tokenizer]") {
    json file = small_tokenizer();
    file["pre_tokenizer"] = split_by("c");   // ab is one piece, c another: no abc
    CHECK(ids_of(*made(file), "abcab") == Ids{256, 'c', 256});
    file["pre_tokenizer"] = split_by("(?=c)|x*");   // an empty match cuts as well
    CHECK(ids_of(*made(file), "abcé") == Ids{'a', 'b', 'c', 0xC3, 0xA9});
    json& parts = file["pre_tokenizer"]["pretokenizers"];
    parts.insert(parts.begin(), split_by("a")["pretokenizers"][0]);
    CHECK(ids_of(*made(file), "aab") == Ids{'a', 'a', 'b'});
    file["pre_tokenizer"] = byte_level(false, true);
    CHECK(ids_of(*made(file), "ab") == Ids{32, 256});
    CHECK(ids_of(*made(file), " ab") == Ids{32, 256});
    CHECK(ids_of(*made(file), "").empty());
}

TEST_CASE("tokenizers: classes of characters are Unicode's", "[tokenizer]") {
    json file = small_tokenizer();
    file["model"]["vocab"][visible(0x8E) + "!"] = 259;   // the last byte of U+180E, which is no White_Space, and what follows
    file["model"]["vocab"][visible(0xA3) + "3"] = 260;   // of U+0663, a digit
    file["model"]["merges"] = {visible(0x8E) + " !", visible(0xA3) + " 3"};
    file["added_tokens"][0]["id"] = 261;
    file["pre_tokenizer"] = split_by("\\S+");
    CHECK(ids_of(*made(file), "\u180E!") == Ids{0xE1, 0xA0, 259});
    file["pre_tokenizer"] = split_by("\\s");
    CHECK(ids_of(*made(file), "\u180E!") == Ids{0xE1, 0xA0, 259});
    file["pre_tokenizer"] = split_by("\\d+");
    CHECK(ids_of(*made(file), "\u0663" "3") == Ids{0xD9, 260});
}

TEST_CASE("open_tokenizer takes a file or a folder and says what is wrong with either", "[tokenizer]") {
    const TemporaryFolder folder;
    const std::string file = file_in(folder, "tokenizer.json");
    const Error missing = error_of([&] { open_tokenizer(folder.path().string()); });
    CHECK(says(missing, Exit::usage, {folder.path().string(), "bytes", "tokenizer.json", "does not exist"}));
    write_text(file, "{\n\"version\": \"1.0\",\n,");
    CHECK(says(error_of([&] { open_tokenizer(file); }), {file, "not JSON", "line 3"}));
    write_text(file, "[]");
    CHECK(says(error_of([&] { open_tokenizer(file); }), {file, "is not a JSON object"}));
    write_text(file, small_tokenizer().dump());
    CHECK(open_tokenizer(folder.path().string())->name() == file);
    CHECK(open_tokenizer(file, 260)->vocabulary() == 260);
    CHECK(says(error_of([&] { open_tokenizer(file, 259); }), Exit::data, {file, "260 ids", "259"}));
    CHECK_NOTHROW(open_tokenizer("bytes", 257));

    write_text(file_in(folder, "x_tokenizer.json"), small_tokenizer().dump());
    write_text(file_in(folder, "x_tokenizer_config.json"), R"({"eos_token": "<|endoftext|>", "mine": 1})");
    CHECK(says(error_of([&] { open_tokenizer("gpt3"); }), {"gpt3"}));
    CHECK(json::parse(open_tokenizer(file_in(folder, "x_tokenizer.json"))->config_json())["mine"] == 1);
    CHECK(same_tokenizer(file, file_in(folder, "x_tokenizer.json")));
    CHECK_FALSE(same_tokenizer(file, file_in(folder, "x_tokenizer_config.json")));
    CHECK_FALSE(same_tokenizer(file, "bytes"));
    CHECK_FALSE(same_tokenizer("", file));
}

TEST_CASE("stream: the tokenizer that the manifest names lies beside it", "[tokenizer]") {
    const TemporaryFolder folder;
    const auto make = [&](const std::string& stem, const std::string& tokenizer) {
        write_shard(file_in(folder, stem + "_train_000001.bin"), ramp(5), 300);
        const std::string shard = stem + "_train_000001.bin";
        const Manifest manifest = {tokenizer, 260, 1, 5, {{shard, 5, 1034, file_hash(file_in(folder, shard))}}};
        write_text(file_in(folder, stem + "_manifest.json"), manifest_to_json(manifest));
    };
    make("x", "x_tokenizer.json");
    const auto opened = [&](const std::string& glob) { return TokenStream(file_in(folder, glob), 300).tokenizer(); };
    CHECK(says(error_of([&] { opened("x_*.bin"); }), Exit::data, {"x_manifest.json", "x_tokenizer.json", "not in the same folder"}));
    write_text(file_in(folder, "x_tokenizer.json"), small_tokenizer().dump());
    CHECK(opened("x_*.bin") == file_in(folder, "x_tokenizer.json"));
    make("y", "y_tokenizer.json");
    write_text(file_in(folder, "y_tokenizer.json"), small_tokenizer().dump());
    CHECK(opened("*_train_*.bin") == file_in(folder, "x_tokenizer.json"));   // the same bytes under two names
    write_text(file_in(folder, "y_tokenizer.json"), small_tokenizer().dump(1));
    CHECK(says(error_of([&] { opened("*_train_*.bin"); }), {"y_tokenizer.json", "x_tokenizer.json", "cannot be mixed"}));
    make("y", "bytes");
    CHECK(opened("y_*.bin") == "bytes");
    for (const char* name : {"../y_tokenizer.json", "/etc/passwd", "./y_tokenizer.json", "..", ""}) {
        make("z", name);
        CHECK(says(error_of([&] { opened("z_*.bin"); }), {"z_manifest.json", name, "in the same folder"}));
    }
    const TemporaryFolder elsewhere;
    write_text(file_in(elsewhere, "t.json"), small_tokenizer().dump());
    std::filesystem::create_symlink(file_in(elsewhere, "t.json"), folder / "z_tokenizer.json");
    make("z", "z_tokenizer.json");
    CHECK(says(error_of([&] { opened("z_*.bin"); }), {"z_manifest.json", "a symbolic link to another folder"}));
}
