// The command line of the training programs.
#include <iostream>
#include <memory>
#include <sstream>

#include "attention/variant.h"
#include "model/base/command_line.h"
#include "model/base/error.h"
#include "model/base/text.h"
#include "model/run/start.h"

/// Settings of the variant and of every model. Every variant accepts --window and --dense-until, so that scripts can pass them to
/// all.
static void add_settings(CLI::App& app, const Variant& variant, Options& o) {
    for (const Setting& s : settings_of(variant))
        app.add_option_function<double>(
               s.option, [&o, s](double value) { o.settings[s.key] = value; }, text("%s [%g]", s.help, s.value))
            ->group("Attention");
    for (const char* option : {"--window", "--dense-until"})
        if (!app.get_option_no_throw(option))
            app.add_option_function<double>(
                   option, [option, &variant](double) { std::cerr << "note: " << option << " has no effect in " << variant.name << "\n"; },
                   "no effect in this variant")
                ->group("Attention");
}

static CLI::Validator any_count() { return whole_number_from(int64_t(0), int64_t(1) << 50); }

/// Model, data, optimiser and precision.
static void add_training_options(CLI::App& app, Options& o) {
    const auto positive = whole_number_from(1, 1 << 30);
    const auto share = number_from(0, 1);
    app.add_option("--device", o.device, "where to train")->check(CLI::IsMember({"auto", "cpu", "cuda"}));
    app.add_option("--model", o.model, "preset, or a Hugging Face folder to start from; its config.json alone starts from scratch");
    app.add_option("--qk-norm", o.qk_norm,
                   "of a model from scratch: 1 normalises the heads of q and k, as Qwen3, without biases; 0 does not; auto: as --model has it")
        ->check(CLI::IsMember({"auto", "0", "1"}));
    app.add_option("--layers", o.layers,
                   "attention layer by layer: NAME[:COUNT][:OPTION=VALUE]...,... from the first layer on and again from its start, "
                   "with causal and this program's own, as sinks:3:window=128,causal; without it all layers are alike");
    app.add_option("--dense-layers", o.dense_layers, "these layers have causal attention: 0,4,8");
    app.add_option("--train-data", o.train_data, "token shards (glob); without it the bundled text");
    app.add_option("--val-data", o.val_data, "token shards for validation (glob)");
    app.add_option("--out", o.out, "folder for log, checkpoints and options");
    app.add_option("--batch-size", o.batch_size, "sequences per rank and micro-step")->transform(positive);
    app.add_option("--seq-len", o.seq_len, "tokens per sequence, T")->transform(positive);
    app.add_option("--total-batch-tokens", o.total_batch_tokens,
                   "tokens per optimiser step over all ranks; 0: batch-size x seq-len x ranks")
        ->transform(any_count());
    app.add_option("--steps", o.steps, "optimiser steps")->transform(whole_number_from(int64_t(1), int64_t(1) << 50));
    app.add_option("--epochs", o.epochs, "passes over the data, instead of --steps; 0: use --steps")
        ->check(number_from(0, 1e6));
    app.add_option("--shuffle", o.shuffle, "0 reads the shards in order")->check(CLI::IsMember({"0", "1", "true", "false"}));
    app.add_option("--document-mask", o.document_mask, "1: no token sees another document of its row")
        ->check(CLI::IsMember({"0", "1", "true", "false"}));
    app.add_option("--document-positions", o.document_positions,
                   "with --document-mask, 1: RoPE counts positions from each document's first token")
        ->check(CLI::IsMember({"0", "1", "true", "false"}));
    app.add_option("--lr", o.adamw.lr, "peak learning rate")->check(number_from(0, 1e3));
    app.add_option("--warmup-steps", o.warmup_steps, "steps of linear warm-up; -1: a twentieth of the run")
        ->transform(whole_number_from(int64_t(-1), int64_t(1) << 50));
    app.add_option("--min-lr-frac", o.min_lr_frac, "final learning rate as a fraction of --lr")->check(share);
    app.add_option("--weight-decay", o.adamw.weight_decay, "decoupled, on matrices only")->check(number_from(0, 1e3));
    app.add_option("--beta1", o.adamw.beta1, "AdamW")->check(number_from(0, 0.999999));
    app.add_option("--beta2", o.adamw.beta2, "AdamW")->check(number_from(0, 0.9999999));
    app.add_option("--adam-eps", o.adamw.eps, "AdamW")->check(number_from(1e-30, 1));
    app.add_option("--grad-clip", o.adamw.grad_clip, "maximum global L2 norm of the gradient; 0: no limit")
        ->check(number_from(0, 1e30));
    app.add_option("--precision", o.precision, "of weights and activations; auto: bf16 on a GPU, fp32 on the CPU")
        ->check(CLI::IsMember({"auto", "bf16", "fp32"}));
    app.add_option("--rounding", o.rounding, "of float32 master weights to bf16 weights")
        ->check(CLI::IsMember({"nearest", "stochastic"}));
}

/// Validation, evaluation, samples, checkpoints, ranks and memory.
static void add_run_options(CLI::App& app, Options& o) {
    app.add_option("--val-every", o.val_every, "steps between validations; 0: never")->transform(any_count());
    app.add_option("--val-batches", o.val_batches, "batches of batch-size x ranks sequences in a validation; 0: no validation")
        ->transform(whole_number_from(0, 1 << 30));
    app.add_flag("--evaluate", o.evaluate,
                 "train nothing: validation loss (all of --val-data, unless --val-batches is given, here or in --config) and --eval-data "
                 "of --checkpoint or of a folder given as --model");
    app.add_option("--eval-data", o.eval_data, "multiple choice: .jsonl or .bin files of items (globs)")
        ->expected(1, -1)
        ->default_str("");
    app.add_option("--eval-every", o.eval_every, "steps between evaluations on --eval-data; 0: only at the end")
        ->transform(any_count());
    app.add_option("--eval-items", o.eval_items, "only the first items of each file; 0: all")->transform(any_count());
    app.add_option("--eval-out", o.eval_out, "with --evaluate: what each item's answers scored, as JSON Lines");
    app.add_option("--eval-log", o.eval_log,
                   "with --evaluate: a log of its own for what was found, in the form of a run's log.jsonl");
    app.add_option("--position-bins", o.position_bins,
                   "with --evaluate: the validation loss by position, in so many equal parts of a row; 0: not")
        ->transform(whole_number_from(0, 1 << 30));
    app.add_option("--sample-every", o.sample_every, "steps between samples of text; 0: never")->transform(any_count());
    app.add_option("--sample-tokens", o.sample_tokens, "length of a sample; 0: no samples")->transform(whole_number_from(0, 1 << 30));
    app.add_option("--prompt", o.prompt, "start of samples; without it they begin as documents do")->expected(0, 1);
    app.add_option("--monitor-every", o.monitor_every,
                   "steps between reports on attention (entropy, concentration, pairs, tiles, gates per layer and head); 0: never")
        ->transform(any_count());
    app.add_option("--checkpoint-every", o.checkpoint_every, "steps between checkpoints, with one more at the end; 0: none")
        ->transform(any_count());
    app.add_option("--keep-checkpoints", o.keep_checkpoints, "how many to keep; 0: all")->transform(whole_number_from(0, 1 << 30));
    app.add_flag("--resume", o.resume, "resume from the newest sound checkpoint in --out");
    app.add_option("--checkpoint", o.checkpoint, "resume from this checkpoint");
    app.add_flag("--allow-new-tensors", o.allow_new_tensors,
                 "start from the weights of another variant's folder; tensors that it lacks are initialised");
    app.add_option("--seed", o.seed, "of initialisation, data order and samples")->transform(whole_number_from(uint64_t(0), UINT64_MAX));
    app.add_option("--threads", o.threads, "OpenMP threads; 0: this rank's share of the processors")->transform(whole_number_from(0, 4096));
    app.add_option("--zero-stage", o.zero_stage, "1: each rank keeps only the moments of its own part of the weights")
        ->transform(whole_number_from(0, 1));
    app.add_option("--recompute", o.recompute,
                   "trade time for memory: 1 recomputes norms and SwiGLU in the backward pass, 2 keeps only each layer's input")
        ->transform(whole_number_from(0, 2));
    app.add_option("--check-ranks-every", o.check_ranks_every,
                   "steps between comparisons of weights and moments over the ranks; -1: at every checkpoint; 0: only at the start")
        ->transform(whole_number_from(int64_t(-1), int64_t(1) << 50));
    app.add_option("--watchdog-seconds", o.watchdog_seconds,
                   "end the job if a rank makes no progress for this long (one rank: after a stop signal); 0 disables")
        ->transform(whole_number_from(0, 1 << 20));
    app.add_option("--plot", o.plot, "1: draw the loss curve at the end");
    app.add_option("--show-mask", o.show_mask,
                   "draw which keys every row of --seq-len tokens sees into this .png or .pgm; train nothing");
    app.add_option("--mask-layer", o.mask_layer, "with --show-mask: of which layer, from 0; -1: the last of this program's own mechanism")
        ->transform(whole_number_from(-1, 1 << 12));
    app.add_flag("--verify-data", o.verify_data,
                 "read all shards at the start and compare them with their manifests, including those that have passed before");
    app.add_flag("--dry-run", o.dry_run, "print model, memory, FLOPs and data; train nothing");
}

/// Exit::usage for a mechanism for inference only where there is a trained mask, or training.
static void require_plain_attention(const Variant& variant, const Options& o) {
    if (o.inference.how.attention == InferenceAttention::trained) return;
    if (!o.evaluate) fail(Exit::usage, "--attention ", o.inference.attention, " is for --evaluate: nothing is trained with it");
    if (o.document_mask)
        fail(Exit::usage, "--attention ", o.inference.attention, " reads rows as one text each; leave out --document-mask");
    if (variant.name != std::string("causal"))
        fail(Exit::usage, "--attention ", o.inference.attention, " reads checkpoints of variant causal: use ./train_causal, not ./train_",
             variant.name);
}

namespace {
/// Configuration files in which a # between quotes begins no comment. (CLI11 up to 2.3 cuts there.)
class ConfigFile : public CLI::ConfigTOML {
public:
    ConfigFile() { comment('\0'); }
    std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
        std::stringstream without_comments;
        for (std::string line; std::getline(input, line);) without_comments << line.substr(0, comment_in(line)) << "\n";
        return CLI::ConfigTOML::from_config(without_comments);
    }

private:
    /// A quote is one where a value or an element of a list begins with it.
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

/// The --prompt that comes back from the text of a file for --config; "" if it cannot be read.
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

/// Exit::usage for a name that is given and empty, as an unset variable of a shell is: without it a run would start from scratch,
/// or in another folder. Only on the command line, as options.toml has "" for what was not given.
static void require_names(int argc, char** argv) {
    for (const std::string option : {"--checkpoint", "--model", "--out", "--train-data", "--eval-data", "--eval-out", "--eval-log",
                                     "--show-mask"})
        for (int n = 1; n < argc; n++)
            if (argv[n] == option + "=" || (argv[n] == option && n + 1 < argc && !*argv[n + 1]))
                fail(Exit::usage, option, " \"\": the name is empty; give one, or leave ", option, " out");
}

bool parse_train_options(int argc, char** argv, const Variant& variant, Options& o) {
    o.out = std::string("out/") + variant.name;
    CLI::App app(std::string("Trains a Qwen language model with ") + variant.name +
                 " attention.\nStop it with Ctrl-C or SIGTERM: it saves and exits with code 75, and --resume continues. Under mpirun send "
                 "SIGUSR1 to mpirun\n"
                 "(Open MPI kills its ranks soon after SIGTERM, often before they could save).");
    app.config_formatter(std::make_shared<ConfigFile>());
    app.set_config("--config", "", "a file of key = value lines, as options.toml in the output folder");
    app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    add_training_options(app, o);
    add_run_options(app, o);
    add_settings(app, variant, o);
    add_inference_options(app, o.inference);
    if (!parse_options(app, argc, argv)) return false;
    require_names(argc, argv);
    o.adamw.stochastic_rounding = o.rounding == "stochastic";
    o.adamw.seed = o.seed;
    if (o.resume && !o.checkpoint.empty()) fail(Exit::usage, "--resume and --checkpoint both select a checkpoint; give one");
    if (o.prompt.find_first_of("\n\r") != std::string::npos) fail(Exit::usage, "--prompt must be one line");
    if (o.evaluate && !app.count("--val-batches")) o.val_batches = 1 << 30;
    std::erase(o.eval_data, "");   // options.toml has "" if none was given
    if (!o.evaluate && !o.eval_out.empty()) fail(Exit::usage, "--eval-out is for --evaluate");
    require_two_files("--eval-out", o.eval_out, "--eval-log", o.eval_log);
    if (!o.evaluate && !o.eval_log.empty()) fail(Exit::usage, "--eval-log is for --evaluate; a training run's log is in --out");
    if (!o.evaluate && o.position_bins != Options{}.position_bins) fail(Exit::usage, "--position-bins is for --evaluate");
    require_plain_attention(variant, o);
    if (o.mask_layer >= 0 && o.show_mask.empty()) fail(Exit::usage, "--mask-layer is for --show-mask");
    if (o.document_positions && !o.document_mask) fail(Exit::usage, "--document-positions is for --document-mask 1");
    if (o.val_batches == 0) o.val_every = 0;
    if (o.sample_tokens == 0) o.sample_every = 0;
    o.model_given = app.count("--model") > 0;
    o.resolved = app.config_to_str(true);
    if (!app.count("--prompt"))   // CLI11 writes it like a flag that was not given
        if (const size_t at = o.resolved.find("prompt=false\n"); at != std::string::npos) o.resolved.replace(at, 12, "prompt=\"\"");
    if (prompt_in(o.resolved) != o.prompt)
        fail(Exit::usage, "--prompt ", o.prompt, " cannot be kept in options.toml, where quotes, brackets and commas have a meaning of their "
             "own; leave some out");
    return true;
}
