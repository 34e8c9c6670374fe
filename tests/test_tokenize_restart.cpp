// ./tokenize as a library: a run that was stopped goes on where it was and ends at the bytes of one that was not.
#include <fstream>
#include <functional>
#include <random>

#include "data/documents/split.h"
#include "data/manifest.h"
#include "tests/tokenizing.h"

namespace {

TokenizeOptions options_for(const TemporaryFolder& folder, const std::string& out, int threads = 2) {
    TokenizeOptions options = options_for(folder, std::vector<std::string>{"a.jsonl", "b.txt", "c.jsonl"});
    options.out = file_in(folder, out);
    options.shard_tokens = 300000;
    options.threads = threads;
    return options;
}

// Documents shorter and longer than a shard, and a text of more than one piece.
void write_inputs(const TemporaryFolder& folder) {
    std::string lines, text;
    for (int i = 0; i < 3000; ++i) lines += "{\"text\":\"document " + std::to_string(i) + std::string(i % 700, 'x') + "\"}\n\n";
    lines += "{\"text\":\"" + std::string(1000000, 'l') + "\"}\n";
    while (text.size() < 9000000) text += "some words " + std::to_string(text.size()) + (text.size() % 7 ? " " : "\n");
    write_text(file_in(folder, "a.jsonl"), lines);
    write_text(file_in(folder, "b.txt"), text);
    write_text(file_in(folder, "c.jsonl"), lines);
    write_text(file_in(folder, "d.txt"), "a short text");
}

std::string contents(const std::string& folder) {
    std::string all;
    for (const std::string& name : names_in(folder)) all += name + " " + file_hash(folder + "/" + name) + "\n";
    return all;
}

}  // namespace

TEST_CASE("tokenize: stopped at many points it ends at the same bytes, however the split is made") {
    const TemporaryFolder folder;
    write_inputs(folder);
    struct Way {
        const char* name;
        double val_fraction;
        int64_t val_tokens;
        bool split_on_blank_line;
        std::vector<std::string> inputs;
    };
    const std::vector<Way> ways = {{"documents", 0.1, 0, false, {}},       {"no validation", 0, 0, true, {}},
                                   {"val_tokens", 0.1, 400000, false, {}}, {"bytes", 0.3, 0, false, {file_in(folder, "b.txt")}},
                                   {"text", 0.1, 0, false, {file_in(folder, "d.txt"), file_in(folder, "b.txt")}}};
    std::mt19937 random(1);
    for (const Way& way : ways) {
        INFO(way.name);
        const auto with = [&](const std::string& out, int threads) {
            TokenizeOptions options = options_for(folder, out, threads);
            options.val_fraction = way.val_fraction;
            options.val_tokens = way.val_tokens;
            options.rules.split_on_blank_line = way.split_on_blank_line;
            if (!way.inputs.empty()) options.inputs = way.inputs;
            return options;
        };
        tokenize_files(with("whole", 2), no_progress);
        const std::string expected = contents(file_in(folder, "whole"));
        for (const int threads : {1, 5}) {
            int stops = 0;
            while (!run_until(with("parts", threads), random() % 3000000)) REQUIRE(++stops < 100);
            CHECK(stops > 0);
            CHECK(contents(file_in(folder, "parts")) == expected);
            std::filesystem::remove_all(file_in(folder, "parts"));
        }
        std::filesystem::remove_all(file_in(folder, "whole"));
    }
}

TEST_CASE("tokenize: a run that is stopped leaves the earlier output as it was, and no shard of its own under its name") {
    const TemporaryFolder folder;
    write_text(file_in(folder, "b.txt"), "the earlier text");
    TokenizeOptions options = options_for(folder, "out");
    options.inputs = {file_in(folder, "b.txt")};
    tokenize_files(options, no_progress);
    const std::string before = contents(options.out);
    write_inputs(folder);
    CHECK_FALSE(run_until(options, 2000000));
    const std::vector<std::string> visible = {"x_manifest.json", "x_train_000001.bin", "x_unfinished", "x_val_000000.bin"};
    CHECK(names_in(options.out) == visible);
    // An earlier command again: it starts over, says so, and clears up.
    write_text(file_in(folder, "b.txt"), "the earlier text");
    std::string note;
    tokenize_files(options, no_progress, [&](const std::string& sentence) { note = sentence; });
    CHECK(note.find("starts over: it was not made with input 1: ") != std::string::npos);
    CHECK(contents(options.out) == before);
}

TEST_CASE("tokenize: other options, changed inputs and damaged shards start over and say why") {
    const TemporaryFolder folder;
    write_inputs(folder);
    tokenize_files(options_for(folder, "whole"), no_progress);
    const std::string expected = contents(file_in(folder, "whole"));
    const TokenizeOptions options = options_for(folder, "out");
    const std::string unfinished = options.out + "/x_unfinished/", shard = unfinished + "x_train_000001.bin";
    struct Change {
        std::function<void(TokenizeOptions&)> make;
        const char* why;
        bool same_output;
    };
    const Change changes[] = {
        {[](TokenizeOptions& next) { next.shard_tokens = 400000; }, "starts over: it was not made with --shard-tokens 400000", false},
        {[](TokenizeOptions& next) { next.val_tokens = 7; }, "starts over: it was not made with --val-tokens 7", false},
        {[](TokenizeOptions& next) { next.rules.split_on_blank_line = true; },
         "starts over: it was not made with --split-on-blank-line 1", false},
        {[](TokenizeOptions& next) { next.inputs.pop_back(); }, "starts over: it was not made with 2 inputs", false},
        {[&](TokenizeOptions&) { std::fstream(shard, std::ios::in | std::ios::out).seekp(5000) << "damage"; },
         "x_train_000001.bin is not what that run wrote", true},
        {[&](TokenizeOptions&) { std::filesystem::remove(shard); }, "x_train_000001.bin is missing", true},
        {[&](TokenizeOptions&) { write_text(unfinished + "progress.json", "{\"made_by\": 3"); }, "its record is not readable", true},
        {[](TokenizeOptions& next) { next.threads = 1; }, "resuming", true},
    };
    for (const auto& [change, why, same_output] : changes) {
        REQUIRE_FALSE(run_until(options, 3000000));
        TokenizeOptions next = options;
        change(next);
        std::string note;
        tokenize_files(next, no_progress, [&](const std::string& sentence) { note = sentence; });
        INFO(note);
        CHECK(note.find(why) != std::string::npos);
        if (same_output) CHECK(contents(options.out) == expected);
        std::filesystem::remove_all(options.out);
    }
}

TEST_CASE("tokenize: stopped while it gives the shards their names it can do that again") {
    const TemporaryFolder folder;
    write_inputs(folder);
    TokenizeOptions options = options_for(folder, "whole");
    tokenize_files(options, no_progress);
    const std::string expected = contents(options.out);
    options.out = file_in(folder, "out");
    // A folder in the way of a name: everything is finished, and some shards have theirs.
    std::filesystem::create_directories(options.out + "/x_train_000009.bin/in the way");
    CHECK(says(error_of([&] { tokenize_files(options, no_progress); }), {"x_train_000009.bin", "cannot be renamed to"}));
    const auto progress = saved_run_from_json(read_small_file(options.out + "/x_unfinished/progress.json"));
    CHECK((progress && progress->train.size() > 9));
    CHECK(std::filesystem::exists(options.out + "/x_train_000008.bin"));
    CHECK_FALSE(std::filesystem::exists(options.out + "/x_manifest.json"));
    std::filesystem::remove_all(options.out + "/x_train_000009.bin");
    tokenize_files(options, no_progress);
    CHECK(contents(options.out) == expected);
}

TEST_CASE("tokenize: a stopped run goes on only behind the text that it has read") {
    const TemporaryFolder folder;
    const SplitWriterOptions options{.folder = folder.path(), .name = "x", .vocabulary = 257, .shard_tokens = 4};
    const auto documents = [](const std::string& letters) {   // one of each letter, a token
        TextBatch batch;
        batch.text = letters;
        for (size_t n = 1; n <= letters.size(); ++n) batch.items.push_back({n, n, true, false, n});
        batch.ids.assign(letters.begin(), letters.end());
        return batch;
    };
    SavedRun stopped;
    SplitWriter(options, {}, [&](const SavedRun& run) { stopped = run; }).add(documents("abcdefghij"));
    REQUIRE((stopped.train.size() == 2 && stopped.batches == 0 && stopped.written == 8));
    const auto error = [&](const std::string& letters) {
        return error_of([&] {
            SplitWriter writer(options, stopped, [](const SavedRun&) {});
            writer.add(documents(letters));
            writer.finish();
        });
    };
    for (const char* other : {"Xbcdefghij", "abcdefgXij", "abcdefg", ""})
        CHECK((error(other).code == Exit::data && says(error(other), {"differ from the stopped run's", folder.path()})));
    CHECK(error("abcdefghij").code == Exit::done);
    CHECK(error("abcdefgh").code == Exit::done);
}

TEST_CASE("tokenize: a document of several shards is gone on with inside, in training and in validation") {
    const TemporaryFolder folder;
    const SplitWriterOptions options{.folder = folder.path(), .name = "x", .vocabulary = 257, .shard_tokens = 4};
    for (const bool validation : {false, true}) {
        TextBatch batch;
        batch.text = "abcdefghij";
        batch.items = {{10, 1, !validation, validation, 10}};
        batch.ids.assign(batch.text.begin(), batch.text.end());
        SavedRun stopped;
        SplitWriter(options, {}, [&](const SavedRun& run) { stopped = run; }).add(batch);
        REQUIRE((stopped.written == 8 && stopped.in_validation == validation));
        SplitWriter writer(options, stopped, [](const SavedRun&) {});
        writer.add(batch);
        const SavedRun& done = writer.finish();
        const std::vector<ShardInfo>& shards = validation ? done.val : done.train;
        REQUIRE((shards.size() == 3 && (validation ? done.train : done.val).empty()));
        int32_t last[2];
        Shard(file_in(folder, shards[2].file)).copy(0, 2, last);
        CHECK((shards[2].tokens == 2 && last[0] == 'i' && last[1] == 'j'));
    }
}

TEST_CASE("saved_run: what was written is read, anything else is nothing") {
    SavedRun run;
    run.made_by = "x\xFF.txt";
    run.train = {{"x_train_000001.bin", 7, 1038, "0123456789abcdef"}};
    run.written = uint64_t{1} << 60;
    const std::string json = saved_run_to_json(run);
    const auto again = saved_run_from_json(json);
    REQUIRE(again);
    CHECK(saved_run_to_json(*again) == json);
    CHECK(again->written == run.written);
    CHECK(again->split.divide_at == nowhere);
    for (const char* text : {"", "{}", "[1]", "null", "{\"made_by\":{\"a\":1}}"}) CHECK_FALSE(saved_run_from_json(text));
    CHECK_FALSE(saved_run_from_json(json.substr(0, json.size() / 2)));
}
