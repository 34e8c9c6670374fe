// ./tokenize as a library: documents, splits, shards, and that a run which fails leaves nothing behind; and the nearest option.
#include "model/base/options.h"
#include "tests/tokenizing.h"

namespace {

// What the tokens must be: every document behind an end-of-text.
std::vector<int32_t> documents(const std::vector<std::string>& texts) {
    std::vector<int32_t> expected;
    for (const std::string& text : texts) {
        expected.push_back(256);
        for (const unsigned char byte : text) expected.push_back(byte);
    }
    return expected;
}

// A run on files of a temporary folder, with the tokenizer of bytes.
struct TokenizeRun {
    TemporaryFolder folder;
    TokenizeOptions options = options_for(folder, {});

    // Writes a file, which is one of the inputs from now on.
    void input(const std::string& name, const std::string& text) {
        const std::string path = file_in(folder, name);
        write_text(path, text);
        if (std::count(options.inputs.begin(), options.inputs.end(), path) == 0) options.inputs.push_back(path);
    }
    TokenizeReport run() const { return tokenize_files(options, no_progress); }
    Error error() const { return error_of([&] { run(); }); }
    std::vector<std::string> names_out() const { return names_in(options.out); }
    void check(const std::vector<std::string>& train, const std::vector<std::string>& val) const {
        CHECK(tokens(folder, "train") == documents(train));
        CHECK(tokens(folder, "val") == documents(val));
    }
};

}  // namespace

TEST_CASE_METHOD(TokenizeRun, "tokenize: a single text is divided by its bytes") {
    input("a.txt", "0123456789abcdefghij");
    const TokenizeReport report = run();
    check({"0123456789abcdefgh"}, {"ij"});
    CHECK(report.train_tokens == 19);
    CHECK(report.val_tokens == 3);
    CHECK(report.manifest.documents == 1);
    CHECK(names_out() == std::vector<std::string>{"x_manifest.json", "x_train_000001.bin", "x_val_000000.bin"});
}

TEST_CASE_METHOD(TokenizeRun, "tokenize: the division does not cut a character in half") {
    input("a.txt", "12345678漢字");   // 14 bytes: the last 30% begin inside the first of the two
    options.val_fraction = 0.3;
    run();
    check({"12345678"}, {"漢字"});

    input("a.txt", "漢字");   // the first one is whole, too
    options.val_fraction = 0.9;
    run();
    check({"漢"}, {"字"});
}

TEST_CASE_METHOD(TokenizeRun, "tokenize: a single long text is divided anywhere, also where a piece of it ends") {
    const size_t piece = size_t{4} << 20;
    const std::string text = std::string(piece, 'a') + " " + std::string(piece - 1, 'b');   // cut in front of the space
    input("a.txt", text);
    for (const double val_fraction : {0.75, 0.5, 0.25}) {
        options.val_fraction = val_fraction;
        run();
        const auto train = static_cast<size_t>(2 * (1 - val_fraction) * static_cast<double>(piece));
        CHECK((tokens(folder, "train") == documents({text.substr(0, train)})));
        CHECK((tokens(folder, "val") == documents({text.substr(train)})));
    }
}

TEST_CASE_METHOD(TokenizeRun, "tokenize: the last documents of JSON Lines and several files are the validation set") {
    input("a.jsonl", "{\"text\":\"one\",\"n\":1}\n\n{\"n\":[{}],\"text\":\"tw\\u00e9\\n\"}\r\n{\"text\":\"\"}\n");
    input("b.txt", "four\n");
    input("c.jsonl", "{\"text\":\"five\"}");
    options.val_fraction = 0.4;
    const TokenizeReport report = run();
    check({"one", "twé\n", ""}, {"four\n", "five"});
    CHECK(report.manifest.documents == 5);
}

TEST_CASE_METHOD(TokenizeRun, "tokenize: without a validation set there is no validation shard") {
    input("a.jsonl", "{\"body\":\"one\"}\n{\"body\":\"two\"}\n");
    options.val_fraction = 0;
    options.rules.text_field = "body";
    run();
    CHECK(tokens(folder, "train") == documents({"one", "two"}));
    CHECK(names_out() == std::vector<std::string>{"x_manifest.json", "x_train_000001.bin"});
}

TEST_CASE_METHOD(TokenizeRun, "tokenize: --val-tokens takes the first documents, whole, and more input does not change them") {
    std::string lines;
    for (const char* text : {"one", "two", "three", "four"}) lines += std::string("{\"text\":\"") + text + "\"}\n";
    input("a.jsonl", lines);
    options.val_tokens = 5;          // the first document has 4 tokens, the first two have 8
    options.shard_tokens = 3;        // a bound for training only: the validation set is one file
    run();
    check({"three", "four"}, {"one", "two"});
    CHECK_FALSE(std::filesystem::exists(file_in(folder, "out/x_val_000001.bin")));
    const std::string pinned = file_hash(file_in(folder, "out/x_val_000000.bin"));
    input("a.jsonl", lines + lines);
    run();
    CHECK(file_hash(file_in(folder, "out/x_val_000000.bin")) == pinned);
    CHECK(tokens(folder, "train") == documents({"three", "four", "one", "two", "three", "four"}));

    options.val_tokens = 8;          // exactly two documents
    options.shard_tokens = 1000;
    run();
    CHECK(tokens(folder, "val") == documents({"one", "two"}));
    options.val_tokens = 1000;
    CHECK(says(error(), {"a.jsonl", "38 tokens", "--val-tokens 1000"}));
}

TEST_CASE_METHOD(TokenizeRun, "tokenize: blank lines divide a text where that is asked for") {
    input("a.txt", "\n \nfirst\n  line\n\n\t\r\nsecond\n\n\nthird\nend");
    options.rules.split_on_blank_line = true;
    run();
    check({"first\n  line\n", "second\n"}, {"third\nend"});
}

TEST_CASE("shard_series takes the names that ./tokenize gives and no others") {
    CHECK(shard_series("x_train_000001.bin") == "x");
    CHECK(shard_series("my_val_val_000000.bin") == "my_val");
    CHECK(shard_series("x_test_000001.bin").empty());
    CHECK(shard_series("x_train_00001.bin").empty());
    CHECK(shard_series("x_train_000001.bin.tmp").empty());
    CHECK(shard_series("").empty());
    CHECK(manifest_path("d/e/x_val_000000.bin") == "d/e/x_manifest.json");
    CHECK(manifest_path("x_train_000001.bin") == "x_manifest.json");
    CHECK(manifest_path("d/tokens.bin").empty());
}

TEST_CASE_METHOD(TokenizeRun, "tokenize: shards hold what --shard-tokens says and the manifest describes them") {
    input("a.txt", std::string(95, 'a') + std::string(5, 'b'));
    options.shard_tokens = 40;
    const TokenizeReport report = run();
    const Manifest manifest = manifest_from_json(read_small_file(report.manifest_path), report.manifest_path);
    REQUIRE(manifest.shards.size() == 4);
    CHECK(manifest.tokenizer == "bytes");
    CHECK(manifest.vocabulary == 512);
    CHECK(manifest.tokens == 102);
    CHECK(manifest.shards[0].file == "x_val_000000.bin");
    CHECK(manifest.shards[3].file == "x_train_000003.bin");
    CHECK(manifest.shards[1].tokens == 40);
    CHECK(manifest.shards[3].tokens == 11);
    for (const ShardInfo& shard : manifest.shards) {
        const std::string path = file_in(folder, "out/" + shard.file);
        CHECK(Shard(path).size() == shard.tokens);
        CHECK(std::filesystem::file_size(path) == shard.bytes);
        CHECK(file_hash(path) == shard.xxh64);
    }
    CHECK(TokenStream(file_in(folder, "out/x_train_*.bin"), 512).tokenizer() == "bytes");
    write_text(report.manifest_path, "{\"tokenizer\":");
    CHECK(says(error_of([&] { TokenStream(file_in(folder, "out/x_train_*.bin"), 512); }), {"x_manifest.json"}));
}

TEST_CASE_METHOD(TokenizeRun, "tokenize: a second run replaces the first and removes the shards that it has no more") {
    input("a.txt", std::string(100, 'a'));
    options.shard_tokens = 20;
    run();
    write_text(file_in(folder, "out/xx_train_000009.bin"), "not ours");
    options.shard_tokens = 1000;
    run();
    const std::vector<std::string> expected = {"x_manifest.json", "x_train_000001.bin", "x_val_000000.bin", "xx_train_000009.bin"};
    CHECK(names_out() == expected);
    CHECK(tokens(folder, "train") == documents({std::string(90, 'a')}));
}

TEST_CASE_METHOD(TokenizeRun, "tokenize: a broken line is named by file and line, and nothing is written") {
    const std::string good = "{\"text\":\"fine\"}\n";
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"{\"text\":null}\n", "null"},     {"{\"text\":[\"a\"]}\n", "array"},
        {"{\"text\":\"open\n", "has no end"}, {"{\"txt\":\"a\"}\n", "the key \"text\" is missing"}, {"{\"text\":7}\n", "\"text\" is 7"},
        {"[1]\n", "array"},       {"{\"text\":\"\xFF\"}\n", "UTF-8"},   {"{\"text\":\"\\ud800\"}\n", "surrogate"},
        {"{\"text\":1e999}\n", "1e999"},   {"nonsense\n", "invalid literal"},
    };
    for (const auto& [line, why] : cases) {
        input("a.jsonl", good + "\n" + line + good);
        CHECK(says(error(), Exit::data, {"a.jsonl:3: ", why}));
        CHECK(names_out().empty());
    }
}

TEST_CASE_METHOD(TokenizeRun, "tokenize: inputs and options that make no sense are refused") {
    for (const char* name : {"a.txt", "a.pdf"}) write_text(file_in(folder, name), "text");
    write_text(file_in(folder, "empty.txt"), "");
    const auto error_with = [&](const std::string& name, auto change) {
        options = options_for(folder, {name});
        change(options);
        return error();
    };
    const auto nothing = [](TokenizeOptions&) {};
    CHECK(error_with("none.txt", nothing).code == Exit::data);
    CHECK(error_with("", nothing).code == Exit::data);
    CHECK(says(error_with("empty.txt", nothing), {"empty.txt", "no text"}));
    CHECK(error_with("a.pdf", nothing).code == Exit::usage);
    CHECK(error_with("a.txt", [](TokenizeOptions& options) { options.name = "a/b"; }).code == Exit::usage);
    CHECK(error_with("a.txt", [](TokenizeOptions& options) { options.tokenizer = "gpt2"; }).code == Exit::usage);
    CHECK(error_with("a.txt", [](TokenizeOptions& options) { options.out = "/proc/none"; }).code == Exit::data);
    CHECK(error_with("a.txt", [&](TokenizeOptions& options) { options.out = file_in(folder, "a.txt"); }).code == Exit::data);
    CHECK(error_with("a.txt", nothing).code == Exit::done);
}

TEST_CASE("nearest finds slips of the fingers and nothing else") {
    const std::vector<std::string> options = {"--batch-size", "--seq-len", "--steps", "--out"};
    CHECK(nearest("--batchsize", options) == "--batch-size");
    CHECK(nearest("--seq_len", options) == "--seq-len");
    CHECK(nearest("--step", options) == "--steps");
    CHECK(nearest("--ouput", options) == "--out");
    CHECK(nearest("--temperature", options).empty());
}
