// Trains a Qwen language model with the attention variant that this file is compiled for (make train_asga, make train_causal, ...).
// Read it from the bottom: main() parses the options, train() holds the loop; above are evaluation, sampling and the options.
#include <CLI/CLI.hpp>

#include "attention/attention.h"
#include "model/generate.cuh"
#include "model/options.h"
#include "model/run.cuh"

// ------------------------------------------------------------------------------------------------------------------- options

/// The variant's own settings; --window and --dense-until are known to every variant, so that scripts can pass them to all.
void add_settings(CLI::App& app, Options& o) {
    std::vector<Setting> settings = Attention::settings();
    for (const Setting& s : settings)
        app.add_option_function<double>(
               s.option, [&o, s](double value) { o.settings[s.key] = value; }, text("%s [%g]", s.help, s.value))
            ->group("Attention");
    for (const char* option : {"--window", "--dense-until"})
        if (!app.get_option_no_throw(option))
            app.add_option_function<double>(
                   option, [option](double) { std::cerr << "note: " << option << " has no effect in " << Attention::name << "\n"; },
                   "no effect in this variant")
                ->group("Attention");
}

/// False when only --help was asked for.
bool parse(int argc, char** argv, Options& o) {
    o.out = std::string("out/") + Attention::name;
    CLI::App app(std::string("Trains a Qwen language model with ") + Attention::name +
                 " attention.\nStop it with Ctrl-C: it saves and exits with code 75, and --resume goes on. Under mpirun send "
                 "SIGUSR1 to mpirun\n"
                 "(Open MPI kills its ranks soon after SIGTERM, often before they could save).");
    app.set_config("--config", "", "a file of key = value lines, as options.toml in the output folder");
    app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    const auto positive = CLI::Range(1, 1 << 30);
    const auto count = CLI::Range(int64_t(0), int64_t(1) << 50);
    const auto share = number_from(0, 1);
    app.add_option("--device", o.device, "where to train")->check(CLI::IsMember({"auto", "cpu", "cuda"}));
    app.add_option("--model", o.model, "preset, or a Hugging Face folder to start from; its config.json alone starts from scratch");
    app.add_option("--train-data", o.train_data, "token shards (glob); without it the bundled text");
    app.add_option("--val-data", o.val_data, "token shards for validation (glob)");
    app.add_option("--out", o.out, "folder for log, checkpoints and options");
    app.add_option("--batch-size", o.batch_size, "sequences per rank and micro-step")->check(positive);
    app.add_option("--seq-len", o.seq_len, "tokens per sequence, T")->check(positive);
    app.add_option("--total-batch-tokens", o.total_batch_tokens,
                   "tokens per optimiser step over all ranks; 0: batch-size x seq-len x ranks")
        ->check(count);
    app.add_option("--steps", o.steps, "optimiser steps")->check(CLI::Range(int64_t(1), int64_t(1) << 50));
    app.add_option("--epochs", o.epochs, "length of the run in passes over the data; 0: --steps counts")
        ->check(number_from(0, 1e6));
    app.add_option("--shuffle", o.shuffle, "0 reads the shards in order")->check(CLI::IsMember({"0", "1", "true", "false"}));
    app.add_option("--lr", o.adamw.lr, "peak learning rate")->check(number_from(0, 1e3));
    app.add_option("--warmup-steps", o.warmup_steps, "steps of linear warm-up; -1: a twentieth of the run")
        ->check(CLI::Range(int64_t(-1), int64_t(1) << 50));
    app.add_option("--min-lr-frac", o.min_lr_frac, "where the cosine ends, as a fraction of --lr")->check(share);
    app.add_option("--weight-decay", o.adamw.weight_decay, "decoupled, on matrices only")->check(number_from(0, 1e3));
    app.add_option("--beta1", o.adamw.beta1, "AdamW")->check(number_from(0, 0.999999));
    app.add_option("--beta2", o.adamw.beta2, "AdamW")->check(number_from(0, 0.9999999));
    app.add_option("--adam-eps", o.adamw.eps, "AdamW")->check(number_from(1e-30, 1));
    app.add_option("--grad-clip", o.grad_clip, "largest global L2 norm of the gradient; 0: no limit")->check(number_from(0, 1e30));
    app.add_option("--precision", o.precision, "of weights and activations")->check(CLI::IsMember({"bf16", "fp32"}));
    app.add_option("--val-every", o.val_every, "steps between validations; 0: never")->check(count);
    app.add_option("--val-batches", o.val_batches, "batches of batch-size x ranks sequences in a validation; 0: no validation")
        ->check(CLI::Range(0, 1 << 30));
    app.add_option("--sample-every", o.sample_every, "steps between samples of text; 0: never")->check(count);
    app.add_option("--sample-tokens", o.sample_tokens, "length of a sample; 0: no samples")->check(CLI::Range(0, 1 << 30));
    app.add_option("--prompt", o.prompt, "what samples begin with; without it, as documents begin")->expected(0, 1);
    app.add_option("--checkpoint-every", o.checkpoint_every, "steps between checkpoints, one more at the end; 0: none")
        ->check(count);
    app.add_option("--keep-checkpoints", o.keep_checkpoints, "how many stay; 0: all")->check(CLI::Range(0, 1 << 30));
    app.add_flag("--resume", o.resume, "go on from the newest sound checkpoint in --out");
    app.add_option("--checkpoint", o.checkpoint, "go on from this checkpoint");
    app.add_option("--seed", o.seed, "of initialisation, data order and samples")->check(CLI::NonNegativeNumber);
    app.add_option("--threads", o.threads, "OpenMP threads; 0: this rank's share of the processors")->check(CLI::Range(0, 4096));
    app.add_option("--zero-stage", o.zero_stage, "1: every rank keeps the moments of its own part of the weights only")
        ->check(CLI::Range(0, 1));
    app.add_option("--recompute", o.recompute, "1: keep only each layer's input and compute the rest again on the way back")
        ->check(CLI::Range(0, 1));
    app.add_option("--watchdog-seconds", o.watchdog_seconds, "a rank without progress for so long ends the job; 0: off")
        ->check(CLI::Range(0, 1 << 20));
    app.add_option("--plot", o.plot, "1: draw the loss curve at the end");
    app.add_flag("--dry-run", o.dry_run, "print model, memory, FLOPs and data; train nothing");
    add_settings(app, o);
    if (!parse_options(app, argc, argv)) return false;
    if (o.device == "cuda") fail(Exit::usage, "--device cuda: this program has no CUDA kernels; use --device cpu");
    if (o.precision == "bf16") fail(Exit::usage, "--precision bf16 needs --device cuda; the CPU trains in fp32");
    if (o.resume && !o.checkpoint.empty()) fail(Exit::usage, "--resume and --checkpoint both say where to go on; give one");
    if (o.prompt.find_first_of("\n\r") != std::string::npos) fail(Exit::usage, "--prompt must be one line");
    if (o.val_batches == 0) o.val_every = 0;
    if (o.sample_tokens == 0) o.sample_every = 0;
    o.model_given = app.count("--model") > 0;
    o.resolved = app.config_to_str(true);
    return true;
}

// -------------------------------------------------------------------------------------------------- evaluation and sampling

/// Mean cross-entropy over the first --val-batches batches of the validation shards, the same rows for any number of ranks
/// as long as batch-size x ranks is the same. A signal cuts it short: then nothing is reported, and the loop stops.
template <class Device>
void evaluate_and_report(Device device, Run<Device, Attention>& run) {
    const TokenStream& val = *run.data.val;
    const int B = run.o.batch_size, T = run.o.seq_len, ranks = run.ranks.size();
    const int64_t step = run.state.step, rows = std::min<int64_t>(windows(val, T), int64_t(run.o.val_batches) * B * ranks);
    std::vector<int32_t> inputs(size_t(B) * T), targets(inputs.size());
    double loss = 0, bytes = 0;
    for (int64_t row = int64_t(run.ranks.rank()) * B; row < rows && !stop_requested(); row += int64_t(ranks) * B) {
        run.ranks.at("validating", step);
        const int here = int(std::min<int64_t>(B, rows - row));
        validation_rows(val, row, T, here, inputs.data(), targets.data());
        gpt_forward(device, run.gpt, inputs.data(), here, T);
        loss += gpt_loss(device, run.gpt, targets.data(), here, T);
        for (int n = 0; n < here * T && run.data.tokenizer; n++) bytes += run.data.tokenizer->bytes(targets[n]);
    }
    loss = run.ranks.sum(loss), bytes = run.ranks.sum(bytes);
    if (run.ranks.any(stop_requested())) return;
    run.state.last_val_loss = run.validation.loss = loss / double(rows * T);
    run.validation.bits_per_byte = bytes > 0 ? loss / std::log(2.0) / bytes : NAN;
    const Validation& v = run.validation;
    run.progress.say(
        text("validation after step %lld: loss %.4f, %.4f bits per byte", static_cast<long long>(step), v.loss, v.bits_per_byte));
    run.log.write({{"step", step}, {"val_loss", v.loss}, {"val_bpb", v.bits_per_byte}});
}

/// --prompt and --sample-tokens tokens more.
template <class Device>
std::string sample(Device device, Run<Device, Attention>& run) {
    const Tokenizer& tokenizer = *run.data.tokenizer;
    std::vector<uint32_t> prompt;
    tokenizer.encode(run.o.prompt, prompt);
    if (prompt.empty()) prompt.push_back(tokenizer.end_of_text());
    std::vector<int32_t> ids(prompt.begin(), prompt.end());
    generate(device, run.gpt, ids, run.o.sample_tokens, {0.8, 0, 0.95, run.o.seed + uint64_t(run.state.step)});
    return replace_invalid_utf8(tokenizer.decode(ids));
}

// ------------------------------------------------------------------------------------------------------------------ the loop

/// Loss and gradients of one optimiser step, averaged over all its tokens on all ranks; returns the loss.
template <class Device>
double step_gradients(Device device, GPT<Device, float, Attention>& gpt, Loader& loader, const Data& data, Ranks& ranks,
                      int64_t step) {
    std::vector<int32_t> inputs(size_t(gpt.B) * gpt.T), targets(inputs.size());
    const float share = float(1.0 / double(data.tokens_per_step));
    double loss = 0;
    for (int micro = 0; micro < data.micro_steps; micro++) {
        const Write write = micro == 0 ? Write::overwrite : Write::add;
        ranks.at("computing gradients", step);
        loader.next(inputs.data(), targets.data());
        gpt_forward(device, gpt, inputs.data(), gpt.B, gpt.T);
        loss += gpt_loss(device, gpt, targets.data(), gpt.B, gpt.T, share, write);
        gpt_backward(device, gpt, inputs.data(), gpt.B, gpt.T, write);
    }
    ranks.sum(gpt.gradients, gpt.net.tensors.size());
    return ranks.sum(loss) / double(data.tokens_per_step);
}

/// A loss or gradient that is not finite ends the run before it reaches the weights; the message names the first such tensor.
template <class Device>
void require_finite(const GPT<Device, float, Attention>& gpt, double loss, double norm, int64_t step) {
    if (std::isfinite(loss) && std::isfinite(norm)) return;
    std::string where = "the loss";
    for (const Tensor& t : gpt.net.tensors)
        if (std::isfinite(loss) && !std::isfinite(sum_of_squares(CPU{}, gpt.gradients + t.slot.offset, t.slot.size))) {
            where = "the gradient of " + t.name;
            break;
        }
    fail(Exit::not_finite, where, " is not finite in step ", step, " (loss ", loss, ", gradient norm ", norm,
         "); the weights were not changed. Lower --lr, or resume from the last checkpoint");
}

/// Every step: gradients of all micro-steps and ranks, clip of their global norm, learning rate, AdamW. Then what is due.
template <class Device>
Exit train(Device device, const Options& o) {
    Ranks ranks(o.watchdog_seconds);
    const int threads = use_threads(o.threads, ranks.local_size());
    Origin origin = find_origin(o, Attention::name, ranks.first());
    Data data = open_data(o, ranks.size(), origin.config);
    Run<Device, Attention> run(o, ranks, std::move(data), origin.config);
    if (ranks.first()) print_set_up(run, threads);
    if (o.dry_run) return Exit::done;
    begin(run, origin);
    Loader loader(*run.data.train, {o.batch_size, o.seq_len, ranks.size(), ranks.rank(), run.data.micro_steps, o.seed, o.shuffle});
    loader.seek(run.state.step);
    catch_stop_signals();

    auto& gpt = run.gpt;
    const size_t n = gpt.net.tensors.size();
    bool stopped = false;
    run.since_step.lap();
    for (int64_t step = run.first_step; step <= run.data.steps && !stopped; step++) {
        const double loss = step_gradients(device, gpt, loader, run.data, ranks, step);
        const double norm = std::sqrt(sum_of_squares(device, gpt.gradients, n));
        require_finite(gpt, loss, norm, step);

        AdamW adamw = o.adamw;
        adamw.lr = learning_rate(o.adamw.lr, o.min_lr_frac, run.data.warmup_steps, run.data.steps, step - 1);
        gpt_update(device, gpt, adamw, clip_factor(norm, o.grad_clip), step);
        if (o.zero_stage) ranks.all_gather(gpt.weights, n);

        const int64_t tokens = step * run.data.tokens_per_step;
        run.state = {step, tokens, o.seed, tokens / o.seq_len, o.resolved, loss, run.validation.loss};
        report_step(run, norm, adamw.lr);
        const bool last = step == run.data.steps;
        if (run.data.val && run.due(o.val_every, last)) evaluate_and_report(device, run);
        if (ranks.first() && run.data.tokenizer && !stop_requested() && run.due(o.sample_every, last))
            run.progress.say("--- sample ---\n" + sample(device, run) + "\n--------------");
        stopped = ranks.any(stop_requested());
        if (run.due(o.checkpoint_every, last || stopped)) save(run, last || stopped);
        run.since_step.lap();
    }
    if (run.data.val && !stopped && std::isnan(run.validation.loss))
        evaluate_and_report(device, run);   // a signal had cut it short
    return finish(run, stopped);
}

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    outlive_readers();
    Exit result = Exit::done;
    const int failed = run_program(process_name(std::string("train_") + Attention::name), [&] {
        Options options;
        if (!parse(argc, argv, options)) return;
        result = train(CPU{}, options);
    });
    return failed ? failed : int(result);
}
