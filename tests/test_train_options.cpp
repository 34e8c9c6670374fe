// A training command up to its first step: options, the checkpoint or folder that it starts from, data, what ranks must share; refusals.
#include <iostream>
#include <map>
#include <sstream>
#include <tuple>

#include "attention/variant.h"
#include "model/qwen.h"
#include "model/run/start.h"
#include "tests/tiny_run.h"
#include "tests/tokenizer_files.h"

namespace {

using Words = std::vector<std::string>;

Words words_of(const std::string& line) {
    std::istringstream in(line);
    Words words;
    for (std::string word; in >> word;) words.push_back(word);
    return words;
}

/// Parses the arguments of ./train_VARIANT; false if they ask for help.
bool parse(const std::string& variant, const Words& words, Options& o) {
    std::vector<std::string> all = {"train_" + variant};
    all.insert(all.end(), words.begin(), words.end());
    std::vector<char*> arguments;
    for (std::string& word : all) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    return parse_train_options(int(all.size()), arguments.data(), named(variant), o);
}

Options parsed(const std::string& variant, const Words& words) {
    Options o;
    const bool runs = parse(variant, words, o);   // outside of CHECK, which would keep an Error
    CHECK(runs);
    return o;
}

/// What is written to std::cerr and std::cout meanwhile.
class Captured {
public:
    Captured() : cerr_(std::cerr.rdbuf(text_.rdbuf())), cout_(std::cout.rdbuf(text_.rdbuf())) {}
    ~Captured() { std::cerr.rdbuf(cerr_), std::cout.rdbuf(cout_); }
    std::string text() const { return text_.str(); }

private:
    std::ostringstream text_;
    std::streambuf *cerr_, *cout_;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string help_of(const std::string& variant) {
    const Captured captured;
    Options o;
    CHECK_FALSE(parse(variant, {"--help"}, o));
    return captured.text();
}

struct Start {
    Options options;
    Origin origin;
    Data data;
    std::string printed;
};

/// A process alone, up to the allocation of memory.
Start started(const std::string& variant, const Words& words) {
    Start start;
    const Captured captured;
    start.options = parsed(variant, words);
    const Variants variants(named(variant), {&on_cpu::causal});
    start.origin = find_origin(start.options, variants, chosen_checkpoint(start.options), true);
    start.data = open_data(start.options, 1, start.origin.config);
    start.printed = captured.text();
    return start;
}

void refuses(Exit code, const std::string& variant, const Words& words, const std::string& part) {
    const Error error = error_of([&] { started(variant, words); });
    std::string line;
    for (const std::string& word : words) line += " " + word;
    INFO(variant << line << ": " << error.what());
    CHECK(int(error.code) == int(code));
    CHECK(says(error, {part}));
}

struct Case {
    const char *variant, *words, *part;
};

/// Shards of a few hundred tokens: "in" for training, "val" for validation.
struct SmallData {
    TemporaryFolder folder;
    Words options = {"--model", "qwen-tiny", "--seq-len", "32", "--batch-size", "2", "--sample-every", "0", "--out", (folder / "out").string()};

    SmallData() {
        write_shard(file_in(folder, "in.bin"), ramp(400), 500);
        write_shard(file_in(folder, "val.bin"), ramp(200), 500);
        options.insert(options.end(), {"--train-data", file_in(folder, "in.bin"), "--val-data", file_in(folder, "val.bin")});
    }
    Words with(const Words& more) const {
        Words all = options;
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    Words with(const std::string& line) const { return with(words_of(line)); }
};

/// A checkpoint of 77 rows in the folder of a run.
fs::path checkpoint_of(const fs::path& out, const std::string& variant, int64_t step) {
    TinyRun run;
    run.config.variant = variant;
    for (const Setting& setting : settings_of(named(variant))) run.config.settings[setting.key] = setting.value;
    fs::create_directories(out);
    return run.save(out, step);
}

/// The value of a fact that ranks must share when a run with this data starts.
std::string fact(const Data& data, const std::string& name) {
    Origin origin;
    origin.config = preset("qwen-tiny");
    for (const Fact& fact : facts_of_start(origin, data))
        if (fact.name.find(name) != std::string::npos) return fact.value;
    return "no such fact";
}

}   // namespace

TEST_CASE("train options: what no option takes is refused by its name", "[options]") {
    const Case cases[] = {
        {"asga", "--batchsize=4", "unknown option --batchsize; did you mean --batch-size?"},
        {"asga_no_geometry", "--asga-hiden 8", "did you mean --asga-hidden?"},
        {"causal", "--atention psa", "did you mean --attention?"},
        {"causal", "--moba-block 64", "unknown option --moba-block"},
        {"asga", "--steps many", "--steps"},
        {"asga", "--steps 1.5", "1.5 is not a whole number"},
        {"asga", "--lr nan", "--lr"},
        {"asga", "--optimizer lion", "--optimizer: lion not in {adamw,muon}"},
        {"asga", "--batch-size -3", "--batch-size"},
        {"asga", "--seed 18446744073709551616", "not a whole number from 0 to 18446744073709551615"},
        {"asga", "--beta2 1", "from 0 to 0.9999999"},
        {"asga", "--config /none.toml", "/none.toml"},
        {"causal", "--checkpoint=", "--checkpoint"},
        {"causal", "--position-bins 4", "--position-bins requires --evaluate"},
        {"causal", "--eval-log x.jsonl", "--eval-log requires --evaluate"},
        {"causal", "--eval-out x.jsonl", "--eval-out requires --evaluate"},
        {"causal", "--evaluate --eval-out x --eval-log ./x", "is the file of --eval-log"},
        {"causal", "--document-positions 1", "requires --document-mask 1"},
        {"causal", "--resume --checkpoint x", "give one"},
        {"causal", "--attention psa", "requires --evaluate"},
        {"causal", "--evaluate --attention pas", "adaspa"},
        {"causal", "--evaluate --attention psa --document-mask 1", "leave out --document-mask"},
        {"asga", "--evaluate --attention psa", "use ./train_causal, not ./train_asga"},
        {"causal", "--evaluate --psa-eps 0.5", "requires --attention psa"},
        {"causal", "--evaluate --attention psa --psa-eps 1.5", "from 0 to 1"},
        {"causal", "--evaluate --attention psa --psa-block 0", "1 to 65536"},
        {"causal", "--evaluate --attention adaspa --adaspa-sparsity 1", "from 0 to 0.999"},
        {"causal", "--evaluate --attention adaspa --adaspa-block 96", "multiple of 64"},
    };
    for (const auto& [variant, words, part] : cases) refuses(Exit::usage, variant, words_of(words), part);
    for (const char* option : {"--checkpoint", "--model", "--out", "--train-data", "--eval-data", "--show-mask"})
        refuses(Exit::usage, "causal", {option, ""}, std::string(option) + " \"\": the value is empty");
}

TEST_CASE("train options: --help has groups, and only what works in this trainer", "[options]") {
    for (const Variant* variant : all_variants()) {
        const std::string help = help_of(variant->name);
        for (const char* group : {"Model:", "Data:", "Schedule and optimiser:", "Evaluation:", "Output:", "Parallel:", "Attention:"})
            CHECK(has(help, std::string("\n") + group + "\n"));
        for (const Setting& s : variant->settings()) CHECK(has(help, std::string("  ") + s.option + " "));
        const bool is_causal = variant->name == std::string("causal");
        CHECK(has(help, "--psa-eps") == is_causal);
        CHECK(has(help, "--layers") == !is_causal);
        CHECK_FALSE(has(help, "no effect"));
    }
    CHECK(has(help_of("sinks"), "--window"));
    CHECK_FALSE(has(help_of("causal"), "--window"));
    parsed("causal", {"--window", "3", "--dense-until", "4"});   // hidden, but accepted
    parsed("asga", {"--attention", "trained"});
}

TEST_CASE("train options: a file for --config takes zeros, comments and quotes as they are meant", "[options]") {
    CHECK(parsed("causal", {"--steps", "010"}).steps == 10);
    CHECK(parsed("causal", {"--val-data", ""}).val_data.empty());
    const TemporaryFolder folder;
    const std::string file = file_in(folder, "own.toml");
    write_text(file, "out=o'brien # my folder\nsteps = 2 # few\n");
    const Options own = parsed("causal", {"--config", file});
    CHECK((own.out == "o'brien" && own.steps == 2));
    write_text(file, "stepz = 3\n");
    refuses(Exit::usage, "asga", {"--config", file}, "unknown option --stepz in the configuration file; did you mean --steps?");
    write_text(file, "{\"hidden_size\": 64}");
    refuses(Exit::usage, "asga", {"--config", file}, "--model takes the folder of a config.json");
    for (const char* prompt : {"# We \"the people\"", "it's {}", " a  #b, [c]", "o'brien # and", ""}) {
        INFO(prompt);
        const Options given = parsed("causal", {"--prompt", prompt, "--steps", "3"});
        write_text(file, given.resolved);
        const Options back = parsed("causal", {"--config", file});
        CHECK((back.prompt == prompt && back.resolved == given.resolved));
    }
    for (const char* prompt : {"it's \"so\"", "\"a\",\"b\"", "{}"})
        refuses(Exit::usage, "causal", {"--prompt", prompt}, "cannot be written to options.toml");
}

TEST_CASE("train options: what ranks must have in common is in the facts of each option", "[options]") {
    const auto differing = [](const std::string& words) {
        std::map<std::string, std::string> facts;
        for (const Fact& fact : facts_of_options(parsed("causal", {}), "causal")) facts[fact.name] = fact.value;
        std::string names;
        for (const Fact& fact : facts_of_options(parsed("causal", words_of(words)), "causal"))
            if (facts[fact.name] != fact.value) names += fact.name + " ";
        return names;
    };
    for (const char* option : {"--seed 2", "--lr 0.1", "--batch-size 4", "--model qwen-1m", "--steps 5", "--zero-stage 1", "--sigma-reparam 1",
                               "--precision fp32", "--resume true", "--evaluate true", "--dry-run true", "--val-every 1", "--layers causal",
                               "--check-ranks-every 1", "--show-mask mask.png", "--val-data b.bin"}) {
        const std::string name = words_of(option)[0];
        INFO(option);
        CHECK(differing(name + "=" + words_of(option)[1]).find(name + " ") != std::string::npos);
    }
    CHECK(differing("--threads 2 --out other --watchdog-seconds 77 --device cpu").empty());
}

TEST_CASE("train options: a variant's settings fit the sequence and each other", "[options]") {
    const SmallData small;
    const Case cases[] = {
        {"asga", "--asga-hidden 0", "asga_hidden"},
        {"asga", "--dense-layers 0 --layers asga", "give one"},
        {"asga", "--layers asga,sinks", "this program has: asga, causal"},
        {"asga", "--model qwen-7n", "did you mean qwen-7m?"},
        {"asga_fixed", "--window 33", "from 0 to 32"},
        {"asga_fixed", "--layers causal,asga_fixed:window=33", "layer 1: --window is 33, but with --seq-len 32 must be a whole number from 0 to 32"},
        {"adaptive_sparse", "--adaptive-sparse-top-k 2", "(blocks of 64: 1) must be a whole number from 0 to 1"},
        {"bigbird", "--bigbird-block 16 --bigbird-window 5", "(blocks of 16: 2) must be a whole number from 1 to 4"},
        {"deepspeed_fixed", "--deepspeed-fixed-block 16 --deepspeed-fixed-globals 4", "(blocks of 16: 2) must be a whole number from 1 to 2"},
        {"longformer", "--global-tokens 33", "from 0 to 32"},
        {"nsa", "--nsa-selected 3", "is more than --seq-len 32 allows (blocks of 64: 1)"},
        {"seer", "--seer-top-k 2", "from 0 to 1"},
        {"seer", "--seer-block 100", "must be a multiple of 64 from 64 to 4096"},
        {"sinks", "--sinks 33", "from 0 to 32"},
        {"causal", "--total-batch-tokens 1000", "--total-batch-tokens"},
        {"causal", "--total-batch-tokens 1099511627776", "--total-batch-tokens 1099511627776"},
        {"causal", "--batch-size 1000000 --seq-len 1000000", "is more than 2^28 tokens"},
    };
    for (const auto& [variant, words, part] : cases) refuses(Exit::usage, variant, small.with(words), part);
    const Start start = started("causal", small.with("--model qwen2.5-0.5b --qk-norm 1"));   // in place of biases
    CHECK((start.origin.config.qk_norm && !start.origin.config.qkv_bias));
    CHECK(started("causal", small.with("--val-batches 0")).data.val == nullptr);
}

TEST_CASE("train options: which settings keep documents of a row apart, and which read later tokens", "[options]") {
    const SmallData small;
    const std::tuple<const char*, const char*, bool, bool> cases[] = {   // variant, options, apart, reads later tokens
        {"causal", "", true, false},
        {"nsa", "", true, false},
        {"nsa", "--nsa-choice 1", false, false},
        {"nsa", "--nsa-block 8 --nsa-stride 16", false, false},
        {"mosa", "", true, false},
        {"mosa", "--mosa-choice 1", false, true},
        {"mosa", "--mosa-choice 1 --mosa-rho 1", true, false},
        {"routing", "", true, false},
        {"routing", "--routing-balanced 1", false, true},
        {"routing", "--routing-balanced 1 --routing-clusters 1", true, false},
        {"seer", "", true, false},
        {"seer", "--seer-query 3 --seer-distil 0", false, true},
    };
    for (const auto& [variant, words, apart, ahead] : cases) {
        INFO(variant << " " << words);
        const Start start = started(variant, small.with(words));
        const Qwen net(Variants(named(variant)), start.origin.config);
        CHECK(net.all(&LayerFacts::keeps_documents_apart) == apart);
        CHECK(net.all(&LayerFacts::is_causal) == !ahead);
    }
}

TEST_CASE("train options: data that is missing, short or another model's ends a run with 3", "[options]") {
    SmallData small;
    const auto in = [&](const std::string& name) { return file_in(small.folder, name); };
    const auto refused = [&](const Words& words, const std::string& part) { refuses(Exit::data, "causal", small.with(words), part); };
    write_text(in("empty.bin"), "");
    write_text(in("foreign.bin"), std::string(9000, 'x'));
    write_shard(in("wide.bin"), ramp(400, 300), 1000);
    write_text(in("items.jsonl"), "{\"context_options\": [\"We \", \"I \"], \"continuation\": \"\", \"gold\": 0}\n");
    write_text(in("good.jsonl"), "{\"query\": \"We\", \"choices\": [\"a\", \"b\"], \"gold\": 0}\n");
    refused({"--train-data", in("nothing_*.bin")}, "nothing_*.bin");
    refused({"--train-data", in("empty.bin")}, "empty.bin");
    refused({"--train-data", in("foreign.bin")}, "foreign.bin");
    refused({"--train-data", in("wide.bin")}, "is 512, but the vocabulary has 512 ids");
    refused({"--batch-size", "8"}, "are fewer than one validation batch of 256 tokens");
    refused({"--eval-data", in("items.jsonl")}, "items.jsonl:1: an answer is empty");
    refuses(Exit::usage, "causal", small.with({"--evaluate", "--eval-data", in("good.jsonl"), "--eval-out", in("./good.jsonl")}), "is the file of --eval-data");

    CHECK_NOTHROW(started("causal", small.with("--document-mask 1 --val-every 0")));   // token 256 is in the training data alone
    refused({"--document-mask", "1"}, "val.bin: the first 200 tokens are of one document (none is 256");
}

TEST_CASE("train options: schedules, and the options that a resumed run changes", "[options]") {
    const SmallData small;
    const Schedule cools = started("causal", small.with("--schedule wsd --steps 100 --lr 0.5 --warmup-steps 10")).data.schedule;
    CHECK((cools.rate(9) == 0.5 && cools.rate(79) == 0.5 && cools.rate(80) == 0.5 && cools.rate(81) < 0.5 && cools.cooldown == 20));
    CHECK(started("causal", small.with("--schedule constant --steps 100")).data.schedule.rate(99) == 1e-3);
    refuses(Exit::usage, "causal", small.with("--schedule wsd --steps 100 --cooldown-frac 0.96"),
            "--cooldown-frac 0.96 is 96 of 100 steps, which with 5 of warm-up is longer than the run");
    refuses(Exit::usage, "causal", small.with("--schedule cosin"), "--schedule");
    refuses(Exit::usage, "causal", small.with("--schedule wsd --cooldown-frac 0"), "give --schedule constant");
    const std::string before = "lr=0.001\nsteps=10\nschedule=\"cosine\"\nout=\"x\"\n";
    CHECK(changes_of_schedule("lr=1e-3\nsteps=10\nschedule=\"cosine\"\nout=\"y\"\nbeta1=0.9\n", before) == "");
    CHECK(changes_of_schedule("lr=0.002\nsteps=20\nschedule=\"wsd\"\n", before) == "--steps 20 (10), --lr 0.002 (0.001), --schedule \"wsd\" (\"cosine\")");
}

TEST_CASE("train options: a run is resumed as it was, and begins from others' weights only on request", "[options]") {
    const SmallData small;
    const fs::path run = small.folder / "out", other = small.folder / "other";
    const std::string causal = checkpoint_of(run, "causal", 3).string(), asga = checkpoint_of(other, "asga", 3).string();
    const auto refused = [&](Exit code, const std::string& variant, const std::string& words, const std::string& part) {
        refuses(code, variant, small.with(words), part);
    };
    CHECK(started("causal", small.with("--resume")).origin.resume_from == fs::path(causal));
    refused(Exit::usage, "causal", "--resume --model qwen-1m", "has a different shape");
    refused(Exit::usage, "causal", "--model " + causal, "is inside --out");
    refused(Exit::usage, "causal", "--model " + causal + " --out /none --qk-norm 0", "are of a model with QK-norm");
    refused(Exit::checkpoint, "causal", "--checkpoint " + other.string(), "is not a checkpoint of this program");
    refused(Exit::checkpoint, "causal", "--checkpoint " + asga, "is a checkpoint of asga, and this program trains causal");
    refused(Exit::checkpoint, "asga", "--out /none --model " + causal, "is a checkpoint of causal");
    refused(Exit::checkpoint, "asga", "--model " + asga + " --out /none --dense-layers 1", "is a checkpoint of asga, and this program trains asga,causal");
    refused(Exit::checkpoint, "asga", "--resume --allow-new-tensors", "another --out");
    refused(Exit::checkpoint, "asga", "--allow-new-tensors --out /none --checkpoint " + causal, "another --out");

    const Start adapted = started("asga", small.with("--out /none --allow-new-tensors --model " + causal));
    CHECK((!adapted.origin.resume_from && adapted.origin.weights_from == fs::path(causal) && adapted.origin.config.variant == "asga"));
    CHECK(adapted.printed.find("asga starts from its weights") != std::string::npos);
    const Start fresh = started("causal", small.with("--resume --out " + (small.folder / "new").string()));
    CHECK((!fresh.origin.folder() && fresh.printed.find("starting at step 0") != std::string::npos));

    fs::create_directories(run / "superseded");
    fs::rename(causal, run / "superseded" / fs::path(causal).filename());
    refused(Exit::usage, "causal", "--checkpoint " + (run / "superseded" / fs::path(causal).filename()).string(), "has been set aside");
}

TEST_CASE("train options: the newest sound checkpoint is resumed, and the damage of a newer one named", "[options]") {
    const SmallData small;
    const fs::path run = small.folder / "out", earlier = checkpoint_of(run, "causal", 3), newest = checkpoint_of(run, "causal", 6);
    const auto damage = [](const fs::path& file) {
        std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
        stream.seekp(-3, std::ios::end);
        stream.put('X');
    };
    damage(newest / "model.safetensors");
    const Start start = started("causal", small.with("--resume"));
    CHECK((start.origin.resume_from == earlier && start.printed.find("tensor \"model.") != std::string::npos));
    damage(earlier / "optimizer.state");
    refuses(Exit::checkpoint, "causal", small.with("--resume"), "no undamaged checkpoint");
}

TEST_CASE("train options: a checkpoint that is a link is of its run, and one whose disk is not mounted is named", "[options]") {
    const SmallData small;
    const fs::path run = small.folder / "out", elsewhere = small.folder / "elsewhere", step = "step_00000003";
    checkpoint_of(run, "causal", 3);
    fs::create_directories(elsewhere);
    fs::rename(run / step, elsewhere / step);
    fs::create_directory_symlink(elsewhere / step, run / step);
    CHECK(started("causal", small.with("--resume")).origin.resume_from == run / step);
    CHECK(is_of_run(run / step, run.string()));
    CHECK_FALSE(is_of_run(run / step, (small.folder / "other").string()));
    fs::remove_all(elsewhere);
    refuses(Exit::checkpoint, "causal", small.with("--resume"), "is a link to " + (elsewhere / step).string() + ", which is not there");
}

TEST_CASE("tokenizers whose ids or config differ are different facts") {
    nlohmann::json file = small_tokenizer();
    const auto fact_of = [&](const std::string& config) {
        Data data;
        data.tokenizer = made(file, config);
        return fact(data, "the tokenizer");
    };
    const std::string config = "{\"eos_token\": \"<|endoftext|>\"}", held = fact_of(config);
    CHECK(fact_of(config) == held);
    CHECK(fact_of(config + " ") != held);
    std::swap(file["model"]["vocab"]["ab"], file["model"]["vocab"]["abc"]);
    CHECK(fact_of(config) != held);
    CHECK(fact(Data(), "the tokenizer") == "none");
}
