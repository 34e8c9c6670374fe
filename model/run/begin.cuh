// The beginning of a run: its printed tables, its weights, its output folder and the first record of its log.
#pragma once
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <set>

#include <omp.h>

#include "model/base/disk.h"
#include "model/base/hash.h"
#include "model/base/text.h"
#include "model/checkpoint/checkpoint.h"
#include "model/run/run.cuh"

void print_training(const AnyRun auto& run, int threads) {
    const Options& o = run.o;
    const Data& data = run.data;
    const double tokens = double(data.steps) * double(data.tokens_per_step);
    std::vector<std::pair<std::string, std::string>> rows = {
        {"training", tokens_of(*data.train)},
        {"validation", data.val ? tokens_of(*data.val) : "none"},
        {"tokenizer", data.tokenizer ? data.tokenizer->name() : "unknown: no samples, no bits per byte"},
        {"tokens per step", text("%lld = %d micro-steps x %d ranks x %d x %d", static_cast<long long>(data.tokens_per_step),
                                  data.micro_steps, run.ranks.size(), o.batch_size, o.seq_len)},
        {"steps",
          text("%lld, %lld of them warm-up", static_cast<long long>(data.steps), static_cast<long long>(data.schedule.warmup))},
        {"passes over the data", text("%.3g", tokens / double(data.train->size()))}};
    for (const auto& [stream, share] : data.train->sources())
        if (data.train->sources().size() > 1)
            rows.push_back({text("%.3g%% of the rows", 100 * share),
                            text("%.3g passes over the %llu tokens of %s", share * tokens / double(stream.size()),
                                 static_cast<unsigned long long>(stream.size()), stream.name().c_str())});
    print_table("data", rows);
    const AdamW& a = o.adamw;
    print_table(
        "training",
        {{"device", describe(run.device, threads)},
         {"precision", run.gpt.rounds ? "bf16, weights rounded to " + o.rounding : std::string("fp32")},
         {"ranks", text("%d, %d of them on this machine's %d processors", run.ranks.size(), run.ranks.local_size(), processors())},
         {"learning rate", text("%g at most, %s", data.schedule.peak, o.schedule.c_str())},
         {"optimiser", o.optimizer == "muon" ? "Muon for the layers' matrices, AdamW for the rest" : "AdamW"},
         {"AdamW", text("beta1 %g, beta2 %g, eps %g, weight decay %g", a.beta1, a.beta2, a.eps, a.weight_decay)},
         {"gradient clip", text("%g", a.grad_clip)},
         {"seed", std::to_string(o.seed)},
         {"output", o.out},
         {"curves", "python3 scripts/export_log.py '" + std::filesystem::absolute(o.out).string() +
                        "/log.jsonl' --to tensorboard --follow"}});
}

void print_setup(AnyRun auto& run, int threads) {
    print_tensors(run.gpt.net.tensors);
    print_table("model", model_rows(run.gpt.net, run.flops));
    if (!run.gpt.net.config.layers.empty()) print_table("each layer of a kind", kind_rows(run.gpt));
    if (run.data.train) print_training(run, threads);
    print_memory(run.memory_plan());
    if (!run.gpt.net.all(&LayerFacts::is_causal))
        std::cout << "warning: outputs depend on LATER TOKENS here: losses and multiple-choice scores come from a model that has\n"
                     "         seen part of the solution, and cannot be compared with those of causal models\n";
    std::fflush(stdout);
    warn(run.device);
}

/// Loads or initialises the weights and, if the run is resumed, this rank's shard of the moments; returns the run's state. Whole
/// tensors are staged in the gradients' memory, which so far holds only zero padding. Exit::checkpoint if a checkpoint lacks
/// tensors, Exit::usage if --seed differs from its seed.
template <class Device, class X>
TrainerState load_or_initialise(Device device, GPT<Device, X>& gpt, const Origin& origin, const Options& o, bool prints) {
    const TensorList& list = gpt.net.tensors;
    const std::vector<HeldSpan> owned = owned_spans(gpt.shards);
    HostView<Device> whole(device, gpt.gradients, list.size());
    auto take = [&](Wide<X>* to, const std::vector<HeldSpan>& storage) {
        whole.push();
        for (const HeldSpan& span : storage) convert(device, to + span.held, gpt.gradients + span.begin, span.end - span.begin);
    };
    TrainerState state;
    state.seed = o.seed;
    state.last_val_loss = NAN;
    const std::string folder = origin.folder() ? origin.folder()->string() : "";
    if (origin.resume_from && !prints)   // rank 0 has verified its files already; ranks may have their own folders
        for (const std::filesystem::path& name : {moments_file(folder).filename(), std::filesystem::path("trainer_state.json")})
            verify_file(folder, name);
    std::vector<std::string> initialised;
    if (origin.folder()) initialised = load_weights(folder, list, o.seed, whole.data());
    else initialise(list, o.seed, whole.data());
    const std::set<std::string> fresh(initialised.begin(), initialised.end());
    const auto is_fresh = [&](const std::string& name) { return !origin.folder() || fresh.contains(name); };
    start_sigma(gpt.net.sigma, gpt.net.sigma_names, whole.data(), is_fresh);
    if (gpt.keeps_master()) take(gpt.master, owned);
    else whole.push();
    convert(device, gpt.weights, gpt.gradients, gpt.shards.size());
    gpt.weights_loaded(device);
    if (prints && !initialised.empty())
        std::cout << folder << " lacks " << initialised.size()
                  << " tensors, initialised from the seed: " << initialised.front()
                  << (initialised.size() > 1 ? ", ...\n" : "\n");
    if (!origin.resume_from) return state;
    if (!initialised.empty())
        fail(Exit::checkpoint, folder, ": lacks ", initialised.front(),
             "; the run cannot be resumed from it; start from it with --model");
    state = load_state(folder, list, whole.data(), nullptr);
    take(gpt.m, owned);
    load_state(folder, list, nullptr, whole.data());
    take(gpt.v, gpt.second_moments());
    if (state.seed != o.seed)
        fail(Exit::usage, "--seed ", o.seed, " is not the ", state.seed, " that ", folder,
             " was trained with, so the data would come in another order; give --seed ", state.seed);
    return state;
}

/// A hash of the shards, training before validation: 16 hexadecimal digits.
inline std::string data_hash(const Data& data) {
    Hasher all;
    for (const auto* stream : {data.train.get(), data.val.get()}) {
        const std::string part = (stream ? stream->fingerprint() : "none") + "\n";
        all.add(part.data(), part.size());
    }
    return hexadecimal(all.digest());
}

/// Writes the first record of a log: the computation, the data, the program and the machine.
void log_config(AnyRun auto& run, const std::vector<JsonLines::Field>& more = {}) {
    std::vector<JsonLines::Field> fields = {{"event", "config"},
                                            {"step", run.state.step},
                                            {"variant", run.gpt.net.variant.name},
                                            {"parameters", int64_t(run.gpt.net.tensors.parameters())},
                                            {"flops_per_token", run.flops.per_token},
                                            {"optimizer", run.o.optimizer},
                                            {"ranks", int64_t(run.ranks.size())},
                                            {"machine", describe(run.device, omp_get_max_threads())},
                                            {"blas", describe_blas(run.device)},
                                            {"data_hash", data_hash(run.data)},
                                            {"options", run.o.resolved}};
    append(fields, of_program());
    if (!run.gpt.net.config.layers.empty()) fields.push_back({"layers", run.gpt.net.pattern});
    append(fields, more);
    fields.push_back({"model", RawJson{config_to_json_line(run.gpt.net.config)}});
    run.log.write(fields);
}

/// Exit::usage if this run would not have taken the same steps on the same rows as the checkpoint's.
void require_same_data(const AnyRun auto& run, const Origin& origin) {
    const TrainerState& state = run.state;
    if (state.step > run.data.steps)
        fail(Exit::usage, origin.resume_from->string(), ": has already taken ", state.step, " steps, more than --steps ", run.data.steps,
             "; raise --steps");
    const int64_t rows = state.step * (run.data.tokens_per_step / run.o.seq_len);
    if (state.data_rows != rows || state.tokens != state.step * run.data.tokens_per_step)
        fail(Exit::usage, origin.resume_from->string(), ": has read ", state.data_rows, " rows of data, ", state.tokens, " tokens, in ",
             state.step, " steps, but with these options it would have been ", rows, " rows, ", state.step * run.data.tokens_per_step,
             " tokens; resume with the same --seq-len and tokens per step (--total-batch-tokens, or --batch-size x --seq-len x ranks)");
    const std::string data = describe_data(*run.data.train, run.o.shuffle);
    if (origin.resume_from && state.train_data != data)
        fail(Exit::usage, run.data.train->name(), ": differs from the training data of ", origin.resume_from->string(),
             ", or from its order (", data, ", not ", state.train_data, "); give --train-data and --shuffle as before, or start from the "
             "checkpoint with --model and another --out");
}

/// Locks the output folder and writes the run's options and log. Renames files of another run.
void open_output(AnyRun auto& run, const Origin& origin) {
    const std::string& out = run.o.out;
    make_folders(out);
    if (!run.lock.is_open()) run.lock = lock_run(out);
    const int64_t resumed = origin.resume_from && is_of_run(*origin.resume_from, out) ? run.state.step : -1;
    if (const int later = set_later_ones_aside(out, resumed))   // at once: after an early end, --resume would continue from them
        std::cout << "note: " << out << ": moved " << later << (later > 1 ? " checkpoints" : " checkpoint")
                  << " into superseded/, which --resume ignores" << std::endl;
    remove_leftovers(out);   // afterwards: checkpoints set aside earlier may have to be moved back first
    const std::string options = out + "/options.toml";
    if (const std::string why = replace_file(options, run.o.resolved); !why.empty())
        fail(Exit::checkpoint, options, ": cannot be written (", why, ")");
    run.log.open(out + "/log.jsonl", resumed, run.state.last_loss);
    run.saved_step = std::max<int64_t>(0, resumed);
}

/// Allocates memory, loads weights, opens the output folder and writes the first record of the log (log_config()). Exit::usage if options
/// and checkpoint disagree, Exit::out_of_memory, Exit::checkpoint.
void begin(AnyRun auto& run, const Origin& origin) {
    const Options& o = run.o;
    const Variant& variant = run.gpt.net.variant;
    if (run.gpt.net.any(&LayerFacts::needs_known_text))
        fail(Exit::usage, variant.name, " with these settings reads tokens after a row, which only --evaluate, --show-mask and ./generate "
             "allow; to train, give ", variant.options_to_train);
    run.allocate();
    run.state = load_or_initialise(run.device, run.gpt, origin, o, run.ranks.first());
    const std::string changes = changes_of_schedule(o.resolved, run.state.options_json);
    if (run.ranks.first() && !changes.empty())
        std::cout << "note: from step " << run.state.step + 1 << " on with " << changes << " in place of the checkpoint's" << std::endl;
    if (const Schedule& s = run.data.schedule; run.ranks.first() && !changes.empty() && s.cooldown && run.state.step > s.steps - s.cooldown)
        std::cerr << "warning: the cool-down of --schedule wsd would have begun at step " << s.steps - s.cooldown + 1
                  << ": the learning rate falls at once; for one that begins here, give --cooldown-frac "
                  << double(s.steps - run.state.step) / double(s.steps) << std::endl;
    fill(run.device, run.gpt.gradients, run.gpt.net.tensors.size(), 0.0f);   // gradients that no backward pass writes stay zero
    run.validation.loss = run.state.last_val_loss;
    require_same_data(run, origin);
    run.state.train_data = describe_data(*run.data.train, run.o.shuffle);
    const std::string folder = origin.folder() ? origin.folder()->string() : "";
    ReplicaCheck(run.device, run.gpt).require_equal_start(run.device, run.ranks, folder);   // in every run
    if (o.check_ranks_every) run.replicas.emplace(run.device, run.gpt), run.replicas->remember_update(run.device);
    if (run.ranks.size() > 1 && (run.replicas || run.gpt.net.tensors.has(Role::muon))) find_unlike_ranks(run);
    run.ranks.at("opening the output folder", run.state.step);
    run.ranks.barrier();   // all ranks have read the files that may be renamed now
    run.ranks.first_does("opening the output folder", run.state.step, [&] {
        open_output(run, origin);
        log_config(run, changes.empty() ? std::vector<JsonLines::Field>() : std::vector<JsonLines::Field>{{"changed", changes}});
    });
}
