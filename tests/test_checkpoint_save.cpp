// Saving checkpoints: runs that died meanwhile, steps that are replaced or pruned, full and unwritable disks.
#include <unistd.h>

#include "model/base/disk.h"
#include "model/base/hash.h"
#include "model/checkpoint/carried_texts.h"
#include "tests/file_size_limit.h"
#include "model/run/report.h"
#include "tests/tiny_run.h"

TEST_CASE_METHOD(RunFolder, "what transformers does not compute carries the files that do", "[checkpoint]") {
    const auto python_files = [&](const std::string& variant, int64_t step) {
        run.config.variant = variant;
        std::vector<std::string> names = names_in(run.save(folder.path(), step));
        std::erase_if(names, [](const std::string& name) { return !name.ends_with(".py"); });
        return names;
    };
    CHECK(python_files("causal", 1).empty());
    const std::vector<std::string> names = python_files("asga", 2);
    CHECK(names.size() == modeling_files().size());
    CHECK((std::count(names.begin(), names.end(), "modeling_attention_variants.py") == 1 &&
           std::count(names.begin(), names.end(), "__init__.py") == 0));
    const fs::path tree = fs::path(__FILE__).parent_path().parent_path() / "scripts/attention_torch";
    for (const std::string& name : names) {
        INFO(name);
        CHECK(read_text(folder / "step_00000002" / name) == read_text(tree / name));
    }
    CHECK(read_text(folder / "step_00000001/model.safetensors") == read_text(folder / "step_00000002/model.safetensors"));
}

TEST_CASE_METHOD(RunFolder, "a model card says what was trained, on what, to which loss, and how it is loaded", "[checkpoint]") {
    const RunFacts facts{"dsa:window=3,causal", "9000 tokens in 2 shards, novels, fingerprint 0123456789abcdef", ""};
    run.config.variant = "dsa", run.config.settings = {{"attention_window", 5}};
    run.config.layers = {{"dsa", {{"attention_window", 3}}}, {"causal"}};
    const auto card = [&] { return read_text(run.save(folder.path(), 7, nullptr, {}, facts) / "README.md"); };
    const std::string text = card();
    CHECK(text.starts_with("---\nlibrary_name: transformers\n"));
    CHECK(contains(text, "\n# dsa, 83 parameters, step 7\n"));
    CHECK(contains(text, "| attention | dsa:window=3,causal |"));
    CHECK(contains(text, "| settings | attention_window 5 |"));
    CHECK(contains(text, "| trained | 7 steps, 12345 tokens |"));
    CHECK(contains(text, "| training data | " + facts.train_data + " |"));
    CHECK(text.find("| validation data |") == std::string::npos);
    CHECK(contains(text, "| loss of the last step | 0.3333 nats per token |"));
    CHECK(contains(text, "| validation loss | not measured |"));
    CHECK(contains(text, "| weights hash | " + hexadecimal(weights_hash(run.list, run.weights.data())) + " |"));
    CHECK(contains(text, "attention/dsa.cuh describes it:\n\n```\nDynamic Sparse Attention"));
    CHECK(contains(text, "attention/causal.cuh describes it"));
    CHECK(contains(text, "model = AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)\n"));
    CHECK(contains(text, "tokenizer = AutoTokenizer.from_pretrained(FOLDER, trust_remote_code=True)\n"));
    run.config.tokenizer = "";   // and none in the folder
    CHECK(card().find("AutoTokenizer.from_pretrained") == std::string::npos);

    write_text(folder / "step_00000007/README.md", "mine");   // which is no damage
    CHECK_NOTHROW(verify_checkpoint(folder / "step_00000007"));

    run.config.variant = "causal", run.config.layers.clear(), run.config.settings.clear();
    const std::string plain = card();
    CHECK((contains(plain, "model = AutoModelForCausalLM.from_pretrained(FOLDER)\n") && plain.find("trust_remote_code") == std::string::npos));
    CHECK(contains(plain, "attention/causal.cuh describes it"));
    CHECK(plain.find("| settings |") == std::string::npos);
}

TEST_CASE_METHOD(RunFolder, "what a run left that died while saving is ignored, then removed", "[checkpoint]") {
    const fs::path good = run.save(folder.path(), 10);
    fs::copy(good, folder / "step_00000020.tmp", fs::copy_options::recursive);
    fs::remove(folder / "step_00000020.tmp/manifest.json");
    fs::copy(good, folder / "step_00000030.tmp", fs::copy_options::recursive);
    fs::copy(good, folder / "step_00000040.old.tmp", fs::copy_options::recursive);
    CHECK(latest(folder.path()) == good.string());
    CHECK(complaints.empty());
    run.save(folder.path(), 20);
    CHECK(names_in(folder.path()) == std::vector<std::string>{"step_00000010", "step_00000020"});
}

TEST_CASE_METHOD(RunFolder, "a checkpoint of the same step is replaced", "[checkpoint]") {
    run.save(folder.path(), 10);
    run.weights[0] = 42;
    const fs::path path = run.save(folder.path(), 10);
    CHECK_NOTHROW(verify_checkpoint(path));
    std::vector<float> weights(run.list.size());
    load_weights(path, run.list, 1, weights.data());
    CHECK(weights[0] == 42);
    CHECK(names_in(folder.path()) == std::vector<std::string>{"step_00000010"});
}

TEST_CASE_METHOD(RunFolder, "checkpoints of later steps are set aside, so that resuming follows the present run", "[checkpoint]") {
    for (int64_t step : {10, 20, 30}) run.save(folder.path(), step);
    const fs::path path = run.save(folder.path(), 15);
    CHECK(latest(folder.path()) == path.string());
    CHECK(names_in(folder.path()) == std::vector<std::string>{"step_00000010", "step_00000015", "superseded"});
    CHECK(names_in(folder / "superseded") == std::vector<std::string>{"step_00000020", "step_00000030"});
    run.save(folder.path(), 20);
    run.save(folder.path(), 12);   // only the last ones that were set aside are kept
    CHECK(names_in(folder.path()) == std::vector<std::string>{"step_00000010", "step_00000012", "superseded"});
    CHECK(names_in(folder / "superseded") == std::vector<std::string>{"step_00000015", "step_00000020"});
    CHECK(is_set_aside(folder / "superseded/step_00000020/", folder.path()));
    CHECK_FALSE(is_set_aside(folder / "step_00000010", folder.path()));
}

TEST_CASE_METHOD(RunFolder, "a kill while another run's checkpoints are set aside leaves all of them where they were", "[checkpoint]") {
    for (int64_t step : {10, 20, 30}) run.save(folder.path(), step);
    write_text(folder / "log.jsonl", "the log");
    CHECK(set_later_ones_aside(folder.path(), -1) == 3);
    CHECK(names_in(folder / "superseded") == std::vector<std::string>{"log.jsonl", "step_00000010", "step_00000020", "step_00000030"});
    CHECK(read_text(folder / "log.jsonl") == "the log");
    for (int64_t step : {11, 21}) run.save(folder.path(), step);
    // As it is after each rename of set_later_ones_aside(): two moved, all moved, what was there before moved away.
    fs::create_directories(folder / "superseded.tmp");
    fs::rename(folder / "step_00000021", folder / "superseded.tmp/step_00000021");
    CHECK(aside_interrupted(folder.path()));
    undo_interrupted(folder.path());
    CHECK_FALSE(aside_interrupted(folder.path()));
    CHECK(latest(folder.path()) == (folder / "step_00000021").string());
    fs::create_directories(folder / "superseded.tmp");
    for (const char* name : {"step_00000011", "step_00000021"}) fs::rename(folder / name, folder / "superseded.tmp" / name);
    fs::rename(folder / "superseded", folder / "superseded.old.tmp");
    undo_interrupted(folder.path());
    CHECK(latest(folder.path()) == (folder / "step_00000021").string());
    CHECK(names_in(folder.path()) == std::vector<std::string>{"log.jsonl", "step_00000011", "step_00000021", "superseded"});
    CHECK(names_in(folder / "superseded").size() == 4);
    // Two starts that are killed before they have saved anything cost nothing but what was aside before.
    CHECK(set_later_ones_aside(folder.path(), -1) == 2);
    CHECK(set_later_ones_aside(folder.path(), -1) == 0);
    CHECK(names_in(folder / "superseded") == std::vector<std::string>{"log.jsonl", "step_00000011", "step_00000021"});
    CHECK(complaints.empty());
}

TEST_CASE_METHOD(RunFolder, "a folder that cannot be listed is no empty one", "[checkpoint]") {
    fs::create_symlink("loop", folder / "loop");   // refused to every user, root too
    CHECK(contains(sentence_of([&] { latest_checkpoint(folder / "loop", complaints); }), "loop"));
}

TEST_CASE_METHOD(RunFolder, "a save tells of each piece that it writes, syncs and verifies", "[checkpoint]") {
    TensorList list;
    list.add("model.embed_tokens.weight", {12, 1 << 20}, ones(), Decay::yes);   // 48 MiB: three pieces of each tensor
    const std::vector<float> x(list.size(), 1.0f);
    int pieces = 0;
    save_checkpoint(folder.path(), run.config, list, x.data(), x.data(), x.data(), run.state, nullptr, {}, {}, [&] { pieces++; });
    CHECK(pieces >= 18 + 2);
    CHECK(pieces < 40);
}

TEST_CASE("no file is written through a symbolic link", "[checkpoint]") {
    TemporaryFolder folder;
    write_text(folder / "mine", "untouched");
    fs::create_symlink(folder / "mine", folder / ("options.toml." + std::to_string(getpid()) + ".tmp"));
    fs::create_symlink(folder / "mine", folder / "log.jsonl.tmp");
    fs::create_symlink(folder.path(), folder / "step_00000001.tmp");
    fs::create_symlink(folder / "mine", folder / "lock");
    CHECK(replace_file(folder / "options.toml", "steps = 1\n").empty());
    JsonLines log;
    log.open(folder / "log.jsonl");
    log.write({{"step", int64_t(1)}});
    TinyRun run;
    run.save(folder.path(), 1);
    CHECK(contains(sentence_of([&] { lock_run(folder.path()); }), "lock: cannot be locked"));
    CHECK(read_text(folder / "mine") == "untouched");
    CHECK(names_in(folder.path()) == std::vector<std::string>{"lock", "log.jsonl", "mine", "options.toml", "step_00000001"});
}

namespace {
std::vector<JsonLines::Field> of_step(int64_t step) { return {{"step", step}, {"loss", 0.5}, {"grad_norm", 1.0}}; }
std::string line_of_step(int64_t step) { return "{\"step\":" + std::to_string(step) + ",\"loss\":0.5,\"grad_norm\":1.0}\n"; }
}   // namespace

TEST_CASE("a log goes on after a full disk", "[checkpoint]") {
    TemporaryFolder folder;
    const fs::path path = folder / "log.jsonl";
    const std::string one = line_of_step(1), three = one + line_of_step(2) + line_of_step(3), four = three + line_of_step(4);
    {
        std::optional<FileSizeLimit> at_the_end;   // outlives the log
        JsonLines log;
        log.open(path);
        log.write(of_step(1));
        {
            const FileSizeLimit limit(60);   // the second line is torn
            log.write(of_step(2));
            CHECK(log.failed());
            log.write(of_step(3));
        }
        CHECK(read_text(path) == one);
        log.write(of_step(4));
        CHECK_FALSE(log.failed());
        CHECK(read_text(path) == four);
        at_the_end.emplace(160);
        for (int64_t step = 5; step < 8; step++) log.write(of_step(step));
        CHECK(log.failed());
    }
    CHECK(read_text(path) == four);   // of a log that stays full, whole lines
    JsonLines log;
    log.open(path, 3);
    CHECK(read_text(path) == three);
}

TEST_CASE("a log that is resumed drops what a kill has cut, and tells what it lacks", "[checkpoint]") {
    TemporaryFolder folder;
    const fs::path path = folder / "log.jsonl";
    const auto resumed = [&](const std::string& before, int64_t step, double loss = NAN) {
        write_text(path, before);
        JsonLines().open(path, step, loss);
        return read_text(path);
    };
    const auto gap = [](int missing) {
        return "{\"event\":\"gap\",\"missing\":" + std::to_string(missing) +
               ",\"reason\":\"records missing or invalid, found on resuming\"}\n";
    };
    const std::string one = line_of_step(1), two = line_of_step(2), three = line_of_step(3);
    CHECK(resumed(one + "{\"st\n" + two + three + "{\"ste", 2) == one + two + gap(1));
    CHECK(resumed(one + "{\"ste", 1) == one);
    // Steps that are not there, under another number, or there twice.
    CHECK(resumed(one + three, 3) == one + three + gap(1));
    CHECK(resumed(one + three + gap(1), 3) == one + three + gap(1));   // told once
    CHECK(resumed(one + line_of_step(7) + three, 3) == one + three + gap(1));
    CHECK(resumed(one + "{\"step\":\"2\",\"loss\":0.5,\"grad_norm\":1.0}\n" + three, 3) == one + three + gap(1));
    CHECK(resumed(one + two + one + two, 2) == one + two);
    CHECK(resumed("", 2) == gap(2));
    const std::string begun = "{\"event\":\"config\",\"step\":1}\n", checked = "{\"step\":2,\"val_loss\":1.0}\n";
    CHECK(resumed(begun + two + checked + three, 3) == begun + two + checked + three);   // begun at a checkpoint of step 1
    CHECK(contains(sentence_of([&] { resumed(one + two, 2, 0.75); }), "is the log of another run"));
    CHECK(resumed(one + two, 2, 0.5) == one + two);
    fs::remove(path);
    fs::create_symlink("log.jsonl", path);   // a loop: cannot be read, nor taken for an empty log
    CHECK_FALSE(sentence_of([&] { JsonLines().open(path, 2); }).empty());
}

TEST_CASE_METHOD(RunFolder, "pruning keeps the newest", "[checkpoint]") {
    for (int64_t step : {9, 10, 100, 1000}) run.save(folder.path(), step);
    write_text(folder / "notes.txt", "mine");
    prune_checkpoints(folder.path(), 0);
    CHECK(names_in(folder.path()).size() == 5);
    prune_checkpoints(folder.path(), 2);
    CHECK(names_in(folder.path()) == std::vector<std::string>{"notes.txt", "step_00000100", "step_00001000"});
    prune_checkpoints(folder.path(), 2);
    prune_checkpoints(folder / "absent", 2);
    CHECK(names_in(folder.path()).size() == 3);
}

TEST_CASE_METHOD(RunFolder, "a write that fails half-way leaves the checkpoint before and nothing else", "[checkpoint]") {
    const fs::path good = run.save(folder.path(), 1);
    std::string sentence, replacing;
    {
        const FileSizeLimit limit(400);   // the first files fit, the weights do not
        sentence = sentence_of([&] { run.save(folder.path(), 2); });
        replacing = sentence_of([&] { run.save(folder.path(), 1); });
    }
    CHECK((contains(sentence, "step_00000002.tmp") && contains(sentence, "writing stopped at byte 400")));
    CHECK_FALSE(replacing.empty());
    CHECK(names_in(folder.path()) == std::vector<std::string>{"step_00000001"});
    CHECK_NOTHROW(verify_checkpoint(good));
}

TEST_CASE_METHOD(RunFolder, "an output folder that cannot be made is refused by path", "[checkpoint]") {
    write_text(folder / "file", "x");
    CHECK(contains(sentence_of([&] { run.save(folder / "file", 1); }), (folder / "file").string()));
    CHECK(contains(sentence_of([&] { run.save(folder / "file/below", 1); }), (folder / "file").string()));
    CHECK(contains(sentence_of([&] { run.save("/proc/nowhere", 1); }), "/proc/nowhere"));
    if (geteuid() == 0) return;   // root may write everywhere
    fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec);
    CHECK(contains(sentence_of([&] { run.save(folder.path(), 1); }), folder.path().string()));
    fs::permissions(folder.path(), fs::perms::owner_all);
}
