// Prompts from a file, and the file of what was written behind them.
#include <fstream>

#include "model/base/json.h"
#include "model/generate/output.h"
#include "tests/errors.h"
#include "tests/temporary_folder.h"

namespace {

const auto bytes = open_tokenizer("bytes");

std::vector<Prompt> prompts_of(const std::string& lines, const Tokenizer* tokenizer = bytes.get(), int64_t positions = 8) {
    const TemporaryFolder folder;
    std::ofstream(folder / "prompts.jsonl") << lines;
    return read_prompts((folder / "prompts.jsonl").string(), tokenizer, 512, positions);
}

void refused(const std::string& lines, const std::string& part, const Tokenizer* tokenizer = bytes.get()) {
    INFO("expected: " << part);
    CHECK(says(error_of([&] { prompts_of(lines, tokenizer); }), Exit::data, {part}));
}

/// A text of `written` behind the prompt of that number.
Text text_of(const std::vector<Prompt>& prompts, size_t number, const std::vector<int32_t>& written) {
    Text text{number, prompts[number].ids, prompts[number].ids.size(), {}};
    text.ids.insert(text.ids.end(), written.begin(), written.end());
    return text;
}

std::vector<std::string> lines_of(const std::string& path) {
    std::ifstream file(path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
}

}   // namespace

TEST_CASE("prompts: text, ids, seeds, blank lines, and the end of text where there is neither", "[generate]") {
    const auto prompts = prompts_of("{\"prompt\": \"ab\", \"seed\": 7}\n\n{\"prompt_ids\": [300, 1]}\n{\"prompt\": \"\"}\n");
    REQUIRE(prompts.size() == 3);
    CHECK(prompts[0].ids == std::vector<int32_t>{'a', 'b'});
    CHECK(prompts[0].seed == 7);
    CHECK(prompts[1].ids == std::vector<int32_t>{300, 1});
    CHECK(!prompts[1].seed);
    CHECK(prompts[2].ids == std::vector<int32_t>{256});
}

TEST_CASE("prompts: what is wrong with a line is told with its number", "[generate]") {
    refused("", "prompts.jsonl: has no prompts");
    refused("{\"prompt\": \"a\"}\n{\"prompt\": \"a\"\n", ":2: is not JSON");
    refused("[1]\n", ":1: is not a JSON object");
    refused("{\"text\": \"a\"}\n", ":1: expected either \"prompt\" or \"prompt_ids\"");
    refused("{\"prompt\": \"a\", \"prompt_ids\": [1]}\n", "either");
    refused("{\"prompt\": 5}\n", ":1: \"prompt\" is 5");
    refused("{\"prompt_ids\": 5}\n", "not a list");
    refused("{\"prompt_ids\": [1, 2.5]}\n", "2.5");
    refused("{\"prompt_ids\": [1, 512]}\n", "512 is not in the model's vocabulary 0..511");
    refused("{\"prompt_ids\": [4294967297]}\n", ":1: 4294967297 is not in");
    refused("{\"prompt\": \"a\", \"x\": " + std::string(200000, '[') + std::string(200000, ']') + "}\n", "levels deep");
    refused("{\"prompt\": \"" + std::string(longest_json_line, 'a') + "\"}\n", "the line is longer than");
    refused("{\"prompt\": \"123456789\"}\n", "has 9 tokens, but the model reads 8");
    refused("{\"prompt\": \"a\", \"seed\": -1}\n", "\"seed\" is -1");
    refused("{\"prompt\": \"a\"}\n", "has no tokenizer.json", nullptr);
    refused("{\"prompt_ids\": []}\n", "is empty; give at least one id", nullptr);
}

TEST_CASE("prompts: texts are written in the order of the prompts, with all that their lines had", "[generate]") {
    const TemporaryFolder folder;
    const std::string path = (folder / "texts.jsonl").string();
    const auto prompts = prompts_of("{\"prompt\": \"a\", \"id\": \"x\", \"ids\": [7], \"stopped\": true}\n{\"prompt\": \"b\"}\n{\"prompt\": \"c\"}\n{\"prompt\": \"d\"}\n");
    TextLines lines(path, prompts, bytes.get(), 5);
    std::ofstream(path) << "of an earlier run\n";
    lines.end(text_of(prompts, 1, {'B', 0xff}), TextEnd::length);
    CHECK(lines_of(path) == std::vector<std::string>{"of an earlier run"});   // the line of the first prompt is to come
    lines.end(text_of(prompts, 0, {'A', 256}), TextEnd::end_of_text);
    REQUIRE(lines_of(path).size() == 2);
    // What an earlier run wrote for the first line, ids and that it was stopped, is gone.
    CHECK(parse_json(lines_of(path)[0]) == parse_json(R"({"prompt": "a", "id": "x", "text": "A", "tokens": 2, "ended": true})"));
    CHECK(parse_json(lines_of(path)[1]) == parse_json(R"({"prompt": "b", "text": "B\ufffd", "tokens": 2, "ended": false})"));
    lines.end(text_of(prompts, 3, {'D'}), TextEnd::stopped);
    CHECK(lines_of(path).size() == 2);
    lines.end(text_of(prompts, 2, {'C'}), TextEnd::stopped);
    REQUIRE(lines_of(path).size() == 4);
    CHECK(parse_json(lines_of(path)[3]) ==
          parse_json(R"({"prompt": "d", "text": "D", "tokens": 1, "ended": false, "stopped": true})"));
}

TEST_CASE("prompts: without a tokenizer their texts are ids; a file that cannot be written is named", "[generate]") {
    const auto prompts = prompts_of("{\"prompt_ids\": [5]}\n", nullptr);
    const TemporaryFolder folder;
    TextLines lines((folder / "ids").string(), prompts, nullptr, 5);
    lines.end(text_of(prompts, 0, {6, 7}), TextEnd::length);
    CHECK(parse_json(lines_of((folder / "ids").string()).at(0))["ids"] == std::vector<int>{6, 7});
    CHECK(says(error_of([&] { TextLines("/nowhere/texts", prompts, nullptr, 5); }), Exit::data, {"/nowhere/texts"}));
    TextLines full("/dev/full", prompts, nullptr, 5);
    CHECK(says(error_of([&] { full.end(text_of(prompts, 0, {6}), TextEnd::length); }), Exit::data, {"/dev/full"}));
}
