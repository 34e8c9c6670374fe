// ./tokenize --mask-prompts as a library: prompts and completions become shards with a loss mask.
#include "tests/tokenizing.h"

namespace {

constexpr int32_t END_OF_TEXT = 256, HIDDEN = -1;

TokenizeOptions masked(const TemporaryFolder& folder) {
    TokenizeOptions options = options_for(folder, {"a.jsonl"});
    options.val_fraction = 0;
    options.rules.mask_prompts = true;
    return options;
}

std::string line(const std::string& prompt, const std::string& completion) {
    return "{\"prompt\": \"" + prompt + "\", \"completion\": \"" + completion + "\", \"id\": 1}\n";
}

/// What the tokens, or the targets, of such documents must be.
std::vector<int32_t> expected(const std::vector<std::pair<std::string, std::string>>& documents, bool as_targets) {
    std::vector<int32_t> ids;
    for (const auto& [prompt, completion] : documents) {
        ids.push_back(END_OF_TEXT);
        for (const unsigned char byte : prompt) ids.push_back(as_targets ? HIDDEN : byte);
        for (const unsigned char byte : completion) ids.push_back(byte);
    }
    return ids;
}

const std::vector<std::pair<std::string, std::string>> three = {{"2 + 2 =", " 4"}, {"", "Hello."}, {"Name a colour:", " red"}};

std::string lines_of(const std::vector<std::pair<std::string, std::string>>& documents) {
    std::string lines;
    for (const auto& [prompt, completion] : documents) lines += line(prompt, completion);
    return lines;
}

}   // namespace

TEST_CASE("tokenize: with --mask-prompts completions count as targets, with the end-of-text behind them, and prompts do not") {
    const TemporaryFolder folder;
    write_text(file_in(folder, "a.jsonl"), lines_of(three));
    const TokenizeReport report = tokenize_files(masked(folder), no_progress);
    CHECK(tokens(folder, "train", false) == expected(three, false));
    CHECK(tokens(folder, "train", true) == expected(three, true));
    CHECK(report.manifest.documents == 3);
    CHECK(Shard(file_in(folder, "out/x_train_000001.bin")).masked());
    const uint64_t bytes = std::filesystem::file_size(file_in(folder, "out/x_train_000001.bin"));
    CHECK(report.manifest.shards[0].bytes == bytes);
}

TEST_CASE("tokenize: the mask follows its tokens over shards and splits, for any number of threads, and after a stop") {
    const TemporaryFolder folder;
    std::vector<std::pair<std::string, std::string>> many;
    for (int i = 0; i < 20000; i++) many.push_back({std::string(i % 211, 'p'), std::to_string(i) + std::string(i % 17, 'd')});
    write_text(file_in(folder, "a.jsonl"), lines_of(many));
    TokenizeOptions options = masked(folder);
    options.val_fraction = 0.25;
    options.shard_tokens = 100003;
    options.threads = 1;
    const TokenizeReport one = tokenize_files(options, no_progress);
    const auto cut = many.begin() + 15000;
    const std::vector<std::pair<std::string, std::string>> train(many.begin(), cut), val(cut, many.end());
    CHECK(one.manifest.shards.size() > 15);
    for (const bool as_targets : {false, true}) {
        CHECK(tokens(folder, "train", as_targets) == expected(train, as_targets));
        CHECK(tokens(folder, "val", as_targets) == expected(val, as_targets));
    }
    options.out = file_in(folder, "stopped");
    options.threads = 3;
    int stops = 0;
    while (!run_until(options, 250000)) REQUIRE(++stops < 100);
    CHECK(stops > 0);
    for (const ShardInfo& shard : one.manifest.shards)
        CHECK(file_hash(file_in(folder, "stopped/" + shard.file)) == shard.xxh64);
}

TEST_CASE("tokenize: what is no prompt with a completion is refused with file, line and way out") {
    const TemporaryFolder folder;
    const auto refused = [&](const std::string& text, const std::vector<std::string>& parts, TokenizeOptions options) {
        write_text(file_in(folder, "a.jsonl"), text);
        CAPTURE(text);
        CHECK(says(error_of([&] { tokenize_files(options, no_progress); }), Exit::data, parts));
    };
    const TokenizeOptions options = masked(folder);
    const std::string good = line("a", "b");
    refused(good + "{\"prompt\": \"a\"}\n", {"a.jsonl:2", "the key \"completion\" is missing", "--mask-prompts"}, options);
    refused(good + "{\"text\": \"a\"}\n", {"a.jsonl:2", "the key \"prompt\" is missing"}, options);
    refused(good + "{\"prompt\": [\"a\"], \"completion\": \"b\"}\n",
            {"a.jsonl:2", "\"prompt\" is an array, expected a string"}, options);
    refused(good + good + line("a", ""), {"a.jsonl:3", "completion is empty"}, options);
    refused(good + "[]\n", {"a.jsonl:2", "is not a JSON object"}, options);
    refused(good + "{\"prompt\": \"a\", \"completion\n", {"a.jsonl:2", "has no end"}, options);
    TokenizeOptions divided = options;
    divided.val_fraction = 0.1;
    refused(good, {"a.jsonl", "--val-fraction 0"}, divided);
    TokenizeOptions unmasked = options;
    unmasked.rules.mask_prompts = false;
    refused(good, {"a.jsonl:1", "the key \"text\" is missing", "--mask-prompts"}, unmasked);
    refused("{\"prompt\": \"a\"}\n", {"the key \"text\" is missing", "--text-field"}, unmasked);

    write_text(file_in(folder, "b.txt"), "text");
    TokenizeOptions text = options;
    text.inputs.push_back(file_in(folder, "b.txt"));
    const Error error = error_of([&] { tokenize_files(text, no_progress); });
    CHECK(says(error, Exit::usage, {"b.txt", "is text, and --mask-prompts reads JSON Lines"}));
}
