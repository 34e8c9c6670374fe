// The command line of the training programs.
#include <iostream>
#include <memory>
#include <sstream>

#include "attention/variant.h"
#include "model/base/command_line.h"
#include "model/base/error.h"
#include "model/base/text.h"
#include "model/run/start.h"

static constexpr const char* HIDDEN = "";   // the group of options that --help leaves out

/// Adds an option with a whole number from `lowest` to `highest`.
template <class Number>
static void add_count(CLI::App& app, const char* name, Number& value, int lowest, const char* help,
                      Number highest = Number(1) << (sizeof(Number) == 8 ? 50 : 30)) {
    app.add_option(name, value, help)->transform(whole_number_from(Number(lowest), highest));
}

/// Adds an option with one of these words.
template <class Value>
static void add_choice(CLI::App& app, const char* name, Value& value, std::initializer_list<const char*> words, const char* help) {
    app.add_option(name, value, help)->check(CLI::IsMember(words));
}

static void add_number(CLI::App& app, const char* name, double& value, double lowest, double highest, const char* help) {
    app.add_option(name, value, help)->check(number_from(lowest, highest));
}

static const auto ZERO_OR_ONE = {"0", "1", "true", "false"};

static void add_model_options(CLI::App& app, Options& o) {
    app.option_defaults()->group("Model");
    app.add_option("--model", o.model,
                   "preset, or Hugging Face folder to start from; a folder with config.json but no weights starts from scratch");
    add_choice(app, "--qk-norm", o.qk_norm, {"auto", "0", "1"},
               "normalisation of the heads of q and k in a model from scratch: 1 as in Qwen3, without biases; 0 none; auto: as in "
               "--model");
    add_choice(app, "--precision", o.precision, {"auto", "bf16", "fp32"},
               "number type of weights and activations; auto: bf16 on a GPU, fp32 on the CPU");
    add_choice(app, "--rounding", o.rounding, {"nearest", "stochastic"}, "rounding mode when casting fp32 master weights to bf16");
    app.add_flag("--resume", o.resume, "resume from the newest undamaged checkpoint in --out");
    app.add_option("--checkpoint", o.checkpoint, "checkpoint folder to resume from");
    app.add_flag("--allow-new-tensors", o.allow_new_tensors,
                 "start from the weights of another variant; initialise the tensors that its folder lacks");
    app.add_option("--seed", o.seed, "random seed of initialisation, data order and samples")
        ->transform(whole_number_from(uint64_t(0), UINT64_MAX));
}

static void add_data_options(CLI::App& app, Options& o) {
    app.option_defaults()->group("Data");
    app.add_option("--train-data", o.train_data,
                   "token shards for training: a glob, or '0.7 web/*.bin 0.3 code/*.bin' as a weighted mixture; default: the bundled text");
    app.add_option("--val-data", o.val_data,
                   "token shards for validation, as in --train-data; default: none with --train-data, else the bundled text");
    add_count(app, "--batch-size", o.batch_size, 1, "sequences per rank and micro-step");
    add_count(app, "--seq-len", o.seq_len, 1, "tokens per sequence, T");
    add_count(app, "--total-batch-tokens", o.total_batch_tokens, 0,
              "tokens per optimiser step over all ranks; 0: batch-size x seq-len x ranks");
    add_choice(app, "--shuffle", o.shuffle, ZERO_OR_ONE, "order of the training data: 1 shuffled, 0 as in the shards");
    add_choice(app, "--document-mask", o.document_mask, ZERO_OR_ONE,
               "attention across documents packed into one row: 1 masked out, 0 allowed");
    add_choice(app, "--document-positions", o.document_positions, ZERO_OR_ONE,
               "RoPE positions with --document-mask: 1 counted from the document's first token, 0 from the row's");
    app.add_flag("--verify-data", o.verify_data,
                 "read all shards at the start and compare them with their manifests, even those verified before");
}

static void add_optimiser_options(CLI::App& app, Options& o) {
    app.option_defaults()->group("Schedule and optimiser");
    add_count(app, "--steps", o.steps, 1, "number of optimiser steps");
    add_number(app, "--epochs", o.epochs, 0, 1e6, "passes over the training data, in place of --steps; 0: use --steps");
    add_choice(app, "--optimizer", o.optimizer, {"adamw", "muon"},
               "optimiser of the layers' matrices: adamw, or muon, at the same --lr; all other tensors are AdamW's");
    add_number(app, "--lr", o.adamw.lr, 0, 1e3, "peak learning rate");
    add_choice(app, "--schedule", o.schedule, {"cosine", "linear", "constant", "wsd"},
               "learning rate after the warm-up: cosine or linear decay over the run, constant, or wsd, a decay in the last steps only");
    add_number(app, "--cooldown-frac", o.cooldown_frac, 0, 1, "share of the run that the decay of --schedule wsd takes, by 1 - sqrt");
    add_count(app, "--warmup-steps", o.warmup_steps, -1, "steps of linear warm-up; -1: a twentieth of the run");
    add_number(app, "--min-lr-frac", o.min_lr_frac, 0, 1, "final learning rate as a fraction of --lr; unused with --schedule constant");
    add_number(app, "--weight-decay", o.adamw.weight_decay, 0, 1e3, "decoupled weight decay of matrices");
    add_number(app, "--beta1", o.adamw.beta1, 0, 0.999999, "AdamW's decay rate of the first moment");
    add_number(app, "--beta2", o.adamw.beta2, 0, 0.9999999, "AdamW's decay rate of the second moment");
    add_number(app, "--adam-eps", o.adamw.eps, 1e-30, 1, "AdamW's epsilon, added to the root of the second moment");
    add_number(app, "--grad-clip", o.adamw.grad_clip, 0, 1e30, "maximum global L2 norm of the gradient; 0: no limit");
}

static void add_evaluation_options(CLI::App& app, Options& o) {
    app.option_defaults()->group("Evaluation");
    add_count(app, "--val-every", o.val_every, 0, "steps between validations; 0: never");
    add_count(app, "--val-batches", o.val_batches, 0,
              "batches of batch-size x ranks sequences per validation; 0: no validation. Default with --evaluate: all");
    app.add_flag("--evaluate", o.evaluate,
                 "measure the validation loss and --eval-data of --checkpoint, or of a folder given as --model; train nothing");
    app.add_option("--eval-data", o.eval_data, "multiple-choice items: .jsonl or .bin files (globs)")
        ->expected(1, -1)
        ->default_str("");
    add_count(app, "--eval-every", o.eval_every, 0, "steps between evaluations on --eval-data; 0: only at the end");
    add_count(app, "--eval-items", o.eval_items, 0, "number of items to use, from the beginning of each file; 0: all");
    app.add_option("--eval-out", o.eval_out, "JSON Lines file for the scores of every item's answers (with --evaluate)");
    app.add_option("--eval-log", o.eval_log, "log file for the results, in the format of a run's log.jsonl (with --evaluate)");
    add_count(app, "--position-bins", o.position_bins, 0, "number of position bins for the validation loss (with --evaluate); 0 disables");
    add_count(app, "--sample-every", o.sample_every, 0, "steps between text samples; 0: never");
    add_count(app, "--sample-tokens", o.sample_tokens, 0, "tokens per text sample; 0: no samples");
    app.add_option("--prompt", o.prompt, "beginning of every text sample; default: the beginning of a document")->expected(0, 1);
    add_count(app, "--monitor-every", o.monitor_every, 0,
              "steps between attention reports (entropy, concentration, pairs, tiles, gates per layer and head); 0: never");
}

static void add_output_options(CLI::App& app, Options& o) {
    app.option_defaults()->group("Output");
    app.add_option("--out", o.out, "folder for the log, checkpoints and resolved options");
    add_count(app, "--checkpoint-every", o.checkpoint_every, 0, "steps between checkpoints, with one more at the end; 0: none");
    add_count(app, "--keep-checkpoints", o.keep_checkpoints, 0, "number of newest checkpoints to keep; 0: all");
    app.add_option("--plot", o.plot, "PNG of the loss curve in --out at the end: 1 on, 0 off");
    app.add_option("--show-mask", o.show_mask,
                   "image file, .png or .pgm, for the mask of --seq-len tokens (rows: queries; columns: keys); train nothing");
    app.add_flag("--dry-run", o.dry_run, "print model, memory, FLOPs and data; train nothing");
}

static void add_parallel_options(CLI::App& app, Options& o) {
    app.option_defaults()->group("Parallel");
    add_choice(app, "--device", o.device, {"auto", "cpu", "cuda"}, "device to train on; auto: a GPU if there is one");
    add_choice(app, "--attention-kernels", o.attention_kernels, {"mma", "wgmma"},
               "matrix instructions for attention on a GPU; wgmma needs Hopper, bf16, heads of 64 or 128 and plain q.k scores, and mma "
               "is used elsewhere");
    add_count(app, "--threads", o.threads, 0, "OpenMP threads per rank; 0: this rank's share of the processors", 4096);
    add_count(app, "--zero-stage", o.zero_stage, 0, "ZeRO stage: 1 shards the moments over the ranks, 0 replicates them", 1);
    add_count(app, "--recompute", o.recompute, 0,
              "activation recomputation, which saves memory for time: 1 norms and SwiGLU, 2 whole layers from their inputs, 0 none", 2);
    add_count(app, "--check-ranks-every", o.check_ranks_every, -1,
              "steps between comparisons of weights and moments across ranks; -1: at every checkpoint; 0: only at the start");
    add_count(app, "--watchdog-seconds", o.watchdog_seconds, 0,
              "seconds without progress on any rank until the job is ended (on one rank: after a stop signal); 0 disables", 1 << 20);
}

/// Settings of the variant, and of every model. Scripts may pass --window and --dense-until to any trainer: those without such a
/// setting accept them, print a note, and leave them out of --help.
static void add_attention_options(CLI::App& app, const Variant& variant, Options& o) {
    const bool is_causal = variant.name == std::string("causal");
    app.option_defaults()->group("Attention");
    for (const Setting& s : settings_of(variant))
        app.add_option_function<double>(
            s.option, [&o, s](double value) { o.settings[s.key] = value; }, text("%s [%g]", s.help, s.value));
    const char* const shown = is_causal ? HIDDEN : "Attention";   // layers of train_causal are all causal
    app.add_option("--layers", o.layers,
                   "mechanism of each layer, NAME[:COUNT][:OPTION=VALUE]...,..., repeated until the last layer: this trainer's own or "
                   "causal, as in " + std::string(variant.name) + ":3,causal; default: its own in all layers")
        ->group(shown);
    app.add_option("--dense-layers", o.dense_layers, "layers with causal attention, from 0: 0,4,8; default: none")->group(shown);
    for (const char* option : {"--window", "--dense-until"})
        if (!app.get_option_no_throw(option))
            app.add_option_function<double>(
                   option, [option, &variant](double) { std::cerr << "note: " << option << " has no effect in " << variant.name << "\n"; })
                ->group(HIDDEN);
    app.option_defaults()->group(is_causal ? "Attention" : HIDDEN);   // they read causal checkpoints alone: require_plain_attention()
    add_inference_options(app, o.inference);
    CLI::Option* const attention = app.get_option("--attention");
    attention->description(attention->get_description() + "; with --evaluate");
}

/// Exit::usage for an inference-only mechanism (--attention) in a training run, with --document-mask, or in another trainer than causal's.
static void require_plain_attention(const Variant& variant, const Options& o) {
    if (o.inference.how.attention == InferenceAttention::trained) return;
    if (!o.evaluate) fail(Exit::usage, "--attention ", o.inference.attention, " requires --evaluate; it cannot be trained");
    if (o.document_mask)
        fail(Exit::usage, "--attention ", o.inference.attention, " treats each row as one text; leave out --document-mask");
    if (variant.name != std::string("causal"))
        fail(Exit::usage, "--attention ", o.inference.attention, " needs a causal checkpoint; use ./train_causal, not ./train_",
             variant.name);
}

namespace {
/// A reader of configuration files that keeps a # between quotes. (CLI11 up to 2.3 starts a comment there.)
class ConfigFile : public CLI::ConfigTOML {
public:
    ConfigFile() { comment('\0'); }
    std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
        if ((input >> std::ws).peek() == '{')
            throw CLI::ConfigError("--config: the file is JSON, not lines of key = value; --model takes the folder of a config.json");
        std::stringstream without_comments;
        for (std::string line; std::getline(input, line);) without_comments << line.substr(0, comment_in(line)) << "\n";
        return CLI::ConfigTOML::from_config(without_comments);
    }

private:
    /// The index of the comment's #, or npos. A quote counts only at the beginning of a value or of an element of a list.
    static size_t comment_in(const std::string& line) {
        char quote = 0, before = 0;   // the last character but spaces
        for (size_t at = 0; at < line.size(); at++) {
            const char c = line[at];
            if (c == '#' && !quote) return at;
            const bool opens = (c == '"' || c == '\'') && (before == '=' || before == '[' || before == ',');
            if (quote ? c == quote : opens) quote = quote ? 0 : c;
            if (c != ' ') before = c;
        }
        return std::string::npos;
    }
};
}   // namespace

/// The value of --prompt in `options`, the text of a file for --config; "" if it cannot be parsed.
static std::string prompt_in(const std::string& options) {
    const size_t at = options.find("\nprompt=") + 1;
    CLI::App reader;
    std::string prompt;
    reader.config_formatter(std::make_shared<ConfigFile>());
    reader.add_option("--prompt", prompt)->expected(0, 1);
    std::istringstream line(options.substr(at, options.find('\n', at) - at));
    try {
        reader.parse_from_stream(line);
    } catch (const CLI::ParseError&) {
        return "";
    }
    return prompt;
}

/// Exit::usage for an option with an empty name, such as an unset shell variable's: the run would start from scratch, or in
/// another folder. Checks the command line only, because options.toml has "" for options that were not given.
static void require_names(int argc, char** argv) {
    for (const std::string option : {"--checkpoint", "--model", "--out", "--train-data", "--eval-data", "--eval-out", "--eval-log",
                                     "--show-mask"})
        for (int n = 1; n < argc; n++)
            if (argv[n] == option + "=" || (argv[n] == option && n + 1 < argc && !*argv[n + 1]))
                fail(Exit::usage, option, " \"\": the value is empty; give one, or leave ", option, " out");
}

bool parse_train_options(int argc, char** argv, const Variant& variant, Options& o) {
    o.out = std::string("out/") + variant.name;
    CLI::App app(std::string("Trains a Qwen language model with ") + variant.name +
                 " attention.\nCtrl-C or SIGTERM saves a checkpoint and exits with code 75; --resume continues. Under mpirun, send "
                 "SIGUSR1 to mpirun:\nOpen MPI kills its ranks soon after SIGTERM, often before they have saved.");
    app.config_formatter(std::make_shared<ConfigFile>());
    app.set_config("--config", "", "file of key = value lines, such as options.toml in the output folder");
    app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    add_model_options(app, o);
    add_data_options(app, o);
    add_optimiser_options(app, o);
    add_evaluation_options(app, o);
    add_output_options(app, o);
    add_parallel_options(app, o);
    add_attention_options(app, variant, o);
    if (!parse_options(app, argc, argv)) return false;
    require_names(argc, argv);
    o.adamw.stochastic_rounding = o.rounding == "stochastic";
    o.adamw.seed = o.seed;
    if (o.resume && !o.checkpoint.empty()) fail(Exit::usage, "--resume and --checkpoint both select a checkpoint; give one");
    if (o.prompt.find_first_of("\n\r") != std::string::npos) fail(Exit::usage, "--prompt must be one line");
    if (o.evaluate && !app.count("--val-batches")) o.val_batches = 1 << 30;
    std::erase(o.eval_data, "");   // options.toml has "" if none was given
    if (!o.evaluate && !o.eval_out.empty()) fail(Exit::usage, "--eval-out requires --evaluate");
    require_two_files("--eval-out", o.eval_out, "--eval-log", o.eval_log);
    if (!o.evaluate && !o.eval_log.empty()) fail(Exit::usage, "--eval-log requires --evaluate; the log of a training run is in --out");
    if (!o.evaluate && o.position_bins != Options{}.position_bins) fail(Exit::usage, "--position-bins requires --evaluate");
    require_plain_attention(variant, o);
    if (o.document_positions && !o.document_mask) fail(Exit::usage, "--document-positions requires --document-mask 1");
    if (o.val_batches == 0) o.val_every = 0;
    if (o.sample_tokens == 0) o.sample_every = 0;
    o.model_given = app.count("--model") > 0;
    o.resolved = app.config_to_str(true);
    if (!app.count("--prompt"))   // CLI11 writes it like a flag that was not given
        if (const size_t at = o.resolved.find("prompt=false\n"); at != std::string::npos) o.resolved.replace(at, 12, "prompt=\"\"");
    if (prompt_in(o.resolved) != o.prompt)
        fail(Exit::usage, "--prompt ", o.prompt, " cannot be written to options.toml, because quotes, brackets and commas are special "
             "there; "
             "leave some out");
    return true;
}
