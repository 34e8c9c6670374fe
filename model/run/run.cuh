// A training run around the loop of train_gpt.cu: its weights, its checkpoints and its log.
#pragma once
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <set>

#include "data/loader.h"
#include "data/tokenizers/tokenizer.h"
#include "model/checkpoint/checkpoint.h"
#include "model/ranks/collectives.cuh"
#include "model/base/disk.h"
#include "model/run/feed.cuh"
#include "model/gpt.h"
#include "model/device/graphs.cuh"
#include "model/run/log_likelihoods.cuh"
#include "model/run/machine.cuh"
#include "model/ranks/ranks.h"
#include "model/run/report.h"
#include "model/run/start.h"
#include "model/run/summary.h"

/// Cross-entropy on the validation shards.
struct Validation {
    double loss = NAN;            // nats per token
    double bits_per_byte = NAN;   // NaN when the tokenizer is unknown
};

/// Weights, and when a run is resumed the moments too (this rank's shard of them); returns what the run had reached. Everything
/// comes in whole through the memory of the gradients, which hold nothing yet.
template <class Device, class X>
TrainerState load_or_initialise(Device device, GPT<Device, X>& gpt, const Origin& origin, const Options& o, bool speaks) {
    const TensorList& list = gpt.net.tensors;
    const size_t owned = gpt.owned_end - gpt.owned_begin;
    HostView<Device> whole(device, gpt.gradients, list.size());
    auto take_owned = [&](Wide<X>* to) { whole.push(), convert(device, to, gpt.gradients + gpt.owned_begin, owned); };
    auto take_weights = [&] {
        take_owned(gpt.master);
        convert(device, gpt.weights, gpt.gradients, list.size());
        gpt_weights_loaded(device, gpt);
    };
    TrainerState state;
    state.seed = o.seed;
    state.last_val_loss = NAN;
    if (!origin.folder()) {
        initialise(list, o.seed, whole.data());
        start_sigma(gpt.net, whole.data(), [](const std::string&) { return true; });
        take_weights();
        return state;
    }
    const std::string folder = origin.folder()->string();
    const LoadReport report = load_weights(folder, list, o.seed, whole.data());
    const std::set<std::string> fresh(report.initialised.begin(), report.initialised.end());
    start_sigma(gpt.net, whole.data(), [&](const std::string& name) { return fresh.contains(name); });
    take_weights();
    if (speaks && !report.initialised.empty())
        std::cout << folder << " lacks " << report.initialised.size()
                  << " tensors, initialised from the seed: " << report.initialised.front()
                  << (report.initialised.size() > 1 ? ", ...\n" : "\n");
    if (!origin.resume_from) return state;
    if (!report.initialised.empty())
        fail(Exit::checkpoint, folder, ": lacks ", report.initialised.front(),
             ", so the run cannot go on from it; start from it with --model");
    state = load_state(folder, list, whole.data(), nullptr);
    take_owned(gpt.m);
    load_state(folder, list, nullptr, whole.data());
    take_owned(gpt.v);
    if (state.seed != o.seed)
        fail(Exit::usage, "--seed ", o.seed, " is not the ", state.seed, " that ", folder,
             " was made with; the data would come in another order");
    return state;
}

// ------------------------------------------------------------------------------------------------------------------- the run

/// What the loop carries from step to step.
template <class Device, class X>
struct Run {
    Device device;
    const Options& o;
    Ranks& ranks;
    Data data;
    GPT<Device, X> gpt;
    Feed<Device> feed;
    Monitor<Device, X> monitor;   // on rank 0, where it is asked for
    std::optional<Collectives<Device>> collectives;   // from begin() on
    StepGraphs<Device> graphs;
    TrainerState state;   // after the last step
    Validation validation;
    FolderLock lock;   // of the output folder, on rank 0
    JsonLines log;
    Progress progress;
    CollapseWatch collapse;
    Flops flops;               // of a step, counted once
    double ceiling = 0;        // measured FLOP/s of all ranks
    int64_t first_step = 0;                    // that this process does, from 1
    Stopwatch since_start, since_step;

    Run(Device device_, const Variant& variant, const Options& o_, Ranks& ranks_, Data data_, const Config& config)
        : device(device_),
          o(o_),
          ranks(ranks_),
          data(std::move(data_)),
          gpt(variant, config, o.batch_size, o.seq_len, o.evaluate ? Mode::inference : Mode::training, Recompute(o.recompute),
              o.zero_stage && !o.evaluate ? ranks.rank() : 0, o.zero_stage && !o.evaluate ? ranks.size() : 1),
          feed(o.batch_size, o.seq_len, config.V),
          monitor(o.monitor_every && ranks.first() ? o.batch_size : 0, o.seq_len, gpt.net),
          progress(ranks.first(), ranks.launched()),
          flops(count_flops(gpt.net, o.seq_len)) {
        require_sizes(device, config);
    }

    /// The model's plan and what this run needs beside it.
    std::vector<MemoryUse> memory_plan() const {
        std::vector<MemoryUse> plan = gpt.memory_plan();
        plan.push_back({"batches", feed.bytes()});
        if (monitor.bytes()) plan.push_back({"attention monitor", monitor.bytes()});
        if (shares_contexts()) plan.push_back({"contexts of answers", SharedContexts<X>::bytes(gpt.net.config, gpt.B, gpt.T)});
        add_overheads(device, plan, gpt.sharded() ? 2 * sizeof(float) * gpt.net.tensors.size() : 0, ranks.launched());
        return plan;
    }

    /// Whether answers to an item can go on from one computation of its context.
    bool shares_contexts() const {
        return std::is_same_v<Device, CPU> && !data.tasks.empty() && gpt.net.all(&LayerFacts::decodes_from_cache);
    }

    bool due(int64_t every, bool last) const { return every && (state.step % every == 0 || last); }
    bool evaluation_due(bool last) const { return !data.tasks.empty() && (last || due(o.eval_every, false)); }
};

/// Gets memory and weights, makes the output folder with the run's options and its log, whose first record is the configuration.
template <class Device, class X>
void begin(Run<Device, X>& run, const Origin& origin) {
    const Options& o = run.o;
    const Variant& variant = run.gpt.net.variant;
    if (run.gpt.net.any(&LayerFacts::needs_known_text))
        fail(Exit::usage, "with these settings ", variant.name, " reads what stands behind a row, and is for texts that are there as a ",
             "whole (--evaluate, --show-mask, ./generate); to train give ", variant.options_to_train);
    require_memory(run.memory_plan(), o, available_memory(run.device), ranks_per_device(run.device, run.ranks.local_size()));
    run.collectives.emplace(run.device, run.ranks);   // first: NCCL takes memory of its own
    run.gpt.allocate(run.device);
    run.feed.allocate(run.device);
    run.monitor.allocate();
    run.state = load_or_initialise(run.device, run.gpt, origin, o, run.ranks.first());
    fill(run.device, run.gpt.gradients, run.gpt.net.tensors.size(), 0.0f);   // what no backward pass writes stays zero
    run.validation.loss = run.state.last_val_loss;
    run.first_step = run.state.step + 1;
    if (run.state.step > run.data.steps)
        fail(Exit::usage, origin.resume_from->string(), ": has ", run.state.step, " steps behind it, more than --steps ",
             run.data.steps);
    const int64_t rows = run.state.step * (run.data.tokens_per_step / o.seq_len);
    if (run.state.data_rows != rows)
        fail(Exit::usage, origin.resume_from->string(), ": has read ", run.state.data_rows, " rows of data in ", run.state.step,
             " steps, but with these options it would have been ", rows,
             "; resume with the same --batch-size, --seq-len, --total-batch-tokens and ranks in product");
    run.ceiling = measure_matmul(run.device) * run.ranks.size();
    if (!run.ranks.first()) return;
    std::error_code error;
    std::filesystem::create_directories(o.out, error);
    if (error) fail(Exit::checkpoint, o.out, ": cannot be made (", error.message(), "); choose another --out");
    run.lock = FolderLock(o.out);
    const bool same_run =
        origin.resume_from &&
        std::filesystem::equivalent(std::filesystem::absolute(*origin.resume_from).lexically_normal().parent_path(), o.out, error);
    run.log = JsonLines(o.out + "/log.jsonl", same_run ? run.state.step : -1);
    std::ofstream(o.out + "/options.toml") << o.resolved;
    run.log.write({{"event", "config"},
                   {"step", run.state.step},
                   {"variant", variant.name},
                   {"parameters", int64_t(run.gpt.net.tensors.parameters())},
                   {"ranks", int64_t(run.ranks.size())},
                   {"options", o.resolved}},
                  "model", config_to_json_line(run.gpt.net.config));
}

/// Prints and logs the step that run.state has just been moved to. `auxiliary` is the mean of the policy's own loss.
template <class Device, class X>
void report_step(Run<Device, X>& run, double norm, double lr, double auxiliary) {
    const TrainerState& s = run.state;
    const double seconds = run.since_step.lap(), rate = double(run.data.tokens_per_step) / seconds,
                 flops = rate * run.flops.per_token;
    run.progress.step({s.step, run.data.steps, s.tokens, s.last_loss, norm, lr, seconds, rate, flops, flops / run.ceiling},
                      s.step - run.first_step + 1);
    std::vector<JsonLines::Field> fields = {{"step", s.step},
                                            {"tokens", s.tokens},
                                            {"loss", s.last_loss},
                                            {"grad_norm", norm},
                                            {"lr", lr},
                                            {"ms", seconds * 1e3},
                                            {"tok_s", rate},
                                            {"mfu", flops / run.ceiling}};
    if (run.gpt.auxiliary) fields.push_back({"aux_loss", auxiliary});
    run.log.write(fields);
}

/// An array of the whole list on the host of rank 0, from the part of it that each rank holds in its device's memory.
template <class Device>
class Whole {
public:
    template <class X>
    Whole(Run<Device, X>& run, float* owned, bool is_whole)
        : mine_(run.device, owned, is_whole ? run.gpt.net.tensors.size() : run.gpt.owned_end - run.gpt.owned_begin) {
        mine_.pull();
        if (is_whole) return;
        if (run.ranks.first()) gathered_.resize(run.gpt.net.tensors.size());
        run.ranks.gather_shards(mine_.data(), gathered_.data(), run.gpt.net.tensors.size());
    }
    const float* data() { return gathered_.empty() ? mine_.data() : gathered_.data(); }

private:
    HostView<Device> mine_;
    std::vector<float> gathered_;
};

/// The weights in full precision. Every rank must call it.
template <class Device, class X>
Whole<Device> whole_weights(Run<Device, X>& run) {
    if constexpr (!GPT<Device, X>::rounds)
        if (!run.gpt.keeps_master()) return {run, run.gpt.weights, true};
    return {run, run.gpt.master, !run.gpt.sharded()};
}

/// Saves a checkpoint. One that cannot be written costs the run a warning; the last one its exit code.
template <class Device, class X>
void save(Run<Device, X>& run, bool last) {
    const Options& o = run.o;
    auto& gpt = run.gpt;
    run.ranks.at("saving a checkpoint", run.state.step);
    if (!run.ranks.first() && !gpt.sharded()) return;
    Whole<Device> weights = whole_weights(run), m(run, gpt.m, !gpt.sharded()), v(run, gpt.v, !gpt.sharded());
    if (!run.ranks.first()) return;
    try {
        const std::filesystem::path tokenizer_from = std::filesystem::is_directory(o.model) ? o.model : "";
        const auto path = save_checkpoint(o.out, gpt.net.config, gpt.net.tensors, weights.data(), m.data(), v.data(), run.state,
                                          run.data.tokenizer.get(), tokenizer_from);
        prune_checkpoints(o.out, o.keep_checkpoints);
        run.log.write({{"event", "checkpoint"}, {"step", run.state.step}, {"path", path.string()}});
        run.progress.say("checkpoint " + path.string());
    } catch (const Error& error) {
        if (last) throw;
        run.progress.say(text("no checkpoint at step %lld, earlier ones are as they were", static_cast<long long>(run.state.step)));
        std::cerr << "warning: " << error.what() << std::endl;
    }
}

/// Waits for all ranks, then writes the last line, the last record and the loss curve.
template <class Device, class X>
Exit finish(Run<Device, X>& run, bool stopped) {
    run.ranks.at("finishing", run.state.step);
    run.ranks.barrier();
    const Exit result = stopped ? Exit::signal : Exit::done;
    Whole<Device> weights = whole_weights(run);
    if (!run.ranks.first()) return result;
    const auto step = static_cast<long long>(run.state.step);
    if (stopped) {
        run.progress.say(text("stopped by a signal after step %lld; %s", step,
                              run.o.checkpoint_every ? "--resume goes on" : "nothing was saved, as --checkpoint-every is 0"));
        return result;
    }
    const std::string hash = text("%016llx", static_cast<unsigned long long>(weights_hash(run.gpt.net.tensors, weights.data())));
    const double seconds = run.since_start.seconds();
    run.log.write({{"event", "done"},
                   {"step", run.state.step},
                   {"loss", run.state.last_loss},
                   {"val_loss", run.validation.loss},
                   {"weights_hash", hash},
                   {"peak_bytes", int64_t(peak_memory(run.device))},
                   {"seconds", seconds}});
    if (run.o.plot) plot("plot_loss.py", run.o.out + "/log.jsonl", run.o.out + "/loss.png");
    if (run.o.plot && run.o.monitor_every) plot("plot_attention.py", run.o.out + "/log.jsonl", run.o.out + "/attention.png");
    const std::string validation = std::isnan(run.validation.loss) ? "" : text(", validation %.4f", run.validation.loss);
    run.progress.say(text("done: step %lld, loss %.4f%s, peak memory %s, %s, weights hash %s", step, run.state.last_loss,
                          validation.c_str(), human_bytes(double(peak_memory(run.device))).c_str(), human_seconds(seconds).c_str(),
                          hash.c_str()));
    return result;
}

/// The tables of a run that trains.
template <class Device, class X>
void print_training(const Run<Device, X>& run, int threads) {
    const Options& o = run.o;
    const Data& data = run.data;
    auto tokens_of = [](const TokenStream& stream) {
        return text("%llu tokens in %zu shards, %s", static_cast<unsigned long long>(stream.size()), stream.shards(),
                    stream.name().c_str());
    };
    print_table(
        "data",
        {{"training", tokens_of(*data.train)},
         {"validation", data.val ? tokens_of(*data.val) : "none"},
         {"tokenizer", data.tokenizer ? data.tokenizer->name() : "unknown: no samples, no bits per byte"},
         {"tokens per step", text("%lld = %d micro-steps x %d ranks x %d x %d", static_cast<long long>(data.tokens_per_step),
                                  data.micro_steps, run.ranks.size(), o.batch_size, o.seq_len)},
         {"steps",
          text("%lld, %lld of them warm-up", static_cast<long long>(data.steps), static_cast<long long>(data.warmup_steps))},
         {"passes over the data", text("%.3g", double(data.steps) * double(data.tokens_per_step) / double(data.train->size()))}});
    const AdamW& a = o.adamw;
    print_table(
        "training",
        {{"device", describe(run.device, threads)},
         {"precision", GPT<Device, X>::rounds ? "bf16, weights rounded to " + o.rounding : std::string("fp32")},
         {"ranks", text("%d, %d of them on this machine's %d processors", run.ranks.size(), run.ranks.local_size(), processors())},
         {"learning rate", text("%g, cosine to %g", a.lr, a.lr * o.min_lr_frac)},
         {"AdamW", text("beta1 %g, beta2 %g, eps %g, weight decay %g", a.beta1, a.beta2, a.eps, a.weight_decay)},
         {"gradient clip", text("%g", a.grad_clip)},
         {"seed", std::to_string(o.seed)},
         {"output", o.out}});
}

/// The tables at the start.
template <class Device, class X>
void print_set_up(const Run<Device, X>& run, int threads) {
    print_tensors(run.gpt.net.tensors);
    print_table("model", model_rows(run.gpt.net, run.flops));
    if (run.data.train) print_training(run, threads);
    print_memory(run.memory_plan());
    if (!run.gpt.net.all(&LayerFacts::is_causal))
        std::cout << "warning: outputs depend on LATER TOKENS here: every loss, and every choice among answers, is of a model\n"
                     "         that has seen some of the solution, and not to be compared with causal ones\n";
    std::fflush(stdout);
    warn(run.device);
}
