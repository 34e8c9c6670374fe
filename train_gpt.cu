// Trains a Qwen language model with the attention variant that this file is compiled for (make train_asga, make train_causal, ...).
// Read it from the bottom: main() parses the options, train() sets everything up and holds the loop.
#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>

#include "attention/attention.h"
#include "data/loader.h"
#include "data/tokenizer.h"
#include "model/checkpoint.h"
#include "model/generate.cuh"
#include "model/machine.h"
#include "model/options.h"
#include "model/ranks.h"
#include "model/report.h"
#include "model/summary.h"

namespace fs = std::filesystem;

// ------------------------------------------------------------------------------------------------------------------- options

struct Options {
    std::string device = "auto", precision = "fp32", model = "qwen-7m", out = std::string("out/") + Attention::name;
    std::string train_data, val_data, checkpoint, prompt = "\n";
    int batch_size = 8, seq_len = 512, val_batches = 20, sample_tokens = 128, keep_checkpoints = 2, threads = 0, zero_stage = 0, recompute = 0;
    int64_t total_batch_tokens = 0, steps = 1000, warmup_steps = -1, val_every = 100, sample_every = 200, checkpoint_every = 200;
    double epochs = 0, min_lr_frac = 0.1, grad_clip = 1.0;
    AdamW adamw;
    bool shuffle = true, resume = false, dry_run = false, plot = true;
    uint64_t seed = 1;
    int watchdog_seconds = 300;
    std::map<std::string, double> settings;   // of the variant, by config.json key; only those given
    std::string resolved;                     // all of them, as a file for --config
};

/// The variant's own settings; --window and --dense-until are known to every variant, so that scripts can pass them to all.
void add_settings(CLI::App& app, Options& o) {
    std::vector<Setting> settings = Attention::settings();
    for (const Setting& s : settings)
        app.add_option_function<double>(s.option, [&o, s](double value) { o.settings[s.key] = value; }, text("%s [%g]", s.help, s.value))->group("Attention");
    for (const char* option : {"--window", "--dense-until"})
        if (!app.get_option_no_throw(option))
            app.add_option_function<double>(option, [option](double) { std::cerr << "note: " << option << " has no effect in " << Attention::name << "\n"; }, "no effect in this variant")->group("Attention");
}

/// False when only --help was asked for.
bool parse(int argc, char** argv, Options& o) {
    CLI::App app(std::string("Trains a Qwen language model with ") + Attention::name + " attention.\nStop it with Ctrl-C: it saves and exits with code 75, and --resume goes on. Under mpirun send SIGUSR1 to mpirun\n"
                 "(Open MPI kills ranks one second after SIGTERM unless told: --mca odls_base_sigkill_timeout 120).");
    app.set_config("--config", "", "a file of key = value lines, as options.toml in the output folder");
    app.option_defaults()->always_capture_default();
    const auto positive = CLI::Range(1, 1 << 30);
    const auto count = CLI::Range(int64_t(0), int64_t(1) << 50);
    const auto share = CLI::Range(0.0, 1.0);
    app.add_option("--device", o.device, "where to train")->check(CLI::IsMember({"auto", "cpu", "cuda"}));
    app.add_option("--model", o.model, "preset, or a Hugging Face folder to start from; its config.json alone starts from scratch");
    app.add_option("--train-data", o.train_data, "token shards (glob); without it the bundled text");
    app.add_option("--val-data", o.val_data, "token shards for validation (glob)");
    app.add_option("--out", o.out, "folder for log, checkpoints and options");
    app.add_option("--batch-size", o.batch_size, "sequences per rank and micro-step")->check(positive);
    app.add_option("--seq-len", o.seq_len, "tokens per sequence, T")->check(positive);
    app.add_option("--total-batch-tokens", o.total_batch_tokens, "tokens per optimiser step over all ranks; 0: batch-size x seq-len x ranks")->check(count);
    app.add_option("--steps", o.steps, "optimiser steps")->check(CLI::Range(int64_t(1), int64_t(1) << 50));
    app.add_option("--epochs", o.epochs, "length of the run in passes over the data, instead of --steps")->check(CLI::Range(0.0, 1e6));
    app.add_option("--shuffle", o.shuffle, "0 reads the shards in order");
    app.add_option("--lr", o.adamw.lr, "peak learning rate")->check(CLI::Range(0.0, 1e3));
    app.add_option("--warmup-steps", o.warmup_steps, "steps of linear warm-up; -1: a twentieth of the run")->check(CLI::Range(int64_t(-1), int64_t(1) << 50));
    app.add_option("--min-lr-frac", o.min_lr_frac, "where the cosine ends, as a fraction of --lr")->check(share);
    app.add_option("--weight-decay", o.adamw.weight_decay, "decoupled, on matrices only")->check(CLI::Range(0.0, 1e3));
    app.add_option("--beta1", o.adamw.beta1, "AdamW")->check(CLI::Range(0.0, 0.999999));
    app.add_option("--beta2", o.adamw.beta2, "AdamW")->check(CLI::Range(0.0, 0.9999999));
    app.add_option("--adam-eps", o.adamw.eps, "AdamW")->check(CLI::Range(1e-30, 1.0));
    app.add_option("--grad-clip", o.grad_clip, "largest global L2 norm of the gradient; 0: no limit")->check(CLI::Range(0.0, 1e30));
    app.add_option("--precision", o.precision, "of weights and activations")->check(CLI::IsMember({"bf16", "fp32"}));
    app.add_option("--val-every", o.val_every, "steps between validations; 0: never")->check(count);
    app.add_option("--val-batches", o.val_batches, "batches of batch-size x ranks sequences in a validation")->check(positive);
    app.add_option("--sample-every", o.sample_every, "steps between samples of text; 0: never")->check(count);
    app.add_option("--sample-tokens", o.sample_tokens, "length of a sample")->check(positive);
    app.add_option("--prompt", o.prompt, "what samples begin with");
    app.add_option("--checkpoint-every", o.checkpoint_every, "steps between checkpoints, one more at the end; 0: none")->check(count);
    app.add_option("--keep-checkpoints", o.keep_checkpoints, "how many stay; 0: all")->check(CLI::Range(0, 1 << 30));
    app.add_flag("--resume", o.resume, "go on from the newest sound checkpoint in --out");
    app.add_option("--checkpoint", o.checkpoint, "go on from this checkpoint");
    app.add_option("--seed", o.seed, "of initialisation, data order and samples");
    app.add_option("--threads", o.threads, "OpenMP threads; 0: this rank's share of the processors")->check(CLI::Range(0, 4096));
    app.add_option("--zero-stage", o.zero_stage, "1: every rank keeps the moments of its own part of the weights only")->check(CLI::Range(0, 1));
    app.add_option("--recompute", o.recompute, "1: keep only each layer's input and compute the rest again on the way back")->check(CLI::Range(0, 1));
    app.add_option("--watchdog-seconds", o.watchdog_seconds, "a rank without progress for so long ends the job; 0: off")->check(CLI::Range(0, 1 << 20));
    app.add_option("--plot", o.plot, "1: draw the loss curve at the end");
    app.add_flag("--dry-run", o.dry_run, "print model, memory, FLOPs and data; train nothing");
    add_settings(app, o);
    if (!parse_options(app, argc, argv)) return false;
    if (o.device == "cuda") fail(Exit::usage, "--device cuda: this program has no CUDA kernels; use --device cpu");
    if (o.precision == "bf16") fail(Exit::usage, "--precision bf16 needs --device cuda; the CPU trains in fp32");
    if (o.resume && !o.checkpoint.empty()) fail(Exit::usage, "--resume and --checkpoint both say where to go on; give one");
    if (app.count("--epochs") && app.count("--steps")) fail(Exit::usage, "--epochs and --steps both set the length of the run; give one");
    o.resolved = app.config_to_str(true);
    return true;
}

// -------------------------------------------------------------------------------------------------------------------- set-up

/// The data and how a step is cut out of it.
struct Data {
    std::unique_ptr<TokenStream> train, val;   // val is null without validation
    std::unique_ptr<Tokenizer> tokenizer;      // null when unknown
    int64_t tokens_per_step = 0, steps = 0, warmup_steps = 0;
    int micro_steps = 1;
};

Data open_data(const Options& o, const Ranks& ranks, Config& config) {
    Data data;
    const std::string bundled = program_folder() + "/data/bundled/sotu_";
    const std::string val = o.val_data.empty() && o.train_data.empty() ? bundled + "val_*.bin" : o.val_data;
    data.train = std::make_unique<TokenStream>(o.train_data.empty() ? bundled + "train_*.bin" : o.train_data, config.V);
    if (!val.empty() && o.val_every) data.val = std::make_unique<TokenStream>(val, config.V);
    if (data.val && windows(*data.val, o.seq_len) < int64_t(o.batch_size) * ranks.size())
        fail(Exit::data, data.val->name(), ": ", data.val->size(), " tokens are less than one validation batch of ", int64_t(o.batch_size) * o.seq_len * ranks.size(),
             " tokens and the one behind it; lower --batch-size or --seq-len, or set --val-every 0");
    if (!data.train->tokenizer().empty()) config.tokenizer = data.train->tokenizer();
    if (!config.tokenizer.empty()) data.tokenizer = open_tokenizer(config.tokenizer);

    const int64_t micro_batch = int64_t(o.batch_size) * o.seq_len * ranks.size();
    data.tokens_per_step = o.total_batch_tokens ? o.total_batch_tokens : micro_batch;
    if (data.tokens_per_step % micro_batch)
        fail(Exit::usage, "--total-batch-tokens ", data.tokens_per_step, " is not a multiple of batch-size x seq-len x ranks = ", o.batch_size, " x ", o.seq_len, " x ", ranks.size(), " = ", micro_batch);
    data.micro_steps = int(data.tokens_per_step / micro_batch);
    data.steps = o.epochs > 0 ? std::max<int64_t>(1, std::llround(std::ceil(o.epochs * double(data.train->size()) / double(data.tokens_per_step)))) : o.steps;
    data.warmup_steps = o.warmup_steps >= 0 ? o.warmup_steps : data.steps / 20;
    return data;
}

/// Where the run begins: a checkpoint to go on from, a folder of weights to start from, or nothing but a shape.
struct Origin {
    Config config;
    std::optional<fs::path> resume_from, weights_from;
};

Origin find_origin(const Options& o, const Ranks& ranks) {
    Origin origin;
    if (!o.checkpoint.empty()) {
        verify_checkpoint(o.checkpoint);
        origin.resume_from = o.checkpoint;
    } else if (o.resume) {
        std::vector<std::string> complaints;
        origin.resume_from = latest_checkpoint(o.out, complaints);
        for (const std::string& complaint : complaints)
            if (ranks.first()) std::cerr << "warning: " << complaint << "\n";
        if (!origin.resume_from && !complaints.empty()) fail(Exit::checkpoint, o.out, ": no sound checkpoint is left to resume from; give another --out to start anew");
        if (!origin.resume_from && ranks.first()) std::cerr << "note: no checkpoint in " << o.out << "; starting at step 0\n";
    }
    if (!origin.resume_from && !is_preset(o.model) && fs::is_directory(o.model)) origin.weights_from = o.model;
    const auto folder = origin.resume_from ? origin.resume_from : origin.weights_from;
    origin.config = folder ? load_config(*folder) : preset(o.model);
    if (origin.resume_from && origin.config.variant != Attention::name)
        fail(Exit::checkpoint, origin.resume_from->string(), ": is a checkpoint of ", origin.config.variant, ", and this program trains ", Attention::name, "; use ./train_", origin.config.variant);
    for (const auto& [key, value] : o.settings) origin.config.settings[key] = value;
    return origin;
}

template <class Device>
using Model = GPT<Device, float, Attention>;

/// Weights, and when a run is resumed the moments too (this rank's shard of them); returns what the run had reached.
template <class Device>
TrainerState load_or_initialise(Model<Device>& gpt, const Origin& origin, const Options& o, const Ranks& ranks) {
    const TensorList& list = gpt.net.tensors;
    TrainerState state;
    state.seed = o.seed;
    const auto folder = origin.resume_from ? origin.resume_from : origin.weights_from;
    if (!folder) {
        initialise(list, o.seed, gpt.weights);
        return state;
    }
    const LoadReport report = load_weights(*folder, list, o.seed, gpt.weights);
    if (ranks.first() && !report.initialised.empty())
        std::cout << folder->string() << " lacks " << report.initialised.size() << " tensors, initialised from the seed: " << report.initialised.front() << (report.initialised.size() > 1 ? ", ...\n" : "\n");
    if (!origin.resume_from) return state;
    if (!report.initialised.empty()) fail(Exit::checkpoint, folder->string(), ": lacks ", report.initialised.front(), ", so the run cannot go on from it; start from it with --model instead");
    std::vector<float> m(list.size()), v(list.size());
    state = load_state(*folder, list, m.data(), v.data());
    if (state.seed != o.seed) fail(Exit::usage, "--seed ", o.seed, " is not the ", state.seed, " that ", folder->string(), " was made with; the data would come in another order");
    std::copy(m.begin() + gpt.moments_begin, m.begin() + gpt.moments_end, gpt.m);
    std::copy(v.begin() + gpt.moments_begin, v.begin() + gpt.moments_end, gpt.v);
    return state;
}

/// A checkpoint that cannot be written costs the run a warning; the last one (`last`) its exit code.
template <class Device>
void save(const Model<Device>& gpt, const Options& o, Ranks& ranks, const TrainerState& state, bool last, Progress& progress, JsonLines& log) {
    ranks.at("saving a checkpoint", state.step);
    const size_t n = gpt.net.tensors.size();
    std::vector<float> m, v;   // whole moments, needed only where each rank has a shard of them
    if (o.zero_stage) {
        m.resize(n), v.resize(n);
        std::copy(gpt.m, gpt.m + (gpt.moments_end - gpt.moments_begin), m.begin() + gpt.moments_begin);
        std::copy(gpt.v, gpt.v + (gpt.moments_end - gpt.moments_begin), v.begin() + gpt.moments_begin);
        ranks.all_gather(m.data(), n), ranks.all_gather(v.data(), n);
    }
    if (!ranks.first()) return;
    try {
        const fs::path tokenizer_from = fs::is_directory(o.model) ? fs::path(o.model) : fs::path();
        const fs::path path = save_checkpoint(o.out, gpt.net.config, gpt.net.tensors, gpt.weights, o.zero_stage ? m.data() : gpt.m, o.zero_stage ? v.data() : gpt.v, state, tokenizer_from);
        prune_checkpoints(o.out, o.keep_checkpoints);
        log.write({{"event", "checkpoint"}, {"step", state.step}, {"path", path.string()}});
        progress.say("checkpoint " + path.string());
    } catch (const Error& error) {
        if (last) throw;
        progress.say("");
        std::cerr << "warning: no checkpoint at step " << state.step << ", earlier ones are as they were: " << error.what() << "\n";
    }
}

/// The output folder with the run's options and its log, whose first record is the configuration.
JsonLines open_log(const Options& o, const Ranks& ranks, const TrainerState& state, const Origin& origin, const Qwen<Attention>& net) {
    if (!ranks.first()) return {};
    std::error_code error;
    fs::create_directories(o.out, error);
    if (error) fail(Exit::checkpoint, o.out, ": cannot be made (", error.message(), "); choose another --out");
    JsonLines log(o.out + "/log.jsonl", origin.resume_from ? state.step : -1);
    std::ofstream(o.out + "/options.toml") << o.resolved;
    log.write({{"event", "config"}, {"variant", Attention::name}, {"parameters", int64_t(net.tensors.parameters())}, {"ranks", int64_t(ranks.size())}, {"options", o.resolved}}, "model", config_to_json(net.config));
    return log;
}

// -------------------------------------------------------------------------------------------------- evaluation and sampling

struct Validation {
    double loss = NAN;            // nats per token
    double bits_per_byte = NAN;   // NaN when the tokenizer is unknown
};

/// Mean cross-entropy over the first --val-batches batches of the validation shards, the same rows for any number of ranks.
template <class Device>
Validation evaluate(Device device, Model<Device>& gpt, const Data& data, const Options& o, Ranks& ranks) {
    const int B = o.batch_size, T = o.seq_len;
    const int64_t rows = std::min<int64_t>(windows(*data.val, T), int64_t(o.val_batches) * B * ranks.size());
    std::vector<int32_t> inputs(size_t(B) * T), targets(inputs.size());
    double loss = 0, bytes = 0;
    for (int64_t row = int64_t(ranks.rank()) * B; row < rows; row += int64_t(ranks.size()) * B) {
        const int here = int(std::min<int64_t>(B, rows - row));
        validation_rows(*data.val, row, T, here, inputs.data(), targets.data());
        gpt_forward(device, gpt, inputs.data(), here, T);
        loss += gpt_loss(device, gpt, targets.data(), here, T);
        for (int n = 0; n < here * T && data.tokenizer; n++) bytes += data.tokenizer->bytes(targets[n]);
    }
    loss = ranks.sum(loss), bytes = ranks.sum(bytes);
    return {loss / double(rows * T), bytes > 0 ? loss / std::log(2.0) / bytes : NAN};
}

/// The prompt and `count` tokens more.
template <class Device>
std::string sample(Device device, Model<Device>& gpt, const Tokenizer& tokenizer, const std::string& prompt, int count, const Sampling& how) {
    std::vector<uint32_t> prompt_ids;
    tokenizer.encode(prompt, prompt_ids);
    if (prompt_ids.empty()) prompt_ids.push_back(tokenizer.end_of_text());
    std::vector<int32_t> ids(prompt_ids.begin(), prompt_ids.end());
    generate(device, gpt, ids, count, how);
    return replace_invalid_utf8(tokenizer.decode(ids));
}

// ------------------------------------------------------------------------------------------------------------------ the loop

/// Loss and gradients of one optimiser step, averaged over all its tokens on all ranks; returns the loss.
template <class Device>
double step_gradients(Device device, Model<Device>& gpt, Loader& loader, const Data& data, Ranks& ranks) {
    std::vector<int32_t> inputs(size_t(gpt.B) * gpt.T), targets(inputs.size());
    const float share = float(1.0 / double(data.tokens_per_step));
    double loss = 0;
    for (int micro = 0; micro < data.micro_steps; micro++) {
        const Write write = micro == 0 ? Write::overwrite : Write::add;
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
void require_finite(const Model<Device>& gpt, double loss, double norm, int64_t step) {
    if (std::isfinite(loss) && std::isfinite(norm)) return;
    std::string where = "the loss";
    for (const Tensor& t : gpt.net.tensors)
        if (std::isfinite(loss) && !std::isfinite(sum_of_squares(CPU{}, gpt.gradients + t.slot.offset, t.slot.size))) {
            where = "the gradient of " + t.name;
            break;
        }
    fail(Exit::not_finite, where, " is not finite in step ", step, " (loss ", loss, ", gradient norm ", norm, "); the weights were not changed. Lower --lr, or resume from the last checkpoint");
}

void print_set_up(const Options& o, const Data& data, const Ranks& ranks, const Qwen<Attention>& net, const std::vector<MemoryUse>& plan, int threads) {
    print_tensors(net.tensors);
    print_table("model", model_rows(net, o.seq_len));
    const std::string val = data.val ? text("%llu tokens in %zu shards", static_cast<unsigned long long>(data.val->size()), data.val->shards()) : "none";
    print_table("data", {{"training", text("%llu tokens in %zu shards, %s", static_cast<unsigned long long>(data.train->size()), data.train->shards(), data.train->name().c_str())},
                         {"validation", val},
                         {"tokenizer", data.tokenizer ? data.tokenizer->name() : "unknown: no samples, no bits per byte"},
                         {"tokens per step", text("%lld = %d micro-steps x %d ranks x %d x %d", static_cast<long long>(data.tokens_per_step), data.micro_steps, ranks.size(), o.batch_size, o.seq_len)},
                         {"steps", text("%lld, %lld of them warm-up", static_cast<long long>(data.steps), static_cast<long long>(data.warmup_steps))},
                         {"passes over the data", text("%.3g", double(data.steps) * double(data.tokens_per_step) / double(data.train->size()))}});
    print_table("training", {{"device", "cpu: " + describe_cpu(threads)}, {"precision", "fp32"}, {"ranks", std::to_string(ranks.size())},
                             {"learning rate", text("%g, cosine to %g", o.adamw.lr, o.adamw.lr * o.min_lr_frac)},
                             {"AdamW", text("beta1 %g, beta2 %g, eps %g, weight decay %g", o.adamw.beta1, o.adamw.beta2, o.adamw.eps, o.adamw.weight_decay)},
                             {"gradient clip", text("%g", o.grad_clip)}, {"seed", std::to_string(o.seed)}, {"output", o.out}});
    print_memory(plan);
    std::fflush(stdout);
}

template <class Device>
Exit train(Device device, const Options& o) {
    Ranks ranks(o.watchdog_seconds);
    const int threads = use_threads(o.threads, ranks.local_size());
    Origin origin = find_origin(o, ranks);
    Data data = open_data(o, ranks, origin.config);
    Model<Device> gpt(origin.config, o.batch_size, o.seq_len, Mode::training, o.recompute == 1, o.zero_stage ? ranks.rank() : 0, o.zero_stage ? ranks.size() : 1);
    const size_t needed = total_bytes(gpt.memory_plan());
    if (ranks.first()) print_set_up(o, data, ranks, gpt.net, gpt.memory_plan(), threads);
    if (o.dry_run) return Exit::done;
    if (needed > available_memory() / ranks.local_size())
        fail(Exit::out_of_memory, "training needs ", human_bytes(double(needed)), " on each of ", ranks.local_size(), " ranks and the machine has ", human_bytes(double(available_memory())),
             " left: lower --batch-size or --seq-len", o.recompute ? "" : ", or set --recompute 1");
    gpt.allocate();
    TrainerState state = load_or_initialise(gpt, origin, o, ranks);
    if (state.step > data.steps) fail(Exit::usage, origin.resume_from->string(), ": has ", state.step, " steps behind it, more than --steps ", data.steps);
    JsonLines log = open_log(o, ranks, state, origin, gpt.net);
    Loader loader(*data.train, {o.batch_size, o.seq_len, ranks.size(), ranks.rank(), data.micro_steps, o.seed, o.shuffle});
    loader.seek(state.step);
    catch_stop_signals();
    const double ceiling = measure_sgemm() * ranks.size(), flops_per_token = count_flops(gpt.net, o.seq_len).per_token;
    const int64_t first_step = state.step;
    Progress progress(ranks.first());
    Stopwatch run, watch;
    bool stopped = false;
    double loss = state.last_loss;
    Validation validation{state.last_val_loss, NAN};

    for (int64_t step = state.step + 1; step <= data.steps && !stopped; step++) {
        ranks.at("computing gradients", step);
        watch.lap();
        loss = step_gradients(device, gpt, loader, data, ranks);
        const double norm = std::sqrt(sum_of_squares(device, gpt.gradients, gpt.net.tensors.size()));
        require_finite(gpt, loss, norm, step);
        AdamW adamw = o.adamw;
        adamw.lr = learning_rate(o.adamw.lr, o.min_lr_frac, data.warmup_steps, data.steps, step - 1);
        gpt_update(device, gpt, adamw, clip_factor(norm, o.grad_clip), step);
        if (o.zero_stage) ranks.all_gather(gpt.weights, gpt.net.tensors.size());

        const double seconds = watch.lap(), tokens_per_second = double(data.tokens_per_step) / seconds;
        const StepReport report{step, data.steps, step * data.tokens_per_step, loss, norm, adamw.lr, seconds, tokens_per_second, tokens_per_second * flops_per_token, tokens_per_second * flops_per_token / ceiling};
        progress.step(report, step - first_step);
        log.write({{"step", step}, {"tokens", report.tokens}, {"loss", loss}, {"grad_norm", norm}, {"lr", adamw.lr}, {"ms", seconds * 1e3}, {"tok_s", tokens_per_second}, {"mfu", report.mfu}});
        state = {step, report.tokens, o.seed, step * data.tokens_per_step / o.seq_len, o.resolved, loss, validation.loss};

        stopped = ranks.any(stop_requested());
        const bool last = step == data.steps || stopped;
        if (data.val && !stopped && (step % o.val_every == 0 || last)) {
            ranks.at("validating", step);
            validation = evaluate(device, gpt, data, o, ranks);
            state.last_val_loss = validation.loss;
            progress.say(text("validation after step %lld: loss %.4f, %.4f bits per byte", static_cast<long long>(step), validation.loss, validation.bits_per_byte));
            log.write({{"step", step}, {"val_loss", validation.loss}, {"val_bpb", validation.bits_per_byte}});
        }
        if (ranks.first() && data.tokenizer && o.sample_every && !stopped && (step % o.sample_every == 0 || last))
            progress.say("--- sample ---\n" + sample(device, gpt, *data.tokenizer, o.prompt, o.sample_tokens, {0.8, 0, 0.95, o.seed + uint64_t(step)}) + "\n--------------");
        if (o.checkpoint_every && (step % o.checkpoint_every == 0 || last)) save(gpt, o, ranks, state, last, progress, log);
    }
    ranks.at("finishing", state.step);
    ranks.barrier();
    if (!ranks.first()) return stopped ? Exit::signal : Exit::done;
    if (stopped) {
        progress.say(text("stopped by a signal after step %lld; --resume goes on", static_cast<long long>(state.step)));
        return Exit::signal;
    }
    const std::string hash = text("%016llx", static_cast<unsigned long long>(weights_hash(gpt.net.tensors, gpt.weights)));
    log.write({{"event", "done"}, {"step", state.step}, {"loss", loss}, {"val_loss", validation.loss}, {"weights_hash", hash}, {"peak_bytes", int64_t(peak_memory())}, {"seconds", run.seconds()}});
    if (o.plot) plot_loss(o.out + "/log.jsonl", o.out + "/loss.png");
    progress.say(text("done: step %lld, loss %.4f, validation %.4f, peak memory %s, %s, weights hash %s", static_cast<long long>(state.step), loss, validation.loss, human_bytes(double(peak_memory())).c_str(),
                      human_seconds(run.seconds()).c_str(), hash.c_str()));
    return Exit::done;
}

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    Exit result = Exit::done;
    const int failed = run_program(process_name(std::string("train_") + Attention::name), [&] {
        Options options;
        if (!parse(argc, argv, options)) return;
        result = train(CPU{}, options);
    });
    return failed ? failed : int(result);
}
