// Multiple choice: reading items, scoring answers, and what a model finds likely.
#include <cmath>

#include "data/evaluation.h"
#include "model/run/shared_contexts.cuh"
#include "tests/shards.h"

namespace {

EvaluationTask read_lines(const std::string& lines, int context = 64) {
    const TemporaryFolder folder;
    write_text(file_in(folder, "items.jsonl"), lines);
    return read_evaluation({file_in(folder, "items.jsonl"), "items"}, open_tokenizer("bytes").get(), 512, context, 0);
}

std::string text_of(const Answer& answer, size_t from, size_t to) { return {answer.tokens.begin() + from, answer.tokens.begin() + to}; }
std::string context_of(const Answer& answer) { return text_of(answer, 0, answer.begin); }
std::string answer_of(const Answer& answer) { return text_of(answer, answer.begin, answer.tokens.size()); }

// An evaluation file in llm.c's layout: the header, then `numbers` of `size` bytes.
std::string evaluation_file(uint32_t version, uint32_t items, const std::vector<uint32_t>& numbers, int size) {
    std::string bytes;
    const auto put = [&](uint32_t value, int width) {
        for (int n = 0; n < width; n++) bytes += char(value >> (8 * n) & 0xFF);
    };
    for (const uint32_t value : {20240522u, version, items}) put(value, 4);
    bytes.resize(1024);
    for (const uint32_t value : numbers) put(value, size);
    return bytes;
}

EvaluationTask read_bytes(const std::string& bytes, const Tokenizer* tokenizer = nullptr, int64_t limit = 0) {
    const TemporaryFolder folder;
    write_text(file_in(folder, "items.bin"), bytes);
    return read_evaluation({file_in(folder, "items.bin"), "items"}, tokenizer, 100000, 64, limit);
}

const std::vector<uint32_t> two_items = {65535, 0, 0, 1, 2, 3, 10, 11, 12, 2, 20, 21, 1, 30,   // context 10 11 12
                                         65535, 0, 1, 0, 2, 1, 65, 1, 32, 3, 32, 66, 67};      // context 65

// Items with one token of context and answers of the given lengths, in tokens and characters.
EvaluationItem item_of(int gold, std::vector<std::pair<int, int>> sizes) {
    EvaluationItem item;
    item.gold = gold;
    for (const auto& [tokens, characters] : sizes) item.answers.push_back({std::vector<int32_t>(1 + tokens), 1, characters});
    return item;
}

}   // namespace

TEST_CASE("evaluation: answers follow the query behind a space, or the white space that ends it") {
    const EvaluationTask task = read_lines("{\"query\": \"A man\", \"choices\": [\"runs.\", \"s\u00fc\u00df\"], \"gold\": 1}\n"
                                           "\n"
                                           "{\"query\": \"Why?\\n\", \"choices\": [\"a\", \"b\", \"c\"], \"gold\": 0}\n"
                                           "{\"query\": \"\", \"choices\": [\"a\", \"b\"], \"gold\": 0}");
    REQUIRE(task.items.size() == 3);
    CHECK(task.labels.empty());
    const auto& [first, second, third] = std::tie(task.items[0], task.items[1], task.items[2]);
    CHECK(first.gold == 1);
    CHECK(context_of(first.answers[0]) == "A man");
    CHECK(answer_of(first.answers[0]) == " runs.");
    CHECK(first.answers[0].characters == 5);
    CHECK(first.answers[1].characters == 3);   // of five bytes
    CHECK(first.answers[1].length() == 6);
    CHECK(second.line == 3);
    CHECK(context_of(second.answers[2]) == "Why?");
    CHECK(answer_of(second.answers[2]) == "\nc");
    CHECK(second.answers[2].characters == 1);
    CHECK(third.answers[1].tokens == std::vector<int32_t>{256, 'b'});   // behind nothing stands the end of the text before
    CHECK(third.answers[1].begin == 1);
}

TEST_CASE("evaluation: white space beyond ASCII that ends a query belongs to the answer, and what is none does not") {
    const auto ending_in = [](const std::string& end) {
        return read_lines("{\"query\": \"Why?" + end + "\", \"choices\": [\"a\", \"b\"], \"gold\": 0}");
    };
    for (const char* space : {"\u00a0", "\u3000 ", "\u2028", "\u1680", "\u0085", "\u2003"}) {
        const EvaluationTask task = ending_in(space);
        CHECK(context_of(task.items[0].answers[1]) == "Why?");
        CHECK(answer_of(task.items[0].answers[1]) == space + std::string("b"));
    }
    for (const char* other : {"\u200b", "\u00e9", "\u4e00"})   // a space of no width, letters that end in bytes of 0x80 and more
        CHECK(answer_of(ending_in(other).items[0].answers[1]) == " b");
}

TEST_CASE("evaluation: several contexts before one continuation; labels are answers that all items share") {
    const EvaluationTask task = read_lines("{\"context_options\": [\"so Ann\", \"so Eve\"], \"continuation\": \"won.\", \"gold\": 1}");
    CHECK(context_of(task.items[0].answers[1]) == "so Eve");
    CHECK(answer_of(task.items[0].answers[1]) == " won.");
    const std::string one = "{\"query\": \"x\", \"choices\": [\"bad\", \"good\"], \"gold\": 0}\n";
    CHECK(read_lines(one + one).labels == std::vector<std::string>{"bad", "good"});
    CHECK(read_lines(one + "{\"query\": \"x\", \"choices\": [\"good\", \"bad\"], \"gold\": 0}").labels.empty());
    CHECK(read_lines(one + "{\"context_options\": [\"bad\", \"good\"], \"continuation\": \"x\", \"gold\": 0}").labels.empty());
}

TEST_CASE("evaluation: what is no item is refused with file and line") {
    const std::string good = "{\"query\": \"x\", \"choices\": [\"a\", \"b\"], \"gold\": 0}\n";
    const auto refused = [&](const std::string& line, const std::vector<std::string>& parts) {
        const Error error = error_of([&] { read_lines(good + line, 8); });
        CAPTURE(line);
        CHECK(says(error, Exit::data, {"items.jsonl:2"}));
        CHECK(says(error, parts));
    };
    refused("{\"query\": \"x\", ", {"is not JSON"});
    refused("[1, 2]", {"is not a JSON object"});
    refused("{\"text\": \"x\"}", {"the key \"query\" is missing", "\"choices\""});
    refused("{\"query\": 5, \"choices\": [\"a\", \"b\"], \"gold\": 0}", {"\"query\" is 5, expected a string"});
    refused("{\"query\": \"x\", \"choices\": [\"a\"], \"gold\": 0}", {"\"choices\""});
    refused("{\"query\": \"x\", \"choices\": [\"a\", \"\"], \"gold\": 0}", {"\"choices\""});
    refused("{\"query\": \"x\", \"choices\": [\"a\", 1], \"gold\": 0}", {"\"choices\""});
    refused("{\"query\": \"x\", \"choices\": [\"a\", \"b\"], \"gold\": 2}", {"\"gold\" is 2", "0 to 1"});
    refused("{\"query\": \"x\", \"choices\": [\"a\", \"b\"], \"gold\": \"0\"}", {"\"gold\""});
    refused("{\"query\": \"1234567\", \"choices\": [\"a\", \"bc\"], \"gold\": 0}", {"10 tokens", "--seq-len to 9"});
    CHECK_NOTHROW(read_lines(good + "{\"query\": \"1234567\", \"choices\": [\"a\", \"b\"], \"gold\": 0}", 8));

    CHECK(error_of([] { read_lines("\n"); }).code == Exit::data);
    CHECK(error_of([] { read_evaluation({"items.csv", ""}, nullptr, 512, 8, 0); }).code == Exit::usage);
    CHECK(error_of([] { read_evaluation({"items.jsonl", ""}, nullptr, 512, 8, 0); }).code == Exit::usage);
    CHECK(error_of([] { read_evaluation({"/no/items.jsonl", ""}, open_tokenizer("bytes").get(), 512, 8, 0); }).code == Exit::data);
}

TEST_CASE("evaluation: files are found by globs and called as they are, by their paths where names are the same") {
    const TemporaryFolder folder;
    const auto path = [&](const char* name) { return file_in(folder, name); };
    for (const char* name : {"arc", "piqa"}) std::filesystem::create_directory(path(name));
    for (const char* name : {"arc/test.jsonl", "piqa/test.jsonl", "piqa/few.bin", "b.jsonl", "a.jsonl"}) write_text(path(name), "");
    const auto names = [](const std::vector<std::string>& globs) {
        std::vector<std::string> found;
        for (const EvaluationFile& file : find_evaluation_files(globs)) found.push_back(file.name);
        return found;
    };
    CHECK(names({path("*.jsonl"), path("piqa/*")}) == std::vector<std::string>{"a", "b", "few", "test"});
    CHECK(names({path("*/test.jsonl"), path("a.jsonl")}) ==
          std::vector<std::string>{path("arc/test.jsonl"), path("piqa/test.jsonl"), "a"});
    CHECK(find_evaluation_files({path("arc/*")})[0].path == path("arc/test.jsonl"));
    std::filesystem::create_symlink("a.jsonl", path("link.json"));
    for (const char* again : {"[a].jsonl", "./a.jsonl", "arc/../a.jsonl", "link.json"}) {
        INFO(again);
        CHECK(says(error_of([&] { find_evaluation_files({path("a.jsonl"), path(again)}); }), Exit::usage, {"twice"}));
    }
    CHECK(says(error_of([&] { find_evaluation_files({path("none*")}); }), Exit::data, {"none*", "evaluation items"}));
}

TEST_CASE("evaluation: llm.c's files of 16 and of 32 bits") {
    std::vector<uint32_t> wide = two_items;
    std::replace(wide.begin(), wide.end(), 65535u, 0xFFFFFFFFu);
    wide[6] = 70000;
    const auto bytes = open_tokenizer("bytes");
    for (const bool narrow : {true, false}) {
        const EvaluationTask task = read_bytes(evaluation_file(narrow ? 1 : 7, 2, narrow ? two_items : wide, narrow ? 2 : 4), bytes.get());
        CAPTURE(narrow);
        REQUIRE(task.items.size() == 2);
        CHECK(task.items[0].gold == 1);
        CHECK(task.items[0].answers[0].tokens == std::vector<int32_t>{narrow ? 10 : 70000, 11, 12, 20, 21});
        CHECK(task.items[0].answers[0].begin == 3);
        CHECK(task.items[0].answers[1].length() == 1);
        CHECK(task.items[1].answers[1].characters == 2);   // " BC" without its space
    }
    CHECK(read_bytes(evaluation_file(1, 2, two_items, 2)).items[1].answers[1].characters == 0);
    CHECK(read_bytes(evaluation_file(1, 2, two_items, 2), nullptr, 1).items.size() == 1);
}

TEST_CASE("evaluation: damaged files of llm.c's layout are refused") {
    const std::string good = evaluation_file(1, 2, two_items, 2);
    const auto refused = [&](std::string bytes, const std::vector<std::string>& parts) {
        CHECK(says(error_of([&] { read_bytes(bytes); }), Exit::data, parts));
    };
    for (size_t size = 1024; size < good.size(); size++) refused(good.substr(0, size), {"items.bin"});
    refused(good.substr(0, 100), {"100 bytes"});
    refused(good + "xx", {"has more data after its 2 items"});
    refused(evaluation_file(2, 2, two_items, 2), {"version 2"});
    const auto with = [&](size_t place, uint32_t value) {
        std::vector<uint32_t> numbers = two_items;
        numbers[place] = value;
        return evaluation_file(1, 2, numbers, 2);
    };
    refused(with(0, 7), {"item 0", "mark"});
    refused(with(3, 2), {"item 0", "number 2"});
    refused(with(4, 1), {"item 0", "1 answers"});
    refused(with(5, 60000), {"needs 60000 more numbers"});
    std::vector<uint32_t> large = {0xFFFFFFFF, 0, 0, 0, 2, 1, 100000, 1, 1, 1, 2};
    refused(evaluation_file(7, 1, large, 4), {"token 100000", "0..99999"});
}

TEST_CASE("evaluation: accuracy by sum, token mean and character mean, with standard errors and F1") {
    EvaluationTask task;
    task.items = {item_of(0, {{1, 4}, {2, 8}}), item_of(1, {{4, 5}, {1, 4}}), item_of(1, {{2, 9}, {2, 3}})};
    const std::vector<float> found = {-3, -4,    // sum 0; per token -3, -2: 1; per character -0.75, -0.5: 1
                                      -8, -3,    // sum 1; per token -2, -3: 0; per character -1.6, -0.75: 1
                                      -6, -6};   // equal: the first; per character -0.67, -2: 0
    EvaluationScores s = score(task, found);
    CHECK(s.chosen == std::vector<int>{0, 1, 0});
    CHECK(s.items == 3);
    CHECK(s.sum == Approx(2.0 / 3));
    CHECK(s.token_mean == 0);
    CHECK(s.character_mean == Approx(1.0 / 3));
    CHECK(s.sum_error == Approx(std::sqrt(2.0 / 9 / 2)));
    CHECK(s.token_mean_error == 0);
    CHECK(std::isnan(s.macro_f1));

    task.labels = {"no", "yes"};   // predicted 0 1 0, actual 0 1 1: F1 of 0 is 2/3, of 1 is 2/3
    CHECK(score(task, found).macro_f1 == Approx(2.0 / 3));
    const std::vector<float> one_sided = {-1, -2, -1, -2, -1, -2};   // predicted 0 0 0: F1 of 0 is 1/2, of 1 is 0
    CHECK(score(task, one_sided).macro_f1 == Approx(0.25));

    task.items[2].answers[0].characters = 0;
    CHECK(std::isnan(score(task, found).character_mean));

    task.labels.clear();
    task.items[0].answers.push_back(task.items[0].answers[1]);   // three answers, then two
    CHECK(score(task, {-3, -4, -5, -8, -3, -6, -6}).chosen == std::vector<int>{0, 1, 0});
}

TEST_CASE("evaluation: which items share their context") {
    EvaluationItem item;
    item.answers = {{{1, 2, 3}, 2, 1}, {{1, 2, 4, 3}, 2, 1}};
    CHECK(shares_context(item));
    item.answers[1] = {{1, 4, 3}, 2, 1};
    CHECK_FALSE(shares_context(item));
    item.answers[1] = {{1, 2, 3, 4}, 3, 1};
    CHECK_FALSE(shares_context(item));
}
