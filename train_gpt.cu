// Trains a Qwen language model with the attention variant that this file is compiled for (make train_asga, make train_causal, ...).
// Read it from the bottom: main() parses the options, train() holds the loop; above are sampling and the options.
#include <CLI/CLI.hpp>

#include "attention/attention.h"
#include "model/evaluate.cuh"
#include "model/generate.cuh"
#include "model/mask.cuh"
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
    app.add_option("--grad-clip", o.adamw.grad_clip, "largest global L2 norm of the gradient; 0: no limit")
        ->check(number_from(0, 1e30));
    app.add_option("--precision", o.precision, "of weights and activations; auto: bf16 on a GPU, fp32 on the CPU")
        ->check(CLI::IsMember({"auto", "bf16", "fp32"}));
    app.add_option("--rounding", o.rounding, "of float32 master weights to bf16 weights")
        ->check(CLI::IsMember({"nearest", "stochastic"}));
    app.add_option("--val-every", o.val_every, "steps between validations; 0: never")->check(count);
    app.add_option("--val-batches", o.val_batches, "batches of batch-size x ranks sequences in a validation; 0: no validation")
        ->check(CLI::Range(0, 1 << 30));
    app.add_flag("--evaluate", o.evaluate,
                 "train nothing: validation loss (all of --val-data, unless --val-batches is given, here or in --config) and --eval-data "
                 "of --checkpoint or of a folder given as --model");
    app.add_option("--eval-data", o.eval_data, "multiple choice: .jsonl or .bin files of items (globs)")
        ->expected(1, -1)
        ->default_str("");
    app.add_option("--eval-every", o.eval_every, "steps between evaluations on --eval-data; 0: at the end alone")->check(count);
    app.add_option("--eval-items", o.eval_items, "only the first items of each file; 0: all")->check(count);
    app.add_option("--eval-out", o.eval_out, "with --evaluate: what each item's answers scored, as JSON Lines");
    app.add_option("--sample-every", o.sample_every, "steps between samples of text; 0: never")->check(count);
    app.add_option("--sample-tokens", o.sample_tokens, "length of a sample; 0: no samples")->check(CLI::Range(0, 1 << 30));
    app.add_option("--prompt", o.prompt, "what samples begin with; without it, as documents begin")->expected(0, 1);
    app.add_option("--monitor-every", o.monitor_every,
                   "steps between looks at what attention does (entropy, pairs, tiles, gates per layer and head); 0: never")
        ->check(count);
    app.add_option("--checkpoint-every", o.checkpoint_every, "steps between checkpoints, one more at the end; 0: none")
        ->check(count);
    app.add_option("--keep-checkpoints", o.keep_checkpoints, "how many stay; 0: all")->check(CLI::Range(0, 1 << 30));
    app.add_flag("--resume", o.resume, "go on from the newest sound checkpoint in --out");
    app.add_option("--checkpoint", o.checkpoint, "go on from this checkpoint");
    app.add_flag("--allow-new-tensors", o.allow_new_tensors,
                 "start from the weights of another variant's folder; tensors that it lacks are initialised");
    app.add_option("--seed", o.seed, "of initialisation, data order and samples")->check(CLI::NonNegativeNumber);
    app.add_option("--threads", o.threads, "OpenMP threads; 0: this rank's share of the processors")->check(CLI::Range(0, 4096));
    app.add_option("--zero-stage", o.zero_stage, "1: every rank keeps the moments of its own part of the weights only")
        ->check(CLI::Range(0, 1));
    app.add_option("--recompute", o.recompute,
                   "memory for time: 1 computes norms and SwiGLU again on the way back, 2 keeps only each layer's input")
        ->check(CLI::Range(0, 2));
    app.add_option("--ranks-from", o.ranks_from,
                   "how ranks find each other: auto (mpirun, or torchrun's variables), mpi, tcp:HOST:PORT, file:PATH");
    app.add_option("--watchdog-seconds", o.watchdog_seconds, "a rank without progress for so long ends the job; 0: off")
        ->check(CLI::Range(0, 1 << 20));
    app.add_option("--plot", o.plot, "1: draw the loss curve at the end");
    app.add_option("--show-mask", o.show_mask,
                   "draw which keys every row of --seq-len tokens sees into this .png or .pgm; train nothing");
    app.add_flag("--dry-run", o.dry_run, "print model, memory, FLOPs and data; train nothing");
    add_settings(app, o);
    if (!parse_options(app, argc, argv)) return false;
    o.adamw.stochastic_rounding = o.rounding == "stochastic";
    o.adamw.seed = o.seed;
    if (o.resume && !o.checkpoint.empty()) fail(Exit::usage, "--resume and --checkpoint both say where to go on; give one");
    if (o.prompt.find_first_of("\n\r") != std::string::npos) fail(Exit::usage, "--prompt must be one line");
    if (o.evaluate && !app.count("--val-batches")) o.val_batches = 1 << 30;
    std::erase(o.eval_data, "");   // as options.toml has it where none was given
    if (!o.evaluate && !o.eval_out.empty()) fail(Exit::usage, "--eval-out is for --evaluate");
    if (o.val_batches == 0) o.val_every = 0;
    if (o.sample_tokens == 0) o.sample_every = 0;
    o.model_given = app.count("--model") > 0;
    o.resolved = app.config_to_str(true);
    if (!app.count("--prompt"))   // which CLI11 takes for a flag that was not given
        if (const size_t at = o.resolved.find("prompt=false\n"); at != std::string::npos) o.resolved.replace(at, 12, "prompt=\"\"");
    return true;
}

// -------------------------------------------------------------------------------------------------------- looking and sampling

/// What attention does on the first rows of the validation shards, or of the training shards where there are no others: the same
/// rows every time. On rank 0 only; the others wait for it in their next step's sums.
template <class Device, class X>
void observe_attention(Run<Device, X, Attention>& run) {
    const TokenStream& stream = run.data.val ? *run.data.val : *run.data.train;
    const int T = run.o.seq_len, B = int(std::min<int64_t>(run.o.batch_size, windows(stream, T)));
    const int64_t step = run.state.step;
    if (B == 0) return;
    run.ranks.at("looking at attention", step);
    std::vector<int32_t> tokens(size_t(B) * T), targets(tokens.size());
    validation_rows(stream, 0, T, B, tokens.data(), targets.data());
    gpt_forward(run.device, run.gpt, run.feed.put(run.device, tokens.data(), nullptr, B, T), &run.monitor);
    const AttentionReport r = run.monitor.take_report();
    const std::string warning = run.collapse.look(r);
    run.progress.say(text("attention after step %lld: %s", static_cast<long long>(step), summary_of(r).c_str()));
    if (!warning.empty()) run.progress.say(warning);
    std::vector<JsonLines::Field> fields = {{"event", "attention"}, {"step", step}};
    for (auto& [key, table] : tables_of(r, run.collapse.collapsed())) fields.emplace_back(key, std::move(table));
    run.log.write(fields);
}

/// --prompt and --sample-tokens tokens more.
template <class Device, class X>
std::string sample(Run<Device, X, Attention>& run) {
    const Tokenizer& tokenizer = *run.data.tokenizer;
    std::vector<uint32_t> prompt;
    tokenizer.encode(run.o.prompt, prompt);
    if (prompt.empty()) prompt.push_back(tokenizer.end_of_text());
    std::vector<int32_t> ids(prompt.begin(), prompt.end());
    generate(run.device, run.gpt, ids, run.o.sample_tokens, {0.8, 0, 0.95, run.o.seed + uint64_t(run.state.step)});
    return replace_invalid_utf8(tokenizer.decode(ids));
}

// ------------------------------------------------------------------------------------------------------------------ the loop

/// Gradients of one optimiser step, averaged over all its tokens on all ranks; their norm and the loss go to gpt.numbers. The last
/// micro-step hands every layer's gradients on to be summed over the ranks as soon as they are ready.
template <class Device, class X>
void step_gradients(Run<Device, X, Attention>& run, Loader& loader, int64_t step) {
    Device device = run.device;
    auto& gpt = run.gpt;
    const float share = float(1.0 / double(run.data.tokens_per_step));
    auto sum_over_ranks = [&](size_t begin, size_t end) {
        run.collectives->start_sum(device, gpt.gradients + begin, end - begin);
    };
    for (int micro = 0; micro < run.data.micro_steps; micro++) {
        const Write write = micro == 0 ? Write::overwrite : Write::add;
        run.ranks.at("computing gradients", step);
        const Batch batch = run.feed.next(device, loader, gpt.B, gpt.T);
        auto gradients = [&](auto ready) {
            gpt_forward(device, gpt, batch);
            gpt_loss(device, gpt, batch, write, share);
            gpt_backward(device, gpt, batch, write, ready);
        };
        if (run.ranks.size() > 1 && micro + 1 == run.data.micro_steps) gradients(sum_over_ranks);
        else run.graphs.run(device, batch.tokens, write, [&] { gradients(IgnoreReady{}); });
        run.feed.read_on(device, loader, gpt.B, gpt.T);
    }
    run.collectives->start_sum(device, &gpt.numbers->loss, 1);
    if (Attention::has_auxiliary_loss) run.collectives->start_sum(device, &gpt.numbers->auxiliary, 1);
    run.collectives->finish(device);
    gpt_norm(device, gpt);
}

/// A loss or gradient that is not finite has left the weights as they were and ends the run; the message names the first such
/// tensor.
template <class Device, class X>
void require_finite(Run<Device, X, Attention>& run, const StepNumbers& numbers, double loss, double norm, int64_t step) {
    if (numbers.finite()) return;
    const bool losses = std::isfinite(loss) && std::isfinite(numbers.auxiliary);
    std::string where = std::isfinite(loss) ? "the auxiliary loss" : "the loss";
    for (const Tensor& t : run.gpt.net.tensors) {
        if (!losses) break;
        if (t.role == Role::frozen) continue;
        sum_of_squares(run.device, &run.gpt.numbers->squares, run.gpt.gradients + t.slot.offset, t.slot.size);
        if (std::isfinite(read_numbers(run.device, run.gpt).squares)) continue;
        where = "the gradient of " + t.name;
        break;
    }
    fail(Exit::not_finite, where, " is not finite in step ", step, " (loss ", loss, ", gradient norm ", norm,
         "); the weights were not changed. Lower --lr, or resume from the last checkpoint");
}

/// Every step: gradients of all micro-steps and ranks, learning rate, clip and AdamW on the device; then its numbers are read, and
/// what is due is done.
template <class Device, class X>
Exit train(Device device, const Options& o, Ranks& ranks) {
    const int threads = use_threads(o.threads, ranks.local_size());
    Origin origin = find_origin(o, Attention::name, Attention::settings(), ranks.first());
    Data data = open_data(o, ranks.size(), origin.config);
    Run<Device, X, Attention> run(device, o, ranks, std::move(data), origin.config);
    if (ranks.first()) print_set_up(run, threads);
    if (o.dry_run) return Exit::done;
    if (o.evaluate) return evaluate(run, origin);
    begin(run, origin);
    Loader loader(*run.data.train, {o.batch_size, o.seq_len, ranks.size(), ranks.rank(), run.data.micro_steps, o.seed, o.shuffle});
    loader.seek(run.state.step);
    catch_stop_signals();

    bool stopped = false;
    run.since_step.lap();
    for (int64_t step = run.first_step; step <= run.data.steps && !stopped; step++) {
        step_gradients(run, loader, step);
        AdamW adamw = o.adamw;
        adamw.lr = learning_rate(o.adamw.lr, o.min_lr_frac, run.data.warmup_steps, run.data.steps, step - 1);
        gpt_update(device, run.gpt, adamw, step);
        if (o.zero_stage) run.collectives->all_gather(device, run.gpt.weights, run.gpt.net.tensors.size());
        ranks.at("waiting for the device", step);
        const StepNumbers numbers = read_numbers(device, run.gpt);
        const double loss = numbers.loss / double(run.data.tokens_per_step), norm = std::sqrt(numbers.squares);
        require_finite(run, numbers, loss, norm, step);

        const int64_t tokens = step * run.data.tokens_per_step;
        run.state = {step, tokens, o.seed, tokens / o.seq_len, o.resolved, loss, run.validation.loss};
        report_step(run, norm, adamw.lr, numbers.auxiliary / double(run.data.tokens_per_step));
        const bool last = step == run.data.steps;
        if (run.data.val && run.due(o.val_every, last)) validate_and_report(run);
        if (run.evaluation_due(last)) evaluate_tasks(run);
        if (ranks.first() && run.data.tokenizer && !stop_requested() && run.due(o.sample_every, last))
            run.progress.say("--- sample ---\n" + sample(run) + "\n--------------");
        if (ranks.first() && !stop_requested() && run.due(o.monitor_every, last)) observe_attention(run);
        stopped = ranks.any(stop_requested());
        if (run.due(o.checkpoint_every, last || stopped)) save(run, last || stopped);
        run.since_step.lap();
    }
    if (run.data.val && !stopped && std::isnan(run.validation.loss)) validate_and_report(run);   // a signal had cut it short
    return finish(run, stopped);
}

/// Trains on the device and in the precision that the options ask for.
Exit train(const Options& o) {
    if (!o.show_mask.empty()) {
        show_mask<Attention>(o);
        return Exit::done;
    }
    Ranks ranks(o.watchdog_seconds, o.ranks_from);
#ifdef WITH_GPU
    if (takes_gpu(o.device, o.dry_run, ranks)) {
        const OpenGpu gpu(ranks.local_rank(), o.dry_run);
        if (o.precision == "fp32") return train<GPU, float>(gpu.device(), o, ranks);
        return train<GPU, bf16>(gpu.device(), o, ranks);
    }
#else
    if (o.device == "cuda")
        fail(Exit::usage, "--device cuda: this program was built without CUDA; install nvcc, then make configure and build again");
#endif
    if (o.precision == "bf16") fail(Exit::usage, "--precision bf16 needs a GPU; the CPU trains in fp32");
    return train<CPU, float>(CPU{}, o, ranks);
}

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    keep_freed_memory();
    outlive_readers();
    Exit result = Exit::done;
    const int failed = run_program(process_name(std::string("train_") + Attention::name), [&] {
        Options options;
        if (!parse(argc, argv, options)) return;
        result = train(options);
    });
    return failed ? failed : int(result);
}
